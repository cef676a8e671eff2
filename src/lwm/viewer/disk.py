"""Reading run directories that others write: never through links, never more than asked for.

A run may be half written, damaged, or vanish between two calls: every function here answers with
what there is, or with ``BadInput``.
"""

from __future__ import annotations

import json
import math
import os
import stat
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lwm.errors import BadInput, reason
from lwm.files import MAX_ROW_BYTES, plain

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ANCHOR = 64
"""Bytes before the place read to that must be the same when reading goes on."""


class Stamp(NamedTuple):
    """What changes when a file does."""

    inode: int
    size: int
    time: int


def stamp(path: str | Path) -> Stamp | None:
    """The stamp of a regular file; None if there is none (a link is none)."""
    try:
        found = os.lstat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return Stamp(found.st_ino, found.st_size, found.st_mtime_ns)


def open_regular(path: str | Path) -> int:
    """A descriptor of a regular file; links are refused, pipes are not waited for."""
    try:
        descriptor = os.open(path, _FLAGS)
    except (OSError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else "not a path"
        raise BadInput(f"cannot read {Path(path).name}: {why}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BadInput(f"{Path(path).name} is not a regular file")
    return descriptor


def read_document(path: str | Path, limit: int = 1 << 20) -> dict[str, Any] | None:
    """The JSON object in a file, None if there is no such file; ``BadInput`` if it is bad."""
    if not os.path.lexists(path):
        return None
    descriptor = open_regular(path)
    try:
        raw = os.pread(descriptor, limit + 1, 0)
    except OSError as error:
        raise BadInput(f"cannot read {Path(path).name}: {reason(error)}") from error
    finally:
        os.close(descriptor)
    found = parse(raw) if len(raw) <= limit else None
    if found is None:
        raise BadInput(f"{Path(path).name} does not hold a JSON object")
    return found


def parse(line: bytes) -> dict[str, Any] | None:
    """A JSON object, None if this is not one."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def told(value: Any) -> bytes:
    """``value`` as JSON that a browser reads, whatever files it came from.

    Python reads NaN, infinity and halves of characters in JSON; no one else does.
    """
    try:
        return _json(value).encode()
    except (ValueError, RecursionError):
        pass
    try:
        return _json(plain(value)).encode("utf-8", "replace")
    except RecursionError:
        raise BadInput("it is nested too deeply") from None


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def last_rows(
    path: str | Path, nearest: int = 8192, farthest: int = 1 << 20
) -> Iterator[dict[str, Any]]:
    """Whole rows of a log from its end, without reading its beginning."""
    try:
        descriptor = open_regular(path)
    except BadInput:
        return
    try:
        size = end = os.fstat(descriptor).st_size
        carry, trimmed = b"", False
        while end > 0 and size - end < farthest:
            start = max(0, end - nearest)
            data = os.pread(descriptor, end - start, start) + carry
            end, carry, nearest = start, b"", nearest * 4
            if not trimmed:  # what follows the last newline is still being written
                cut = data.rfind(b"\n")
                if cut < 0:
                    continue
                data, trimmed = data[:cut], True
            lines = data.split(b"\n")
            if start > 0:
                carry = lines.pop(0)
            for line in reversed(lines):
                row = parse(line)
                if row is not None:
                    yield row
    except OSError:
        return
    finally:
        os.close(descriptor)


class Log:
    """A growing file of JSON rows as columns of numbers; each call reads only what is new."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._clear()

    def _clear(self) -> None:
        self.columns: dict[str, tuple[array[float], array[float]]] = {}
        """Name -> (frames, values), for every number in the rows."""
        self.rows = 0
        self.damaged = 0
        """Lines that are not JSON objects; they are left out."""
        self.version = 0
        self._inode, self._offset, self._anchor = 0, 0, b""

    def update(self) -> None:
        """Read what was added; from the start, if the log was cut and written anew."""
        try:
            descriptor = open_regular(self.path)
        except BadInput:
            if self._offset:
                self._clear()
            return
        try:
            info = os.fstat(descriptor)
            if not self._goes_on(descriptor, info):
                version = self.version
                self._clear()
                self.version = version + 1
                self._inode = info.st_ino
            if info.st_size > self._offset:
                self._read(descriptor, info.st_size)
        except OSError:
            return
        finally:
            os.close(descriptor)

    def _goes_on(self, descriptor: int, info: os.stat_result) -> bool:
        if info.st_ino != self._inode or info.st_size < self._offset:
            return False
        at = self._offset - len(self._anchor)
        return os.pread(descriptor, len(self._anchor), at) == self._anchor

    def _read(self, descriptor: int, size: int) -> None:
        rest = b""
        position = self._offset
        while position < size:
            data = os.pread(descriptor, min(1 << 20, size - position), position)
            if not data:
                break
            position += len(data)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._take(line)
            if lines:
                self._offset = position - len(rest)
                self._anchor = (lines[-1] + b"\n")[-_ANCHOR:]
                self.version += 1
            if len(rest) > MAX_ROW_BYTES:  # no row is so long: give this line up
                rest = b""
        # A last line without its end is still being written: it is read again next time.

    def _take(self, line: bytes) -> None:
        row = parse(line)
        frames = row.get("frames") if row is not None else None
        if row is None or frames is None or not _number(frames):
            self.damaged += 1
            return
        self.rows += 1
        prefix = "validation/" if row.get("kind") == "validation" else ""
        for key, value in row.items():
            if key != "frames" and _number(value):
                column = self.columns.get(prefix + key)
                if column is None:
                    column = self.columns[prefix + key] = (array("d"), array("d"))
                column[0].append(frames)
                column[1].append(value)


def _number(value: Any) -> bool:
    if type(value) is int:
        return abs(value) < 1 << 63
    return type(value) is float and math.isfinite(value)
