"""What a checkpoint of a run holds beside its state, and whether it belongs to the run."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lwm import blocks, checkpoint, files
from lwm.blocks import Block, Rows
from lwm.errors import CheckpointError
from lwm.files import RowLog, plain

LOGS = ("metrics.jsonl", "timing.jsonl")
RESERVED = "_run"
"""Key of what ``RunWriter.checkpoint`` adds to a state."""


@dataclass(frozen=True)
class Saved:
    """What a checkpoint of a run holds."""

    path: Path
    frames: int
    state: dict[str, Any]
    machine: dict[str, Any]
    """Facts of the machine that wrote it; compare with ``mismatches``."""
    log_bytes: tuple[int, int]
    """Lengths of metrics.jsonl and timing.jsonl at that moment."""
    log_sums: tuple[str, ...] = ()
    """SHA-256 of either then; none in checkpoints of an earlier lwm."""
    blocks: tuple[Block, ...] = ()
    """Blocks of replay rows that belong to it, oldest first."""

    def rows(self) -> Iterator[tuple[int, Rows]]:
        """Of each block the number of its first row, and its arrays; read one by one."""
        directory = checkpoint.rows_directory(self.path.parent)
        return ((block.first, blocks.read(directory, block)) for block in self.blocks)


def directory_of(run: Path) -> Path:
    """Where the checkpoints of a run are; BadInput if that, or where their rows are, is a link or
    no directory: nothing outside the run is read, written or removed."""
    directory = Path(run) / "checkpoints"
    files.is_directory(directory)
    checkpoint.rows_directory(directory)
    return directory


def newest(
    run: Path,
    config_sum: str,
    warn: Callable[[str], None] | None,
    part: str | None = None,
    resuming: bool = False,
) -> Saved | None:
    """The newest good checkpoint of a run whose config has ``config_sum``; None if there is none.

    ``part``: of its arrays only those below this key of the state.  ``resuming``: both logs must
    still reach as far as it saw them.
    """

    def check(where: Path, state: dict[str, Any]) -> None:
        own = _own(where, state)
        if own.get("config_sum", config_sum) != config_sum:
            raise CheckpointError(f"{where} is of another config than {run / 'config.json'}")
        for name, length in zip(LOGS, own["log_bytes"] if resuming else (0, 0), strict=True):
            if fault := files.cut_fault(run / name, length):
                raise CheckpointError(f"{where} saw {length} bytes of a log, {fault}")

    found = checkpoint.latest(directory_of(run), warn, part, check)
    if found is None:
        return None
    where, state = found
    own = _own(where, state)
    del state[RESERVED]
    rows = tuple(state.pop(checkpoint.BLOCKS, ()))
    metrics, timing = own["log_bytes"]
    sums = tuple(own.get("log_sums", ()))
    return Saved(where, own["frames"], state, own["machine"], (metrics, timing), sums, rows)


def _own(where: Path, state: dict[str, Any]) -> dict[str, Any]:
    """What ``RunWriter.checkpoint`` added to a state, checked."""
    try:
        own = state[RESERVED]
        counts = (own["frames"], *own["log_bytes"])
        if len(counts) != 3 or not all(type(n) is int and n >= 0 for n in counts):
            raise ValueError("not a count")
        facts = list(own["machine"].values())
        if not all(fact is None or isinstance(fact, str | int) for fact in facts):
            raise ValueError("not facts of a machine")
        if where.name.split(".")[0] != name_of(counts[0]):
            raise ValueError("of another run")
        sums = own.get("log_sums", ["", ""])
        if len(sums) != 2 or not all(type(s) is str for s in sums):
            raise ValueError("not a sum")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{where} is not a checkpoint of a run") from error
    found: dict[str, Any] = own
    return found


def sum_of(config: dict[str, Any]) -> str:
    """Of a config, whatever the order of its keys.  On what a run computes may change: it can be
    scored, or go on, on another device (which is warned of elsewhere)."""
    kept = {key: value for key, value in config.items() if key not in ("device", "threads")}
    return hashlib.sha256(json.dumps(plain(kept), sort_keys=True).encode()).hexdigest()


def tell_changed(
    logs: tuple[RowLog, RowLog], saved: Saved | None, warn: Callable[[str], None] | None
) -> None:
    """A warning for each log whose rows are not those that the checkpoint saw."""
    if saved is None or not saved.log_sums:
        return
    for log, length, seen in zip(logs, saved.log_bytes, saved.log_sums, strict=True):
        if not log.is_as_seen(length, seen):
            text = f"{log.path} was changed since it was written: some of its rows may be wrong"
            (warn or warnings.warn)(text)


def name_of(frames: int) -> str:
    """Of the checkpoint directory."""
    return f"step-{frames:09d}"
