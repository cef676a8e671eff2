"""What grows with a run, and what does not: replay filling up, windows to draw from, actors.

*Replay* is filled through its own ``append`` with rows that the trainer really saw, over and over.
A trainer with a young replay and one with a full one take turns, so that their ratio is one of the
same minute.  Memory is what the process has resident, young, full, and after as many rows again:
an append to a full replay replaces a row.

*Windows* are drawn from the priorities alone, 16 at a time as in preset ``paper``, and given back.

*Actors* are those of the labyrinth's preset ``paper``, one update every four cycles throughout.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lwm.bench.common import Work, measure, measure_cycles
from lwm.bench.report import save
from lwm.config import Config, load_preset, replace
from lwm.errors import BadInput
from lwm.machine import machine_facts
from lwm.priorities import WindowPriorities
from lwm.training import Trainer
from lwm.types import Step

OUT = Path("results") / "growth.json"
COLUMNS = ("study", "setting", "ms", "us_a_frame", "mbytes", "commit")
LIMIT = 0.05
"""A full replay may cost this much more than a young one."""
SECONDS = 60.0
ATARI_FRAMES = 200_000
"""Capacity of the Atari replay; the paper's 10^6 take some minutes to fill."""
_STORED = ("obs", "a_tm1", "r_t", "is_first", "is_last", "discount_t")
_WINDOWS = (10**5, 10**6, 10**7)
_ACTORS = (8, 32, 128, 512)

Rows = list[dict[str, Any]]


def run(
    seconds: float = SECONDS,
    out: Path = OUT,
    frames: int = ATARI_FRAMES,
    changes: dict[str, dict[str, Any]] | None = None,
) -> str:
    """Measure each study for about ``seconds``, write ``out``, return a table with verdicts.

    ``frames``: capacity of the Atari replay; ``changes``: settings by workload, for tests.
    """
    changed = changes or {}
    commit = machine_facts()["commit"]
    rows: Rows = []
    verdicts = []
    for make in (_labyrinth_replay, _atari_replay):
        try:
            young, full = make(frames, changed)
        except BadInput as error:  # without the extra there are no games
            verdicts.append(f"atari: left out, {error}")
            continue
        found, verdict = _replay(young, full, seconds)
        rows += found
        verdicts.append(verdict)
    rows += _windows(seconds / 3)
    verdicts.append(_windows_verdict(rows))
    rows += _actors(seconds / 3, changed.get("labyrinth", {}))
    table = [dict(zip(COLUMNS, (*row.values(), commit), strict=True)) for row in rows]
    save(out, table)
    return "\n".join([*_lines(table), "", *verdicts, "", f"rows: {out}"])


def _row(
    study: str, setting: str, ms: float, us: float | None, mbytes: float | None
) -> dict[str, Any]:
    return dict(zip(COLUMNS, (study, setting, ms, us, mbytes), strict=False))


def _lines(rows: Rows) -> list[str]:
    lines = [f"{'study':20}{'setting':>26}{'ms':>12}{'µs a frame':>12}{'MB':>10}"]
    for row in rows:
        numbers = [
            "" if row[k] is None else f"{row[k]:.{digits}f}"
            for k, digits in (("ms", 3), ("us_a_frame", 2), ("mbytes", 1))
        ]
        cells = "".join(f"{n:>{w}}" for n, w in zip(numbers, (12, 12, 10), strict=True))
        lines.append(f"{row['study']:20}{row['setting']:>26}{cells}")
    return lines


# Replay.


def _labyrinth_replay(_: int, changes: dict[str, dict[str, Any]]) -> tuple[Trainer, Trainer]:
    settings = {"env.size": 4, "env.time_limit": 24, **changes.get("labyrinth", {})}
    config = load_preset("paper", settings)
    longest = max(config.window, config.world_model.pretrain_rows)
    quick = replace(
        config,
        {
            "loop.warmup_frames": (longest + 2) * config.loop.actors,
            "loop.total_frames": 10**9,
            "world_model.pretrain_iterations": 2,
        },
    )
    return _started(quick), _started(quick)


def _atari_replay(frames: int, changes: dict[str, dict[str, Any]]) -> tuple[Trainer, Trainer]:
    from lwm.bench import atari

    settings = {"atari.game": atari.GAME, **changes.get("atari", {})}
    config = load_preset("paper", settings, "atari")
    rows = max(config.window, config.world_model.pretrain_rows) + 2
    quick = {
        "loop.warmup_frames": rows * config.loop.actors,
        "replay.capacity_steps": max(frames, 3 * rows * config.loop.actors),
    }
    return atari.warmed_up(config, quick), atari.warmed_up(config, quick)


def _started(config: Config) -> Trainer:
    trainer = Trainer(config)
    events = trainer.run()
    while trainer.learner.updates < 4:
        next(events)
    return trainer


def _replay(young: Trainer, full: Trainer, seconds: float) -> tuple[Rows, str]:
    """Cycle time and memory of a young and a full replay."""
    try:
        c = young.config
        shares = [len(young.replay) / young.replay.rows]
        memory = [_resident()]
        for _ in range(2):
            fill(full, full.replay.rows)
            memory.append(_resident())
        calls = 4 * c.loop.cycles_per_update if c.workload == "labyrinth" else 1
        low = measure({"young": (calls, young.cycle), "full": (calls, full.cycle)}, seconds)
        shares.append(len(young.replay) / young.replay.rows)
    finally:
        young.close()
        full.close()
    study, actors = f"{c.workload} replay", c.loop.actors
    settings = (f"{shares[0]:.0%} to {shares[1]:.0%} full", "100% full")
    rows = [
        _row(study, setting, 1e3 * low[name], 1e6 * low[name] / actors, megabytes)
        for setting, name, megabytes in zip(settings, low, memory, strict=False)
    ]
    rows.append(_row(study, "as many rows again", 1e3 * low["full"], None, memory[2]))
    ratio, growth = low["full"] / low["young"], memory[2] / memory[1]
    return rows, (
        f"{study}: full against young {ratio:.3f} in time "
        f"({_within(ratio)}), {memory[1] / memory[0]:.3f} in memory; as many rows again "
        f"{growth:.3f} in memory ({_within(growth)})"
    )


def fill(trainer: Trainer, rows: int) -> None:
    """Append ``rows`` rows to replay: those it has, over and over, with priorities at random."""
    replay, c = trainer.replay, trainer.config
    rng = np.random.default_rng(0)
    known = replay.get_rows(max(replay.oldest, replay.count - 256), replay.count)
    known = {name: known[name] for name in (*_STORED, "r_in")}
    zero, none = np.zeros(replay.envs, np.float32), np.zeros(replay.envs, np.int64)
    h = np.zeros((replay.envs, c.dqn.hidden), np.float32)
    for i in range(rows):
        row = {name: values[i % len(known["obs"])] for name, values in known.items()}
        ends = {"episode_return": zero, "episode_length": none, "episode_end": row["is_last"]}
        step = Step(**{name: row[name] for name in _STORED}, **ends)
        replay.append(step, h, row["r_in"])
        if c.replay.prioritised:
            new = replay.new_windows()
            if len(new):
                replay.set_priorities(new, rng.random(len(new)))


def _within(ratio: float) -> str:
    return f"within {LIMIT:.0%}" if ratio <= 1 + LIMIT else f"more than {LIMIT:.0%}"


def _resident() -> float:
    """Megabytes of this process in memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


# Windows.


def _windows(seconds: float) -> Rows:
    work: Work = {}
    sizes = {}
    for number in _WINDOWS:
        made, draw = _drawing(number)
        work[f"{number:,}"] = (200, draw)
        sizes[f"{number:,}"] = made.nbytes / 1e6
    low = measure(work, seconds)
    return [_row("windows", name, 1e3 * low[name], None, sizes[name]) for name in work]


def _drawing(number: int, envs: int = 128) -> tuple[WindowPriorities, Callable[[], object]]:
    """Priorities of about so many windows, and drawing 16 of them."""
    every, length = 80, 125
    rows = (max(number // envs, 1) - 1) * every + length
    made = WindowPriorities(rows, envs, every, length, 0.9, 0.6)
    rng = np.random.default_rng(0)
    made.set_state(rng.random(made.get_state().shape))
    p = rng.random(16)

    def draw() -> None:
        origin, _ = made.sample(rng, rows, 16)
        made.set(rows, origin, p)

    return made, draw


def _windows_verdict(rows: Rows) -> str:
    ms = [row["ms"] for row in rows if row["study"] == "windows"]
    depth = [(n - 1).bit_length() for n in _WINDOWS]
    return (
        f"windows: {_WINDOWS[-1] / _WINDOWS[0]:g} times as many cost {ms[-1] / ms[0]:.2f} times as "
        f"much (levels of the tree: {depth[-1] / depth[0]:.2f} times)"
    )


# Actors.


def _actors(seconds: float, changes: dict[str, Any]) -> Rows:
    rows = []
    for actors in _ACTORS:
        config = load_preset("paper", {"env.size": 4, "env.time_limit": 24, **changes})
        longest = max(config.window, config.world_model.pretrain_rows) + 2
        config = replace(
            config,
            {
                "loop.actors": actors,
                "loop.warmup_frames": longest * actors,
                "loop.total_frames": 10**9,
                "replay.capacity_steps": max(config.replay.capacity_steps, 2 * longest * actors),
                "world_model.pretrain_iterations": 2,
            },
        )
        trainer = _started(config)
        cycles = 4 * config.loop.cycles_per_update
        share = seconds / len(_ACTORS)
        low = measure_cycles(trainer, cycles, trainer.cycle, {}, share, time.process_time)
        acting = low["act"] + low["env"]
        rows.append(
            _row(
                "actors, whole cycle",
                f"{actors} actors",
                1e3 * low["cycle"],
                1e6 * low["cycle"] / actors,
                trainer.replay.nbytes / 1e6,
            )
        )
        rows.append(
            _row(
                "actors, act and env", f"{actors} actors", 1e3 * acting, 1e6 * acting / actors, None
            )
        )
    return rows
