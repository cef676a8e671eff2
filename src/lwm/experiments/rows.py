"""Committed result rows: small CSV files that every table and figure is made from."""

from __future__ import annotations

import csv
import errno
import fcntl
import io
import math
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from lwm.errors import BadInput, RunFailed, reason
from lwm.files import write_bytes_atomic

RESULTS = Path("results")

WHOLE = ("size", "seed", "frames", "episodes", "embedding")
"""Columns of whole numbers, in whichever file they stand."""
NUMBERS = (
    "score", "score128", "median", "solved", "median_solved", "low", "high", "return", "success",
    "rooms", "positions", "eval_positions", "value", "scale", "standard_error", "bonus_tv",
    "bonus_elsewhere", "time_share",
)  # fmt: skip
"""Columns of numbers."""
NEEDED = (*WHOLE, "score", "score128", "return", "success", "scale", "standard_error")
"""Those of them that no row leaves empty."""

Key = TypeVar("Key", bound=Hashable)


def read(
    path: Path,
    columns: tuple[str, ...],
    fault: Callable[[Mapping[str, str]], str] = lambda row: "",
) -> list[dict[str, str]]:
    """The rows of a file, as text; none if there is no such file.

    Cells of the columns named above hold numbers.  ``fault`` tells what else is wrong with a row;
    the error names file and line.
    """
    found = []
    for number, row in _read(path, columns):
        wrong = _number_fault(row) or fault(row)
        if wrong:
            raise BadInput(f"{path}: line {number}: {wrong}")
        found.append(row)
    return found


def _read(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """Whole rows one by one, each with the line that it ends in."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != columns:
                raise BadInput(f"{path} does not have the columns {','.join(columns)}")
            for row in reader:
                if None in row or None in row.values():
                    raise BadInput(f"{path}: line {reader.line_num} is not a whole row")
                yield reader.line_num, row
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"cannot read {path}: {error}") from error


def _number_fault(row: Mapping[str, str]) -> str:
    for column, text in row.items():
        if column in WHOLE and not (text.isascii() and text.isdigit() and len(text) < 16):
            return f"{column} {text!r} is not a whole number"
        if column in NUMBERS and (text or column in NEEDED) and not _is_number(text):
            return f"{column} {text!r} is not a number"
    return ""


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def there(name: str, path: Path, found: Iterable[Mapping[str, str]]) -> None:
    """``RunFailed`` if the experiment has no row to show."""
    if not any(True for _ in found):
        raise RunFailed(f"no rows in {path} yet: lwm reproduce {name}")


def unknown(row: Mapping[str, str], column: str, known: Iterable[str]) -> str:
    """The fault of a cell that is not among ``known``; empty if it is."""
    return "" if row[column] in known else f"unknown {column} {row[column]!r}"


def grouped(
    path: Path, found: Iterable[dict[str, str]], key: Callable[[dict[str, str]], Key]
) -> dict[Key, list[dict[str, str]]]:
    """Rows of the same settings, which differ by their seed; one seed twice is refused."""
    groups: dict[Key, list[dict[str, str]]] = {}
    for row in found:
        group = groups.setdefault(key(row), [])
        if any(other["seed"] == row["seed"] for other in group):
            what = row.get("command") or ", ".join(map(str, row.values()))
            raise BadInput(f"{path}: two rows of one run and seed: {what}")
        group.append(row)
    return groups


def told(command: str) -> dict[str, str]:
    """Flags and settings of a row's command, by name; ``--frames`` is ``loop.total_frames``."""
    words = command.split()
    found = {w: v for w, v in pairwise(words) if w.startswith("--")}
    found |= {key: value for key, sep, value in (w.partition("=") for w in words) if sep}
    if "--frames" in found:
        found["loop.total_frames"] = found.pop("--frames")
    return found


def append(path: Path, columns: tuple[str, ...], row: Mapping[str, Any]) -> None:
    """Add one row, whole or not at all."""
    append_all(path, columns, [row])


def append_all(
    path: Path,
    columns: tuple[str, ...],
    found: Iterable[Mapping[str, Any]],
    keys: tuple[str, ...] = (),
) -> None:
    """Add rows that belong together: all of them or none.

    Those whose cells of ``keys`` are there already are left out: another process was faster.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            size = os.fstat(file.fileno()).st_size
            if keys and size:
                new = [(tuple(str(_cell(row[k])) for k in keys), row) for row in found]
                own = {key for key, _ in new}
                # Row by row: a process that appends many would grow with what is there.
                there = (tuple(row[k] for k in keys) for _, row in _read(path, columns))
                have = {key for key in there if key in own}
                found = [row for key, row in new if key not in have]
            data = _text(columns, found, header=size == 0)
            try:
                if file.write(data) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
            except OSError:
                os.ftruncate(file.fileno(), size)
                raise
    except OSError as error:
        raise RunFailed(f"cannot write {path}: {reason(error)}") from error


def write(path: Path, columns: tuple[str, ...], found: Iterable[Mapping[str, Any]]) -> None:
    """Replace the file by these rows, atomically."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes_atomic(path, _text(columns, found, header=True))
    except OSError as error:
        raise RunFailed(f"cannot write {path}: {reason(error)}") from error


def _text(columns: tuple[str, ...], found: Iterable[Mapping[str, Any]], header: bool) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    if header:
        writer.writeheader()
    for row in found:
        writer.writerow({key: _cell(row[key]) for key in columns})
    return text.getvalue().encode()


def _cell(value: Any) -> Any:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else value
