"""The run directory: the one contract on disk between training and everything that reads results.

::

    RUN/
      config.json        {"format": 1, "lwm_version": ..., "config": {...}}; marks a run
      machine.json       what computed it: versions, threads, processor (no paths, no host or user)
      metrics.jsonl      one JSON object a line, only values that the seed determines
      timing.jsonl       one JSON object a line: wall times and rates; "block_seconds" and
                         "checkpoint_seconds": the longest stop for either since the line before
      checkpoints/       step-<frames, 9 digits>/ ..., see ``checkpoint``; and rows/ where replay
                         holds pictures: its rows, shared by checkpoints, see ``blocks``
      evaluation.json    the last evaluation
      episodes/          recorded episodes, see ``episodes``
      status.json        {"state": running|finished|stopped|failed, "frames", "message", "pid"}
      lock               flock'ed while a writer is alive; holds its process id

One process writes, through ``writing.RunWriter``, holding the lock.  Readers take no lock: JSON
documents are replaced atomically, logs only grow.  A resumed run cuts both logs where its
checkpoint saw them, so the logs of an interrupted run and of an uninterrupted one are the same.
JSON has no NaN and no infinity: both are written as null.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lwm import saved as saved_as
from lwm.errors import BadInput, reason
from lwm.files import read_json, read_rows
from lwm.saved import Saved

FORMAT = 1
MAX_CONFIG_BYTES = 1 << 20
MAX_DOCUMENT_BYTES = 64 << 20


def is_run(path: Path) -> bool:
    """Whether ``path`` is a run directory."""
    return os.path.isfile(Path(path) / "config.json")


def find_runs(root: Path, depth: int = 4) -> list[Path]:
    """Run directories at or below ``root``, sorted; no deeper than ``depth``, no links followed."""
    root = Path(root)
    if is_run(root):
        return [root]
    try:
        inside = sorted(p for p in root.iterdir() if p.is_dir() and not p.is_symlink())
    except OSError as error:
        raise BadInput(f"cannot read {root}: {reason(error)}") from error
    found: list[Path] = []
    for path in inside:
        if is_run(path):
            found.append(path)
        elif depth > 1 and os.access(path, os.R_OK | os.X_OK):
            found += find_runs(path, depth - 1)
    return found


def checked(path: Path) -> Path:
    """``path``; BadInput unless it is a run directory."""
    path = Path(path)
    if not is_run(path):
        missing = "does not exist" if not os.path.exists(path) else "is not a run (no config.json)"
        raise BadInput(f"{path} {missing}")
    return path


def read_config(path: Path) -> dict[str, Any]:
    """The config the run was started with."""
    document = _read(path, "config.json", MAX_CONFIG_BYTES) or {}
    if document.get("format") != FORMAT or not isinstance(document.get("config"), dict):
        raise BadInput(f"{Path(path) / 'config.json'} is not a run config of format {FORMAT}")
    return document["config"]


def read_machine(path: Path) -> dict[str, Any] | None:
    """Facts of the machine the run was started on."""
    return _read(path, "machine.json", MAX_CONFIG_BYTES)


def read_status(path: Path) -> dict[str, Any] | None:
    """The last status; ``running`` is also what a writer leaves that was killed."""
    return _read(path, "status.json", MAX_CONFIG_BYTES)


def read_evaluation(path: Path) -> dict[str, Any] | None:
    """The last evaluation, None if there was none."""
    return _read(path, "evaluation.json", MAX_DOCUMENT_BYTES)


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of metrics.jsonl so far."""
    return read_rows(checked(path) / "metrics.jsonl")


def read_timing(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of timing.jsonl so far."""
    return read_rows(checked(path) / "timing.jsonl")


def load_checkpoint(
    path: Path, warn: Callable[[str], None] | None = None, part: str | None = None
) -> Saved:
    """The newest good checkpoint of a run; damaged ones are reported through ``warn``.

    ``part``: of its arrays only those below this key of the state, for readers of little.
    """
    path = checked(path)
    saved = saved_as.newest(path, saved_as.sum_of(read_config(path)), warn, part)
    if saved is None:
        raise BadInput(f"{path} has no checkpoint yet")
    return saved


def _read(path: Path, name: str, limit: int) -> dict[str, Any] | None:
    return read_json(checked(path) / name, limit)
