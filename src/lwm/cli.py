"""The command line: parse, call, print.  Heavy imports wait until a command needs them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from lwm import __version__
from lwm.config import (
    AGENTS,
    PRESETS,
    WORKLOADS,
    Config,
    difference,
    fields,
    get,
    load_preset,
    source,
)
from lwm.errors import BadInput, LwmError, reason


class _Parser(argparse.ArgumentParser):
    """An argument parser whose complaint is one line."""

    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message} (try: {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the ``lwm`` command; returns the exit code."""
    try:
        args = _parse(argv)
        code = args.call(args)
        return int(code or 0)
    except LwmError as error:
        print(f"lwm: {error}", file=sys.stderr)
        return error.exit_code
    except MemoryError:
        print("lwm: not enough memory", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of our output went away (`lwm config | head`): not an error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"lwm: {reason(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("lwm: interrupted", file=sys.stderr)
        return 130


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Arguments, with ``key=value`` settings allowed before, between and after the flags."""
    args, rest = _parser().parse_known_args(argv)
    stray = [word for word in rest if word.startswith("-") or "=" not in word]
    if rest and (stray or not hasattr(args, "settings")):
        word = (stray or rest)[0]
        raise BadInput(f"unrecognized argument {word!r} (try: lwm {args.command} --help)")
    if rest:
        args.settings = [*args.settings, *rest]
    return args


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="lwm",
        description="Latent world models for exploration: train, evaluate, reproduce the paper.",
    )
    parser.add_argument("--version", action="version", version=f"lwm {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")

    p = commands.add_parser("train", help="train an agent into a run directory, or resume one")
    p.add_argument("workload", nargs="?", help="what to train on: " + " or ".join(WORKLOADS))
    p.add_argument("--size", help="labyrinth: rooms per side (env.size)")
    p.add_argument("--game", help="atari: name as ale-py spells it (atari.game)")
    p.add_argument("--frames", help="agent steps (loop.total_frames)")
    p.add_argument("--out", type=Path, help="run directory (default: runs/<name of the run>)")
    p.add_argument("--resume", type=Path, metavar="DIR", help="continue the run in DIR")
    p.add_argument("--quiet", action="store_true", help="no progress bar")
    _add_config_flags(p)
    p.set_defaults(call=_train)

    p = commands.add_parser("plan", help="time and memory of an Atari run on this machine")
    p.add_argument("workload", choices=["atari"])
    p.add_argument("--game", help="name as ale-py spells it (atari.game)")
    p.add_argument("--frames", help="agent steps (loop.total_frames)")
    _add_config_flags(p)
    p.set_defaults(call=_plan)

    p = commands.add_parser("evaluate", help="score a finished or running run on test seeds")
    p.add_argument("run", type=Path, metavar="DIR")
    p.add_argument("--episodes", type=_count, help="default: as in its config")
    p.add_argument("--device", help="auto, cpu or cuda; default: as in its config")
    p.add_argument("--record", type=_count, metavar="N", help="also record N episodes in DIR")
    p.set_defaults(call=_evaluate)

    p = commands.add_parser("reproduce", help="a table or figure of the paper, ours beside it")
    p.add_argument("id", nargs="?", help="table1, figure2 ...; `--list` shows all")
    p.add_argument("--list", action="store_true", help="what there is, costs, what is done")
    p.add_argument("--scale", type=_scale, help="fraction of the paper's budget, in (0, 1]")
    p.add_argument("--runs", nargs="+", default=[], type=Path, metavar="DIR", help="runs to read")
    p.add_argument("--out", type=Path, default=Path("docs"), help="where pictures go: docs")
    p.add_argument("--only", nargs="+", default=[], metavar="WORD", help="runs whose id has WORD")
    p.add_argument("--seeds", type=_count, help="at most N seeds of each row")
    p.add_argument("--jobs", type=_count, help="runs at once (default: one a core)")
    p.add_argument("--show", action="store_true", help="print from the rows there are; run nothing")
    p.add_argument("--trajectory", type=Path, metavar="FILE", help="figure3: what to draw instead")
    p.set_defaults(call=_reproduce)

    p = commands.add_parser("report", help="one HTML page of all results, and of runs given")
    p.add_argument("runs", nargs="*", type=Path, metavar="RUNS", help="run directories, or above")
    p.add_argument("--out", type=Path, default=Path("report.html"), metavar="FILE")
    p.set_defaults(call=_report)

    p = commands.add_parser("bench", help="speed by stage, as ratios within one run")
    p.add_argument("what", choices=[*WORKLOADS, *_STUDIES], help="a workload, or a study")
    p.add_argument("--cores", type=_count, help="workloads: BLAS threads of the learner's process")
    p.add_argument("--seconds", type=_seconds, help="about how long to measure")
    p.add_argument("--frames", type=_count, help="growth: capacity of the Atari replay")
    p.add_argument("--out", type=Path, help="file of the rows (default: in results/)")
    p.set_defaults(call=_bench)

    p = commands.add_parser("quickstart", help="3×3 labyrinth to the paper's score, with pictures")
    p.add_argument("--out", type=Path, default=Path("runs/quickstart"))
    p.set_defaults(call=_quickstart)

    p = commands.add_parser("config", help="every setting of a preset: value, meaning, source")
    p.add_argument("--workload", default=WORKLOADS[0], help=" or ".join(WORKLOADS))
    _add_config_flags(p)
    p.set_defaults(call=_config)
    return parser


def _add_config_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument("--agent", help=", ".join(AGENTS))
    names = dict.fromkeys(name for presets in PRESETS.values() for name in presets)
    p.add_argument("--preset", help=", ".join(names) + " (default: paper)")
    p.add_argument("--seed", help="drives every random stream (default: 0)")
    p.add_argument("settings", nargs="*", metavar="key=value", help="any setting; see `lwm config`")


_STUDIES = {
    "growth": ("seconds", "frames", "out"),
    "startup": (),
    "instructions": ("out",),
    "check": ("seconds", "out"),
}
"""What ``lwm bench`` measures beside the workloads, and the flags that mean something there."""


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 10**6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def _count(text: str) -> int:
    try:
        value = int(text.replace("_", ""))
    except ValueError:
        value = 0
    if not 1 <= value <= 10**7:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 10,000,000")
    return value


def _scale(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a fraction in (0, 1]")
    return value


def _load_config(args: argparse.Namespace) -> Config:
    overrides: dict[str, Any] = {}
    for flag, key in {
        "size": "env.size",
        "game": "atari.game",
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
    foreign = [k for k in overrides if k.partition(".")[0] in _OTHERS[args.workload]]
    if foreign:
        raise BadInput(f"{foreign[0]} means nothing for {args.workload}")
    return load_preset(args.preset or "paper", overrides, args.workload)


_OTHERS = {"labyrinth": ("atari", "encoder"), "atari": ("env",)}
"""Sections of the config that a workload does not read."""


def run_name(config: Config) -> str:
    """``labyrinth-4x4-lwm-paper-seed0``, with what else differs from the preset behind it."""
    game = {"atari.game": config.atari.game} if config.workload == "atari" else {}
    base = load_preset(config.preset, game, config.workload)
    shown = {"env.size", "agent", "seed", "preset"}
    changed = [
        f"{key}={new}" for key, (_, new) in difference(config, base).items() if key not in shown
    ]
    size = config.env.size
    world = config.atari.game if config.workload == "atari" else f"{size}x{size}"
    name = f"{config.workload}-{world}-{config.agent}-{config.preset}-seed{config.seed}"
    return "-".join([name, *changed])


def _train(args: argparse.Namespace) -> int:
    if args.resume is not None:
        flags = (args.size, args.game, args.frames, args.out, args.agent, args.preset, args.seed)
        if args.workload or args.settings or any(flag is not None for flag in flags):
            raise BadInput("--resume takes the config of the run; give no other settings")
        from lwm import session

        writer, trainer = session.reopen(args.resume)
    else:
        if args.workload not in WORKLOADS:
            if args.workload and "=" in args.workload:
                raise BadInput(
                    f"name the workload before settings: lwm train labyrinth {args.workload}"
                )
            got = f"unknown workload {args.workload!r}" if args.workload else "no workload"
            raise BadInput(f"{got}; choose from {' and '.join(WORKLOADS)}")
        config = _load_config(args)
        from lwm import session

        writer, trainer = session.start(config, args.out or Path("runs") / run_name(config))
        if config.workload == "atari" and not args.quiet:
            from lwm import plan

            print(plan.describe(config), flush=True)
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
    if "solved" not in result:
        found = f"; {result['positions']:,} positions" if "positions" in result else ""
        return (
            f"score {result['score']:.1f} [{result['low']:.1f}, {result['high']:.1f}], median "
            f"{result['median']:.1f} over {result['episodes']:,} games at {result['frames']:,} "
            f"agent steps{found}"
        )
    median, first = result["median_solved"], min(128, result["episodes"])
    tail = "" if median is None else f", median of solved {median:.0f}"
    return (
        f"score {result['score']:.2f} [{result['low']:.2f}, {result['high']:.2f}] over "
        f"{result['episodes']:,} episodes at {result['frames']:,} frames; "
        f"first {first}: {result['score128']:.2f}; solved {result['solved']:.2%}{tail}"
    )


def _plan(args: argparse.Namespace) -> int:
    from lwm import plan

    print(plan.describe(_load_config(args)))
    return 0


def _evaluate(args: argparse.Namespace) -> int:
    from lwm import runs, session

    trained = session.load(args.run, args.device)
    result = session.score(trained, args.episodes)
    print(describe(result))
    runs.write_evaluation(args.run, result)
    if args.record:
        from lwm.recording import record

        paths = record(trained, args.run / "episodes", args.record)
        print(f"recorded {len(paths)} episodes in {args.run / 'episodes'}")
    return 0


def _reproduce(args: argparse.Namespace) -> int:
    from lwm import experiments

    if args.id is None and args.only:
        raise BadInput("name the experiment first: lwm reproduce table1 --only ...")
    if args.list or args.id is None:
        print(experiments.listing())
        return 0
    experiment = experiments.find(args.id)
    from lwm.experiments.options import Options

    flags = ("only", "seeds", "jobs", "show", "scale", "runs", "out", "trajectory")
    return int(experiment.main(Options(**{flag: getattr(args, flag) for flag in flags})) or 0)


def _report(args: argparse.Namespace) -> int:
    from lwm import report

    print(report.write_report(args.runs, args.out))
    return 0


def _bench(args: argparse.Namespace) -> int:
    from importlib import import_module

    meant = _STUDIES.get(args.what, ("cores", "seconds", "out"))
    given = {
        flag: getattr(args, flag)
        for flag in ("cores", "seconds", "frames", "out")
        if getattr(args, flag) is not None
    }
    foreign = [flag for flag in given if flag not in meant]
    if foreign:
        raise BadInput(f"--{foreign[0]} means nothing for lwm bench {args.what}")
    print(import_module(f"lwm.bench.{args.what}").run(**given))
    return 0


def _quickstart(args: argparse.Namespace) -> int:
    from lwm import quickstart

    print(quickstart.quickstart(args.out, _drive))
    return 0


def _config(args: argparse.Namespace) -> int:
    if args.workload not in WORKLOADS:
        raise BadInput(f"unknown workload {args.workload!r}; choose from {' and '.join(WORKLOADS)}")
    config = _load_config(args)
    base = load_preset("paper", workload=args.workload)
    for key, f in fields(config):
        if key.partition(".")[0] in _OTHERS[args.workload]:
            continue
        value, usual = get(config, key), get(base, key)
        mark = "*" if value != usual else " "
        where = source(key, args.workload)
        print(f"{mark} {key}={value}  {f.metadata['doc']}" + (f"  [{where}]" if where else ""))
    print("* differs from preset paper")
    return 0


if __name__ == "__main__":
    sys.exit(main())
