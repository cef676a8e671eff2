"""What every experiment made of training runs does: run what is missing, rows as each ends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from lwm import runs
from lwm.config import Config
from lwm.errors import BadInput, RunFailed
from lwm.experiments import rows, runner
from lwm.experiments.options import Options


class Setting(Protocol):
    """What is trained, before seeds."""

    def job(self, seed: int) -> runner.Job:
        """The training run of one seed."""

    def key(self, seed: int) -> tuple[str, ...]:
        """What tells its rows from others: the cells of the experiment's key columns."""

    def rows(self, seed: int) -> list[dict[str, Any]]:
        """Its rows, once the run has finished; none as long as they wait for another run."""


Plan = Sequence[tuple[Setting, int]]


def present(path: Path, columns: tuple[str, ...], keys: tuple[str, ...]) -> set[tuple[str, ...]]:
    """Keys of the rows that are there."""
    return {tuple(row[k] for k in keys) for row in rows.read(path, columns)}


def status(plan: Plan, path: Path, columns: tuple[str, ...], keys: tuple[str, ...]) -> str:
    """How many of the planned runs have a row."""
    have = present(path, columns, keys)
    return f"{sum(s.key(seed) in have for s, seed in plan)} of {len(plan)} runs"


def shortened(base: Config, frames: int) -> str:
    """Settings ``key=value`` that make ``base`` a run of so many frames; empty if it is one.

    Where less than four warm-ups would be left, the warm-up, the pretraining and the number of
    evaluation games shrink in the same proportion; no less than windows need is kept.
    """
    if frames == base.loop.total_frames:
        return ""
    changes = {"loop.total_frames": frames}
    share = frames / (4 * base.loop.warmup_frames)
    if share < 1:
        rows_needed = max(base.window, base.world_model.pretrain_rows) + 1
        warm = max(round(share * base.loop.warmup_frames), rows_needed * base.loop.actors)
        if frames <= warm:
            raise BadInput(
                f"--scale is too small: {frames:,} steps, of which the warm-up takes {warm:,}"
            )
        changes["loop.warmup_frames"] = warm
        changes["evaluation.episodes"] = max(round(share * base.evaluation.episodes), 4)
        parts = {"world_model": base.world_model.pretrain_iterations}
        if base.sees_images:
            parts["encoder"] = base.encoder.pretrain_iterations
        for part, iterations in parts.items():
            changes[f"{part}.pretrain_iterations"] = max(round(share * iterations), 1)
    return " ".join(f"{key}={value}" for key, value in changes.items())


def outcome(job: runner.Job) -> tuple[dict[str, Any], dict[str, str]]:
    """Of a finished run: its evaluation, and the cells that say where the row comes from."""
    result, machine = runs.read_evaluation(job.directory), runs.read_machine(job.directory)
    if result is None or machine is None:
        raise RunFailed(f"{job.directory} has no evaluation")
    by = f"{machine['cpu']}, torch {machine['torch']}"
    return result, {"command": job.command, "commit": machine["commit"], "machine": by}


def run_missing(
    plan: Plan,
    path: Path,
    columns: tuple[str, ...],
    keys: tuple[str, ...],
    options: Options,
    name: str | None = None,
    told: str = "score",
) -> None:
    """Run what of ``plan`` has no row yet; the words of ``only`` must all be in a run's id.

    ``name`` is that of the experiment, where it is not that of its file of rows; ``told`` the
    column that is printed as a run ends.
    """
    only, seeds, jobs = options.only, options.seeds, options.jobs
    chosen = [(s, seed) for s, seed in plan if all(word in s.job(seed).id for word in only)]
    if only and not chosen:
        raise BadInput(f"no run of {name or path.stem} has {' and '.join(only)} in its id")
    have = present(path, columns, keys)
    todo = {
        s.job(seed): (s, seed)
        for s, seed in chosen
        if s.key(seed) not in have and (seeds is None or seed < seeds)
    }

    def on_done(job: runner.Job) -> None:
        setting, seed = todo[job]
        found = setting.rows(seed)
        if found:
            rows.append_all(path, columns, found)
        value = found[0].get(told) if found else None
        ending = "" if value is None else f": {told} {value:.2f}"
        print(f"finished {job.id}{ending}", flush=True)

    failed = runner.run_all(list(todo), jobs, on_done)
    if failed:
        raise RunFailed(f"{len(failed)} of {len(todo)} runs failed, e.g. {failed[0][0].id}")
