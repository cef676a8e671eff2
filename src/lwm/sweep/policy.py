"""Who runs when and how often: the rules of a sweep, for real ones and for those only planned.

Runs start in their order.  One whose worker or node died goes back to the end of the queue and
goes on from its last checkpoint, at most ``retries`` times; one that failed by its own error does
not run again.  A run that somebody else is still writing waits, without losing a try; so does one
that came to a node which cannot run anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

RETRIES = 3
"""Deaths of worker or node that a run survives, unless told otherwise."""
BUSY_DELAY, BUSY_LIMIT = 5.0, 180.0
"""Seconds until a run in use is tried again, and after which it is given up."""
UNFIT_DELAY, UNFIT_LIMIT = 30.0, 3600.0
"""The same where it was the node that could not: others may be free by then, or it mended."""


@dataclass
class Run:
    """Where one run of a sweep stands."""

    id: str
    state: str = "queued"
    """queued, running, finished or failed."""
    attempts: int = 0
    message: str = ""
    not_before: float = 0.0
    """Time at which it may be tried again, in seconds of the caller's clock."""
    waits_since: float | None = None
    """When it was first in use, or at a node that could not run it; None: not since it ran."""


class Ledger:
    """All runs of a sweep and the decisions about them; knows no clock and no cluster."""

    def __init__(self, ids: Iterable[str], retries: int = RETRIES) -> None:
        self.retries = retries
        self.runs = {name: Run(name) for name in ids}
        self._queue = list(self.runs.values())

    def open(self) -> bool:
        """Whether a run is queued or running."""
        return any(run.state in ("queued", "running") for run in self.runs.values())

    def skip_settled(self) -> None:
        """Take out of the queue what was settled before it was tried."""
        self._queue = [run for run in self._queue if run.state == "queued"]

    def counts(self) -> Counter[str]:
        """How many runs are in each state."""
        return Counter(run.state for run in self.runs.values())

    def next(self, now: float) -> Run | None:
        """The run to start, if one may start now: it is an attempt of it from here on."""
        for place, run in enumerate(self._queue):
            if run.not_before <= now:
                del self._queue[place]
                run.state, run.attempts = "running", run.attempts + 1
                return run
        return None

    def finished(self, name: str) -> None:
        """The run has ended well."""
        self.runs[name].state, self.runs[name].message = "finished", ""

    def failed(self, name: str, message: str) -> None:
        """The run has ended by its own error."""
        self.runs[name].state, self.runs[name].message = "failed", message

    def died(self, name: str, message: str, now: float) -> bool:
        """Its worker or node has died; returns whether it will be tried again."""
        run = self.runs[name]
        run.waits_since = None
        if run.attempts > self.retries:
            tries = "1 attempt" if run.attempts == 1 else f"{run.attempts} attempts"
            self.failed(name, f"given up after {tries}: {message}")
            return False
        self._again(run, message, now)
        return True

    def busy(self, name: str, message: str, now: float, held: bool = False) -> bool:
        """Somebody else is writing the run; returns whether it will be tried again.

        ``held``: this attempt had the run for a while, and lost it.
        """
        if held:
            self.runs[name].waits_since = None
        return self._wait(name, message, now, BUSY_DELAY, BUSY_LIMIT)

    def unfit(self, name: str, message: str, now: float) -> bool:
        """Its node cannot run anything; returns whether it will be tried again."""
        return self._wait(name, message, now, UNFIT_DELAY, UNFIT_LIMIT)

    def _wait(self, name: str, message: str, now: float, delay: float, limit: float) -> bool:
        """Try the run again later, at no cost, unless it has waited for too long."""
        run = self.runs[name]
        run.attempts -= 1
        run.waits_since = now if run.waits_since is None else run.waits_since
        if now - run.waits_since > limit:
            self.failed(name, message)
            return False
        self._again(run, message, now + delay)
        return True

    def _again(self, run: Run, message: str, not_before: float) -> None:
        run.state, run.message, run.not_before = "queued", message, not_before
        self._queue.append(run)
