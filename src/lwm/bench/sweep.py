"""What Ray costs a run: frames per second of the same run alone and in a sweep, turn by turn.

Other work on the machine slows both; so they take turns, and the middle of the ratios counts.
Memory of the process that drives the sweep is told beside it.
"""

from __future__ import annotations

import resource
import tempfile
from pathlib import Path

import numpy as np

from lwm import runs
from lwm.errors import RunFailed
from lwm.experiments import grid, runner
from lwm.sweep import driver
from lwm.sweep.engine import Engine

AIM = 0.03
"""Share of frames per second that Ray may cost."""
_PER_SECOND = 500
_QUICK = "world_model.pretrain_iterations=10 evaluation.episodes=64"


def run(seconds: float = 40.0, turns: int = 3) -> str:
    """Measure, return a line for each turn and the verdict.  ``seconds``: about, of one run."""
    frames = max(4_000, round(seconds * _PER_SECOND))
    job = grid.Setting("3x3", "lwm", "paper", f"loop.total_frames={frames} {_QUICK}").job(0)
    lines, ratios = [], []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(turns):
            where = Path(folder) / str(turn)
            order = ("alone", "ray") if turn % 2 == 0 else ("ray", "alone")
            speed = {how: _speed(how, job, where / how) for how in order}
            ratios.append(speed["ray"] / speed["alone"])
            lines.append(
                f"alone {speed['alone']:,.0f} frames/s, on Ray {speed['ray']:,.0f}: "
                f"{ratios[-1]:.3f}"
            )
    lost = 1 - float(np.median(ratios))
    verdict = "within" if lost <= AIM else "OVER"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    lines.append(f"Ray costs {lost:.1%} of frames/s, {verdict} the aim of {AIM:.0%}")
    lines.append(f"driver: at most {peak:.0f} MiB")
    return "\n".join(lines)


def _speed(how: str, job: runner.Job, folder: Path) -> float:
    """Frames per second of one run, as its own log tells."""
    with runner.stored_in(folder):
        if how == "alone":
            failed = runner.run_all([job], 1, lambda _: None)
        else:
            failed = driver.run_all(Engine(storage=folder), [job], 1, lambda _: None)
        if failed:
            raise RunFailed(failed[0][1])
        *_, last = runs.read_timing(job.directory)
    return float(last["frames_per_second"])
