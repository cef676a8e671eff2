"""``lwm tune``: points of a space as runs, of which ASHA (Ray Tune) stops the hopeless early."""

from __future__ import annotations

import logging
import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

from lwm import runs
from lwm.errors import BadInput, RunFailed
from lwm.experiments import rows, runner
from lwm.experiments.runner import Job
from lwm.sweep import space as spaces
from lwm.sweep.command import engine_of
from lwm.sweep.engine import Engine, check_nodes, connected, marked
from lwm.sweep.space import Space

COLUMNS = ("trial", "state", "frames", "score", "point", "command")


def tune(args: Namespace) -> int:
    """Search, print the points best first, and write them beside their runs."""
    space = spaces.read(args.space, args.samples)
    engine = engine_of(args)
    storage = Path(engine.storage).absolute()
    points = space.points()
    jobs = [space.job(number, point) for number, point in enumerate(points)]
    with runner.stored_in(storage), marked(storage) as marker:
        for job in jobs:
            if runs.is_run(job.directory):
                runner.check_same_settings(job)
        print(f"{len(jobs)} points, runs in {jobs[0].directory.parent}", flush=True)
        with connected(engine) as ray:
            if engine.address is not None:
                check_nodes(ray, storage, marker)
            failed = _search(ray, engine, storage, space, jobs)
        found = _rows(jobs, points)
        path = jobs[0].directory.parent / "points.csv"
        rows.write(path, COLUMNS, found)
        print(table(found))
        print(f"points: {path}; runs: lwm view {path.parent}")
    if failed:
        raise RunFailed(f"{len(failed)} of {len(jobs)} points failed, e.g. {failed[0]}")
    return 0


def _search(ray: Any, engine: Engine, storage: Path, space: Space, jobs: list[Job]) -> list[str]:
    """Run Tune over the jobs; returns what failed, each with its message."""
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler

    from lwm.sweep.trial import Trial

    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    longest = max(job.config.loop.total_frames for job in jobs)
    asha = ASHAScheduler(
        time_attr="frames",
        metric="score",
        mode="max",
        # Its last rung stops runs at this many frames; ours end by themselves, a little later.
        max_t=2 * longest,
        grace_period=space.first_frames,
        reduction_factor=space.reduction,
    )
    needs = {"cpu": engine.cpus, "gpu": engine.gpus}
    trainable = tune.with_parameters(Trial, jobs=jobs, storage=storage)
    telling = _telling(tune.Callback, jobs)
    own = jobs[0].directory.parent / ".ray"  # Tune's notes: of no use once it is through
    try:
        tuner = tune.Tuner(
            tune.with_resources(trainable, needs),
            param_space={"trial": tune.grid_search(list(range(len(jobs))))},
            tune_config=tune.TuneConfig(scheduler=asha),
            run_config=tune.RunConfig(
                name="search",
                storage_path=str(own),
                verbose=0,
                callbacks=[telling],
                failure_config=tune.FailureConfig(max_failures=engine.retries),
            ),
        )
        grid = tuner.fit()
        results = [grid[i] for i in range(len(grid))]
    finally:
        shutil.rmtree(own, ignore_errors=True)
    if len(telling.ended) < len(jobs):  # Tune has taken the Ctrl-C, and stopped the runs
        raise KeyboardInterrupt
    failed = []
    for result in results:
        name, told = jobs[(result.config or {})["trial"]].id, result.metrics or {}
        if result.error is not None:
            failed.append(f"{name}: {str(result.error).strip().splitlines()[-1]}")
        elif "error" in told:
            failed.append(f"{name}: {told['error']}")
    return failed


def _telling(base: type, jobs: list[Job]) -> Any:
    """A callback that prints a line for every score, and knows which points are through."""

    class Telling(base):
        def __init__(self) -> None:
            super().__init__()
            self.ended: set[int] = set()

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **_: Any) -> None:
            self.ended.add(trial.config["trial"])

        def on_trial_error(self, iteration: int, trials: Any, trial: Any, **_: Any) -> None:
            self.ended.add(trial.config["trial"])

        def on_trial_result(
            self, iteration: int, trials: Any, trial: Any, result: Any, **_: Any
        ) -> None:
            name = jobs[trial.config["trial"]].id
            if "error" in result:
                print(f"failed   {name}: {result['error']}", flush=True)
            elif not result.get("done"):
                print(
                    f"{name} {result['frames']:>10,} frames: score {result['score']:.2f}",
                    flush=True,
                )

    return Telling()


def _rows(jobs: list[Job], points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every point with its last validation score; those that came furthest and best first."""
    found = []
    for job, point in zip(jobs, points, strict=True):
        told: dict[str, Any] = {}
        state = "missing"
        if runs.is_run(job.directory):
            state = (runs.read_status(job.directory) or {}).get("state", "running")
            scores = [r for r in runs.read_metrics(job.directory) if r["kind"] == "validation"]
            told = scores[-1] if scores else {}
        found.append(
            {
                "trial": job.directory.name,
                "state": state,
                "frames": told.get("frames", 0),
                "score": told.get("score"),
                "point": " ".join(f"{key}={value}" for key, value in point.items()),
                "command": job.command,
            }
        )
    if not found:
        raise BadInput("no points")
    order = {"finished": 0, "stopped": 1}
    return sorted(
        found,
        key=lambda r: (
            order.get(r["state"], 2), -(r["score"] if r["score"] is not None else -1e300),
        ),
    )  # fmt: skip


def table(found: list[dict[str, Any]]) -> str:
    """The points, best first."""
    lines = ["| trial | state | frames | score | point |", "|---|---|---|---|---|"]
    for row in found:
        score = "–" if row["score"] is None else f"{row['score']:.2f}"
        cells = (row["trial"], row["state"], f"{row['frames']:,}", score, row["point"])
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
