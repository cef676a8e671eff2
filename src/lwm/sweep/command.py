"""``lwm sweep``: what was asked for, run on Ray."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lwm.config import Config
from lwm.errors import BadInput
from lwm.experiments import campaign, grid, runner
from lwm.experiments.campaign import Campaign
from lwm.experiments.options import Options
from lwm.sweep import choose, driver
from lwm.sweep.engine import Engine, marked


def sweep(args: Namespace) -> int:
    """Run what is missing of the selection; rows as each run ends."""
    engine = engine_of(args)
    with runner.stored_in(engine.storage):
        return _sweep(args, engine)


def _sweep(args: Namespace, engine: Engine) -> int:
    campaigns = _selection(args, engine.storage)
    total = sum(args.seeds is None or seed < args.seeds for c in campaigns for _, seed in c.plan)
    if not total:
        raise BadInput("the selection has no runs")
    with marked(engine.storage):
        todo = campaign.missing(campaigns, args.seeds)
    if not todo:
        print(f"nothing to do: the {total} runs of the selection have their rows")
        return 0
    _check_worlds(job.config for job in todo)
    print(f"{len(todo)} runs, kept in {engine.storage}", flush=True)
    options = Options(seeds=args.seeds, jobs=args.jobs, run=driver.runner_on(engine))
    campaign.run(campaigns, options)
    files = " and ".join(dict.fromkeys(str(c.path) for c in campaigns))
    print(f"all finished; rows: {files}")
    return 0


def _check_worlds(configs: Iterable[Config]) -> None:
    """Environments that cannot be had are told now, and not by every run of its own."""
    for config in {(c.workload, c.atari.game, c.gym): c for c in configs}.values():
        if config.workload == "atari":
            from lwm.envs.atari import rom_of

            rom_of(config.atari.game)
        elif config.workload == "gym":
            from lwm.envs.gymnasium import GymEnv

            GymEnv(config.gym, np.zeros(1, np.int64)).close()


def engine_of(args: Namespace) -> Engine:
    """What the flags ask of Ray."""
    asked = {
        "address": args.address,
        "cpus": args.cpus_per_run,
        "gpus": args.gpus_per_run,
        "retries": args.retries,
        "storage": args.storage,
    }
    return Engine(**{name: value for name, value in asked.items() if value is not None})


def reproduce(args: Namespace, experiment: Any, options: Options) -> int:
    """``lwm reproduce ... --address``: the same experiment, its runs on Ray."""
    engine = engine_of(args)
    with runner.stored_in(engine.storage):
        return int(experiment.main(replace(options, run=driver.runner_on(engine))) or 0)


def _selection(args: Namespace, storage: Path) -> list[Campaign]:
    words = {"ids": args.ids, "--env": args.env, "--agent": args.agent, "--preset": args.preset}
    changes = [word for given in words.values() for word in given if _is_setting(word)]
    ids, envs, agents, presets = (
        [word for word in given if not _is_setting(word)] for given in words.values()
    )
    if ids:
        crossed = [flag for flag, given in words.items() if given and flag != "ids"] + changes
        if crossed:
            raise BadInput(f"{crossed[0]} goes with --env: give ids, or --env --agent --preset")
        return choose.chosen(ids, Options(scale=args.scale, seeds=args.seeds))
    if not envs:
        raise BadInput("nothing selected: give ids (lwm reproduce --list), or --env and --agent")
    if args.scale is not None:
        raise BadInput("--scale belongs to ids: give loop.total_frames=N")
    rows = storage / "grid" / "rows.csv"
    return [
        grid.campaign_of(
            envs, agents or ["lwm"], presets or ["paper"], changes, args.seeds or 1, rows
        )
    ]


def _is_setting(word: str) -> bool:
    """``key=value``; the ids of runs may hold an equals sign too, behind a slash."""
    return "=" in word and "/" not in word.partition("=")[0]
