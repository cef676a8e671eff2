"""Speed on Atari at the paper's scale, by stage, on real frames.

Operations are counted by formula, a multiplication and an addition as two, for convolutions and
matrix products only.  Per frame a CNN takes

    layer 1   2 · 20² · 32 · 8²          layer 2   2 · 9² · 64 · 32 · 4²
    layer 3   2 · 7² · 64 · 64 · 3²      FC        2 · 3136 · width

and rows of the recurrent nets as on the labyrinth.  A backward pass takes each product twice again,
but the first layer's once: pixels need no gradient.  ``cycle`` is one core's work for a step of all
actors and one update of everything, the games' own processor time included.
"""

from __future__ import annotations

import os
import time
from itertools import cycle
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from gymnasium.spaces import Discrete

from lwm.actor import act
from lwm.agent import td_errors
from lwm.bench.common import METHOD, OUT, Work, measure, stage_rows, table, write
from lwm.config import Config, load_preset, replace
from lwm.envs.atari import AtariEnv
from lwm.learner import learn, learn_encoder, rewarded
from lwm.machine import machine_facts
from lwm.training import Trainer
from lwm.types import Unroll
from lwm.vision import FEATURES, shift_offsets, working_dtype

STAGES = (
    "act", "env", "sample", "encoder", "world_model", "target", "online", "backward", "optimiser",
    "priorities", "learner", "cycle",
)  # fmt: skip
GAME = "montezuma_revenge"
_LAYERS = (2 * 20**2 * 32 * 8**2, 2 * 9**2 * 64 * 32 * 4**2, 2 * 7**2 * 64 * 64 * 3**2)
_MATMUL = (2000, 512, 512)
"""Rows and widths of the product that the stages are compared with."""


def flops(config: Config, actions: int) -> dict[str, float]:
    """Floating-point operations of one call of each stage that multiplies."""
    q, m, r, D = config.dqn, config.world_model, config.replay, config.encoder.embedding
    conv, first = sum(_LAYERS), _LAYERS[0]
    see, phi = conv + 2 * FEATURES * q.features, conv + 2 * FEATURES * D
    gru = 6 * q.hidden * (q.features + actions + 1 + q.hidden)
    head = 2 * (2 * q.head * q.hidden + q.head * (actions + 1))
    fc = 2 * (D + actions) * m.features
    lwm = 6 * m.hidden * (m.features + m.hidden) + 2 * m.head * (m.hidden + D)
    B, T, U, K = r.batch, config.window, config.window - r.burn_in, config.loop.actors
    forward = B * T * (see + gru) + B * U * head
    found: dict[str, float] = {
        "act": K * (phi + see + gru + head + fc + lwm),
        "encoder": 2 * config.encoder.batch * (3 * phi - first),
        "world_model": B * T * phi + B * (T - 1) * (2 * fc + 3 * lwm),
        "target": forward,
        "online": forward,
        "backward": B * U * (2 * (see + gru + head) - first),
    }
    parts = ("world_model", "target", "online", "backward")
    found["learner"] = sum(found[part] for part in parts)
    found["cycle"] = found["act"] + found["encoder"] + found["learner"]
    return found


def run(seconds: float = 120.0, out: Path = OUT, changes: dict[str, Any] | None = None) -> str:
    """Measure for about ``seconds``, write ``out``, return a table.  ``changes``: for tests."""
    paper = load_preset("paper", {"atari.game": GAME, **(changes or {})}, "atari")
    trainer = _warmed_up(paper)
    try:
        assert isinstance(trainer.env, AtariEnv)
        theirs = _Theirs(trainer.env.num_envs, len(trainer.env.pids))
        low = _measured(trainer, theirs, seconds)
        actions = trainer.env.num_actions
    finally:
        trainer.close()
    dtype = str(working_dtype(paper.precision)).removeprefix("torch.")
    rate = 2 * np.prod(_MATMUL) / low["_matmul"]
    commit = machine_facts(paper.threads)["commit"]
    rows = stage_rows("atari", STAGES, low, flops(paper, actions), rate, dtype, commit)
    write(out, rows)
    ratio = low["_theirs_wall"] / low["_env_wall"]
    steps = paper.loop.actors / low["_env_wall"]
    name = "matmul " + "×".join(map(str, _MATMUL))
    lines = [
        f"{GAME}, preset paper, 1 BLAS thread, convolutions in {dtype}; {METHOD}; commit {commit}",
        "",
        *table(rows),
        f"{name:22}{1e3 * low['_matmul']:10.3f}{rate / 1e9:10.1f}",
        "",
        f"environments {steps:,.0f} agent steps/s with {theirs.threads} workers, {ratio:.0%} of "
        "AtariVectorEnv with as many threads (aim: 90 %)",
        f"one cycle    {low['cycle']:.2f} s on one core (aim: 1.9)",
        "",
        f"rows: {out}",
    ]
    return "\n".join(lines)


def _warmed_up(paper: Config) -> Trainer:
    """A trainer with a few windows of real frames per actor, a little way into its run."""
    rows = 2 * max(paper.window, paper.world_model.pretrain_rows)
    changes = {
        "loop.warmup_frames": rows * paper.loop.actors,
        "replay.capacity_steps": 2 * rows * paper.loop.actors,
        "encoder.pretrain_iterations": 2,
        "world_model.pretrain_iterations": 2,
        "loop.cycles_per_update": 1,
    }
    trainer = Trainer(replace(paper, changes))
    events = trainer.run()
    while trainer.learner.updates < 1:
        next(events)
    return trainer


class _Theirs:
    """The emulator's own C++ vector environment, stepped as ours is."""

    def __init__(self, envs: int, threads: int) -> None:
        from ale_py.vector_env import AtariVectorEnv

        self.threads = threads
        self._env = AtariVectorEnv(
            game=GAME, num_envs=envs, num_threads=threads, stack_num=1, reward_clipping=False,
            use_fire_reset=False, max_num_frames_per_episode=40_000,
        )  # fmt: skip
        self._env.reset(seed=0)
        n = int(cast(Discrete, self._env.single_action_space).n)
        self._moves = cycle(np.random.default_rng(0).integers(n, size=(64, envs)))

    def step(self) -> None:
        self._env.step(next(self._moves))


def _measured(trainer: Trainer, theirs: _Theirs, seconds: float) -> dict[str, float]:
    """Seconds per call of every stage; the environments also by the clock on the wall."""
    env = trainer.env
    assert isinstance(env, AtariEnv)
    ticks = os.sysconf("SC_CLK_TCK")

    def everyone() -> float:
        """Processor time of this process and of the games' workers."""
        spent = time.process_time()
        for pid in env.pids:
            with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
            spent += (int(fields[11]) + int(fields[12])) / ticks
        return spent

    moves = cycle(np.random.default_rng(0).integers(env.num_actions, size=(64, env.num_envs)))

    def walk() -> None:
        env.send(next(moves))
        trainer.step = env.recv()

    wall = measure(
        {"_env_wall": (8, walk), "_theirs_wall": (8, theirs.step)}, seconds / 6, time.perf_counter
    )
    whole = measure({"env": (8, walk), "cycle": (1, trainer.cycle)}, seconds / 3, everyone)
    return wall | whole | measure(_stages(trainer), seconds / 2)


def _stages(trainer: Trainer) -> Work:
    """The stages on windows of the trainer's replay; with an underscore: what prepares others."""
    c, state, burn_in = trainer.config, trainer.learner, trainer.config.replay.burn_in
    rng = np.random.default_rng(0)
    unroll, weight = trainer.replay.sample_prioritised(rng, c.replay.batch)
    pairs = trainer.replay.sample_pairs(rng, c.encoder.batch, c.encoder.temporal_shift)
    window, _, _ = rewarded(state, unroll, 0.0, train=False)
    loss = torch.zeros(())
    K = c.loop.actors
    never, moves = np.zeros(K, np.bool_), rng.integers(trainer.env.num_actions, size=K)
    a, b = torch.ones(_MATMUL[0], _MATMUL[1]), torch.ones(_MATMUL[1], _MATMUL[2])

    def sample() -> None:
        trainer.replay.sample_prioritised(rng, c.replay.batch)
        trainer.replay.sample_pairs(rng, c.encoder.batch, c.encoder.temporal_shift)

    def play() -> None:
        act(state.dqn, state.bonus, trainer.actors, trainer.step, never, moves, True, state.embed)

    def encoder() -> None:
        learn_encoder(state, pairs, shift_offsets(rng, 2 * c.encoder.batch, 4))

    @torch.no_grad()
    def target() -> None:
        state.target.head(state.target.states(window.x, window.is_first, window.h)[burn_in:])

    def online() -> None:
        with torch.no_grad():
            h = state.dqn.states(window.x[:burn_in], window.is_first[:burn_in], window.h)[-1]
        state.dqn.head(state.dqn.states(window.x[burn_in:], window.is_first[burn_in:], h))

    def forward() -> None:
        nonlocal loss
        loss = td_errors(state.dqn, state.target, window, burn_in, c.dqn).delta.square().sum()
        state.optimiser.zero_grad(set_to_none=True)

    def optimiser() -> None:
        torch.nn.utils.clip_grad_norm_(state.dqn.parameters(), c.dqn.clip_norm)
        state.optimiser.step()

    def priorities() -> None:
        assert trainer.ranking is not None
        trainer.ranking.priorities()
        trainer.replay.set_priorities(unroll.origin, np.ones(len(unroll.origin)))

    return {
        "sample": (1, sample),
        "act": (1, play),
        "encoder": (1, encoder),
        "world_model": (1, lambda: _world_model(trainer, unroll)),
        "target": (1, target),
        "online": (1, online),
        "_forward": (1, forward),
        "backward": (1, lambda: loss.backward()),
        "optimiser": (1, optimiser),
        "priorities": (8, priorities),
        "learner": (1, lambda: learn(state, unroll, 0.0, weight)),
        "_matmul": (4, lambda: torch.mm(a, b)),
    }


def _world_model(trainer: Trainer, unroll: Unroll) -> None:
    """Embed a batch and train the world model on it."""
    rewarded(trainer.learner, unroll, 0.0)
