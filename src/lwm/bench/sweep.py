"""What Ray costs a run: the same run alone and under Ray, turn by turn, in frames and in work.

Other work on the machine slows frames per second, so the fastest turn of each counts.  Processor
time of the run's process tells the same with less noise.
"""

from __future__ import annotations

import resource
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from lwm import runs
from lwm.errors import RunFailed
from lwm.experiments import grid, runner
from lwm.sweep import attend
from lwm.sweep.engine import Engine, connected, marked

AIM = 0.03
"""Share of frames per second that Ray may cost."""
_PER_SECOND, _WARM_UP = 500, 10_000
_QUICK = "world_model.pretrain_iterations=10 evaluation.episodes=64"


class Turn(NamedTuple):
    """One run."""

    speed: float
    """Frames per second, as the run's own log tells."""
    work: float
    """Seconds of processor time of its process, start and scoring included."""


def run(seconds: float = 20.0, turns: int = 4) -> str:
    """Measure, return a line for each turn and the verdict.  ``seconds``: about, of one run."""
    frames = _WARM_UP + round(seconds * _PER_SECOND)
    job = grid.Setting("3x3", "lwm", "paper", f"loop.total_frames={frames} {_QUICK}").job(0)
    lines: list[str] = []
    alone: list[Turn] = []
    on_ray: list[Turn] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(turns):
            where = Path(folder) / str(number)
            alone.append(attended(job, where / "alone", None))
            with connected(Engine()) as ray:  # anew: alone means without Ray's idle processes
                on_ray.append(attended(job, where / "ray", ray))
            a, b = alone[-1], on_ray[-1]
            lines.append(
                f"alone {a.speed:6,.0f} frames/s {a.work:6.2f} s of work; "
                f"on Ray {b.speed:6,.0f} frames/s {b.work:6.2f} s of work"
            )
    lost = 1 - max(t.speed for t in on_ray) / max(t.speed for t in alone)
    more = min(t.work for t in on_ray) / min(t.work for t in alone) - 1
    noise = _spread(alone)
    verdict = "within" if lost <= AIM else "OVER"
    told = f"{verdict} the aim of {AIM:.0%}" if noise <= AIM else "no verdict, see below"
    return "\n".join(
        [
            *lines,
            f"Ray costs {lost:.1%} of frames/s, fastest of {turns}: {told}",
            f"and {more:.1%} of processor time, least of {turns}",
            f"turns alone differ by {noise:.0%} in frames/s: the noise of this machine, which must "
            f"be below {AIM:.0%} for a verdict",
        ]
    )


def _spread(found: list[Turn]) -> float:
    speeds = [turn.speed for turn in found]
    return max(speeds) / min(speeds) - 1


def attended(job: runner.Job, folder: Path, ray: Any) -> Turn:
    """The run in ``folder``: as ``lwm reproduce`` runs it, or by a task of ``ray``."""
    with marked(folder) as marker, runner.stored_in(folder):
        if ray is None:
            before = _work()
            process = runner.start(job)
            code = process.wait()
            work = _work() - before
            message = "" if code == 0 else runner.last_words(job, code)
        else:
            order = attend.Order(job, folder, marker, 1)
            message, work = ray.get(ray.remote(num_cpus=1, max_retries=0)(_task).remote(order))
        if message:
            raise RunFailed(message)
        *_, last = runs.read_timing(job.directory)
    return Turn(float(last["frames_per_second"]), work)


def _task(order: attend.Order) -> tuple[str, float]:
    """On Ray: an error or nothing, and the processor time of the run."""
    before = _work()
    ended = attend.attend(order)
    return ("" if ended.how == "finished" else ended.message or ended.how), _work() - before


def _work() -> float:
    """Processor time of children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
