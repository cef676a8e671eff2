"""How long a user waits: for ``lwm --help``, for the first frame of a run, and in its middle.

Each is a process of its own, started as a user would, several times; the fastest counts, as other
work on the machine only adds to it, and the processor time beside it says how much that was.  The
last part is a short run with many checkpoints, and the longest time between two of its cycles.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from lwm import runs
from lwm.errors import RunFailed

HELP_AIM, FRAME_AIM, PAUSE_AIM = 0.3, 5.0, 2.0
_PATIENCE = 120.0
_QUICK = ("world_model.pretrain_iterations=10", "evaluation.episodes=64")
_ATARI = ("atari", "--game", "montezuma_revenge", "--preset", "paper")


def run(times: int = 5, frames: int = 16_000) -> str:
    """Measure, return a line for each aim.  ``frames``: length of the short run."""
    helped = min(_help() for _ in range(times))
    with tempfile.TemporaryDirectory() as folder:
        first = min(_first_frame(Path(folder) / str(i), "labyrinth") for i in range(times))
        games = None
        if find_spec("ale_py") is not None:
            games = min(_first_frame(Path(folder) / f"atari{i}", *_ATARI) for i in range(times))
        pause, checkpoints = _longest_pause(Path(folder) / "run", frames)
    lines = [
        _line("lwm --help", helped[0], HELP_AIM, helped[1]),
        _line("lwm train labyrinth, first frame", first[0], FRAME_AIM, first[1]),
        _line(f"longest pause ({checkpoints} checkpoints)", pause, PAUSE_AIM),
    ]
    if games is not None:
        # Its workers' processor time is not told to us: they end with it, unwaited for.
        lines.insert(2, _line("lwm train atari, paper, first frame", games[0], FRAME_AIM))
    return "\n".join(lines)


def _line(name: str, seconds: float, aim: float, computed: float | None = None) -> str:
    verdict = "met" if seconds < aim else "missed"
    busy = "" if computed is None else f", {computed:.3f} s of processor time"
    return f"{name:38}{seconds:8.3f} s   (aim: under {aim:g} s; {verdict}{busy})"


def _children() -> float:
    """Processor time of all processes that were started and have ended."""
    spent = os.times()
    return spent.children_user + spent.children_system


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "lwm.cli", *arguments]


def _help() -> tuple[float, float]:
    """Seconds on the wall, and of the processor."""
    began, before = time.perf_counter(), _children()
    subprocess.run(_command("--help"), check=True, capture_output=True)
    return time.perf_counter() - began, _children() - before


def _first_frame(path: Path, *what: str) -> tuple[float, float]:
    """Seconds until a run has written the row of its first cycle, on the wall and of the
    processor; the run is ended then.  ``what``: the run, as its command says."""
    log = path / "metrics.jsonl"
    command = _command("train", *what, "--out", str(path), "loop.log_every_frames=1")
    began, before = time.perf_counter(), _children()
    null = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=null, stderr=null) as process:
        try:
            while not (log.exists() and log.stat().st_size):
                if process.poll() is not None or time.perf_counter() - began > _PATIENCE:
                    raise RunFailed("a run that was to be timed wrote no row")
                time.sleep(0.002)
            waited = time.perf_counter() - began
        finally:
            process.kill()
    return waited, _children() - before


def _longest_pause(path: Path, frames: int) -> tuple[float, int]:
    """Seconds, and the number of checkpoints written meanwhile."""
    every = frames // 8
    command = _command(
        "train", "labyrinth", "--quiet", "--out", str(path), "--frames", str(frames), *_QUICK,
        f"loop.checkpoint_every_frames={every}", f"loop.log_every_frames={every // 2}",
    )  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RunFailed(f"a run that was to be timed failed: {done.stderr.strip()}")
    return max(row["longest_pause"] for row in runs.read_timing(path)), frames // every
