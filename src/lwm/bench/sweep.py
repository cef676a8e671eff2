"""What Ray costs a sweep: the machine filled with runs, one a core, and Ray held still in turns.

A run of a sweep is a process of its own that goes on while everything else of the sweep (driver,
servers, workers that attend it) is stopped by a signal.  So the same runs are timed with Ray at
work and without, every few seconds, and whatever else slows the machine falls on both alike.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lwm import runs
from lwm.bench import processes
from lwm.errors import RunFailed
from lwm.experiments import runner

AIM = 0.03
"""Share of frames per second that Ray may cost."""
_STRETCH = 8.0
"""Seconds that are timed with Ray at work, and with Ray held."""
_CATCH_UP = 2.0
"""Seconds before that: what Ray did not do while it was held is no part of a sweep."""
_PATIENT = {"RAY_health_check_failure_threshold": "1000"}
"""Ray takes a node for dead that does not answer for some seconds."""
_SETTLE = 10.0
"""Seconds in which Ray's processes load what they need: a sweep lasts for hours."""
_ACCOUNTED = 20.0
"""Seconds over which Ray's processor time is taken."""
_PATIENCE = 180.0
_SETTINGS = ("loop.total_frames=100000000", "loop.log_every_frames=100")
_QUICK = ("world_model.pretrain_iterations=10", "loop.warmup_frames=3000")


def run(seconds: float = 180.0) -> str:
    """Measure for about ``seconds`` (after some of starting), return what Ray costs."""
    seeds = runner.cores()
    flags = ["--env", "3x3", "--agent", "lwm", "--preset", "paper", "--seeds", str(seeds)]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-P", "-m", "lwm.cli", "sweep", *flags, *_SETTINGS, *_QUICK]
        with open(Path(folder) / "log", "wb") as log:
            process = subprocess.Popen(
                [*command, "--storage", folder],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **_PATIENT},
            )
        try:
            paths = _under_way(process, Path(folder), seeds)
            time.sleep(_SETTLE)
            before, began = _processor(process.pid), time.monotonic()
            time.sleep(_ACCOUNTED)
            took = (_processor(process.pid) - before) / (time.monotonic() - began)
            pairs = [_pair(process.pid, paths, k % 2 == 0) for k in range(_pairs(seconds))]
        finally:
            _signal(process.pid, signal.SIGCONT)
            process.terminate()
            process.wait()
    return "\n".join(told(pairs, took, seeds))


def told(pairs: list[tuple[float, float]], took: float, at_once: int) -> list[str]:
    """The verdict on what Ray costs.

    ``pairs`` are frames/s with Ray at work and with Ray held, of neighbouring stretches; ``took``
    is the processor time that Ray used while at work, in cores.
    """
    with_ray, without = (statistics.mean(side) for side in zip(*pairs, strict=True))
    lost = [1 - on / off for on, off in pairs]
    cost, error = statistics.mean(lost), 0.0
    if len(lost) > 1:
        error = statistics.stdev(lost) / len(lost) ** 0.5
    verdict = "within" if cost <= AIM else "OVER"
    return [
        f"{at_once} runs at once, {len(pairs)} pairs of {_STRETCH:.0f} s: {with_ray:,.0f} frames/s "
        f"with Ray, {without:,.0f} with Ray held still",
        f"Ray costs {cost:.1%} of frames/s (standard error {error:.1%}): "
        f"{verdict} the aim of {AIM:.0%}",
        f"its processes use {took:.1%} of a core, {took / at_once:.1%} of those that the runs have",
    ]


def _pairs(seconds: float) -> int:
    return max(round(seconds / (2 * (_STRETCH + _CATCH_UP))), 1)


def _under_way(process: subprocess.Popen[bytes], storage: Path, seeds: int) -> list[Path]:
    """The run directories, once all of the runs train."""
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until and process.poll() is None:
        found = sorted(path.parent for path in storage.glob("grid/*/seed*/timing.jsonl"))
        if len(found) == seeds and all(_last(path)[0] > 4000 for path in found):
            return found
        time.sleep(0.5)
    raise RunFailed(f"the sweep did not begin: {(storage / 'log').read_text()[-500:]}")


def _pair(driver: int, paths: list[Path], ray_first: bool) -> tuple[float, float]:
    """Frames per second of all runs in a stretch with Ray at work, and in one without."""
    found = {}
    for at_work in (ray_first, not ray_first):
        _signal(driver, signal.SIGCONT if at_work else signal.SIGSTOP)
        time.sleep(_CATCH_UP)
        before = [_last(path) for path in paths]
        time.sleep(_STRETCH)
        after = [_last(path) for path in paths]
        found[at_work] = sum(
            (b[0] - a[0]) / max(b[1] - a[1], 1e-9) for a, b in zip(before, after, strict=True)
        )
    return found[True], found[False]


def _last(path: Path) -> tuple[float, float]:
    """Frames and seconds of the last row that the run has logged."""
    *_, row = ({"frames": 0, "seconds": 0.0}, *runs.read_timing(path))
    return row["frames"], row["seconds"]


def _processor(driver: int) -> float:
    """Seconds of processor time that the sweep's processes have used, without those of runs."""
    found = [processes.look(pid) for pid in _tree(driver)]
    return sum(process.seconds for process in found if process is not None)


def _signal(driver: int, signum: int) -> None:
    """Send it to every process of the sweep but the runs and what they have started."""
    for pid in _tree(driver):
        try:
            os.kill(pid, signum)
        except ProcessLookupError:
            continue


def _tree(root: int) -> list[int]:
    """A process and its descendants, without those of runs."""
    children: dict[int, list[int]] = {}
    for process in processes.everyone():
        try:
            command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"lwm.sweep.child" not in command:
            children.setdefault(process.parent, []).append(process.pid)
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found
