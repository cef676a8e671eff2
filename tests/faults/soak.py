"""Hours of small-scale Atari in one process: memory, file handles and speed must stay flat.

Speed is judged at the end, against a run that has only just begun: the two take turns, one stands
still while the other works, and frames per second of processor time are compared.  A line through
the hours would tell what else the machine did in them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import signal
import time
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from faults.common import PATIENCE, Child, Options, Tally, call
from lwm.bench.processes import everyone

EVERY = 5.0
"""Seconds between two looks at the process."""
WARM_UP = 0.25
"""Share of the time that is not judged: replay fills, libraries load."""
MOST_GROWTH = 0.03
"""Of resident memory from the end of the warm-up to the end, and of the time that a frame takes, in
the old run against the fresh one."""
CAPACITY = 4000
SETTINGS = {
    "atari.game": "breakout",
    "loop.total_frames": 10**9,
    "loop.log_every_frames": 100,
    "loop.checkpoint_every_frames": 5000,
    "replay.capacity_steps": CAPACITY,
}
SETTLED = 3 * CAPACITY
"""Frames after which a run is no longer fresh in any way that costs time: its replay is full."""


Handles = frozenset[tuple[str, str]]
"""Number and file of each open handle."""


def processor(pid: int) -> float:
    """Seconds of processor time of a process and of its children, those that have ended too."""
    near = [process for process in everyone() if pid in (process.pid, process.parent)]
    return sum(p.seconds + (p.ended if p.pid == pid else 0.0) for p in near)


def look(pid: int) -> tuple[float, Handles]:
    """MB of resident memory and open file handles of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    size = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    handles = set()
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed while we read
            handles.add((number, os.readlink(f"/proc/{pid}/fd/{number}")))
    return size, frozenset(handles)


def held(looks: list[Handles]) -> tuple[bool, set[str]]:
    """Whether what two looks in a row find open is always the same; files that one look found.

    A checkpoint, the status and the events are files that are opened, written and closed: a look
    meets one of them open now and then.  A handle that is not closed again is there for good, and
    so is one that takes the place of another: both are seen at the next look.
    """
    kept = [a & b for a, b in pairwise(looks)]
    passing = {file for seen in looks for _, file in seen - kept[0]}
    return all(k == kept[0] for k in kept), passing


def growth(seconds: list[float], values: list[float]) -> float:
    """By what share of its mean a straight line through the values rises over all of the time."""
    slope = np.polyfit(seconds, values, 1)[0]
    return float(slope * (seconds[-1] - seconds[0]) / np.mean(values))


class Look(NamedTuple):
    """One look at the process."""

    at: float
    """Seconds since the first."""
    memory: float
    """MB."""
    handles: Handles


def watched(child: Child, seconds: float) -> list[Look]:
    """Looks at the process until the time is up."""
    began = time.monotonic()
    seen: list[Look] = []
    while (now := time.monotonic() - began) < seconds:
        try:
            seen.append(Look(now, *look(child.pid)))
        except (FileNotFoundError, ProcessLookupError, IndexError):
            break
        time.sleep(min(EVERY, seconds / 50))
    return seen


class Run(NamedTuple):
    """A run in a child, and where it writes."""

    child: Child
    path: Path

    @property
    def frames(self) -> int:
        """As far as it has told."""
        log = self.path / "timing.jsonl"
        told = log.read_bytes().rpartition(b"\n")[0] if log.exists() else b""
        return int(json.loads(told.rpartition(b"\n")[2])["frames"]) if told else 0

    def signal(self, number: int) -> None:
        """To it and to the games that it plays."""
        for process in everyone():
            if self.child.pid in (process.pid, process.parent):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)


def started(path: Path) -> Run:
    """A run that nobody ends."""
    settings = [f"{key}={value}" for key, value in SETTINGS.items()]
    arguments = ["train", "atari", "--preset", "debug", "--quiet", "--out", str(path), *settings]
    return Run(call(arguments, path.with_suffix(".log")), path)


def turns(pair: tuple[Run, Run], rounds: int, seconds: float) -> list[float]:
    """-> frames per second of processor time of either, over all of its turns; both stand still
    before and after.

    What a run has done but not told when a turn ends, it tells in its next one.
    """
    before = [(run.frames, processor(run.child.pid)) for run in pair]
    for _ in range(rounds):
        for run in pair:
            run.signal(signal.SIGCONT)
            time.sleep(seconds)
            run.signal(signal.SIGSTOP)
    return [
        (run.frames - frames) / max(processor(run.child.pid) - used, 1e-3)
        for run, (frames, used) in zip(pair, before, strict=True)
    ]


def against_fresh(old: Run, path: Path, frames: int, rounds: int, seconds: float) -> float:
    """By what share the old run is faster than one that began ``frames`` ago; NaN where there is
    nothing to compare with."""
    old.signal(signal.SIGSTOP)
    fresh, until = started(path), time.monotonic() + 4 * PATIENCE
    try:
        while fresh.frames < frames and time.monotonic() < until:
            time.sleep(0.2)
        fresh.signal(signal.SIGSTOP)
        mine, theirs = turns((old, fresh), rounds, seconds)
    finally:
        old.signal(signal.SIGCONT)
        fresh.signal(signal.SIGCONT)
        fresh.child.kill(15)
        fresh.child.wait()
    return mine / theirs - 1 if theirs > 0 else math.nan


def soak(o: Options) -> Tally:
    """Resident memory and file handles over time, and speed against a fresh run."""
    tally = Tally("soak")
    if not importlib.util.find_spec("ale_py"):
        return tally.skip("needs the extra lwm[atari]")
    minutes = {"tiny": 0.4, "short": 3.0}.get(o.form, o.minutes)
    # A few minutes say little: only the whole form is judged, a shorter one tells its figures.
    judged = minutes >= 30
    old = started(o.where / "soak")
    seen = watched(old.child, minutes * 60)
    speed = math.nan
    rounds, seconds = (20, 20.0) if judged else (3, 2.0)
    if len(seen) >= 8:
        settled = SETTLED if judged else 1000
        speed = against_fresh(old, o.where / "fresh", settled, rounds, seconds)
    with contextlib.suppress(ProcessLookupError):
        old.child.kill(15)
    ended = old.child.wait()
    if ended.code != 143 or len(seen) < 8:
        tally.count(False, f"exit code {ended.code}: {ended.text[-300:]}")
        return tally
    looks = [s for s in seen if s.at >= WARM_UP * seen[-1].at]
    memory = [s.memory for s in looks]
    same, passing = held([s.handles for s in looks])
    counts = [len(s.handles) for s in looks]
    more = growth([s.at for s in looks], memory)
    tally.count(not judged or same, f"{min(counts)} to {max(counts)} handles: {sorted(passing)}")
    tally.count(not judged or more < MOST_GROWTH, f"memory grew by {more:.1%}")
    tally.count(not judged or speed > -MOST_GROWTH, f"against a fresh run: {speed:+.1%}")
    tally.detail = (
        f"{minutes:g} min, {old.frames:,} frames: resident {memory[0]:.0f} to {memory[-1]:.0f} MB "
        f"({more:+.1%}), {min(counts)} handles at {len(counts)} looks and {len(passing)} files met "
        f"while they were written, frames per second of the processor {speed:+.1%} "
        f"against a fresh run ({rounds} turns of {seconds:g} s each)"
        + ("" if judged else " (judged from 30 min on)")
    )
    return tally
