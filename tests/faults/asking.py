"""Processes that are asked to end, once or twice; and two processes on one run.

As in ``kills`` they are forked from one that has everything loaded.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from faults import seams
from faults.common import (
    PATIENCE,
    Child,
    Ended,
    Options,
    Tally,
    Witness,
    call,
    differs,
    flags,
    trained,
)
from lwm import checkpoint, runs


def rows_logged(path: Path) -> int:
    """Rows in metrics.jsonl so far."""
    try:
        return (path / "metrics.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def wait_until(child: Child, there: Callable[[], bool]) -> bool:
    """Until something is there; False if the child ended before, or if it takes too long."""
    until = time.monotonic() + 120
    while not there() and time.monotonic() < until:
        if os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return there()
        time.sleep(0.002)
    return there()


def wait_for_rows(child: Child, path: Path, rows: int) -> None:
    """Until the run has logged so many rows (or ended)."""
    wait_until(child, lambda: rows_logged(path) >= rows)


def asked(path: Path, whole: Path, rng: random.Random, signum: int, again: bool) -> str:
    """Send a signal (or two, at once or soon), look at what it left, resume; what is wrong."""
    child = call(flags("labyrinth", path), _log(path))
    wait_for_rows(child, path, rng.randint(1, 7))
    time.sleep(rng.uniform(0, 0.1))
    child.kill(signum)
    if again:
        time.sleep(rng.choice([0.0, 0.001, 0.01, 0.05]))
        try:
            child.kill(signum)
        except ProcessLookupError:
            return "ended before the second signal could be sent"
    words = ("lwm: stopped;", "lwm: interrupted") if again else ("lwm: stopped;",)
    fault = judge_asked(child.wait(60), path, whole, signum, words)
    return fault or gone_on(path, whole, needed=not again)


def holding(marker: Path, held: Path, touch: int) -> Callable[[], None]:
    """Once ``marker`` is there, the ``touch``-th touch of the disk tells so by ``held`` and waits,
    longer than anybody waits for the process: only a signal ends it."""
    left = touch

    def touched(name: str, real: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        nonlocal left
        left -= marker.exists()
        if left == 0 and not held.exists():
            held.touch()
            time.sleep(10 * PATIENCE)
        return real(*arguments)

    return lambda: seams.watch(touched)


def asked_twice(path: Path, whole: Path, rng: random.Random) -> str:
    """Two SIGINTs, the second while the run is held on its way to the checkpoint that the first
    asked for: if it ends, the second was obeyed."""
    marker, held = (path.with_name(path.name + end) for end in (".asked", ".held"))
    for _ in range(20):
        child = call(flags("labyrinth", path), _log(path), holding(marker, held, rng.randint(1, 9)))
        wait_for_rows(child, path, rng.randint(1, 7))
        time.sleep(rng.uniform(0, 0.1))
        child.kill(signal.SIGINT)
        marker.touch()
        if wait_until(child, held.exists):
            break
        child.wait(60)  # it was through with the disk: that says nothing of a second signal
        shutil.rmtree(path)
        marker.unlink()
    else:
        return "it was never held between two signals"
    time.sleep(rng.choice([0.0, 0.001, 0.01, 0.05]))
    child.kill(signal.SIGINT)
    ended = child.wait(60)
    if ended.code == 0:
        return "the second signal was not obeyed"
    fault = judge_asked(ended, path, whole, signal.SIGINT, ("lwm: interrupted",))
    return fault or gone_on(path, whole, needed=False)


def judge_asked(ended: Ended, path: Path, whole: Path, signum: int, words: tuple[str, ...]) -> str:
    """What is wrong with how a run ended that was asked to stop; it says one of ``words``."""
    if ended.hung or "Traceback" in ended.text:
        return f"hung {ended.hung}: {ended.text[-400:]}"
    state = (runs.read_status(path) or {}).get("state")
    if ended.code == 0:  # it came in the last moments of the run
        return differs(path, whole) if state == "finished" else f"exit 0, but {state}"
    if ended.code != 128 + signum or state != "stopped":
        return f"exit code {ended.code}, {state}"
    if not ended.text.startswith(words) or ended.text.count("\n") != 1:
        return f"said {ended.text!r}"
    return ""


def gone_on(path: Path, whole: Path, needed: bool) -> str:
    """Resume a stopped run; what is wrong with its checkpoint (``needed``: there must be one), with
    the resume, or with the end."""
    if (runs.read_status(path) or {}).get("state") == "finished":
        return ""
    if needed and checkpoint.latest(path / "checkpoints") is None:
        return "no checkpoint"
    witness = Witness(path, whole)
    if fault := witness.look():
        return fault
    ended = call(["train", "--resume", str(path), "--quiet"], _log(path)).wait()
    if ended.code != 0:
        return f"resume: {ended.text[-300:]}"
    return witness.look() or differs(path, whole)


def _log(path: Path) -> Path:
    return path.with_name(path.name + ".log")


def signals(o: Options) -> Tally:
    """A checkpoint, the exit code of convention, one line; and the run goes on as if unasked."""
    tally, rng = Tally("SIGTERM, SIGINT, second SIGINT"), o.random("signals")
    whole = trained("labyrinth", o.where / "whole")
    each = o.count(1, 3, 20)
    kinds: dict[str, Callable[[Path], str]] = {
        "SIGTERM": lambda path: asked(path, whole, rng, signal.SIGTERM, False),
        "SIGINT": lambda path: asked(path, whole, rng, signal.SIGINT, False),
        "second SIGINT": lambda path: asked_twice(path, whole, rng),
        "two SIGINTs": lambda path: asked(path, whole, rng, signal.SIGINT, True),
    }
    for name, attack in kinds.items():
        for number in range(each):
            path = o.where / f"{name}-{number}"
            fault = attack(path)
            tally.count(not fault, f"{name} {number}: {fault}")
            shutil.rmtree(path, ignore_errors=True)
    tally.detail = (
        f"{each} of each, and of two SIGINTs at random instants; exit 143 or 130, one line, the "
        "second obeyed at once, resumed bit-identical"
    )
    return tally


IN_USE = "is in use by process"


def late(path: Path, arguments: list[str], words: str) -> Callable[[random.Random], str]:
    """A second process on a run that trains; it must say ``words``."""

    def attack(rng: random.Random) -> str:
        first = call(flags("labyrinth", path), path.with_name("first.log"))
        wait_for_rows(first, path, rng.randint(1, 5))
        second = call(arguments, path.with_name("second.log")).wait()
        return judge_two(second, first.wait(), (words,))

    return attack


def at_once(path: Path, arguments: list[str], words: tuple[str, ...]) -> str:
    """Two processes that begin at the same instant: one is refused with one of ``words``."""
    go = path.with_name("go")
    go.unlink(missing_ok=True)

    def wait() -> None:
        while not go.exists():
            time.sleep(0.0005)

    both = [call(arguments, path.with_name(f"{k}.log"), wait) for k in range(2)]
    go.touch()
    refused, other = sorted((child.wait() for child in both), key=lambda e: -e.code)
    return judge_two(refused, other, words)


def judge_two(refused: Ended, other: Ended, words: tuple[str, ...]) -> str:
    """What is wrong; nothing: one process was refused with one of ``words``, the other finished."""
    said = refused.text.strip()
    if refused.hung or refused.code != 2 or not said.startswith("lwm: ") or "\n" in said:
        return f"the second ended with exit code {refused.code}: {said[-300:]}"
    if not any(word in said for word in words):
        return f"refused for another reason: {said[-300:]}"
    return "" if other.code == 0 else f"the first: exit code {other.code}: {other.text[-300:]}"


def resumed_at_once(path: Path) -> str:
    """Two processes resume a stopped run at the same instant."""
    child = call(flags("labyrinth", path), _log(path))
    wait_for_rows(child, path, 2)
    child.kill(signal.SIGTERM)
    child.wait()
    return at_once(path, ["train", "--resume", str(path), "--quiet"], (IN_USE,))


def two_writers(o: Options) -> Tally:
    """Of two processes on one run directory the second is refused, and harms nothing."""
    tally, rng = Tally("two processes on one run"), o.random("two")
    whole = trained("labyrinth", o.where / "whole")
    there = "already has a run"
    for number in range(o.count(2, 4, 20)):
        path = o.where / f"two-{number}"
        resume, train = ["train", "--resume", str(path), "--quiet"], flags("labyrinth", path)
        attacks: list[Callable[[], str]] = [
            partial(at_once, path, train, (IN_USE, there)),
            partial(late(path, resume, IN_USE), rng),
            partial(resumed_at_once, path),
            partial(late(path, train, there), rng),
        ]
        fault = attacks[number % len(attacks)]() or differs(path, whole)
        tally.count(not fault, f"{number}: {fault}")
        shutil.rmtree(path, ignore_errors=True)
    tally.detail = (
        "half of them begun at the same instant; one ends with exit code 2 and says who uses the "
        "run or that it is there, the other is bit-identical"
    )
    return tally
