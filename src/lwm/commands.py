"""What each command does: call, print.  Heavy imports wait until a command needs them."""

from __future__ import annotations

import argparse
import hashlib
import re
from pathlib import Path
from typing import Any

from lwm.config import (
    PRESETS,
    UNREAD,
    WORKLOADS,
    Config,
    check_read,
    difference,
    fields,
    get,
    load_preset,
    source,
)
from lwm.errors import BadInput
from lwm.settings import hint

BENCHED = {
    "labyrinth": ("cores", "seconds", "precision", "out"),
    "atari": ("cores", "seconds", "out"),
}
"""Workloads that ``lwm bench`` takes apart by stage, and the flags that mean something there."""
STUDIES = {
    "bonus": ("cores", "seconds", "out"),
    "growth": ("seconds", "frames", "out"),
    "projection": ("cores", "seconds", "out"),
    "sooner": ("size", "out"),
    "startup": (),
    "sweep": ("seconds",),
    "instructions": ("out",),
    "check": ("seconds", "out"),
}
"""What ``lwm bench`` measures beside the workloads, and the flags that mean something there."""

FORECAST = ("table2", "table3", "suite")
"""What ``lwm plan`` reckons for other machines, beside a run on this one."""


def _chosen(args: argparse.Namespace) -> Config:
    overrides: dict[str, Any] = {}
    for flag, key in {
        "size": "env.size",
        "game": "atari.game",
        "env": "gym.env",
        "frames": "loop.total_frames",
        "agent": "agent",
        "seed": "seed",
    }.items():
        value = getattr(args, flag, None)
        if value is not None:
            overrides[key] = value
    for setting in args.settings:
        key, sep, value = setting.partition("=")
        if not sep:
            raise BadInput(f"{setting!r} is not of the form key=value")
        if key == "preset":
            raise BadInput(f"choose a preset with --preset {value}: it sets other values too")
        if key == "workload":
            raise BadInput(f"name the workload first: lwm train {value} ...")
        overrides[key] = value
    check_read(args.workload, overrides)
    preset = args.preset or next(iter(PRESETS[args.workload]))
    return load_preset(preset, overrides, args.workload)


LONGEST_NAME = 160
"""Letters of a name that a run gets by itself; file systems take 255 bytes."""


def run_name(config: Config) -> str:
    """``labyrinth-4x4-lwm-paper-seed0``, with what else differs from the preset behind it.

    What would not fit into a file name is cut off, and a digest of all of it stands in its place.
    """
    follows: dict[str, dict[str, Any]] = {
        "labyrinth": {"env.size": config.env.size},
        "atari": {"atari.game": config.atari.game},
        "gym": {},
    }
    base = load_preset(config.preset, follows[config.workload], config.workload)
    shown = {"env.size", "gym.env", "agent", "seed", "preset"}
    changed = [
        f"{key}={new}" for key, (_, new) in difference(config, base).items() if key not in shown
    ]
    size = config.env.size
    world = {
        "labyrinth": f"{size}x{size}",
        "atari": config.atari.game,
        "gym": re.sub(r"[^\w.-]+", "_", config.gym.env, flags=re.ASCII),
    }[config.workload]
    name = f"{config.workload}-{world}-{config.agent}-{config.preset}-seed{config.seed}"
    whole = "-".join([name, *changed])
    if len(whole) <= LONGEST_NAME:
        return whole
    digest = hashlib.sha256(whole.encode()).hexdigest()[:12]
    return f"{whole[: LONGEST_NAME - 13]}-{digest}"


def train(args: argparse.Namespace) -> int:
    """``lwm train``."""
    if args.resume is not None:
        flags = (
            args.size,
            args.game,
            args.frames,
            args.out,
            args.agent,
            args.preset,
            args.seed,
        )
        if args.workload or args.settings or any(flag is not None for flag in flags):
            raise BadInput("--resume takes the config of the run; give no other settings")
        from lwm import session

        writer, trainer = session.reopen(args.resume, args.env)
    else:
        if args.workload not in WORKLOADS:
            if args.workload and "=" in args.workload:
                raise BadInput(
                    f"name the workload before settings: lwm train labyrinth {args.workload}"
                )
            got = f"unknown workload {args.workload!r}" if args.workload else "no workload"
            near = hint(args.workload, WORKLOADS) if args.workload else ""
            raise BadInput(f"{got}; choose from {', '.join(WORKLOADS)}{near}")
        config = _chosen(args)
        from lwm import session

        writer, trainer = session.start(config, args.out or Path("runs") / run_name(config))
        if config.workload == "atari" and not args.quiet:
            from lwm import plan

            print(plan.describe(config), flush=True)
        if config.workload == "gym" and not args.quiet:
            novelty = trainer.learner.novelty
            print(f"{config.gym.env}: {novelty.sense} -> {novelty}", flush=True)
    result = _drive(writer, trainer, args.quiet)
    print(describe(result))
    if trainer.config.replay.compress:
        from lwm.saving import disk_use

        print(disk_use(writer, trainer))
    print(f"run: {writer.path}")
    return 0


def _drive(writer: Any, trainer: Any, quiet: bool) -> dict[str, Any]:
    """Run with the consumers a person wants."""
    from lwm import session
    from lwm.progress import ProgressBar, tensorboard

    bar = None if quiet else ProgressBar(trainer.config.loop.total_frames, trainer.frames)
    board = tensorboard(writer.path, trainer.frames)
    consumers = tuple(c for c in (bar, board) if c is not None)
    try:
        return session.run(writer, trainer, consumers)
    finally:
        for consumer in consumers:
            consumer.close()


def describe(result: dict[str, Any]) -> str:
    """A result in one line."""
    if "success" in result:
        return (
            f"return {_sure(result, '.3g')}, above 0 in {result['success']:.1%} of "
            f"{result['episodes']:,} episodes at {result['frames']:,} agent steps"
        )
    if "solved" not in result:
        found = f"; {result['positions']:,} positions" if "positions" in result else ""
        return (
            f"score {_sure(result, '.1f')}, median {result['median']:.1f} over "
            f"{result['episodes']:,} games at {result['frames']:,} agent steps{found}"
        )
    median, first = result["median_solved"], min(128, result["episodes"])
    tail = "" if median is None else f", median of solved {median:.0f}"
    if "last_weights" in result:
        tail += f"; the last weights instead of the averaged: {result['last_weights']['score']:.2f}"
    return (
        f"score {_sure(result, '.2f')} over {result['episodes']:,} episodes at "
        f"{result['frames']:,} frames; first {first}: {result['score128']:.2f}; "
        f"solved {result['solved']:.2%}{tail}"
    )


def _sure(result: dict[str, Any], form: str) -> str:
    """A score with its interval over episodes; a single one has none."""
    told = format(result["score"], form)
    if result["low"] is None:
        return told
    return f"{told} [{result['low']:{form}}, {result['high']:{form}}]"


def plan(args: argparse.Namespace) -> int:
    """``lwm plan``."""
    flags = ("gpus", "cores", "seeds", "failure_rate", "retries", "hours_per_run")
    given = [flag for flag in flags if getattr(args, flag) is not None]
    if args.workload in FORECAST:
        other = [f for f in ("game", "frames", "agent", "seed") if getattr(args, f) is not None]
        if other or args.settings or {"gpus", "cores"} <= set(given):
            what = other[0] if other else "cores" if "cores" in given else "key=value"
            raise BadInput(f"lwm plan {args.workload} does not take --{what} here")
        from lwm.sweep import forecast

        print(forecast.describe(args))
        return 0
    if given:
        raise BadInput(f"--{given[0].replace('_', '-')} means nothing for lwm plan atari")
    from lwm import plan

    print(plan.describe(_chosen(args)))
    return 0


def evaluate(args: argparse.Namespace) -> int:
    """``lwm evaluate``."""
    from lwm import episodes, session, writing

    folder = episodes.directory_of(args.run) if args.record else None
    trained = session.load(args.run, args.device, args.env)
    result = session.score(trained, args.episodes)
    print(describe(result))
    own = trained.config.evaluation.episodes
    if result["episodes"] == own:
        writing.write_evaluation(args.run, result)
    else:
        print(f"not written: the run's own score is over {own:,} episodes")
    if folder is not None:
        from lwm.recording import record

        paths = record(trained, folder, args.record)
        print(f"recorded {len(paths)} episode{'s' * (len(paths) != 1)} in {folder}")
    return 0


def reproduce(args: argparse.Namespace) -> int:
    """``lwm reproduce``."""
    from lwm import experiments

    if args.id is None and args.only:
        raise BadInput("name the experiment first: lwm reproduce table1 --only ...")
    if args.list or args.id is None:
        print(experiments.listing())
        return 0
    experiment = experiments.find(args.id)
    from lwm.experiments.options import Options

    flags = vars(args).keys() & Options.__dataclass_fields__.keys()
    options = Options(**{flag: getattr(args, flag) for flag in flags})
    if args.address is None:
        for flag in ("cpus_per_run", "gpus_per_run", "retries", "storage"):
            if getattr(args, flag) is not None:
                raise BadInput(f"--{flag.replace('_', '-')} means nothing without --address")
        return int(experiment.main(options) or 0)
    if not hasattr(experiment, "campaign_of"):
        raise BadInput(f"{args.id} has no training runs: it does not take --address")
    from lwm.sweep import command

    return command.reproduce(args, experiment, options)


def sweep(args: argparse.Namespace) -> int:
    """``lwm sweep``."""
    from lwm.sweep import command

    return command.sweep(args)


def tune(args: argparse.Namespace) -> int:
    """``lwm tune``."""
    from lwm.sweep import tuning

    return tuning.tune(args)


def report(args: argparse.Namespace) -> int:
    """``lwm report``."""
    from lwm import report

    print(report.write_report(args.runs, args.out))
    return 0


def view(args: argparse.Namespace) -> int:
    """``lwm view``."""
    from lwm.viewer import server

    return server.serve(args.runs, args.host, args.port, not args.no_browser)


def bench(args: argparse.Namespace) -> int:
    """``lwm bench``."""
    from importlib import import_module

    meant = {**BENCHED, **STUDIES}[args.what]
    given = {
        flag: getattr(args, flag)
        for flag in ("cores", "seconds", "precision", "frames", "size", "out")
        if getattr(args, flag) is not None
    }
    foreign = [flag for flag in given if flag not in meant]
    if foreign:
        raise BadInput(f"--{foreign[0]} means nothing for lwm bench {args.what}")
    print(import_module(f"lwm.bench.{args.what}").run(**given))
    return 0


def quickstart(args: argparse.Namespace) -> int:
    """``lwm quickstart``."""
    from lwm import quickstart

    print(quickstart.quickstart(args.out, _drive))
    return 0


def config(args: argparse.Namespace) -> int:
    """``lwm config``."""
    if args.workload not in WORKLOADS:
        raise BadInput(f"unknown workload {args.workload!r}; choose from {' and '.join(WORKLOADS)}")
    config = _chosen(args)
    usual_preset = next(iter(PRESETS[args.workload]))
    base = load_preset(usual_preset, workload=args.workload)
    for key, f in fields(config):
        if key.partition(".")[0] in UNREAD[args.workload]:
            continue
        value, usual = get(config, key), get(base, key)
        mark = "*" if value != usual else " "
        where = source(key, args.workload)
        print(f"{mark} {key}={value}  {f.metadata['doc']}" + (f"  [{where}]" if where else ""))
    print(f"* differs from preset {usual_preset}")
    return 0
