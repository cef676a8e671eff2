"""Is the time that is told before a long run the time that it takes?

``lwm train atari`` tries each stage for some seconds on noise and multiplies.  Here the same is
done for preset ``paper`` and its 50M frames, and then a real run goes through all phases, with real
frames in a replay that fills: warm-up, pretraining of Phi and of the world model, first priorities,
training.  What one call costs there, times the calls of the whole run, is what was to be foretold.
Both by the clock on the wall: whatever else the machine does should be the same from start to end.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

from lwm import plan
from lwm.bench.atari import GAME
from lwm.bench.report import save
from lwm.config import Config, load_preset, replace
from lwm.machine import machine_facts
from lwm.training import Trainer

OUT = Path("results") / "projection.json"
COLUMNS = ("phase", "calls", "projected_ms", "real_ms", "measured", "cores", "commit", "machine")
"""``calls``: of a phase in the whole run, ``measured``: in this one; ``*_ms``: of one call."""
LIMIT = 0.1
SECONDS = 1800.0
_BEFORE = 0.15
"""Share of the time that each phase before training may take."""

Rows = list[dict[str, Any]]


def run(
    seconds: float = SECONDS,
    out: Path = OUT,
    cores: int = 1,
    changes: dict[str, Any] | None = None,
) -> str:
    """Project, then train for about ``seconds``, write ``out``, return a table with a verdict."""
    config = load_preset(
        "paper", {"atari.game": GAME, "threads": cores, **(changes or {})}, "atari"
    )
    projected = plan.seconds_each(config)
    real, measured = _real(config, projected, seconds)
    facts = machine_facts(cores)
    rows: Rows = []
    for name, n in {**plan.calls(config), "priorities": _ranked(config)}.items():
        if measured[name]:
            foretold = projected.get(name, 0.0)  # of priorities nothing is foretold
            row = (name, n, foretold * 1e3, real[name] * 1e3, measured[name], cores)
            origin = (facts["commit"], facts["cpu"])
            rows.append(dict(zip(COLUMNS, (*row, *origin), strict=True)))
    save(out, rows)
    return "\n".join([*lines(rows), "", f"rows: {out}"])


def lines(rows: Rows) -> list[str]:
    """The rows as a table; the last lines are the whole run, and whether it was foretold."""
    told = [f"{'phase':14}{'calls':>10}{'ms foretold':>14}{'ms real':>12}{'of them real':>14}"]
    for row in rows:
        told.append(
            f"{row['phase']:14}{row['calls']:>10,.0f}{row['projected_ms']:>14.1f}"
            f"{row['real_ms']:>12.1f}{row['measured']:>14,}"
        )
    hours = [sum(r["calls"] * r[k] for r in rows) / 3.6e6 for k in ("projected_ms", "real_ms")]
    off = hours[0] / hours[1] - 1
    verdict = "met" if abs(off) <= LIMIT else "missed"
    return [
        *told,
        "",
        f"the whole run: {hours[0]:.2f} hours foretold, {hours[1]:.2f} at the real run's pace: "
        f"{off:+.1%} (aim: within {LIMIT:.0%}; {verdict})",
    ]


def shortened(config: Config, each: dict[str, float], seconds: float) -> Config:
    """The run with as much of its first phases as there is time for."""
    part = {
        name: min(_BEFORE * seconds / (n * each[name]), 1.0) if n * each[name] > 0 else 1.0
        for name, n in plan.calls(config).items()
    }
    longest = max(config.window, config.world_model.pretrain_rows)
    least = (longest + 2) * config.loop.actors
    warm = max(int(part["warmup"] * config.loop.warmup_frames), least)
    changes = {
        "loop.warmup_frames": min(warm, config.loop.warmup_frames),
        "encoder.pretrain_iterations": config.encoder.pretrain_iterations * part["encoder"],
        "world_model.pretrain_iterations": (
            config.world_model.pretrain_iterations * part["world_model"]
        ),
    }
    return replace(config, {key: max(int(value), 1) for key, value in changes.items()})


def _ranked(config: Config) -> float:
    """Batches of windows that get their first priorities after the warm-up."""
    rows = config.loop.warmup_frames / config.loop.actors
    windows = (rows - config.window) // config.replay.unroll + 1
    return max(windows, 0) * config.loop.actors / config.replay.batch


def _real(
    config: Config, each: dict[str, float], seconds: float
) -> tuple[dict[str, float], dict[str, int]]:
    """Seconds of one call of each phase of a real run, and how many calls there were."""
    took: dict[str, float] = defaultdict(float)
    counted: dict[str, int] = defaultdict(int)
    began = time.perf_counter()
    trainer = Trainer(shortened(config, each, seconds))
    with closing(trainer):
        phi, _ = trainer.updates.pretraining()
        events = trainer.run()
        # However short the time, to the end of all phases.
        while time.perf_counter() - began < seconds or counted["cycle"] < 2:
            warm, before, cycles = trainer.warm, trainer.pretrained, trainer.cycles
            at = time.perf_counter()
            next(events)
            if not warm:
                name = "warmup"
            elif trainer.pretrained > before:
                name = "encoder" if before < phi else "world_model"
            else:
                name = "cycle" if trainer.cycles > cycles else "priorities"
            if name not in took:
                print(f"{(at - began) / 60:5.1f} min: {name}", file=sys.stderr, flush=True)
            took[name] += time.perf_counter() - at
            counted[name] += 1
    return {name: total / counted[name] for name, total in took.items()}, counted
