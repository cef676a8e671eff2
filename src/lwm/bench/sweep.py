"""What Ray costs a run: the same run alone and under Ray, side by side, each with a core to itself.

Ray's own processes share the core of its run, so their work is part of the price.  The two change
cores every turn; whatever else slows the machine slows both, and falls out of their ratio.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from pathlib import Path

from lwm import runs
from lwm.errors import BadInput, RunFailed
from lwm.experiments import grid, runner
from lwm.sweep import attend
from lwm.sweep.engine import Engine, connected, marked

AIM = 0.03
"""Share of frames per second that Ray may cost."""
_PER_SECOND, _WARM_UP = 500, 10_000
_SETTLE = 10.0
"""Seconds in which Ray's processes load what they need: a sweep lasts for hours."""
_QUICK = "world_model.pretrain_iterations=10 evaluation.episodes=64"


def run(seconds: float = 20.0, turns: int = 6) -> str:
    """Measure, return a line for each turn and the verdict.  ``seconds``: about, of one run."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise BadInput("lwm bench sweep needs two cores: it runs two things side by side")
    frames = _WARM_UP + round(seconds * _PER_SECOND)
    job = grid.Setting("3x3", "lwm", "paper", f"loop.total_frames={frames} {_QUICK}").job(0)
    lines, kept = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(turns):
            alone, on_ray = side_by_side(job, Path(folder) / str(number), cores)
            cores.reverse()
            kept.append(on_ray / alone)
            lines.append(
                f"alone {alone:6,.0f} frames/s, on Ray {on_ray:6,.0f}: {kept[-1]:.3f} of it"
            )
    # Two turns, with the cores changed, make one comparison.
    pairs = [math.sqrt(a * b) for a, b in zip(kept[::2], kept[1::2], strict=False)]
    lost = 1 - statistics.median(pairs)
    verdict = "within" if lost <= AIM else "OVER"
    return "\n".join(
        [
            *lines,
            f"Ray costs {lost:.1%} of frames/s (median of {len(pairs)} pairs of turns, "
            f"{1 - max(pairs):.1%} to {1 - min(pairs):.1%}): {verdict} the aim of {AIM:.0%}",
        ]
    )


def side_by_side(job: runner.Job, folder: Path, cores: list[int]) -> tuple[float, float]:
    """Frames per second of the run on the first of two cores, and by a task of Ray on the second,
    where all of Ray's processes are too."""
    allowed = os.sched_getaffinity(0)
    alone, on_ray = folder / "alone", folder / "ray"
    try:
        os.sched_setaffinity(0, {cores[1]})  # what is started from here on inherits it
        with connected(Engine()) as ray, marked(on_ray) as marker:
            order = attend.Order(job, on_ray, marker, 1)
            task = ray.remote(num_cpus=1, max_retries=0)(attend.attend)
            ray.get(ray.remote(num_cpus=1)(_nothing).remote())  # a worker is up
            time.sleep(_SETTLE)
            os.sched_setaffinity(0, {cores[0]})
            with runner.stored_in(alone):
                process = runner.start(job)
                ended = ray.get(task.remote(order))
                code = process.wait()
                if code:
                    raise RunFailed(runner.last_words(job, code))
            if ended.how != "finished":
                raise RunFailed(ended.message or ended.how)
    finally:
        os.sched_setaffinity(0, allowed)
    return _speed(job, alone), _speed(job, on_ray)


def _speed(job: runner.Job, folder: Path) -> float:
    """Frames per second, as the run's own log tells."""
    with runner.stored_in(folder):
        *_, last = runs.read_timing(job.directory)
    return float(last["frames_per_second"])


def _nothing() -> None:
    """A task to wake a worker with."""
