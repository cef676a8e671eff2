"""Record evaluation episodes: what the agent saw, valued, was predicted and was paid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lwm.actor import act, embed, initial_state
from lwm.envs.vector import make_env
from lwm.episodes import Episode, episode_path, write_episode
from lwm.streams import environment_seeds, generator
from lwm.training import Trainer


def play(trainer: Trainer, seed: int, purpose: str = "test") -> Episode:
    """One whole episode of the trainer's present policy, on environment ``seed`` of ``purpose``."""
    config, learner = trainer.config, trainer.learner
    seeds = environment_seeds(purpose, seed + 1)[-1:]
    env = make_env(config.env, seeds)
    rng = generator(seed, "record")
    policy, bonus = learner.policy, learner.bonus
    state = initial_state(policy, bonus, 1, trainer.embedding)
    step = env.reset()
    doors = env.env.doors[0]
    rows: dict[str, list[Any]] = {}
    while True:
        acted, state = act(
            policy,
            bonus,
            state,
            step,
            rng.random(1) < (1 if config.agent == "random" else config.evaluation.epsilon),
            rng.integers(env.num_actions, size=1),
            config.dqn.reset_state,
        )
        row = {
            "obs": step.obs[0],
            "a_tm1": step.a_tm1[0],
            "r_t": step.r_t[0],
            "r_in": acted.r_in[0],
            "is_last": step.is_last[0],
            "q": acted.q[0].numpy(),
            "z": embed(step.obs)[0].numpy(),
            "room": env.env.room[0],
        }
        if acted.prediction is not None:
            row["prediction"] = acted.prediction[0].numpy()
        for key, value in row.items():
            rows.setdefault(key, []).append(value)
        if step.episode_end[0]:
            break
        env.send(acted.action)
        step = env.recv()
    meta = {
        "environment": f"lwm/Labyrinth-v0 size={config.env.size}",
        "agent": config.agent,
        "seed": int(seeds[0]),
        "score": float(step.episode_return[0]),
        "frames": trainer.frames,
    }
    return Episode({k: np.stack(v) for k, v in rows.items()} | {"doors": doors}, meta)


def record(trainer: Trainer, directory: Path, count: int) -> list[Path]:
    """Write ``count`` episodes, one per test seed; returns their files."""
    paths = []
    for k in range(count):
        path = episode_path(directory, k)
        write_episode(path, play(trainer, k))
        paths.append(path)
    return paths
