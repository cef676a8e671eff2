"""What the attacks share: how many tries, what held, processes to maltreat, runs to compare."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lwm import runs, saved, session
from lwm.cli import main
from lwm.config import Config, load_preset
from lwm.errors import LwmError
from trees import same

PATIENCE = 300.0
"""Seconds after which a child counts as hung; the machine may be busy."""


@dataclass(frozen=True)
class Options:
    """How hard to try, and where."""

    where: Path
    form: str = "short"
    """``tiny`` (in the tests), ``short`` or ``long``."""
    seed: int = 0
    tries: int | None = None
    minutes: float = 120.0
    """Of the soak."""

    def count(self, tiny: int, short: int, long: int) -> int:
        """Tries of an attack in this form, unless a number was asked for."""
        return self.tries or {"tiny": tiny, "short": short, "long": long}[self.form]

    def random(self, name: str) -> random.Random:
        """A stream of its own for each attack."""
        return random.Random(f"{self.seed}/{name}")


@dataclass
class Tally:
    """What came of an attack."""

    attack: str
    tried: int = 0
    held: int = 0
    detail: str = ""
    faults: list[str] = field(default_factory=list)
    """One line for each that did not hold."""

    def count(self, held: bool, what: str) -> None:
        """One more try."""
        self.tried += 1
        self.held += held
        if not held:
            self.faults.append(what)

    def skip(self, why: str) -> Tally:
        """Nothing was tried, for one reason."""
        self.detail = f"skipped: {why}"
        return self


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    code: int
    """Exit code; minus the signal that killed it."""
    text: str
    """What it said on stdout and stderr."""
    hung: bool = False

    @property
    def clear(self) -> bool:
        """It said at most one line of its own, and no traceback."""
        own = [line for line in self.text.splitlines() if line.startswith("lwm: ")]
        return not self.hung and "Traceback" not in self.text and len(own) >= 1


class Child:
    """A forked process that calls a function: everything is loaded already, so it starts fast."""

    def __init__(self, function: Callable[[], int | None], log: Path) -> None:
        self.log = log
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._be(function)

    def _be(self, function: Callable[[], int | None]) -> None:
        code = 1
        try:
            os.setpgid(0, 0)
            descriptor = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            # Python's own streams may be somebody's capture (pytest): write to the file.
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
            code = function() or 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def kill(self, signum: int = signal.SIGKILL) -> None:
        """Send a signal to the process alone."""
        os.kill(self.pid, signum)

    def wait(self, seconds: float = PATIENCE) -> Ended:
        """Until it ends; one that does not is killed."""
        until, hung = time.monotonic() + seconds, False
        while (done := os.waitpid(self.pid, os.WNOHANG))[0] == 0:
            if time.monotonic() > until and not hung:
                hung = True
                os.killpg(self.pid, signal.SIGKILL)
            time.sleep(0.005)
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return Ended(os.waitstatus_to_exitcode(done[1]), text, hung)


def call(arguments: list[str], log: Path, before: Callable[[], Any] | None = None) -> Child:
    """The command ``lwm`` in a child."""

    def run() -> int:
        if before is not None:
            before()
        return main(arguments)

    return Child(run, log)


LABYRINTH = {
    "loop.total_frames": 800,
    "loop.warmup_frames": 240,
    "loop.log_every_frames": 100,
    "loop.checkpoint_every_frames": 120,
    "env.time_limit": 20,
    "evaluation.episodes": 4,
}
ATARI = {
    "atari.game": "breakout",
    "atari.time_limit": 45,
    "loop.log_every_frames": 25,
    "loop.checkpoint_every_frames": 40,
    "loop.cycles_per_update": 4,
    "evaluation.episodes": 1,
}
SETTINGS = {"labyrinth": LABYRINTH, "atari": ATARI}


def small(workload: str, **more: Any) -> Config:
    """A run of a second or a few."""
    return load_preset("debug", SETTINGS[workload] | more, workload)


def flags(workload: str, path: Path, **more: Any) -> list[str]:
    """The command that trains ``small(workload, **more)`` into ``path``."""
    settings = [f"{key}={value}" for key, value in (SETTINGS[workload] | more).items()]
    return ["train", workload, *settings, "--preset", "debug", "--out", str(path), "--quiet"]


def trained(workload: str, path: Path, **more: Any) -> Path:
    """A run that nobody disturbs."""
    session.run(*session.start(small(workload, **more), path))
    return path


class Witness:
    """Remembers what a run has acknowledged; it may neither lose that nor begin anew.

    A run that begins anew ends with the same bits, so that its end tells nothing.  What does: the
    newest good checkpoint, and timing.jsonl, whose rows nobody can write a second time.
    """

    def __init__(self, path: Path, whole: Path) -> None:
        self.path, self.whole = path, whole
        self.frames = 0
        """Of the newest checkpoint so far."""
        self._rows = b""
        """Of timing.jsonl that it covers."""

    def look(self) -> str:
        """What is lost or wrong by now; nothing: all that was acknowledged is there."""
        if not runs.is_run(self.path):
            return "the run is gone" if self.frames else ""
        claimed = max(self.frames, int((runs.read_status(self.path) or {}).get("frames") or 0))
        if not (self.path / "checkpoints").exists():
            return f"{claimed} frames were acknowledged, no checkpoint is there" if claimed else ""
        told: list[str] = []
        try:
            found = saved.newest(self.path, saved.sum_of(runs.read_config(self.path)), told.append)
        except LwmError as error:
            return str(error)
        if told:
            return told[0]
        if (found.frames if found else 0) < claimed:
            newest = found.frames if found else "none"
            return f"{claimed} frames were acknowledged, the newest good checkpoint is {newest}"
        if found is None:
            return ""
        rows = (self.path / "timing.jsonl").read_bytes()
        if not rows.startswith(self._rows):
            return "timing.jsonl lost rows that a checkpoint covers: it was begun anew"
        mine, theirs = ((p / "metrics.jsonl").read_bytes() for p in (self.path, self.whole))
        length = found.log_bytes[0]
        if len(mine) < length or mine[:length] != theirs[:length]:
            return "metrics.jsonl up to the checkpoint is not that of the undisturbed run"
        self.frames, self._rows = found.frames, rows[: found.log_bytes[1]]
        return ""


def differs(path: Path, other: Path) -> str:
    """What of two finished runs is not the same, bit for bit; nothing: all is."""
    if (path / "metrics.jsonl").read_bytes() != (other / "metrics.jsonl").read_bytes():
        return "metrics.jsonl differs"
    if runs.read_evaluation(path) != runs.read_evaluation(other):
        return "the evaluation differs"
    mine, theirs = runs.load_checkpoint(path), runs.load_checkpoint(other)
    if mine.frames != theirs.frames or mine.blocks != theirs.blocks:
        return "the replay rows differ"
    if not same(mine.state["learner"], theirs.state["learner"]):
        return "the weights differ"
    return "" if same(mine.state, theirs.state) else "the state differs"
