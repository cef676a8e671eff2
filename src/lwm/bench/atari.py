"""Speed on Atari at the paper's scale, by stage, on real frames.

On one core ``cycle`` is one core's work for a step of all actors and one update of everything, the
games' own processor time included.  On more cores it is what the clock on the wall says: the games
are played while the learner works, and ``env`` is what is left to wait for.
"""

from __future__ import annotations

import time
from itertools import cycle
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from gymnasium.spaces import Discrete

from lwm.bench.common import (
    METHOD,
    Work,
    clock,
    measure,
    measure_cycles,
    rates,
    references,
    stage_rows,
)
from lwm.bench.cost import calls_per_cycle, costs
from lwm.bench.report import OUT, Row, summary, table, write
from lwm.config import Config, load_preset, replace
from lwm.envs.atari import AtariEnv
from lwm.machine import machine_facts
from lwm.training import Trainer
from lwm.vision import working_dtype

GAME = "montezuma_revenge"
ENV_AIM = 0.9
SECONDS = 120.0
_MATMUL = (2000, 512, 512)
"""Rows and widths of the product that the stages are compared with."""
_DTYPES = (torch.float32, torch.bfloat16)


def run(
    seconds: float = SECONDS,
    out: Path = OUT,
    cores: int = 1,
    changes: dict[str, Any] | None = None,
) -> str:
    """Measure for about ``seconds``, write ``out``, return a table.  ``changes``: for tests."""
    rows, lines = measured(seconds, cores, changes)
    write(out, rows)
    return "\n".join([*lines, "", f"rows: {out}"])


def measured(
    seconds: float, cores: int = 1, changes: dict[str, Any] | None = None
) -> tuple[list[Row], list[str]]:
    """The rows, and what to say about them."""
    settings = {"atari.game": GAME, "threads": cores, **(changes or {})}
    paper = load_preset("paper", settings, "atari")
    trainer = warmed_up(paper)
    try:
        env = cast(AtariEnv, trainer.env)
        low = _environments(env, trainer, seconds / 6)
        low |= measure_cycles(
            trainer,
            1,
            trainer.cycle,
            references(_MATMUL, 4, _DTYPES),
            seconds * 5 / 6,
            clock(cores),
            (lambda: _worked(env.pids)) if cores == 1 else lambda: 0.0,
        )
        actions, workers = env.num_actions, len(env.pids)
    finally:
        trainer.close()
    dtype = str(working_dtype(paper.precision)).removeprefix("torch.")
    commit = machine_facts(paper.threads)["commit"]
    rows = stage_rows(
        "atari",
        low,
        costs(trainer.config, actions),
        calls_per_cycle(trainer.config),
        rates(low, _MATMUL, dtype),
        dtype,
        commit,
        cores,
        low["_theirs_wall"] / low["_env_wall"],
    )
    lines = [
        f"{paper.atari.game}, preset paper, {cores} BLAS thread(s), convolutions in {dtype}; "
        f"{METHOD}; commit {commit}",
        "",
        *table(rows),
        "",
        *_report(rows, low, paper, workers),
    ]
    return rows, lines


def _report(rows: list[Row], low: dict[str, float], paper: Config, workers: int) -> list[str]:
    matmul = ", ".join(
        f"{rates(low, _MATMUL, name)[0] / 1e9:.1f} GFLOP/s in {name}"
        for name in (str(dtype).removeprefix("torch.") for dtype in _DTYPES)
    )
    native = working_dtype("auto") is torch.bfloat16
    ratio = low["_theirs_wall"] / low["_env_wall"]
    verdict = "met" if ratio >= ENV_AIM else "missed"
    return [
        f"machine      matmul {'×'.join(map(str, _MATMUL))}: {matmul} "
        f"({'native' if native else 'this processor has no native bfloat16'}); "
        f"copy {rates(low, _MATMUL, 'float32')[1] / 1e9:.1f} GB/s",
        f"environment  {paper.loop.actors / low['_env_wall']:,.0f} agent steps/s with {workers} "
        f"workers, {ratio:.0%} of AtariVectorEnv with as many threads (aim: {ENV_AIM:.0%}; "
        f"{verdict})",
        f"training     one cycle of {paper.loop.actors} actors and its update: "
        f"{low['cycle']:.2f} s",
        *summary(rows),
    ]


def warmed_up(paper: Config, changes: dict[str, Any] | None = None) -> Trainer:
    """A trainer with a few windows of real frames per actor, a little way into its run."""
    rows = 2 * max(paper.window, paper.world_model.pretrain_rows)
    settings = {
        "loop.warmup_frames": rows * paper.loop.actors,
        "loop.total_frames": 10**9,
        "replay.capacity_steps": 2 * rows * paper.loop.actors,
        "encoder.pretrain_iterations": 2,
        "world_model.pretrain_iterations": 2,
        "loop.cycles_per_update": 1,
        **(changes or {}),
    }
    trainer = Trainer(replace(paper, settings))
    events = trainer.run()
    while trainer.learner.updates < 1:
        next(events)
    return trainer


def _environments(env: AtariEnv, trainer: Trainer, seconds: float) -> dict[str, float]:
    """Seconds on the wall of a step of all games, ours and the emulator's own, in turn."""
    theirs = _Theirs(env.game, env.num_envs, len(env.pids))
    moves = cycle(np.random.default_rng(0).integers(env.num_actions, size=(64, env.num_envs)))

    def walk() -> None:
        env.send(next(moves))
        trainer.step = env.recv()

    work: Work = {"_env_wall": (8, walk), "_theirs_wall": (8, theirs.step)}
    return measure(work, seconds, time.perf_counter)


def _worked(pids: list[int]) -> float:
    """Seconds that other processes have computed so far; 0 where the system does not say."""
    spent = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii")
        except OSError:
            return 0.0
        spent += int(text.split()[0])
    return spent / 1e9


class _Theirs:
    """The emulator's own C++ vector environment, stepped as ours is."""

    def __init__(self, game: str, envs: int, threads: int) -> None:
        from ale_py.vector_env import AtariVectorEnv

        self._env = AtariVectorEnv(
            game=game, num_envs=envs, num_threads=threads, stack_num=1, reward_clipping=False,
            use_fire_reset=False, max_num_frames_per_episode=40_000,
        )  # fmt: skip
        self._env.reset(seed=0)
        n = int(cast(Discrete, self._env.single_action_space).n)
        self._moves = cycle(np.random.default_rng(0).integers(n, size=(64, envs)))

    def step(self) -> None:
        self._env.step(next(self._moves))
