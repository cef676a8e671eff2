"""Committed result rows: small CSV files that every table and figure is made from."""

from __future__ import annotations

import csv
import fcntl
import io
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lwm.errors import BadInput, RunFailed, reason

RESULTS = Path("results")


def read(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    """The rows of a file, as text; none if there is no such file."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != columns:
                raise BadInput(f"{path} does not have the columns {','.join(columns)}")
            return list(reader)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BadInput(f"cannot read {path}: {reason(error)}") from error


def append(path: Path, columns: tuple[str, ...], row: Mapping[str, Any]) -> None:
    """Add one row, whole or not at all as far as other writers are concerned."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", newline="", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            text = io.StringIO()
            writer = csv.DictWriter(text, columns, lineterminator="\n")
            if os.fstat(file.fileno()).st_size == 0:
                writer.writeheader()
            writer.writerow({key: _cell(row[key]) for key in columns})
            file.write(text.getvalue())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise RunFailed(f"cannot write {path}: {reason(error)}") from error


def write(path: Path, columns: tuple[str, ...], rows: Iterable[Mapping[str, Any]]) -> None:
    """Replace the file."""
    path.unlink(missing_ok=True)
    for row in rows:
        append(path, columns, row)


def _cell(value: Any) -> Any:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else value
