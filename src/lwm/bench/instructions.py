"""Instructions of the pure-Python hot paths, by callgrind: no noise, however busy the machine.

Each path runs in a process of its own under valgrind, few times and then more times; the difference
is what the calls take.  Counts depend on the versions of Python and NumPy, so they are compared
with the committed ones only where these are the same.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lwm.bench.report import save
from lwm.errors import RunFailed

OUT = Path("results") / "instructions.json"
LIMIT = 0.05
"""A path may take this much more than was committed."""
_FEW, _MORE = 20, 120


def paths() -> dict[str, Callable[[], Callable[[], object]]]:
    """Name -> what makes the call that is counted."""
    return {
        "labyrinth step": _labyrinth,
        "replay append": _append,
        "replay sample": _sample,
        "sum tree draw": _tree,
    }


def run(out: Path = OUT, check: bool = False) -> str:
    """Count; ``check``: compare with ``out`` (a loss is an error), else write it."""
    if shutil.which("valgrind") is None:
        return "instructions: left out, valgrind is not installed"
    counts = {name: _counted(name) for name in paths()}
    found = {"versions": versions(), "counts": counts}
    if check:
        return compare(_read(out), found)
    save(out, found)
    lines = [f"{name:20}{n:12,} instructions a call" for name, n in counts.items()]
    return "\n".join([*lines, f"counts: {out}"])


def compare(committed: dict[str, Any] | None, found: dict[str, Any]) -> str:
    """One line; ``RunFailed`` if a path takes more than ``LIMIT`` more instructions."""
    if committed is None:
        return "instructions: not compared, there are no committed counts"
    if committed["versions"] != found["versions"]:
        return f"instructions: not compared, the counts are of {committed['versions']}"
    lost = []
    for name, before in committed["counts"].items():
        now = found["counts"].get(name)
        if now is None or now > before * (1 + LIMIT):
            lost.append(f"instructions of {name}: {now}, were {before}")
    if lost:
        print("\n".join(lost))
        raise RunFailed(f"{len(lost)} hot paths take over {LIMIT:.0%} more instructions")
    return f"instructions: {len(committed['counts'])} hot paths, none lost (limit {LIMIT:.0%})"


def versions() -> str:
    """What the counts depend on."""
    return f"Python {platform.python_version()}, NumPy {np.__version__}, {platform.machine()}"


def _read(out: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(out.read_text(encoding="utf-8"))
        return found if found.keys() == {"versions", "counts"} else None
    except (OSError, ValueError, AttributeError):
        return None


def _counted(name: str) -> int:
    few, more = (_instructions(name, calls) for calls in (_FEW, _MORE))
    return round((more - few) / (_MORE - _FEW))


def _instructions(name: str, calls: int) -> int:
    """All instructions of a process that makes so many calls."""
    command = [
        "valgrind", "--tool=callgrind", f"--callgrind-out-file={os.devnull}",
        sys.executable, "-P", "-m", "lwm.bench.instructions", name, str(calls),
    ]  # fmt: skip
    # One thread, and the same hashes every time.
    fixed = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | fixed)
    told = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or told is None:
        last = done.stderr.strip().splitlines()[-1:] or [""]
        raise RunFailed(f"valgrind could not run {name!r}: {last[0]}")
    return int(told.group(1))


def _labyrinth() -> Callable[[], object]:
    """A row of eight labyrinths, as the loop gets it."""
    from lwm.config import load_preset
    from lwm.envs.vector import make_env

    env = make_env(load_preset("paper", {"env.size": 4}), np.arange(8))
    env.reset()
    moves = np.random.default_rng(0).integers(4, size=8)

    def step() -> None:
        env.send(moves)
        env.recv()

    return step


def _replay() -> tuple[Any, Callable[[], object]]:
    from lwm.replay import Replay
    from lwm.types import Step

    replay = Replay(1000, 8, (4,), np.int8, 128)
    off, zero = np.zeros(8, np.bool_), np.zeros(8, np.float32)
    none, h = np.zeros(8, np.int64), np.zeros((8, 128), np.float32)
    step = Step(np.zeros((8, 4), np.int8), none, zero, off, off, zero + 1, zero, none, off)
    return replay, lambda: replay.append(step, h, zero)


def _append() -> Callable[[], object]:
    return _replay()[1]


def _sample() -> Callable[[], object]:
    replay, append = _replay()
    for _ in range(200):
        append()
    rng = np.random.default_rng(0)
    return lambda: replay.sample(rng, 32, 49)


def _tree() -> Callable[[], object]:
    from lwm.priorities import SumTree

    tree = SumTree(10_000)
    tree.fill(np.ones(10_000))
    rng = np.random.default_rng(0)
    return lambda: tree.find(rng.random(16) * tree.total)


if __name__ == "__main__":
    call = paths()[sys.argv[1]]()
    for _ in range(int(sys.argv[2])):
        call()
