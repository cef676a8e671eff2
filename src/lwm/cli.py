"""The command line: what may be asked, and one line for what goes wrong."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from lwm import __version__, commands
from lwm.config import AGENTS, PRESETS, WORKLOADS
from lwm.errors import BadInput, LwmError, reason


class _Parser(argparse.ArgumentParser):
    """An argument parser whose complaint is one line."""

    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message} (try: {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the ``lwm`` command; returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        # Names of files need not be text, and a terminal need not know every letter.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
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
    sub = parser.add_subparsers(dest="command", required=True, metavar="command")

    p = sub.add_parser("train", help="train an agent into a run directory, or resume one")
    p.add_argument("workload", nargs="?", help="what to train on: " + " or ".join(WORKLOADS))
    p.add_argument("--size", help="labyrinth: rooms per side (env.size)")
    p.add_argument("--game", help="atari: name as ale-py spells it (atari.game)")
    p.add_argument("--env", help="gym: id of a Gymnasium environment, or module:ID (gym.env); "
                   "with --resume: that of the run, to allow its module")  # fmt: skip
    p.add_argument("--frames", help="agent steps (loop.total_frames)")
    p.add_argument("--out", type=Path, help="run directory (default: runs/<name of the run>)")
    p.add_argument("--resume", type=Path, metavar="DIR", help="continue the run in DIR")
    p.add_argument("--quiet", action="store_true", help="no progress bar")
    _add_config_flags(p)
    p.set_defaults(call=commands.train)

    p = sub.add_parser("plan", help="time and memory of an Atari run here, or of a table elsewhere")
    p.add_argument("workload", choices=["atari", *commands.FORECAST])
    p.add_argument("--gpus", type=_count, help="tables: runs at once, each on a GPU of its own")
    p.add_argument("--cores", type=_count, help="tables: runs at once on CPUs, one core each")
    p.add_argument("--seeds", type=_count, help="tables: seeds of each row")
    p.add_argument("--failure-rate", type=_seconds, metavar="F", help="tables: deaths an hour")
    p.add_argument("--retries", type=_retries, metavar="R", help="tables: deaths a run survives")
    p.add_argument("--hours-per-run", type=_seconds, metavar="H", help="tables: if you know better")
    p.add_argument("--game", help="name as ale-py spells it (atari.game)")
    p.add_argument("--frames", help="agent steps (loop.total_frames)")
    _add_config_flags(p)
    p.set_defaults(call=commands.plan)

    p = sub.add_parser("evaluate", help="score a finished or running run on test seeds")
    p.add_argument("run", type=Path, metavar="DIR")
    p.add_argument(
        "--episodes", type=_count, help="default: as in its config; others are only printed"
    )
    p.add_argument("--device", help="auto, cpu or cuda; default: as in its config")
    p.add_argument("--env", metavar="module:ID", help="that of the run, to allow its module")
    p.add_argument("--record", type=_count, metavar="N", help="also record N episodes in DIR")
    p.set_defaults(call=commands.evaluate)

    p = sub.add_parser("reproduce", help="a table or figure of the paper, ours beside it")
    p.add_argument("id", nargs="?", help="table1, figure2 ...; `--list` shows all")
    p.add_argument("--list", action="store_true", help="what there is, costs, what is done")
    p.add_argument("--scale", type=_scale, help="fraction of the paper's budget, in (0, 1]")
    p.add_argument("--runs", nargs="+", default=[], type=Path, metavar="DIR", help="runs to read")
    p.add_argument("--out", type=Path, help="figures 1, 2, 4, 5: where pictures go (default: docs)")
    p.add_argument("--only", nargs="+", default=[], metavar="WORD", help="runs whose id has WORD")
    p.add_argument("--seeds", type=_count, help="at most N seeds of each row")
    p.add_argument("--jobs", type=_count, help="runs at once (default: one a core)")
    p.add_argument("--show", action="store_true", help="run nothing; tables anew from the rows")
    p.add_argument("--game", nargs="+", default=[], help="table2, table3: games, not its own six")
    p.add_argument("--preset", help="table2, table3: preset of the runs, with its own budget")
    p.add_argument("--trajectory", type=Path, metavar="FILE", help="figure3: what to draw instead")
    _add_engine_flags(p)
    p.set_defaults(call=commands.reproduce)

    p = sub.add_parser("sweep", help="many runs on Ray: one machine or a cluster")
    p.add_argument("ids", nargs="*", metavar="ID", help="table1, table1/4x4-lwm-paper ...")
    p.add_argument("--env", nargs="+", default=[], help="instead of ids: 4x4, atari:GAME, gym id")
    p.add_argument("--agent", nargs="+", default=[], help="of the cross product with --env: lwm")
    p.add_argument("--preset", nargs="+", default=[], help="of the cross product: paper")
    p.add_argument("--seeds", type=_count, help="at most N seeds of each row (with --env: 1)")
    p.add_argument("--scale", type=_scale, help="ids: fraction of the paper's budget, in (0, 1]")
    p.add_argument(
        "--jobs", type=_count, help="runs at once (default: as many as Ray has room for)"
    )
    _add_engine_flags(p)
    p.set_defaults(call=commands.sweep)

    p = sub.add_parser("tune", help="search over settings on Ray Tune (ASHA)")
    p.add_argument("space", type=Path, metavar="SPACE", help="what is searched; docs/sweeps.md")
    p.add_argument("--samples", type=_count, help="how many points (default: as SPACE says)")
    _add_engine_flags(p)
    p.set_defaults(call=commands.tune)

    p = sub.add_parser("report", help="one HTML page of all results, and of runs given")
    p.add_argument("runs", nargs="*", type=Path, metavar="RUNS", help="run directories, or above")
    p.add_argument("--out", type=Path, default=Path("report.html"), metavar="FILE")
    p.set_defaults(call=commands.report)

    p = sub.add_parser("view", help="a web page over run directories, live while they train")
    p.add_argument("runs", nargs="?", type=Path, default=Path("runs"), metavar="DIR")
    p.add_argument("--host", default="127.0.0.1", help="address to listen on; others need a token")
    p.add_argument("--port", type=_port, help="default: 8642, or the next that is free")
    p.add_argument("--no-browser", action="store_true", help="only print the address")
    p.set_defaults(call=commands.view)

    p = sub.add_parser("bench", help="speed by stage, as ratios within one run")
    p.add_argument(
        "what", choices=[*commands.BENCHED, *commands.STUDIES], help="a workload, or a study"
    )
    p.add_argument("--cores", type=_count, help="workloads: BLAS threads of the learner's process")
    p.add_argument("--seconds", type=_seconds, help="about how long to measure")
    p.add_argument(
        "--precision",
        choices=["float32", "bfloat16"],
        help="labyrinth: unroll_precision of the run (default: float32)",
    )
    p.add_argument("--frames", type=_count, help="growth: capacity of the Atari replay")
    p.add_argument("--size", type=_count, help="sooner: rooms per side (default: 4)")
    p.add_argument("--out", type=Path, help="file of the rows (default: in results/)")
    p.set_defaults(call=commands.bench)

    p = sub.add_parser("quickstart", help="3×3 labyrinth to the paper's score, with pictures")
    p.add_argument("--out", type=Path, default=Path("runs/quickstart"))
    p.set_defaults(call=commands.quickstart)

    p = sub.add_parser("config", help="every setting of a preset: value, meaning, source")
    p.add_argument("--workload", default=WORKLOADS[0], help=" or ".join(WORKLOADS))
    _add_config_flags(p)
    p.set_defaults(call=commands.config)
    return parser


def _add_config_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument("--agent", help=", ".join(AGENTS))
    names = dict.fromkeys(name for presets in PRESETS.values() for name in presets)
    p.add_argument("--preset", help=", ".join(names) + " (default: the first)")
    p.add_argument("--seed", help="drives every random stream (default: 0)")
    p.add_argument("settings", nargs="*", metavar="key=value", help="any setting; see `lwm config`")


def _add_engine_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument("--address", help="of a Ray cluster's head: host:port, or auto")
    p.add_argument("--cpus-per-run", type=_some, metavar="C", help="default: 1")
    p.add_argument("--gpus-per-run", type=_amount, metavar="G", help="default: 0")
    p.add_argument("--retries", type=_retries, metavar="R", help="deaths a run survives: 3")
    p.add_argument("--storage", type=Path, metavar="DIR", help="shared by all nodes: runs")


def _amount(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    # Ray counts whole ones, or parts of one in ten thousandths.
    unit = 1 if value > 1 else 10_000
    if not 0 <= value <= 1024 or abs(value * unit - round(value * unit)) > 1e-6:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a part of one (in steps of 0.0001), or a whole number"
        )
    return value


def _some(text: str) -> float:
    value = _amount(text)
    if not value:
        raise argparse.ArgumentTypeError("a run needs some of a core: not 0")
    return value


def _retries(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 5):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 9999")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 10**6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6 and int(text) < 65536):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to 65535")
    return int(text)


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


if __name__ == "__main__":
    sys.exit(main())
