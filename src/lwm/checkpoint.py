"""Checkpoints: atomic, checksummed, and free of code.

A checkpoint is a directory of three files::

    step-000123456/
      arrays.safetensors   every array of the state, named by its place ("dqn/gru/weight")
      state.json           every other value, and where the arrays belong
      manifest.json        format version, size and SHA-256 of the two files above; written last

It is written as ``<name>.tmp-<pid>/``, synced, and renamed, so a directory with its final name is a
whole one.  Loading executes nothing: no pickle, only JSON and raw numbers, with bounds on both.

A checkpoint can refer to blocks of replay rows, files in ``rows/`` beside it that it shares with
others (see ``blocks``); their sizes and sums are in state.json under ``_blocks``.  A block is
removed when no checkpoint that is left refers to it.

A *state* is a tree of dicts with string keys and lists, whose leaves are numpy arrays, int (of any
size), float, str, bool or None.  All come back equal, arrays with dtype and shape.  Two
conveniences are not symmetric: a tuple comes back as a list, a numpy scalar as the Python number.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import IO, Any

import numpy as np

from lwm import blocks as row_blocks
from lwm import files
from lwm.blocks import Block
from lwm.codec import (
    CHUNK_BYTES,
    MAX_JSON_BYTES,
    claimed_bytes,
    decode,
    encode,
    read_safetensors,
    safetensors_chunks,
)
from lwm.errors import BadInput, CheckpointError, RunFailed, reason
from lwm.machine import available_bytes

FORMAT = 1
ARRAYS, STATE, MANIFEST = "arrays.safetensors", "state.json", "manifest.json"
MAX_MANIFEST_BYTES = 4096
BLOCKS = "_blocks"
"""The key of a state that names its blocks of rows; absent where there are none."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")
_STEP = re.compile(r"step-([0-9]{1,18})(\.old-[0-9]+)?")
_TEMPORARY = re.compile(r"(.+?)(?:\.old-[0-9]+)?\.tmp-([0-9]{1,18})")


def save(
    directory: Path, name: str, state: dict[str, Any], keep: int = 2, blocks: Sequence[Block] = ()
) -> Path:
    """Write ``state`` as ``directory/name`` and return that path.

    ``blocks`` are those of its rows, written before into ``rows_directory(directory)``.
    If ``name`` is ``step-<number>``, checkpoints with a lower number are removed but for the newest
    ``keep - 1``.  On any failure the earlier checkpoints stay as they were.
    """
    if not _NAME.fullmatch(name) or keep < 1:
        raise CheckpointError(f"cannot save a checkpoint named {name!r} with keep={keep}")
    directory = Path(directory)
    target = directory / name
    temporary = directory / f"{name}.tmp-{os.getpid()}"
    if BLOCKS in state:
        raise CheckpointError(f"the key {BLOCKS!r} of a state is reserved")
    arrays, text = encode({**state, BLOCKS: row_blocks.to_json(blocks)} if blocks else state)
    try:
        files.make_directory(directory)
        _rmtree(temporary)
        temporary.mkdir()
        _fill(temporary, arrays, text)
        _install(temporary, target)
    except OSError as error:
        _rmtree(temporary)
        raise RunFailed(f"cannot write checkpoint {target}: {reason(error)}") from error
    except BaseException:
        _rmtree(temporary)
        raise
    _prune(directory, name, keep)
    return target


def save_alone(target: Path, state: dict[str, Any]) -> None:
    """Write ``state`` as ``target``, of any name, in the place of what had that name.

    Nothing beside it is touched: no other checkpoint, no leftovers.  On any failure what was there
    stays.  Should the process die between the two renames, both are whole in ``.<name>-...``.
    """
    target = Path(target)
    arrays, text = encode(state)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(mkdtemp(prefix=f".{target.name[:100]}-", dir=target.parent))
    except OSError as error:
        raise RunFailed(f"cannot write {target}: {reason(error)}") from error
    new, old = folder / "new", folder / "old"
    try:
        new.mkdir()
        _fill(new, arrays, text)
        _install(new, target, old)
    except OSError as error:
        raise RunFailed(f"cannot write {target}: {reason(error)}") from error
    finally:
        if os.path.lexists(old) and not os.path.lexists(target):  # interrupted in between
            with suppress(OSError):
                os.rename(old, target)
        if os.path.lexists(target) or not os.path.lexists(old):
            _rmtree(folder)


def _fill(folder: Path, arrays: dict[str, np.ndarray], text: bytes) -> None:
    """Write the three files of a checkpoint."""
    written = {
        ARRAYS: files.write_file(folder / ARRAYS, safetensors_chunks(arrays)),
        STATE: files.write_file(folder / STATE, [text]),
    }
    files.write_file(folder / MANIFEST, [_manifest(written)])
    files.sync_directory(folder)


def rows_directory(directory: Path) -> Path:
    """Where the blocks of rows of the checkpoints in ``directory`` are; BadInput if it is a link
    or no directory."""
    rows = Path(directory) / "rows"
    files.is_directory(rows)
    return rows


def load(path: Path, part: str | None = None) -> dict[str, Any]:
    """The state saved at ``path``; a CheckpointError names the file that is not as written.

    Its blocks of rows, under the key ``BLOCKS`` if there are any, are checked but not read.
    ``part``: of the arrays only those below this key, the others are None; blocks do not matter.
    """
    path = Path(path)
    try:
        state = _load(path, part)
    except OSError as error:
        raise CheckpointError(f"cannot read checkpoint {path}: {reason(error)}") from error
    if part is not None:
        state.pop(BLOCKS, None)
    elif BLOCKS in state:
        state[BLOCKS] = _check_blocks(path, state[BLOCKS])
    return state


def latest(
    directory: Path,
    warn: Callable[[str], None] | None = None,
    part: str | None = None,
    check: Callable[[Path, dict[str, Any]], None] | None = None,
) -> tuple[Path, dict[str, Any]] | None:
    """The good ``step-<number>`` checkpoint with the highest number, or None if there is none yet.

    A damaged one is reported through ``warn`` (``warnings.warn`` if not given) and the one before
    it used.  Where there are checkpoints and none is good, that is a CheckpointError.
    ``check``: raises a CheckpointError for one that is whole and yet does not belong here.
    """
    tell = warn if warn is not None else lambda text: warnings.warn(text, stacklevel=3)
    tried: set[Path] = set()
    while True:
        # Listed afresh each time: a live writer may remove old checkpoints while we read.
        present = [path for _, path in reversed(_numbered(Path(directory)))]
        waiting = [path for path in present if path not in tried]
        if not waiting:
            break
        tried.add(waiting[0])
        try:
            state = load(waiting[0], part)
            if check is not None:
                check(waiting[0], state)
            return waiting[0], state
        except CheckpointError as error:
            if waiting[0].exists() or waiting[0].is_symlink():
                tell(f"{error}; trying the checkpoint before it")
    if present:
        raise CheckpointError(f"no good checkpoint among the {len(present)} in {directory}")
    return None


def newest_bytes(directory: Path) -> int:
    """Bytes of the files of the newest checkpoint, 0 if there is none."""
    present = _directories(Path(directory))
    return sum(file.lstat().st_size for file in present[-1][1].iterdir()) if present else 0


def _rmtree(path: Path) -> None:
    """Remove a directory or file as far as possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _install(temporary: Path, target: Path, aside: Path | None = None) -> None:
    """Give the finished directory its name; one that has the name already steps aside first."""
    aside = aside or target.with_name(f"{target.name}.old-{os.getpid()}")
    replaced = os.path.lexists(target)
    if replaced:
        files.rename(target, aside)
    try:
        files.rename(temporary, target)
    except OSError:
        if replaced:
            os.rename(aside, target)
        raise
    files.sync_directory(target.parent)


def _prune(directory: Path, name: str, keep: int) -> None:
    """Remove what ``name`` makes superfluous; failing to is no failure of the checkpoint."""
    match = _STEP.fullmatch(name)
    try:
        if match:
            older = [path for number, path in _directories(directory) if number < int(match[1])]
            for path in older[: max(0, len(older) - (keep - 1))]:
                _discard(path)
        for entry in os.listdir(directory):
            owner = _TEMPORARY.fullmatch(entry)
            if owner and _is_ours(owner[1], name) and _is_stale(int(owner[2])):
                _rmtree(directory / entry)
            elif entry.startswith(f"{name}.old-"):
                _discard(directory / entry)
        named = [block for _, path in _directories(directory) for block in _named_blocks(path)]
        row_blocks.prune(rows_directory(directory), named)
    except (OSError, BadInput):
        pass


def _discard(path: Path) -> None:
    """Remove a checkpoint; renamed first, so that it is never seen half removed."""
    doomed = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    files.rename(path, doomed)
    _rmtree(doomed)


def _is_ours(stem: str, name: str) -> bool:
    """Whether a temporary directory is of ``name`` or of a numbered checkpoint: others stay."""
    return stem == name or _STEP.fullmatch(stem) is not None


def _is_stale(pid: int) -> bool:
    """Whether a temporary directory of process ``pid`` is a leftover; our own is, between saves."""
    if pid == os.getpid():
        return True
    try:
        os.kill(pid, 0)
    except PermissionError:
        return False
    except (OSError, OverflowError):
        return True
    return False


def _numbered(directory: Path) -> list[tuple[int, Path]]:
    """Checkpoints by rising number.  One that stepped aside for a replacement which never arrived
    counts too, below the real one of its number."""
    try:
        entries = os.listdir(directory)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"cannot read {directory}: {reason(error)}") from error
    found = [(m, entry) for entry in entries if (m := _STEP.fullmatch(entry))]
    found.sort(key=lambda item: (int(item[0][1]), item[0][2] is None, item[1]))
    return [(int(m[1]), directory / entry) for m, entry in found]


def _directories(directory: Path) -> list[tuple[int, Path]]:
    """Those of ``_numbered`` that can be checkpoints: files of such a name are left out."""
    return [found for found in _numbered(directory) if stat.S_ISDIR(os.lstat(found[1]).st_mode)]


def _manifest(files: dict[str, Any]) -> bytes:
    document = {"files": files, "format": FORMAT}
    return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()


def _load(path: Path, part: str | None) -> dict[str, Any]:
    """Check everything that can be checked without trusting the content, then read it."""
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        raise CheckpointError(f"{path} is not a checkpoint directory")
    names = set(os.listdir(path))
    for name in (MANIFEST, ARRAYS, STATE):
        if name not in names:
            raise CheckpointError(f"damaged checkpoint: {path / name} is missing")
    if extra := sorted(names - {MANIFEST, ARRAYS, STATE}):
        raise CheckpointError(f"damaged checkpoint: {path / extra[0]} does not belong there")
    listed = _read_manifest(path / MANIFEST)
    text = _read_checked(path / STATE, listed[STATE], MAX_JSON_BYTES)
    _check_memory(path / ARRAYS, listed[ARRAYS][0], part)
    _read_checked(path / ARRAYS, listed[ARRAYS], None)
    return decode(path / STATE, text, read_safetensors(path / ARRAYS, part), part)


def _check_memory(path: Path, size: int, part: str | None) -> None:
    """Refuse arrays (a file of ``size`` bytes) that do not fit into memory, before any is read.

    Twice: whoever asks for them has room for the same numbers.
    """
    _open_regular(path).close()
    need = 2 * (size if part is None else claimed_bytes(path, part))
    have = available_bytes()
    if have is not None and need > have:
        raise CheckpointError(f"{path} needs {need} bytes of memory, {have} can be had")


def _check_blocks(path: Path, value: Any) -> list[Block]:
    """The blocks that the checkpoint ``path`` names, each there and as written."""
    try:
        blocks = row_blocks.from_json(value)
    except ValueError as error:
        raise CheckpointError(f"{path / STATE} is not a valid state: {error}") from error
    for block in blocks:
        file = rows_directory(path.parent) / block.name
        try:
            _read_checked(file, (block.size, block.sha256), None)
        except OSError as error:
            raise CheckpointError(f"damaged checkpoint: {file}: {reason(error)}") from error
    return blocks


def _named_blocks(path: Path) -> list[Block]:
    """The blocks that the checkpoint ``path`` names; one that cannot be loaded names none."""
    try:
        listed = _read_manifest(path / MANIFEST)
        document = json.loads(_read_checked(path / STATE, listed[STATE], MAX_JSON_BYTES))
        return row_blocks.from_json(document["values"].get(BLOCKS, []))
    except (CheckpointError, FileNotFoundError, NotADirectoryError):
        return []
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return []  # right sums around a foreign content


def _open_regular(path: Path) -> IO[bytes]:
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise CheckpointError(f"damaged checkpoint: {path} is not a regular file")
    return open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")


def _read_manifest(path: Path) -> dict[str, Any]:
    with _open_regular(path) as file:
        raw = file.read(MAX_MANIFEST_BYTES + 1)
    try:
        if len(raw) > MAX_MANIFEST_BYTES:
            raise ValueError("too long")
        document = json.loads(raw)
        version, files = document["format"], document["files"]
        if isinstance(version, int) and version != FORMAT:
            raise CheckpointError(f"{path} has format {version}; this lwm reads format {FORMAT}")
        entries = {name: (files[name]["size"], files[name]["sha256"]) for name in (ARRAYS, STATE)}
        # Compared as bytes, so that no change of the manifest goes unseen, not even a blank.
        if raw != _manifest({n: {"sha256": s, "size": z} for n, (z, s) in entries.items()}):
            raise ValueError("not as written")
        if not all(type(z) is int and type(s) is str for z, s in entries.values()):
            raise ValueError("wrong types")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"damaged checkpoint: {path} is not a valid manifest") from error
    return entries


def _read_checked(path: Path, entry: tuple[int, str], limit: int | None) -> bytes:
    """Compare a file with its manifest entry; return its content if it has a ``limit`` in bytes."""
    size, expected = entry
    with _open_regular(path) as file:
        actual = os.fstat(file.fileno()).st_size
        if actual != size:
            raise CheckpointError(
                f"damaged checkpoint: {path} has {actual} bytes, it was written with {size}"
            )
        if limit is not None and size > limit:
            raise CheckpointError(f"{path} has {size} bytes, more than the {limit} allowed")
        digest, kept = hashlib.sha256(), []
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            if limit is not None:
                kept.append(chunk)
    if digest.hexdigest() != expected:
        raise CheckpointError(f"damaged checkpoint: {path} does not match its checksum")
    return b"".join(kept)
