"""Hostile files, given as a checkpoint, a config, a trajectory, an episode or a log.

All sums are right where there are sums: what is tested is what lies behind them.  No file may have
code run, memory taken beyond a bound, or anything outside its directory touched.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import random
import resource
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from faults.common import Options, Tally, call, trained
from lwm import checkpoint, codec, episodes, files, runs

MEMORY = 3 << 30
"""Bytes of address space that a child may take: torch alone takes most of one."""


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


def given_as_file(o: Options, mark: Path) -> Iterator[tuple[str, list[str]]]:
    """Each content in each place: (name, arguments of lwm)."""
    source = trained("labyrinth", o.where / "source")
    (source / "status.json").unlink()
    for number, (name, data) in enumerate(blobs(mark)):
        file = o.where / f"blob-{number}"
        file.write_bytes(data)
        yield f"{name} as trajectory", ["reproduce", "figure3", "--trajectory", str(file)]
        for target in ("config.json", "status.json", "metrics.jsonl", checkpoint.STATE,
                       checkpoint.ARRAYS, checkpoint.MANIFEST):  # fmt: skip
            path = o.where / f"run-{number}-{target}"
            shutil.copytree(source, path)
            _replace(path, target, data)
            yield f"{name} as {target}", ["train", "--resume", str(path), "--quiet"]
    for target in ("config.json", "metrics.jsonl", "checkpoints", checkpoint.STATE):
        for kind, point in {"link": "/dev/zero", "link out": str(o.where / "precious")}.items():
            path = o.where / f"link-{kind}-{target}"
            shutil.copytree(source, path)
            _replace(path, target, None, point)
            yield f"{kind} as {target}", ["train", "--resume", str(path), "--quiet"]
        path = o.where / f"pipe-{target}"
        shutil.copytree(source, path)
        _replace(path, target, None)
        yield f"pipe as {target}", ["evaluate", str(path)]


def _replace(run: Path, name: str, data: bytes | None, link: str = "") -> None:
    """Put something else in a file's place, with right sums where there are any."""
    inside = name in (checkpoint.STATE, checkpoint.ARRAYS, checkpoint.MANIFEST)
    for folder in sorted((run / "checkpoints").glob("step-*")) if inside else [run]:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        if data is not None:
            path.write_bytes(data)
        elif link:
            path.symlink_to(link)
        else:
            os.mkfifo(path)
        if inside and data is not None and name != checkpoint.MANIFEST:
            (folder / checkpoint.MANIFEST).unlink()
            sums = {}
            for part in (checkpoint.ARRAYS, checkpoint.STATE):
                content = (folder / part).read_bytes()
                (folder / part).unlink()
                sums[part] = files.write_file(folder / part, [content])
            (folder / checkpoint.MANIFEST).write_bytes(checkpoint._manifest(sums))


def bounded() -> None:
    """A child may take so much memory and no more."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


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


def hostile(o: Options) -> Tally:
    """Refused with one line (or, where the content is harmless, used); nothing ran or escaped."""
    tally, rng = Tally("hostile files"), o.random("hostile")
    mark, precious = o.where / "code-ran", o.where / "precious"
    precious.write_text("precious\n")
    cases = list(given_as_file(o, mark))
    for name, arguments in rng.sample(cases, min(len(cases), o.count(3, 15, len(cases)))):
        ended = call(arguments, o.where / "hostile.log", bounded).wait(60)
        words = [line for line in ended.text.splitlines() if not line.startswith("lwm: warning")]
        quiet = "Traceback" not in ended.text and not ended.hung and len(words) <= 3
        held = quiet and ended.code in (0, 1, 2) and (ended.code == 0 or "lwm: " in ended.text)
        tally.count(held, f"{name}: exit code {ended.code}: {ended.text[-300:]}")
    for name, read in forged_episodes(o, mark):
        try:
            read()
            tally.count(False, f"{name} was read")
        except files.BadInput:
            tally.count(True, name)
        except Exception as error:
            tally.count(False, f"{name}: {type(error).__name__}: {error}")
    source = o.where / "source"
    for number in range(o.count(4, 20, 150)):
        path = o.where / f"forged-{number}"
        what = forged_state(rng, source, path)
        ended = call(["train", "--resume", str(path), "--quiet"], o.where / "forged.log").wait(120)
        held = not ended.hung and "Traceback" not in ended.text and ended.code in (0, 1, 2)
        tally.count(held, f"{what}: exit code {ended.code}: {ended.text[-300:]}")
        shutil.rmtree(path)
    safe = not mark.exists() and precious.read_text() == "precious\n"
    tally.count(safe, "code ran, or a file outside was touched")
    tally.detail = f"refused with one line within {MEMORY >> 30} GB; no code ran"
    assert runs.is_run(source)
    return tally
