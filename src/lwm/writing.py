"""The one writer of a run directory, whose layout ``runs`` describes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from lwm import __version__, blocks, checkpoint, files, runs
from lwm import saved as saved_as
from lwm.blocks import Block, Rows
from lwm.errors import BadInput, CheckpointError, LwmError, reason
from lwm.files import RowLog, write_json_atomic
from lwm.saved import Saved

STATES = ("running", "finished", "stopped", "failed")


class RunWriter:
    """The one writer of a run directory.  Get one from ``create`` or ``reopen``; use with ``with``.

    Leaving the ``with`` block by an exception records the state ``failed`` (``stopped`` for
    KeyboardInterrupt and SystemExit) unless a final state was set; leaving it otherwise records
    ``stopped``.
    """

    def __init__(
        self, path: Path, lock: int, machine: dict[str, Any], keep: int, config_sum: str
    ) -> None:
        self.path = path
        self.keep = keep
        self.blocks: tuple[Block, ...] = ()
        """Blocks of rows that the newest checkpoint names, oldest first."""
        self._machine = machine
        self._config_sum = config_sum
        self._lock: int | None = lock
        self._frames = 0
        self._state = "running"
        self._metrics = RowLog(path / "metrics.jsonl")
        try:
            self._timing = RowLog(path / "timing.jsonl")
        except BaseException:
            self._metrics.close()
            raise

    @classmethod
    def create(
        cls, path: Path, config: dict[str, Any], machine: dict[str, Any], keep: int = 2
    ) -> RunWriter:
        """Start a run in a new or empty directory."""
        path = Path(path)
        try:
            files.make_directory(path)
            _refuse_existing(path)
            lock = files.lock(path / "lock", path)
        except OSError as error:
            raise BadInput(f"cannot write to {path}: {reason(error)}") from error
        try:
            _refuse_existing(path)  # again, now that no other process can be creating it
            write_json_atomic(path / "machine.json", machine)
            document = {"format": runs.FORMAT, "lwm_version": __version__, "config": config}
            write_json_atomic(path / "config.json", document)
            writer = cls(path, lock, machine, keep, saved_as.sum_of(config))
        except BaseException:
            files.unlock(lock)
            raise
        with writer._or_released():
            writer.set_status("running", 0)
        return writer

    @classmethod
    def reopen(
        cls,
        path: Path,
        machine: dict[str, Any] | None = None,
        keep: int = 2,
        warn: Callable[[str], None] | None = None,
    ) -> tuple[RunWriter, Saved | None]:
        """Continue a run from its newest good checkpoint (None: from the start).

        A run that had one, by its status or its timing, and has none is refused.
        Both logs are cut to their length at that checkpoint; one that saw more of them than there
        is is passed over.  ``machine`` is what goes into further checkpoints, by default what
        machine.json says.
        """
        path = Path(path)
        config = runs.read_config(path)
        try:
            lock = files.lock(path / "lock", path)
        except OSError as error:
            raise BadInput(f"cannot write to {path}: {reason(error)}") from error
        try:
            saved = saved_as.newest(path, saved_as.sum_of(config), warn, resuming=True)
            if saved is None:
                _refuse_lost(path)
            facts = machine or runs.read_machine(path) or {}
            writer = cls(path, lock, facts, keep, saved_as.sum_of(config))
        except BaseException:
            files.unlock(lock)
            raise
        with writer._or_released():
            logs = (writer._metrics, writer._timing)
            lengths = saved.log_bytes if saved else (0, 0)
            saved_as.tell_changed(logs, saved, warn)
            for log, length in zip(logs, lengths, strict=True):
                log.cut(length)
            writer.blocks = saved.blocks if saved else ()
            writer.set_status("running", saved.frames if saved else 0)
        return writer, saved

    def log(self, metrics: dict[str, Any]) -> None:
        """Append a row to metrics.jsonl."""
        self._metrics.append(metrics)

    def log_timing(self, timing: dict[str, Any]) -> None:
        """Append a row to timing.jsonl."""
        self._timing.append(timing)

    def write_block(self, first: int, rows: Rows) -> Block:
        """Write the replay rows that begin with number ``first``, for the checkpoints to come."""
        return blocks.write(checkpoint.rows_directory(self._checkpoints), first, rows)

    @property
    def _checkpoints(self) -> Path:
        return saved_as.directory_of(self.path)

    def checkpoint(self, frames: int, state: dict[str, Any], rows: Sequence[Block] = ()) -> Path:
        """Save ``state``, what the logs hold so far, and on what machine; ``rows``: the blocks of
        replay rows that belong to it.  Other blocks may go."""
        if saved_as.RESERVED in state:
            raise CheckpointError(f"the key {saved_as.RESERVED!r} of a state is reserved")
        self._metrics.sync()
        self._timing.sync()
        own = {
            "frames": int(frames),
            "log_bytes": [self._metrics.length, self._timing.length],
            "log_sums": [self._metrics.sha256, self._timing.sha256],
            "config_sum": self._config_sum,
            "machine": self._machine,
        }
        saved = checkpoint.save(
            self._checkpoints,
            saved_as.name_of(frames),
            {**state, saved_as.RESERVED: own},
            self.keep,
            rows,
        )
        self.blocks = tuple(rows)
        self._frames = int(frames)
        return saved

    def checkpoint_bytes(self) -> int:
        """Size of the newest checkpoint on disk, its blocks of rows not counted."""
        return checkpoint.newest_bytes(self._checkpoints)

    def set_status(self, state: str, frames: int | None = None, message: str = "") -> None:
        """Replace status.json; ``frames`` defaults to the last number given."""
        if state not in STATES:
            raise ValueError(f"state {state!r} is not one of {', '.join(STATES)}")
        if state != "running":  # what it speaks of is on the disk before it is
            self._metrics.sync()
            self._timing.sync()
        self._frames = self._frames if frames is None else int(frames)
        status = {"state": state, "frames": self._frames, "message": message, "pid": os.getpid()}
        write_json_atomic(self.path / "status.json", status)
        self._state = state  # a status that did not come to the disk is not the last one

    def write_evaluation(self, result: dict[str, Any]) -> None:
        """Replace evaluation.json."""
        write_evaluation(self.path, result)

    def close(self) -> None:
        """Record ``stopped`` unless a final state was set, and release the lock."""
        if self._lock is None:
            return
        try:
            if self._state == "running":
                self.set_status("stopped")
        finally:
            self._release()

    def _release(self) -> None:
        self._metrics.close()
        self._timing.close()
        if self._lock is not None:
            files.unlock(self._lock)
        self._lock = None

    @contextmanager
    def _or_released(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._release()
            raise

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is not None and self._state == "running":
                state = "failed" if isinstance(error, Exception) else "stopped"
                text = (
                    str(error)
                    if isinstance(error, LwmError)
                    else f"{type(error).__name__}: {error}"
                )
                self.set_status(state, message=text)
            self.close()
        except LwmError:
            # The first error is the one to report; the same full disk often causes both.
            if error is None:
                raise
        finally:
            self._release()


def write_evaluation(path: Path, result: dict[str, Any]) -> None:
    """Replace evaluation.json of a run; takes no lock, as a run is often evaluated later."""
    write_json_atomic(runs.checked(path) / "evaluation.json", result)


def _refuse_lost(path: Path) -> None:
    """A run that had a checkpoint and has none now does not begin anew: its logs would be cut."""
    told = None
    if (runs.read_status(path) or {}).get("frames"):
        told = "status.json"
    elif any("checkpoint_seconds" in row for row in runs.read_timing(path)):
        told = "timing.jsonl"
    if told:
        where = path / "checkpoints"
        raise BadInput(f"{where} has no checkpoint, {told} tells of one: not copied or mounted?")


def _refuse_existing(path: Path) -> None:
    for name in ("config.json", "metrics.jsonl", "timing.jsonl", "checkpoints", "evaluation.json"):
        if os.path.lexists(path / name):
            raise BadInput(
                f"{path} already has a run ({name}): use --resume to continue it, "
                "or another directory"
            )
