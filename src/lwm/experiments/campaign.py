"""What every experiment made of training runs does: run what is missing, rows as each ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from lwm import runs
from lwm.config import PRESETS, Config, load_preset, to_dict
from lwm.errors import BadInput, RunFailed
from lwm.experiments import rows, runner
from lwm.experiments.options import Options
from lwm.settings import flatten


class Setting(Protocol):
    """What is trained, before seeds."""

    def job(self, seed: int) -> runner.Job:
        """The training run of one seed."""

    def key(self, seed: int) -> tuple[str, ...]:
        """What tells its rows from others: the cells of the experiment's key columns."""

    def rows(self, seed: int) -> list[dict[str, Any]]:
        """Its rows, once the run has finished; none as long as they wait for another run."""


Plan = Sequence[tuple[Setting, int]]


@dataclass(frozen=True)
class Campaign:
    """Training runs of one experiment, and the file of their rows."""

    name: str
    plan: Plan
    path: Path
    columns: tuple[str, ...]
    keys: tuple[str, ...]
    """Columns that tell the rows of a run from others."""
    told: str = "score"
    """The column that is printed as a run ends."""
    keep: Callable[[runner.Job], None] | None = None
    """Called with each run that has given its rows: what else is kept of it."""
    needs: Callable[[Any, int], list[runner.Job]] | None = None
    """Runs whose directories a run's rows are measured with: made again where they are gone."""


Todo = dict[runner.Job, list[tuple[Campaign, Setting, int]]]
"""Job -> who wants rows of it: mostly one experiment, sometimes two, none if it is only needed."""


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
        if base.workload != "labyrinth":
            parts["encoder"] = base.encoder.pretrain_iterations
        for part, iterations in parts.items():
            changes[f"{part}.pretrain_iterations"] = max(round(share * iterations), 1)
    return " ".join(f"{key}={value}" for key, value in changes.items())


def changed(config: Mapping[str, Any]) -> list[str]:
    """Settings ``key=value`` in which a run's config (a nested dict) differs from its preset.

    With workload, preset, agent, seed and environment they tell the whole config.  A preset that is
    no more is replaced by the workload's first.
    """
    found = flatten(config)
    named = ("env.size", "atari.game", "gym.env", "agent", "seed", "preset", "workload")
    presets = PRESETS[found["workload"]]
    preset = found["preset"] if found["preset"] in presets else next(iter(presets))
    given = {key: found[key] for key in named[:4] if key in found}
    base = flatten(to_dict(load_preset(preset, given, found["workload"])))
    other = {k: v for k, v in found.items() if k not in named and (k not in base or base[k] != v)}
    return [f"{key}={value}" for key, value in other.items()]


def label(config: Mapping[str, Any]) -> str:
    """What a run trains, without environment and seed: ``lwm, laptop, dqn.gamma=0.9``."""
    return ", ".join([config["agent"], config["preset"], *changed(config)])


def outcome(job: runner.Job) -> tuple[dict[str, Any], dict[str, str]]:
    """Of a finished run: its evaluation, and the cells that say where the row comes from."""
    result, machine = runs.read_evaluation(job.directory), runs.read_machine(job.directory)
    if result is None or machine is None:
        raise RunFailed(f"{job.directory} has no evaluation")
    by = f"{machine['cpu']}, torch {machine['torch']}"
    return result, {"command": job.command, "commit": machine["commit"], "machine": by}


def run_missing(campaign: Campaign, options: Options) -> None:
    """Run what of the campaign has no row yet; the words of ``only`` must all be in a run's id."""
    only = options.only
    plan = [(s, seed) for s, seed in campaign.plan if all(w in s.job(seed).id for w in only)]
    if only and not plan:
        raise BadInput(f"no run of {campaign.name} has {' and '.join(only)} in its id")
    run([replace(campaign, plan=plan)], options)


def missing(campaigns: Iterable[Campaign], seeds: int | None) -> Todo:
    """What has no row yet, of each row at most the first ``seeds`` seeds."""
    todo: Todo = {}
    needed: list[runner.Job] = []
    for campaign in campaigns:
        have = present(campaign.path, campaign.columns, campaign.keys)
        for setting, seed in _first(campaign.plan, seeds):
            if setting.key(seed) not in have:
                todo.setdefault(setting.job(seed), []).append((campaign, setting, seed))
                beside = campaign.needs(setting, seed) if campaign.needs else []
                needed += [job for job in beside if not runner.finished(job)]
    for job in needed:
        todo.setdefault(job, [])  # nobody may want its rows: they are there
    return todo


def _first(plan: Plan, seeds: int | None) -> Plan:
    """The plan with at most so many seeds of each setting: the smallest."""
    planned: dict[Setting, list[int]] = {}
    for setting, seed in plan:
        planned.setdefault(setting, []).append(seed)
    return [(s, seed) for s, seed in plan if seed in sorted(planned[s])[:seeds]]


def run(campaigns: Iterable[Campaign], options: Options) -> None:
    """Run what has no row yet, rows as each run ends; raises RunFailed if some failed."""
    todo = missing(campaigns, options.seeds)
    waiting: list[tuple[Campaign, Setting, int]] = []

    def on_done(job: runner.Job) -> None:
        ending = ""
        for owner in todo[job]:
            found = _append(*owner)
            if not found:
                waiting.append(owner)
            value = found[0].get(owner[0].told) if found else None
            ending = ending if value is None else f": {owner[0].told} {value:.2f}"
        print(f"finished {job.id}{ending}", flush=True)

    failed = options.run(list(todo), options.jobs, on_done)
    for owner in waiting:  # their rows waited for another run
        _append(*owner)
    if failed:
        raise RunFailed(f"{len(failed)} of {len(todo)} runs failed, e.g. {failed[0][0].id}")


def _append(campaign: Campaign, setting: Setting, seed: int) -> list[dict[str, Any]]:
    found = setting.rows(seed)
    if found:
        rows.append_all(campaign.path, campaign.columns, found, campaign.keys)
        if campaign.keep is not None:
            campaign.keep(setting.job(seed))
    return found
