"""Hostile files in their places.

All sums are right where there are sums: what is tested is what lies behind them.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import random
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from faults.common import Options, trained
from lwm import blocks, checkpoint, codec, episodes, files, runs, sealed
from lwm.blocks import Block
from lwm.config import load_preset, to_dict
from lwm.writing import RunWriter


class Bomb:
    """Pickled, it makes a file when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.mark),))


def blobs(mark: Path) -> Iterator[tuple[str, bytes]]:
    """Contents that no reader should take for its own."""
    evil = pickle.dumps(Bomb(mark))
    yield "pickle", evil
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", evil)  # as torch.save writes
        archive.writestr("../../escaped", "x")
        archive.writestr("zeros", bytes(50 << 20))
    yield "zip bomb", zipped.getvalue()
    array = io.BytesIO()
    np.save(array, np.array([Bomb(mark)], object), allow_pickle=True)
    yield "npy of objects", array.getvalue()
    yield "huge header", struct.pack("<Q", 1 << 40) + b"{}"
    yield "header of 99 MB", struct.pack("<Q", 99 << 20) + b" " * (1 << 20)
    yield "zstd bomb", zstandard.compress(bytes(600 << 20), 1)
    yield "deep JSON", b'{"a":' * 200_000
    yield "long number", b'{"format": ' + b"9" * 100_000 + b"}"
    yield "nothing", b""
    yield "python", b"__import__('os').mkdir(" + repr(str(mark)).encode() + b")"
    yield "yaml", b"!!python/object/apply:os.mkdir [" + repr(str(mark)).encode() + b"]"


@dataclass(frozen=True)
class Case:
    """A hostile file in its place, and the command that meets it."""

    name: str
    arguments: list[str]
    harmless: bool = False
    """The command does not read that file: it may do its work."""


def given_as_file(o: Options, mark: Path) -> Iterator[Case]:
    """Each content in each place."""
    source = o.where / "source"
    for number, (name, data) in enumerate(blobs(mark)):
        file = o.where / f"blob-{number}"
        file.write_bytes(data)
        yield Case(f"{name} as trajectory", ["reproduce", "figure3", "--trajectory", str(file)])
        for target in ("config.json", "status.json", "metrics.jsonl", sealed.STATE,
                       sealed.ARRAYS, sealed.MANIFEST):  # fmt: skip
            path = o.where / f"run-{number}-{target}"
            shutil.copytree(source, path)
            _replace(path, target, data)
            yield Case(f"{name} as {target}", ["train", "--resume", str(path), "--quiet"])
    for target in ("config.json", "metrics.jsonl", "checkpoints", sealed.STATE):
        for kind, point in {"link": "/dev/zero", "link out": str(o.where / "precious")}.items():
            path = o.where / f"link-{kind}-{target}"
            shutil.copytree(source, path)
            _replace(path, target, None, point)
            yield Case(f"{kind} as {target}", ["train", "--resume", str(path), "--quiet"])
        path = o.where / f"pipe-{target}"
        shutil.copytree(source, path)
        _replace(path, target, None)
        unread = target == "metrics.jsonl"  # weights are scored without their log
        yield Case(f"pipe as {target}", ["evaluate", str(path)], unread)


def given_as_directory(o: Options) -> Iterator[Case]:
    """Links to somebody's directory, a file and a pipe in the place of a run's directories."""
    for target in ("checkpoints", "checkpoints/rows", "episodes"):
        for kind in ("link", "dangling link", "file", "pipe"):
            path = o.where / f"as-{kind}-{target.replace('/', '-')}"
            shutil.copytree(o.where / "source", path)
            place = path / target
            shutil.rmtree(place, ignore_errors=True)
            if kind == "file":
                place.write_text("")
            elif kind == "pipe":
                os.mkfifo(place)
            else:
                place.symlink_to(o.where / ("elsewhere" if kind == "link" else "nowhere"))
            arguments = ["train", "--resume", str(path), "--quiet"]
            if target == "episodes":
                arguments = ["evaluate", str(path), "--episodes", "2", "--record", "1"]
            yield Case(f"{kind} as {target}", arguments)


def given_as_import(o: Options) -> Iterator[Case]:
    """Runs whose config names a module, which could be imported."""
    config = to_dict(load_preset("debug", {"gym.env": "hostile_module:X-v0"}, "gym"))
    path = o.where / "import"
    RunWriter.create(path, config, {}).close()
    yield Case("module as gym.env, resumed", ["train", "--resume", str(path), "--quiet"])
    yield Case("module as gym.env, scored", ["evaluate", str(path)])


def given_as_size(o: Options) -> Iterator[Case]:
    """Arrays that take next to nothing on the disk and would take all memory."""
    for name, size in {"1 TB": 1 << 40, "2 GB": 2 << 30}.items():
        path = o.where / f"sparse-{name[0]}"
        shutil.copytree(o.where / "source", path)
        header = {"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
        text = json.dumps(header).encode()
        blob = len(text).to_bytes(8, "little") + text
        digest = hashlib.sha256(blob)
        if size < 1 << 32:  # nobody waits for the sum of the larger one
            for _ in range(size >> 24):
                digest.update(bytes(1 << 24))
        for folder in (path / "checkpoints").glob("step-*"):
            (folder / sealed.ARRAYS).write_bytes(blob)
            os.truncate(folder / sealed.ARRAYS, len(blob) + size)
            document = json.loads((folder / sealed.MANIFEST).read_text())
            sums = {"sha256": digest.hexdigest(), "size": len(blob) + size}
            document["files"][sealed.ARRAYS] = sums
            manifest = sealed.manifest(document["files"])
            (folder / sealed.MANIFEST).write_bytes(manifest)
        yield Case(f"arrays of {name}", ["train", "--resume", str(path), "--quiet"])


def given_as_rows(o: Options, mark: Path) -> Iterator[Case]:
    """Each content as a block of replay rows of an Atari run, with right sums."""
    source = trained("atari", o.where / "atari-source")
    (source / "status.json").unlink()
    saved = runs.load_checkpoint(source)
    for number, (name, data) in enumerate((*blobs(mark), *row_bombs())):
        path = o.where / f"rows-{number}"
        shutil.copytree(source, path)
        folder = path / "checkpoints"
        state = checkpoint.load(folder / saved.path.name)
        named = list(state.pop(checkpoint.BLOCKS))
        old = named[number % len(named)]
        forged = Block(old.first, old.stop, len(data), hashlib.sha256(data).hexdigest())
        (checkpoint.rows_directory(folder) / forged.name).write_bytes(data)
        named[number % len(named)] = forged
        for other in folder.glob("step-*"):
            shutil.rmtree(other)
        checkpoint.save(folder, saved.path.name, state, blocks=named)
        yield Case(f"{name} as rows", ["train", "--resume", str(path), "--quiet"])


def row_bombs() -> Iterator[tuple[str, bytes]]:
    """Blocks with a right header: one is all that is allowed, one says less than it unpacks to."""
    most = blocks.MAX_BYTES
    for name, told, real in (("1 GB of zeros", most, most), ("a lie", 1 << 20, 1 << 29)):
        packer = zstandard.ZstdCompressor(level=1).compressobj(size=real)
        parts = [packer.compress(bytes(1 << 20)) for _ in range(real >> 20)]
        frame = b"".join([*parts, packer.flush()])
        fields = [["obs", "uint8", [64, 1, told // 64]]]
        header = {"fields": fields, "lengths": [len(frame)]}
        text = blocks._MAGIC + json.dumps(header).encode()
        yield name, struct.pack("<II", blocks._SKIPPABLE, len(text)) + text + frame


def _replace(run: Path, name: str, data: bytes | None, link: str = "") -> None:
    """Put something else in a file's place, with right sums where there are any."""
    inside = name in (sealed.STATE, sealed.ARRAYS, sealed.MANIFEST)
    for folder in sorted((run / "checkpoints").glob("step-*")) if inside else [run]:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        if data is not None:
            path.write_bytes(data)
        elif link:
            path.symlink_to(link)
        else:
            os.mkfifo(path)
        if inside and data is not None and name != sealed.MANIFEST:
            (folder / sealed.MANIFEST).unlink()
            sums = {}
            for part in (sealed.ARRAYS, sealed.STATE):
                content = (folder / part).read_bytes()
                (folder / part).unlink()
                sums[part] = files.write_file(folder / part, [content])
            (folder / sealed.MANIFEST).write_bytes(sealed.manifest(sums))


def forged_episodes(o: Options, mark: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Contents behind a right sum, as an episode."""
    for number, (name, data) in enumerate(blobs(mark)):
        for packed in (True, False):
            frame = zstandard.compress(data) if packed else data
            prefix = episodes._SKIPPABLE + episodes._MAGIC
            path = o.where / f"episode-{number}-{packed}"
            path.write_bytes(prefix + hashlib.sha256(frame).digest() + frame)
            yield f"{name} as episode", lambda p=path: episodes.read_episode(p)  # type: ignore[misc]
    link = o.where / "episode-link"
    link.symlink_to("/dev/zero")
    yield "link as episode", lambda: episodes.read_episode(link)


ODD: tuple[Any, ...] = (
    None, -1, 2**70, 1e308, float("nan"), float("inf"), "", "x" * 100, [], {}, [[]], True,
    {"a": {}}, np.zeros(0), np.zeros((2, 3, 4)), np.full(3, np.nan), np.array(7, np.uint64),
)  # fmt: skip


def leaves(tree: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where everything of a tree is."""
    if place:
        yield place
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(
        tree, list) else ()  # fmt: skip
    for key, child in items:
        yield from leaves(child, (*place, key))


def forged_state(rng: random.Random, source: Path, path: Path) -> str:
    """A run whose checkpoint has something odd in one place of its tree, with right sums."""
    shutil.copytree(source, path)
    folder = path / "checkpoints"
    newest = sorted(folder.glob("step-*"))[-1]
    state = checkpoint.load(newest)
    place = rng.choice(list(leaves(state)))
    node = state
    for key in place[:-1]:
        node = node[key]
    odd = rng.choice(ODD)
    if isinstance(node, dict) and rng.random() < 0.2:
        del node[place[-1]]
    else:
        node[place[-1]] = odd
    for old in folder.glob("step-*"):
        shutil.rmtree(old)
    codec.encode(state)
    checkpoint.save(folder, newest.name, state)
    return f"{'/'.join(map(str, place))} = {str(odd)[:40]}"


def elsewhere(path: Path) -> Path:
    """Make somebody's directory, in which things look like leftovers of ours."""
    (path / "thesis.tmp-999999").mkdir(parents=True)
    (path / "step-000000001.tmp-999999").mkdir()
    for name in ("rows-000000000-000000064-0123456789abcdef.zst", ".rows-1.tmp-1", "notes.txt"):
        (path / name).write_text("precious\n")
    return path
