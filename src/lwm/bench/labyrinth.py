"""Speed on the labyrinth, by stage.

The cycles are those of a real run of preset ``paper`` on 4×4, whose episodes are cut at the length
that a trained agent needs: resets inside windows cost time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from lwm import kernels
from lwm.bench.common import (
    METHOD,
    Work,
    clock,
    matmul_name,
    measure_cycles,
    rates,
    references,
    stage_rows,
    undisturbed,
)
from lwm.bench.cost import calls_per_cycle, costs
from lwm.bench.report import OUT, Row, summary, table, write
from lwm.config import Config, load_preset, replace
from lwm.envs.labyrinth_vector import LabyrinthVectorEnv
from lwm.errors import BadInput
from lwm.machine import machine_facts
from lwm.training import Trainer
from lwm.types import Event

ENV_AIM = 50.0
"""Times as many steps per second as Gymnasium's own vectorisation of the single environment."""
SECONDS = 60.0
_LANES = 1024
_SIZE = 4
_SOLVED_STEPS = 24
"""Length of a trained agent's episode on 4×4 (the paper's score is -23.5)."""
_MATMUL = (32, 128, 384)
_DTYPES = (torch.float32, torch.bfloat16)


def run(
    seconds: float = SECONDS, out: Path = OUT, cores: int = 1, precision: str = "float32"
) -> str:
    """Measure for about ``seconds`` (after a few of setting up), write ``out``, return a table."""
    if precision == "bfloat16" and not kernels.multiplies_bfloat16():
        raise BadInput("--precision bfloat16: this processor (or compiler) has no such products")
    rows, lines = measured(seconds, cores, precision)
    write(out, rows)
    return "\n".join([*lines, "", f"rows: {out}"])


def measured(
    seconds: float, cores: int = 1, precision: str = "float32"
) -> tuple[list[Row], list[str]]:
    """The rows, and what to say about them; ``precision``: of the products of unrolled windows."""
    chosen = {"env.size": _SIZE, "threads": cores, "unroll_precision": precision}
    paper = load_preset("paper", chosen)
    changes = {
        "env.time_limit": _SOLVED_STEPS,
        "world_model.pretrain_iterations": 40,
        "loop.total_frames": 10**9,
    }
    config = replace(paper, changes)
    trainer, events, phases = warmed_up(config)
    work = {**references(_MATMUL, 50, _DTYPES), **_environments()}
    rounds = 4 * config.loop.cycles_per_update
    low = phases | measure_cycles(
        trainer, rounds, lambda: next(events), work, seconds, clock(cores)
    )
    low["_frame"] = low["cycle"] * trainer.cycles / trainer.frames
    facts = machine_facts(config.threads)
    rows = stage_rows(
        "labyrinth",
        low,
        costs(config, trainer.env.num_actions),
        calls_per_cycle(config),
        rates(low, _MATMUL, precision),
        precision,
        facts["commit"],
        cores,
        low["_sync"] / low["_vector"],
    )
    return rows, _report(rows, low, paper, facts)


def warmed_up(config: Config) -> tuple[Trainer, Iterator[Event], dict[str, float]]:
    """A trainer a hundred updates into its run, its events, and how long the phases before take:
    seconds per cycle of ``_warmup`` and per iteration of ``_pretrain``."""
    trainer = Trainer(config)
    events = trainer.run()
    took: dict[str, list[float]] = {"_warmup": [], "_pretrain": [], "_train": []}
    while trainer.learner.updates < 100:
        pretrained, warm = trainer.pretrained, trainer.warm
        began = time.process_time()
        next(events)
        spent = time.process_time() - began
        trained = "_pretrain" if trainer.pretrained > pretrained else "_train"
        took[trained if warm else "_warmup"].append(spent)
    return trainer, events, {name: undisturbed(times) for name, times in took.items()}


def _environments() -> Work:
    """Both ways to step labyrinths."""
    actions = cycle(np.random.default_rng(0).integers(4, size=(256, _LANES)))
    ours = LabyrinthVectorEnv(_LANES, _SIZE)
    theirs = gymnasium.vector.SyncVectorEnv([_single] * _LANES)
    ours.reset(seed=0)
    theirs.reset(seed=0)
    return {
        # Many: layouts are carved in batches, every thousand steps or so.
        "_vector": (1000, lambda: ours.step(next(actions))),
        "_sync": (4, lambda: theirs.step(next(actions))),
    }


def _single() -> Any:
    # The checker would only make the other side slower.
    return gymnasium.make("lwm/Labyrinth-v0", size=_SIZE, disable_env_checker=True)


def _report(
    rows: list[Row], low: dict[str, float], paper: Config, facts: dict[str, Any]
) -> list[str]:
    """The lines for a person, with the aims beside.  ``low`` has seconds by stage."""
    matmul = ", ".join(
        f"{rates(low, _MATMUL, name)[0] / 1e9:.1f} GFLOP/s in {name}"
        for name in (matmul_name(dtype).removeprefix("_matmul_") for dtype in _DTYPES)
    )
    ratio = low["_sync"] / low["_vector"]
    millions = [_LANES / low[name] / 1e6 for name in ("_vector", "_sync")]
    loop = paper.loop
    minutes = [
        loop.warmup_frames / loop.actors * low["_warmup"] / 60,
        paper.world_model.pretrain_iterations * low["_pretrain"] / 60,
        (loop.total_frames - loop.warmup_frames) * low["_frame"] / 60,
    ]
    parts = ", ".join(
        f"{name} {t:.1f}"
        for name, t in zip(("warm-up", "pretraining", "training"), minutes, strict=True)
    )
    verdict = "met" if ratio >= ENV_AIM else "missed"
    return [
        f"labyrinth {_SIZE}×{_SIZE}, preset paper, {paper.unroll_precision}, "
        f"{facts['threads']} BLAS thread(s), torch {facts['torch']}, {facts['cpu']}",
        f"{METHOD}; commit {facts['commit']}",
        "",
        *table(rows),
        "",
        f"machine      matmul {'×'.join(map(str, _MATMUL))}: {matmul}; "
        f"copy {rates(low, _MATMUL, 'float32')[1] / 1e9:.1f} GB/s",
        f"environment  {_LANES} labyrinths: {millions[0]:.1f} M steps/s, {ratio:.0f} times "
        f"SyncVectorEnv's {millions[1]:.2f} M (aim: {ENV_AIM:.0f} times; {verdict})",
        f"training     {1 / low['_frame']:,.0f} frames/s, act, environment and update together",
        f"paper's run  {loop.total_frames:,} frames in {sum(minutes):.1f} minutes ({parts}), "
        "without evaluation and checkpoints",
        *summary(rows),
    ]
