"""Random and adversarial command lines and configs: one clear line or a valid run."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import random
import string
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

from faults.common import Options, Tally, call
from lwm import commands, experiments, quickstart, runs, session
from lwm.cli import main
from lwm.config import AGENTS, PRESETS, WORKLOADS, Config, fields, from_dict, load_preset, to_dict
from lwm.errors import BadInput

COMMANDS = ("train", "plan", "evaluate", "reproduce", "report", "view", "bench", "quickstart",
            "config")  # fmt: skip
FLAGS = ("--size", "--game", "--env", "--frames", "--out", "--resume", "--quiet", "--agent",
         "--preset", "--seed", "--episodes", "--device", "--record", "--list", "--scale", "--runs",
         "--only", "--seeds", "--jobs", "--show", "--trajectory", "--host", "--port", "--cores",
         "--seconds", "--workload", "--no-browser", "--help", "--version", "-h", "-", "--", "---x",
         "--preset=", "--seed=-1", "--res")  # fmt: skip
VALUES = ("0", "1", "2", "-1", "3", "4", "1e3", "1e400", "-1e400", "nan", "inf", "-inf", "0x10",
          "1_000", "_", "", " ", "9" * 400, "1.5", "true", "False", "None", "null", "[]", "{}",
          "é", "日本", "\udcff", "\x1b[31m", "a\nb", "../..", "/", "/dev/null", "/dev/full",
          "/proc/self/mem", "debug", "paper", "best", "lwm", "random", "mbie-eb", "cpu", "cuda",
          "auto", "labyrinth", "atari", "gym", "breakout", "CartPole-v1", "os:system",
          "nosuch:Env-v0", "table1",
          "figure3", "noisy-tv", "%s%n", "$(id)", "`id`", "a" * 5000, "=", "a=b=c", "\u202e", "1,2",
          "1e-400", "18446744073709551616", "-9223372036854775809", "٣", "½")  # fmt: skip


BENCHES = [
    importlib.import_module(f"lwm.bench.{name}") for name in (*commands.BENCHED, *commands.STUDIES)
]


def word(rng: random.Random) -> str:
    """Anything that may stand for a value."""
    if rng.random() < 0.8:
        return rng.choice(VALUES)
    kinds = string.printable.replace("\x00", "")
    return "".join(rng.choice(kinds) for _ in range(rng.randint(0, 12)))


def setting(rng: random.Random) -> str:
    """``key=value``, the key mostly one that there is."""
    key = rng.choice([key for key, _ in fields(Config())])
    if rng.random() < 0.1:
        key = key[: rng.randint(0, len(key))] + word(rng)
    return f"{key}={word(rng)}"


def line(rng: random.Random, where: Path) -> list[str]:
    """A command line; every kind of mistake, and some without any."""
    words = [rng.choice((*COMMANDS, "train", "config")) if rng.random() < 0.95 else word(rng)]
    if words[0] == "train" and rng.random() < 0.3:
        words += [rng.choice(WORKLOADS), "--preset", "debug", setting(rng)]
    elif rng.random() < 0.6:
        words.append(rng.choice([*WORKLOADS, *WORKLOADS, word(rng)]))
    for _ in range(rng.choice([0, 0, 1, 1, 2, 3, 5])):
        kind = rng.random()
        if kind < 0.45:
            words.append(setting(rng))
        elif kind < 0.9:
            words += [rng.choice(FLAGS)] + ([word(rng)] if rng.random() < 0.8 else [])
        else:
            words.append(word(rng))
    if rng.random() < 0.3:
        words += ["--preset", rng.choice(["debug", "paper", word(rng)])]
    if rng.random() < 0.2:
        words += ["--out", rng.choice([str(where / "out"), str(where / "file"), word(rng)])]
    return words


class Started(Exception):
    """A valid run would have begun here."""


def _began(*_: Any, **__: Any) -> Any:
    raise Started


@contextlib.contextmanager
def nothing_starts() -> Any:
    """What takes long, or listens, is replaced by the news that it would have begun.

    Everything before it is real: the parser, the config, memory, environments and run directories.
    """
    from lwm.viewer import server

    with contextlib.ExitStack() as stack:
        for target, name in (
            (session, "run"), (session, "Trainer"), (session, "score"), (server, "listen"),
            (quickstart, "quickstart"), *((module, "run") for module in BENCHES),
        ):  # fmt: skip
            stack.enter_context(mock.patch.object(target, name, _began))
        stack.enter_context(mock.patch.object(experiments, "find", _finding(experiments.find)))
        yield


def _finding(find: Any) -> Any:
    def found(name: str) -> Any:
        find(name)  # unknown ones are refused for real
        raise Started

    return found


def judge(arguments: list[str]) -> tuple[str, str]:
    """(what happened, what is wrong with it): nothing is wrong with one line, or a valid run."""
    out, err = io.StringIO(), io.StringIO()
    code: Any = None
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), nothing_starts():
            code = main(arguments)
    except Started:
        return "started", ""
    except SystemExit as stop:
        code = stop.code
    except BaseException as error:
        return "raised", f"{type(error).__name__}: {error}"
    said = err.getvalue()
    if code == 0:
        return "answered", "" if not said or "warning" in said else f"said {said!r}"
    lines = said.splitlines()
    one = len(lines) == 1 and lines[0].startswith("lwm: ") and lines[0].isprintable()
    return "refused", "" if one and code in (1, 2) else f"exit code {code}: {said[-300:]!r}"


JSON_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 3, 2**40, 2**70, -(2**70), 1.5, 1e308, float("nan"), float("inf"), "",
    "x", "1", "\ud800", [], {}, [1], {"a": 1}, {"size": {}}, "9" * 5000, 10**300,
)  # fmt: skip


def config_document(rng: random.Random) -> Any:
    """The document of a run's config.json, with something odd in it."""
    workload = rng.choice(WORKLOADS)
    preset = rng.choice(list(PRESETS[workload]))
    config: Any = to_dict(load_preset(preset, workload=workload))
    document: Any = {"format": 1, "lwm_version": "0.1.0", "config": config}
    for _ in range(rng.randint(1, 3)):
        node, key = document, rng.choice(["config", "config", "config", "format", "x"])
        if key == "config" and isinstance(document.get("config"), dict):
            node = document["config"]
            key = rng.choice([*node, "unknown"])
            if isinstance(node.get(key), dict) and rng.random() < 0.8:
                node, key = node[key], rng.choice([*node[key], "unknown"])
        node[key] = rng.choice([*JSON_VALUES, *AGENTS])
    return document


def judge_config(rng: random.Random, path: Path) -> tuple[str, str]:
    """The same for a config file: read as that of a run."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config_document(rng)))
    try:
        from_dict(runs.read_config(path))
    except BadInput as error:
        text = str(error)
        return "refused", "" if text.isprintable() else repr(text)
    except Exception as error:
        return "raised", f"{type(error).__name__}: {error}"
    return "answered", ""


REAL = (
    ["train", "labyrinth", "--preset", "debug", "--quiet", "--out", "\udcffname"],
    ["config", "--workload", "atari"],
    ["train", "labyrinth", "replay.capacity_steps=1e9", "--preset", "debug"],
    ["train", "gym", "--env", "os:system", "--preset", "debug"],
    ["train", "gym", "--env", "nosuch.module:X-v0", "--preset", "debug"],
    ["evaluate", "/dev/null"],
    ["report", "/proc", "--out", "/dev/full"],
    ["reproduce", "figure3", "--trajectory", "/dev/zero"],
    ["view", "/nonexistent"],
    ["bench", "labyrinth", "--seconds", "1e9"],
)


def command_lines(o: Options) -> Tally:
    """One clear line or a valid run; never a traceback."""
    tally, rng = Tally("command lines and configs"), o.random("words")
    kinds: Counter[str] = Counter()
    there = os.getcwd()
    os.chdir(o.where)
    (o.where / "file").write_text("a file")
    try:
        for number in range(o.count(100, 500, 5000)):
            if number % 5 == 4:
                what, fault = judge_config(rng, o.where / "a-run")
                tally.count(not fault, f"config: {fault}")
            else:
                arguments = line(rng, o.where)
                what, fault = judge(arguments)
                tally.count(not fault, f"{[a[:80] for a in arguments]}: {fault}")
            kinds[what] += 1
        for arguments in REAL if o.form != "tiny" else REAL[:2]:
            ended = call(list(arguments), o.where / "real.log").wait(120)
            held = not ended.hung and ended.code in (0, 1, 2) and "Traceback" not in ended.text
            tally.count(held, f"{arguments}: {ended.code} {ended.text[-300:]}")
    finally:
        os.chdir(there)
    tally.detail = ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items()))
    return tally
