"""What a person sees of a sweep: a table that is drawn anew on a terminal, lines in a log file."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TextIO

from lwm.sweep import fence
from lwm.sweep.policy import Ledger, Run

_EVERY = 1.0
_TAIL = 1 << 15
_ORDER = {"running": 0, "failed": 1, "queued": 2, "finished": 3}
_HEAD = ("run", "state", "node", "frames", "return", "attempts", "")


class Table:
    """The state of every run, from the ledger and from the run directories."""

    def __init__(
        self, ledger: Ledger, directories: Mapping[str, Path], out: TextIO | None = None
    ) -> None:
        self._ledger, self._directories = ledger, directories
        self._out = out or sys.stdout
        self._live = self._out.isatty()
        self._drawn = 0
        self._next = 0.0
        self._told: dict[str, int] = {}

    def show(self) -> None:
        """Draw, or tell what has begun, not more often than every second."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _EVERY
        if self._live:
            size = shutil.get_terminal_size()
            self.pause()
            lines = self.lines(size.columns, size.lines - 2)
            self._drawn = len(lines)
            self._out.write("".join(f"{line}\n" for line in lines))
            self._out.flush()
        else:
            self._tell_started()

    def lines(self, width: int, height: int) -> list[str]:
        """The table, no wider than ``width``; running and failed runs first, as many as fit."""
        claims = {run.id: self._claim(run) for run in self._ledger.runs.values()}
        states = {name: _state(self._ledger.runs[name], claim) for name, claim in claims.items()}
        shown = sorted(states, key=lambda name: _ORDER[states[name]])[: max(1, height - 2)]
        cells = [_HEAD, *(self._cells(name, states[name], claims[name]) for name in shown)]
        wide = [max(len(row[i]) for row in cells) for i in range(len(_HEAD))]
        right = {3, 4, 5}
        lines = [
            "  ".join(
                cell.rjust(w) if i in right else cell.ljust(w)
                for i, (cell, w) in enumerate(zip(row, wide, strict=True))
            ).rstrip()
            for row in cells
        ]
        return [line[:width] for line in [*lines, _summary(states.values())]]

    def tell(self, line: str) -> None:
        """A line that stays."""
        self.pause()
        print(line, file=self._out, flush=True)

    def pause(self) -> None:
        """Take the table away, so that others can print; ``show`` draws it again."""
        if self._drawn:
            self._out.write(f"\x1b[{self._drawn}A\x1b[J")
            self._out.flush()
        self._drawn = 0

    def close(self) -> None:
        """Leave what is drawn."""
        self._drawn = 0

    def _cells(self, name: str, state: str, claim: dict[str, Any]) -> tuple[str, ...]:
        run, directory = self._ledger.runs[name], self._directories[name]
        last = {} if state == "queued" and not run.attempts else last_row(directory)
        value = last.get("episode/return")
        return (
            name,
            state,
            str(claim.get("node", "")),
            f"{last['frames']:,}" if "frames" in last else "",
            f"{value:.1f}" if isinstance(value, float | int) else "",
            str(run.attempts) if state != "queued" or run.attempts > 1 else "",
            run.message,
        )

    def _claim(self, run: Run) -> dict[str, Any]:
        """Who attends the present attempt; the claim of a dead one may still lie there."""
        claim = fence.read(self._directories[run.id]) if run.state == "running" else {}
        return claim if claim.get("attempt") == run.attempts else {}

    def _tell_started(self) -> None:
        for run in self._ledger.runs.values():
            if run.state != "running" or self._told.get(run.id) == run.attempts:
                continue
            if claim := self._claim(run):
                self._told[run.id] = run.attempts
                more = f", attempt {run.attempts}" if run.attempts > 1 else ""
                self.tell(f"started  {run.id} on {claim.get('node')}{more}")


def _state(run: Run, claim: dict[str, Any]) -> str:
    """A run that is handed over but that nobody attends still waits for a place."""
    return "queued" if run.state == "running" and not claim else run.state


def _summary(states: Collection[str]) -> str:
    """How many runs are in which state."""
    counts = Counter(states)
    return f"{len(states)} runs: " + ", ".join(f"{counts[s]} {s}" for s in _ORDER)


def last_row(run: Path) -> dict[str, Any]:
    """The last training row of metrics.jsonl with its frames, read from the file's end only."""
    try:
        with open(run / "metrics.jsonl", "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            lines = file.read(_TAIL).split(b"\n")[:-1]
    except OSError:
        return {}
    found: dict[str, Any] = {}
    for line in reversed(lines):
        try:
            row = json.loads(line)
        except ValueError:
            continue  # the first line may be cut
        if isinstance(row, dict):
            found = {**row, **found}
            if "episode/return" in found:
                break
    return found
