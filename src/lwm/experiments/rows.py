"""Committed result rows: small CSV files that every table and figure is made from."""

from __future__ import annotations

import csv
import errno
import fcntl
import io
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lwm.errors import BadInput, RunFailed, reason
from lwm.files import write_bytes_atomic

RESULTS = Path("results")


def read(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    """The rows of a file, as text; none if there is no such file."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != columns:
                raise BadInput(f"{path} does not have the columns {','.join(columns)}")
            found = list(reader)
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"cannot read {path}: {error}") from error
    for number, row in enumerate(found, 2):
        if None in row or None in row.values():
            raise BadInput(f"{path}: line {number} is not a whole row")
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
                have = {tuple(row[k] for k in keys) for row in read(path, columns)}
                found = [r for r in found if tuple(str(_cell(r[k])) for k in keys) not in have]
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
