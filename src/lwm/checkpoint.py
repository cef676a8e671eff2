"""Checkpoints: atomic, numbered, and no more of them than are kept.

A checkpoint is a directory of three files, checksummed and free of code (see ``sealed``)::

    step-000123456/
      arrays.safetensors
      state.json
      manifest.json

It is written as ``<name>.tmp-<pid>/``, synced, and renamed, so a directory with its final name is a
whole one.

A checkpoint can refer to blocks of replay rows, files in ``rows/`` beside it that it shares with
others (see ``blocks``); their sizes and sums are in state.json under ``_blocks``.  A block is
removed when no checkpoint that is left refers to it.

A *state* is a tree of dicts with string keys and lists, whose leaves are numpy arrays, int (of any
size), float, str, bool or None.  All come back equal, arrays with dtype and shape.  Two
conveniences are not symmetric: a tuple comes back as a list, a numpy scalar as the Python number.
"""

from __future__ import annotations

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
from typing import Any

from lwm import blocks as row_blocks
from lwm import files, sealed
from lwm.blocks import Block
from lwm.codec import encode
from lwm.errors import BadInput, CheckpointError, RunFailed, reason

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
        sealed.fill(temporary, arrays, text)
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
        sealed.fill(new, arrays, text)
        _install(new, target, old)
    except OSError as error:
        raise RunFailed(f"cannot write {target}: {reason(error)}") from error
    finally:
        if os.path.lexists(old) and not os.path.lexists(target):  # interrupted in between
            with suppress(OSError):
                os.rename(old, target)
        if os.path.lexists(target) or not os.path.lexists(old):
            _rmtree(folder)


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
        state = sealed.load(path, part)
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


def _check_blocks(path: Path, value: Any) -> list[Block]:
    """The blocks that the checkpoint ``path`` names, each there and as written."""
    try:
        blocks = row_blocks.from_json(value)
    except ValueError as error:
        raise CheckpointError(f"{path / sealed.STATE} is not a valid state: {error}") from error
    for block in blocks:
        file = rows_directory(path.parent) / block.name
        try:
            sealed.read_checked(file, (block.size, block.sha256), None)
        except OSError as error:
            raise CheckpointError(f"damaged checkpoint: {file}: {reason(error)}") from error
    return blocks


def _named_blocks(path: Path) -> list[Block]:
    """The blocks that the checkpoint ``path`` names; one that cannot be loaded names none."""
    try:
        document = json.loads(sealed.read_state(path))
        return row_blocks.from_json(document["values"].get(BLOCKS, []))
    except (CheckpointError, FileNotFoundError, NotADirectoryError):
        return []
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return []  # right sums around a foreign content
