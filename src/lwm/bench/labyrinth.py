"""Speed on the labyrinth, by stage.

The inputs are those of a real run of preset ``paper`` on 4×4, whose episodes are cut at the length
that a trained agent needs: resets inside windows cost time.

Operations are counted by formula, a multiplication and an addition as two, for matrix products
only.  Per row of a window (D embedding, A actions; F, H, K the widths of FC, GRU and head):

    FC          2 (D + A + 1) F       DQN; 2 (D + A) F for the world model
    GRU         2 · 3H (F + H)        2 F H for the feed-forward stand-in
    head        2 (2K H + K A + K)    DQN, both streams; 2 (K H + K D) for the world model

A backward pass takes each product twice again (for the weights and for the input), but the FC's
once: its input needs no gradient.  With windows of B × T rows, of which U = T - burn-in follow the
burn-in, an update takes

    target       B T (FC + GRU) + B U head           forward only
    online       B T (FC + GRU) + B U head           of which burn-in is forward only
    backward     B U (FC + 2 GRU + 2 head)
    world_model  B (T - 1) (2 FC + 3 GRU + 3 head)   both passes
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

from lwm.actor import act, embed_bits
from lwm.agent import TDInput, td_errors
from lwm.bench.common import METHOD, OUT, Work, low_quantile, measure, stage_rows, table, write
from lwm.config import Config, load_preset, replace
from lwm.envs.labyrinth import LabyrinthVectorEnv
from lwm.envs.vector import make_env
from lwm.intrinsic import Window
from lwm.learner import learn
from lwm.machine import machine_facts
from lwm.streams import environment_seeds
from lwm.training import Trainer
from lwm.types import Event, Unroll

STAGES = (
    "act", "env", "sample", "world_model", "target", "online", "backward", "optimiser", "learner",
    "cycle",
)  # fmt: skip
ENV_AIM = 50.0
"""Times as many steps per second as Gymnasium's own vectorisation of the single environment."""
_LANES = 1024
_SIZE = 4
_SOLVED_STEPS = 24
"""Length of a trained agent's episode on 4×4 (the paper's score is -23.5)."""
_MATMUL_FLOP = 2 * 32 * 128 * 384


def flops(config: Config, embedding: int = 4, actions: int = 4) -> dict[str, float]:
    """Floating-point operations of one call of each stage that multiplies matrices."""
    D, A = embedding, actions
    q, m, r = config.dqn, config.world_model, config.replay
    fc, gru, head = _row(D + A + 1, q.features, q.hidden, 2 * q.head * q.hidden + q.head * (A + 1))
    B, T, U = r.batch, config.window, config.window - r.burn_in
    forward = B * T * (fc + gru) + B * U * head
    found: dict[str, float] = {
        "act": config.loop.actors * (fc + gru + head),
        "target": forward,
        "online": forward,
        "backward": B * U * (fc + 2 * gru + 2 * head),
    }
    if config.bonus.startswith("lwm"):
        fc, gru, head = _row(D + A, m.features, m.hidden, m.head * (m.hidden + D))
        if config.bonus == "lwm-ff":
            gru = 2 * m.features * m.hidden
        found["act"] += config.loop.actors * (fc + gru + head)
        found["world_model"] = B * (T - 1) * (2 * fc + 3 * gru + 3 * head)
    parts = ("target", "online", "backward", "world_model")
    found["learner"] = sum(found.get(part, 0) for part in parts)
    found["cycle"] = found["act"] + found["learner"] / config.loop.cycles_per_update
    return found


def _row(inputs: int, features: int, hidden: int, head: int) -> tuple[int, int, int]:
    """Operations per row of FC, GRU and head, given the number of the head's weights."""
    return 2 * inputs * features, 6 * hidden * (features + hidden), 2 * head


def run(seconds: float = 60.0, out: Path = OUT) -> str:
    """Measure for about ``seconds`` (after a few of setting up), write ``out``, return a table."""
    paper = load_preset("paper", {"env.size": _SIZE})
    changes = {
        "env.time_limit": _SOLVED_STEPS,
        "world_model.pretrain_iterations": 40,
        "loop.total_frames": 10**9,
    }
    config = replace(paper, changes)
    trainer, events, phases = _warmed_up(config)
    work = {**_stages(trainer), **_references(trainer, events)}
    low = phases | measure(work, seconds)
    low["_frame"] = low["cycle"] * trainer.cycles / trainer.frames
    facts = machine_facts(config.threads)
    rate = _MATMUL_FLOP / low["_matmul"]
    rows = stage_rows("labyrinth", STAGES, low, flops(config), rate, "float32", facts["commit"])
    write(out, rows)
    return "\n".join([*_report(rows, low, paper, facts), "", f"rows: {out}"])


def _warmed_up(config: Config) -> tuple[Trainer, Iterator[Event], dict[str, float]]:
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
    return trainer, events, {name: low_quantile(times) for name, times in took.items()}


def _stages(trainer: Trainer) -> Work:
    """The stages on windows of the trainer's replay; those with an underscore only prepare others.

    ``act`` is the bonus and the Q-values of the actors' present row; ``optimiser`` is clipping and
    Adam.  The learner is really trained, so that its numbers stay those of a run.
    """
    c, state, burn_in = trainer.config, trainer.learner, trainer.config.replay.burn_in
    rng = np.random.default_rng(0)
    env = make_env(c, environment_seeds("validation", c.loop.actors))
    env.reset()
    moves = cycle(rng.integers(trainer.env.num_actions, size=(256, c.loop.actors)))
    never = np.zeros(c.loop.actors, np.bool_)
    unroll = trainer.replay.sample(rng, c.replay.batch, c.window)
    td, loss = _td_input(trainer, unroll), torch.zeros(())

    def sample() -> None:
        nonlocal unroll
        unroll = trainer.replay.sample(rng, c.replay.batch, c.window)

    def play() -> None:
        args = (trainer.actors, trainer.step, never, next(moves), c.dqn.reset_state)
        act(state.dqn, state.bonus, *args)

    def walk() -> None:
        env.send(next(moves))
        env.recv()

    def world_model() -> None:
        state.bonus.learn(_window(unroll), burn_in)

    def prepare() -> None:
        nonlocal td
        td = _td_input(trainer, unroll)

    @torch.no_grad()
    def target() -> None:
        state.target.head(state.target.states(td.x, td.is_first, td.h)[burn_in:])

    def online() -> None:
        with torch.no_grad():
            h = state.dqn.states(td.x[:burn_in], td.is_first[:burn_in], td.h)[-1]
        state.dqn.head(state.dqn.states(td.x[burn_in:], td.is_first[burn_in:], h))

    def forward() -> None:
        nonlocal loss
        loss = td_errors(state.dqn, state.target, td, burn_in, c.dqn)[0].square().sum(0).mean()
        state.optimiser.zero_grad(set_to_none=True)

    def backward() -> None:
        loss.backward()

    def optimiser() -> None:
        torch.nn.utils.clip_grad_norm_(state.dqn.parameters(), c.dqn.clip_norm)
        state.optimiser.step()

    def learner() -> None:
        learn(state, unroll, 0.0)

    return {
        "sample": (4, sample),
        "act": (20, play),
        "env": (1500, walk),  # many: layouts are carved in batches, every thousand steps or so
        "world_model": (1, world_model),
        "_prepare": (1, prepare),
        "target": (1, target),
        "online": (1, online),
        "_forward": (1, forward),
        "backward": (1, backward),
        "optimiser": (1, optimiser),
        "learner": (1, learner),
    }


def _window(unroll: Unroll) -> Window:
    a_tm1, is_first, is_last = map(
        torch.from_numpy, (unroll.a_tm1, unroll.is_first, unroll.is_last)
    )
    return Window(embed_bits(unroll.obs), a_tm1, is_first, is_last)


def _td_input(trainer: Trainer, unroll: Unroll) -> TDInput:
    """A window as the TD loss gets it, with the bonus that the actors saw."""
    w = _window(unroll)
    reward, discount_t, h = map(
        torch.from_numpy, (unroll.r_t + unroll.r_in, unroll.discount_t, unroll.h)
    )
    x = trainer.learner.dqn.inputs(w.z, w.a_tm1, reward, w.is_first)
    return TDInput(x, w.a_tm1, reward, w.is_first, w.is_last, discount_t, h)


def _references(trainer: Trainer, events: Iterator[Event]) -> Work:
    """The whole cycle with its share of updates, a matrix product, both ways to step labyrinths."""
    actions = cycle(np.random.default_rng(0).integers(4, size=(256, _LANES)))
    ours = LabyrinthVectorEnv(_LANES, _SIZE)
    theirs = gymnasium.vector.SyncVectorEnv([_single] * _LANES)
    a, b = torch.ones(32, 128), torch.ones(128, 384)
    ours.reset(seed=0)
    theirs.reset(seed=0)
    return {
        "cycle": (4 * trainer.config.loop.cycles_per_update, lambda: next(events)),
        "_matmul": (50, lambda: torch.mm(a, b)),
        "_vector": (1000, lambda: ours.step(next(actions))),
        "_sync": (4, lambda: theirs.step(next(actions))),
    }


def _single() -> Any:
    # The checker would only make the other side slower.
    return gymnasium.make("lwm/Labyrinth-v0", size=_SIZE, disable_env_checker=True)


def _report(
    rows: list[dict[str, Any]], low: dict[str, float], paper: Config, facts: dict[str, Any]
) -> list[str]:
    """The lines for a person, with the aims beside.  ``low`` has seconds by stage."""
    lines = [
        f"labyrinth {_SIZE}×{_SIZE}, preset paper, {facts['threads']} thread, float32, "
        f"torch {facts['torch']}, {facts['cpu']}",
        METHOD + f"; commit {facts['commit']}",
        "",
        *table(rows),
    ]
    without = 1e3 * (low["learner"] - low["world_model"])
    lines.append(f"{'learner - world_model':22}{without:10.3f}")
    rate = _MATMUL_FLOP / low["_matmul"] / 1e9
    lines.append(f"{'matmul 32×128 128×384':22}{1e3 * low['_matmul']:10.3f}{rate:10.1f}{1:11.0%}")
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
        *lines,
        "",
        f"environment  {_LANES} labyrinths: {millions[0]:.1f} M steps/s, {ratio:.0f} times "
        f"SyncVectorEnv's {millions[1]:.2f} M (aim: {ENV_AIM:.0f} times; {verdict})",
        f"training     {1 / low['_frame']:,.0f} frames/s, act, environment and update together",
        f"paper's run  {loop.total_frames:,} frames in {sum(minutes):.1f} minutes ({parts}), "
        "without evaluation and checkpoints",
    ]
