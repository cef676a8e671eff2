"""Hours of small-scale Atari in one process: memory, file handles and speed must stay flat."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from faults.common import Child, Options, Tally, call
from lwm import runs
from lwm.bench.processes import everyone

EVERY = 5.0
"""Seconds between two looks at the process."""
WARM_UP = 0.25
"""Share of the time that is not judged: replay fills, libraries load."""
MOST_GROWTH = 0.03
"""Of resident memory and of frames per yardstick, from the end of the warm-up to the end; frames
per second, of the clock or of the processor, tell what else the machine did as well."""
SETTINGS = {
    "atari.game": "breakout",
    "loop.total_frames": 10**9,
    "loop.log_every_frames": 1000,
    "loop.checkpoint_every_frames": 5000,
    "replay.capacity_steps": 4000,
}


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


class Yardstick:
    """A fixed piece of work of the kind that the run does: how long it takes of processor time
    tells how much the machine's other work slows a process down by sharing caches and memory."""

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)
        self.frames = torch.zeros(16, 1, 84, 84)
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(1, 32, 8, 4), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 4, 2)
        )
        self()

    def __call__(self) -> float:
        """Seconds of processor time, at best of three."""
        return min(self._once() for _ in range(3))

    def _once(self) -> float:
        began = time.thread_time()
        self.layers(self.frames).square().mean().backward()
        return time.thread_time() - began


class Look(NamedTuple):
    """One look at the process."""

    at: float
    """Seconds since the first."""
    memory: float
    """MB."""
    handles: Handles
    used: float
    """Seconds of processor time so far."""
    yard: float
    """Seconds of processor time that the yardstick took."""


def watched(child: Child, seconds: float) -> list[Look]:
    """Looks at the process until the time is up."""
    yardstick = Yardstick()
    began = time.monotonic()
    seen: list[Look] = []
    while (now := time.monotonic() - began) < seconds:
        try:
            seen.append(Look(now, *look(child.pid), processor(child.pid), yardstick()))
        except (FileNotFoundError, ProcessLookupError, IndexError):
            break
        time.sleep(min(EVERY, seconds / 50))
    return seen


def paces(rows: list[dict[str, Any]], seen: list[Look]) -> tuple[float, float, float]:
    """By what share frames per yardstick, per second of processor time and per second of the clock
    change over the timing rows between the first and the last look; NaN where there are too few."""
    rows = [row for row in rows if seen[0].at <= row["seconds"] <= seen[-1].at]
    if len(rows) < 4:
        return math.nan, math.nan, math.nan
    when = [row["seconds"] for row in rows]
    steps, at = np.diff([row["frames"] for row in rows]), [look.at for look in seen]
    used = np.diff(np.interp(when, at, [look.used for look in seen]))
    # The mean over the looks of a stretch: one look may have met a checkpoint being written.
    total = np.concatenate([[0.0], np.cumsum([look.yard for look in seen])])
    place = np.interp(when, at, np.arange(len(at)))
    yard = np.diff(np.interp(place, np.arange(len(total)), total)) / np.diff(place)
    rates = (steps / used * yard, steps / used, steps / np.diff(when))
    yards, processor_seconds, clock = (growth(when[1:], rate.tolist()) for rate in rates)
    return yards, processor_seconds, clock


def soak(o: Options) -> Tally:
    """Resident memory, file handles and frames/s, as slopes after the warm-up."""
    tally = Tally("soak")
    if not importlib.util.find_spec("ale_py"):
        return tally.skip("needs the extra lwm[atari]")
    minutes = {"tiny": 0.4, "short": 3.0}.get(o.form, o.minutes)
    path = o.where / "soak"
    settings = [f"{key}={value}" for key, value in SETTINGS.items()]
    arguments = ["train", "atari", "--preset", "debug", "--quiet", "--out", str(path), *settings]
    child = call(arguments, o.where / "soak.log")
    seen = watched(child, minutes * 60)
    child.kill(15)
    ended = child.wait()
    if ended.code != 143 or len(seen) < 8:
        tally.count(False, f"exit code {ended.code}: {ended.text[-300:]}")
        return tally
    start = WARM_UP * seen[-1].at
    judged_looks = [s for s in seen if s.at >= start]
    at, memory = [s.at for s in judged_looks], [s.memory for s in judged_looks]
    same, passing = held([s.handles for s in judged_looks])
    counts = [len(s.handles) for s in judged_looks]
    rows = [row for row in runs.read_timing(path) if row["seconds"] >= start]
    speed, of_processor, by_clock = paces(rows, seen)
    more = growth(at, memory)
    # A few minutes say little: only the whole form is judged, a shorter one tells its slopes.
    judged = minutes >= 30
    tally.count(not judged or same, f"{min(counts)} to {max(counts)} handles: {sorted(passing)}")
    tally.count(not judged or more < MOST_GROWTH, f"memory grew by {more:.1%}")
    tally.count(not judged or speed > -MOST_GROWTH, f"frames per yardstick: {speed:+.1%}")
    frames = rows[-1]["frames"] if rows else 0
    tally.detail = (
        f"{minutes:g} min, {frames:,} frames: resident {memory[0]:.0f} to {memory[-1]:.0f} MB "
        f"({more:+.1%}), {min(counts)} handles at {len(counts)} looks and {len(passing)} files met "
        f"while they were written, frames per yardstick {speed:+.1%} (per second of the processor: "
        f"{of_processor:+.1%}, of the clock: {by_clock:+.1%})"
        + ("" if judged else " (slopes judged from 30 min on)")
    )
    return tally
