"""Processes that die: SIGKILL at random instants, between and inside writes.

Children are forked from a process that has everything loaded, so that the instants fall into the
run and not into the start of the interpreter.
"""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults import seams
from faults.common import Options, Tally, Witness, call, differs, flags, trained
from lwm import runs


def dying_at(number: int, half: bool) -> Callable[[], None]:
    """Kill the process at the ``number``-th thing it does to the disk; a write may be half done."""
    left = number

    def touch(name: str, real: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            if half:
                seams.first_half(real, arguments) if name == "write" else real(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments)

    return lambda: seams.watch(touch)


class Series:
    """One run, killed again and again until it ends by itself; ``whole``: as nobody killed it."""

    def __init__(
        self, workload: str, path: Path, whole: Path, touches: int, seconds: float
    ) -> None:
        self.workload, self.path, self.touches, self.seconds = workload, path, touches, seconds
        self.whole = whole
        self.kills = self.inside = 0
        """Kills, and those of them within a write of a checkpoint."""
        self._witness = Witness(path, whole)
        self._leftovers: set[str] = set()

    def drive(self, rng: random.Random, most: int) -> str:
        """What went wrong; nothing: it came to the end of the undisturbed run."""
        fault = self._drive(rng, most)
        return fault or self._witness.look() or differs(self.path, self.whole)

    def _drive(self, rng: random.Random, most: int) -> str:
        while True:
            arguments = ["train", "--resume", str(self.path), "--quiet"]
            if not runs.is_run(self.path):
                arguments = flags(self.workload, self.path)
            fatal = self.kills < most
            ended = self._once(arguments, rng, fatal)
            if ended.code == 2 and "is finished: nothing to resume" in ended.text and self.kills:
                return ""  # the last kill came after its end; what is there is compared
            if ended.hung or ended.code not in (0, -signal.SIGKILL):
                return f"exit code {ended.code}, hung {ended.hung}: {ended.text[-300:]}"
            if ended.code == 0:
                return ""
            self.kills += 1
            self.inside += self._left_anew()
            if fault := self._witness.look():
                return f"after kill {self.kills}: {fault}"

    def _left_anew(self) -> bool:
        """Whether the last kill left half a checkpoint; what an earlier one left does not count."""
        folder = self.path / "checkpoints"
        found = [entry.name for pattern in ("*", "rows/.*") for entry in folder.glob(pattern)]
        leftovers = {name for name in found if ".tmp-" in name}
        new = bool(leftovers - self._leftovers)
        self._leftovers |= leftovers
        return new

    def _once(self, arguments: list[str], rng: random.Random, fatal: bool) -> Any:
        log = self.path.with_name(self.path.name + ".log")
        if fatal and rng.random() < 0.5:
            touch = rng.randint(1, max(2, self.touches))
            return call(arguments, log, dying_at(touch, rng.random() < 0.5)).wait()
        child = call(arguments, log)
        if fatal:
            # Up to the whole run, so that some of them are killed while they are scored.
            time.sleep(rng.uniform(0.0, 1.1 * self.seconds))
            child.kill()
        return child.wait()


def sigkill(o: Options) -> Tally:
    """Every resume succeeds, and the end is that of a run that nobody disturbed."""
    tally, rng = Tally("SIGKILL at random instants"), o.random("sigkill")
    workloads = ["labyrinth"]
    if importlib.util.find_spec("ale_py"):
        workloads.append("atari")
    told = []
    for workload in workloads:
        whole = o.where / f"{workload}-whole"
        touches, seconds = seams.count(lambda w=workload, p=whole: trained(w, p))  # type: ignore[misc]
        wanted, done, inside, number = o.count(2, 10, 100), 0, 0, 0
        while done < wanted:
            path = o.where / f"{workload}-{number}"
            series = Series(workload, path, whole, touches, seconds)
            fault = series.drive(rng, min(6, wanted - done))
            tried = series.kills or int(bool(fault))  # a fault without a kill is one too
            for _ in range(tried):
                tally.count(not fault, f"{workload} run {number}: {fault}")
            done, inside, number = done + tried, inside + series.inside, number + 1
            shutil.rmtree(path, ignore_errors=bool(fault))
        told.append(f"{workload}: {done} kills of {number} runs, {inside} inside a write")
    same = "no checkpoint lost, all resumed from the newest; weights, replay and metrics.jsonl"
    tally.detail = "; ".join(told) + f"; {same} bit-identical"
    return tally


def real_command(arguments: list[str], **more: Any) -> subprocess.Popen[str]:
    """``lwm`` as a user starts it."""
    return subprocess.Popen(
        [sys.executable, "-m", "lwm.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        **more,
    )
