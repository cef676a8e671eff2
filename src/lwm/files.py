"""Files that survive crashes and full disks: atomic replacement, logs of whole rows, locks, JSON.

``write``, ``fsync`` and ``rename`` are the only ways anything durable reaches the disk.  They are
the seams where tests cut: each call may fail, or be the last thing the process does.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import math
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from lwm.errors import BadInput, RunFailed, RunInUse, reason

MAX_ROW_BYTES = 1 << 20
_open_locks: set[int] = set()


def write(descriptor: int, data: bytes | memoryview) -> int:
    """Write some of ``data``; return how many bytes."""
    return os.write(descriptor, data)


def fsync(descriptor: int) -> None:
    """Make a file durable, or the names in a directory."""
    os.fsync(descriptor)


def rename(source: Path, target: Path) -> None:
    """Atomically give ``source`` the name ``target``."""
    os.rename(source, target)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of ``data``."""
    view = memoryview(data)
    while view:
        view = view[write(descriptor, view) :]


def write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> dict[str, Any]:
    """Write a new file durably; return its ``size`` in bytes and ``sha256``."""
    digest, size = hashlib.sha256(), 0
    with open(path, "xb", buffering=0) as file:
        for chunk in chunks:
            write_all(file.fileno(), chunk)
            digest.update(chunk)
            size += len(chunk)
        fsync(file.fileno())
    return {"sha256": digest.hexdigest(), "size": size}


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """Make a directory, and those above it that are missing; their names are durable."""
    missing = [path]
    while not missing[-1].parent.exists() and missing[-1] != missing[-1].parent:
        missing.append(missing[-1].parent)
    for made in reversed(missing):
        new = not made.is_dir()
        made.mkdir(exist_ok=True)
        if new:
            sync_directory(made.parent)


def is_directory(path: Path) -> bool:
    """Whether a directory is there; False if nothing is, BadInput if anything else.

    A link is something else: whoever gave us a run could have files anywhere read, or removed.
    """
    try:
        found = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    except OSError as error:
        raise BadInput(f"cannot read {path}: {reason(error)}") from error
    if not stat.S_ISDIR(found):
        what = "a link, which is not followed" if stat.S_ISLNK(found) else "not a directory"
        raise BadInput(f"{path} is {what}")
    return True


def replace_between(path: Path, begin: str, end: str, text: str) -> bool:
    """Replace what stands between two marks in the file ``path``; False if it or they are not
    there."""
    try:
        page = path.read_text(encoding="utf-8")
    except OSError:
        return False
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if found and closed:
        write_bytes_atomic(path, f"{before}{begin}{text}{end}{after}".encode())
    return bool(found and closed)


def write_bytes_atomic(path: Path, data: bytes) -> None:
    """Replace the file ``path`` by ``data``, durably: readers see the old or the new."""
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)
        write_file(temporary, [data])
        rename(temporary, path)
        sync_directory(path.parent)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise RunFailed(f"cannot write {path}: {reason(error)}") from error
        raise


def write_json_atomic(path: Path, document: Any) -> None:
    """Replace the JSON file ``path``; numpy values become plain ones, NaN and infinity null."""
    text = json.dumps(plain(document), indent=1, allow_nan=False) + "\n"
    write_bytes_atomic(Path(path), text.encode())


def open_regular(path: Path, flags: int = os.O_RDONLY, links: bool = False) -> IO[bytes]:
    """Open a regular file, unbuffered; anything else is BadInput, and nobody waits for a pipe.

    ``links``: follow a symbolic link.  In a run directory nobody does: whoever gave it to us could
    have any file of ours read, or cut and written to.
    """
    flags |= os.O_NONBLOCK | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags, 0o644)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a pipe that nobody reads
            raise BadInput(f"{path} is not a regular file") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BadInput(f"{path} is not a regular file")
    return open(descriptor, "rb" if flags & os.O_ACCMODE == os.O_RDONLY else "r+b", buffering=0)


def read_json(path: Path, limit: int, links: bool = False) -> dict[str, Any] | None:
    """The JSON object in ``path``, None if there is no such file, BadInput if it is bad."""
    try:
        with open_regular(path, links=links) as file:
            raw = read_up_to(file, limit + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadInput(f"cannot read {path}: {reason(error)}") from error
    if len(raw) > limit:
        raise BadInput(f"{path} has more than the {limit} bytes allowed")
    return _parse(raw, str(path))


def read_up_to(file: IO[bytes], limit: int) -> bytes:
    """All of an unbuffered file, but at most ``limit`` bytes."""
    found = bytearray()
    while len(found) < limit and (data := file.read(min(limit - len(found), 1 << 20))):
        found += data
    return bytes(found)


def plain(value: Any) -> Any:
    """``value`` in the types of JSON: numpy converted, NaN and infinity as None."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def _parse(raw: bytes, where: str) -> dict[str, Any]:
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{where} is not valid JSON") from error
    if not isinstance(document, dict):
        raise BadInput(f"{where} does not hold a JSON object")
    return document


class RowLog:
    """A file of JSON objects, one a line, to which only whole lines are added."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._failing():
            self._file = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            self.length = os.fstat(self._file.fileno()).st_size
            self._sum = self._sum_of(self.length)

    def append(self, row: dict[str, Any]) -> None:
        """Add a row; on a full disk no half row is left behind."""
        data = json.dumps(plain(row), allow_nan=False).encode() + b"\n"
        if len(data) > MAX_ROW_BYTES:
            raise RunFailed(f"a row of {len(data)} bytes is too long for {self.path}")
        with self._failing():
            try:
                write_all(self._file.fileno(), data)
            except BaseException:
                with suppress(OSError):
                    os.ftruncate(self._file.fileno(), self.length)
                raise
        self.length += len(data)
        self._sum.update(data)

    @property
    def sha256(self) -> str:
        """Of all rows so far."""
        return self._sum.hexdigest()

    def sync(self) -> None:
        """Make all rows so far durable."""
        with self._failing():
            fsync(self._file.fileno())

    def is_as_seen(self, length: int, sha256: str) -> bool:
        """Whether the first ``length`` bytes have this sum."""
        with self._failing():
            return self._sum_of(length).hexdigest() == sha256

    def _sum_of(self, length: int) -> Any:
        digest, at = hashlib.sha256(), 0
        while data := os.pread(self._file.fileno(), min(length - at, 1 << 20), at):
            digest.update(data)
            at += len(data)
        return digest

    def cut(self, length: int) -> None:
        """Forget everything after the first ``length`` bytes."""
        with self._failing():
            os.ftruncate(self._file.fileno(), length)
            self._sum = self._sum_of(length)
        self.length = length
        self.sync()

    def close(self) -> None:
        """Close the file; its rows are written, if not yet durable."""
        self._file.close()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunFailed(f"cannot write {self.path}: {reason(error)}") from error


def cut_fault(path: Path, length: int) -> str:
    """Why the log ``path`` cannot be cut to ``length`` bytes: it must have them, and a row must end
    there.  Nothing: it can."""
    if not length:
        return ""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size >= length and os.pread(file.fileno(), 1, length - 1) == b"\n":
                return ""
    except FileNotFoundError:
        size = 0
    except OSError as error:
        raise BadInput(f"cannot read {path}: {reason(error)}") from error
    return f"no row ends there in {path}" if size >= length else f"{path} has {size} bytes"


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a log; a last line that is still being written is left out."""
    try:
        with open_regular(path) as raw, io.BufferedReader(raw) as file:  # type: ignore[type-var]
            number = 0
            while (line := file.readline(MAX_ROW_BYTES + 1)).endswith(b"\n"):
                number += 1
                yield _parse(line, f"line {number} of {path}")
            if len(line) > MAX_ROW_BYTES:
                raise BadInput(f"line {number + 1} of {path} is too long")
    except FileNotFoundError:
        return
    except OSError as error:
        raise BadInput(f"cannot read {path}: {reason(error)}") from error


def lock(path: Path, what: Path) -> int:
    """Take the lock file ``path`` for writing ``what``, without waiting; raises RunInUse."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    except BlockingIOError as error:
        owner = os.pread(descriptor, 20, 0).decode("ascii", "replace")
        os.close(descriptor)
        raise RunInUse(f"{what} is in use by process {owner or 'unknown'}") from error
    except BaseException:
        os.close(descriptor)
        raise
    _open_locks.add(descriptor)
    return descriptor


def unlock(descriptor: int) -> None:
    """Release a lock taken by ``lock``."""
    _open_locks.discard(descriptor)
    os.close(descriptor)


def _drop_locks_in_child() -> None:
    # A forked worker shares the lock; one that outlives a killed writer would hold it for ever.
    for descriptor in _open_locks:
        with suppress(OSError):
            os.close(descriptor)
    _open_locks.clear()


os.register_at_fork(after_in_child=_drop_locks_in_child)
