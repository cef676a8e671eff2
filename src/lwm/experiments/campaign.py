"""What every experiment made of training runs does: run what is missing, a row as each ends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from lwm.errors import BadInput, RunFailed
from lwm.experiments import rows, runner
from lwm.experiments.options import Options


class Setting(Protocol):
    """What is trained, before seeds."""

    def job(self, seed: int) -> runner.Job:
        """The training run of one seed."""

    def key(self, seed: int) -> tuple[str, ...]:
        """What tells its row from others: the cells of the experiment's key columns."""

    def row(self, seed: int) -> dict[str, Any]:
        """Its row, once the run has finished."""


Plan = Sequence[tuple[Setting, int]]


def present(path: Path, columns: tuple[str, ...], keys: tuple[str, ...]) -> set[tuple[str, ...]]:
    """Keys of the rows that are there."""
    return {tuple(row[k] for k in keys) for row in rows.read(path, columns)}


def status(plan: Plan, path: Path, columns: tuple[str, ...], keys: tuple[str, ...]) -> str:
    """How many of the planned runs have a row."""
    have = present(path, columns, keys)
    return f"{sum(s.key(seed) in have for s, seed in plan)} of {len(plan)} runs"


def run_missing(
    plan: Plan,
    path: Path,
    columns: tuple[str, ...],
    keys: tuple[str, ...],
    options: Options,
    told: str = "score",
) -> None:
    """Run what of ``plan`` has no row yet; the words of ``only`` must all be in a run's id.

    ``told``: the column that is printed as a run ends.
    """
    only, seeds, jobs = options.only, options.seeds, options.jobs
    chosen = [(s, seed) for s, seed in plan if all(word in s.job(seed).id for word in only)]
    if only and not chosen:
        name = path.stem
        raise BadInput(f"no run of {name} has {' and '.join(only)} in its id")
    have = present(path, columns, keys)
    todo = {
        s.job(seed): (s, seed)
        for s, seed in chosen
        if s.key(seed) not in have and (seeds is None or seed < seeds)
    }

    def on_done(job: runner.Job) -> None:
        setting, seed = todo[job]
        row = setting.row(seed)
        rows.append(path, columns, row)
        value = "–" if row[told] is None else f"{row[told]:.2f}"
        print(f"finished {job.id}: {told} {value}", flush=True)

    failed = runner.run_all(list(todo), jobs, on_done)
    if failed:
        raise RunFailed(f"{len(failed)} of {len(todo)} runs failed, e.g. {failed[0][0].id}")
