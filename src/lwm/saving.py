"""How a run is saved: replay rows in blocks as they come, and how long saving stops training."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from lwm.blocks import Block, block_rows
from lwm.replay import Replay
from lwm.training import Trainer
from lwm.writing import RunWriter


class Stops:
    """The longest stops of training since they were last taken, in seconds, by name."""

    def __init__(self) -> None:
        self._latest = time.monotonic()
        self._longest = {"longest_pause": 0.0}

    def mark(self) -> float:
        """A sign of life: no sign between two of them is a pause.  Returns the time."""
        now = time.monotonic()
        self._note("longest_pause", now - self._latest)
        self._latest = now
        return now

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Time the block as a stop of its own name."""
        began = time.monotonic()
        yield
        self._note(name, time.monotonic() - began)

    def take(self) -> dict[str, float]:
        """The longest of each name; begins anew."""
        taken, self._longest = self._longest, {"longest_pause": 0.0}
        return taken

    def _note(self, name: str, seconds: float) -> None:
        self._longest[name] = max(self._longest.get(name, 0.0), seconds)


class RowBlocks:
    """The rows of a replay on disk: a block as soon as its rows are there, the rest at checkpoints.

    So a checkpoint takes no longer for a large replay than for a small one.
    """

    def __init__(self, writer: RunWriter, replay: Replay) -> None:
        self.writer, self.replay = writer, replay
        self.size = block_rows(replay.rows, replay.envs)
        self.blocks = list(writer.blocks)
        if self.blocks and self.blocks[-1].rows < self.size:
            self.blocks.pop()  # the rest of then: its rows are written again in a whole block

    def write_complete(self, stops: Stops) -> None:
        """Write the blocks whose rows have become complete.

        To be called after every cycle, before the ring overwrites their rows.
        """
        while self._written + self.size <= self.replay.count:
            with stops.timed("block_seconds"):
                self.blocks.append(self._write(self._written + self.size))

    def write_all(self, stops: Stops) -> list[Block]:
        """Write what is not yet written; the blocks of all rows that are in the ring."""
        self.write_complete(stops)
        self.blocks = [block for block in self.blocks if block.stop > self.replay.oldest]
        rest = self.replay.count > self._written
        return [*self.blocks, *([self._write(self.replay.count)] if rest else [])]

    @property
    def _written(self) -> int:
        """Rows before this one are in blocks."""
        return self.blocks[-1].stop if self.blocks else self.replay.oldest

    def _write(self, stop: int) -> Block:
        return self.writer.write_block(self._written, self.replay.get_rows(self._written, stop))


def disk_use(writer: RunWriter, trainer: Trainer) -> str:
    """What the newest checkpoint takes on disk, and a frame of replay in it, in one line."""
    c = trainer.replay
    rows = sum(block.size for block in writer.blocks)
    on_disk = sum(block.rows for block in writer.blocks) * c.envs
    total = rows + writer.checkpoint_bytes()
    each = f", {rows / on_disk:.0f} bytes a frame" if on_disk else ""
    return f"checkpoint: {total / 1e6:,.1f} MB on disk (replay {len(c) * c.envs:,} frames{each})"
