"""Record evaluation episodes: what the agent saw, valued, was predicted and was paid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lwm import devices
from lwm.actor import act, initial_state
from lwm.envs.gymnasium import GymEnv
from lwm.envs.vector import RowEnv, make_env
from lwm.episodes import Episode, episode_path, write_episode
from lwm.evaluate import Trained
from lwm.streams import environment_seeds, generator

MAX_PICTURE_BYTES = 1 << 28
"""An episode whose pictures take more is recorded without them."""


def play(trained: Trained, seed: int, purpose: str = "test") -> Episode:
    """One whole episode of the present policy, on environment ``seed`` of ``purpose``."""
    config, learner = trained.config, trained.learner
    seeds = environment_seeds(purpose, seed + 1)[-1:]
    env = make_env(config, seeds, pictures=True)
    rng = generator(seed, "record")
    policy, bonus = learner.policy, learner.bonus
    state = initial_state(policy, bonus, 1, learner.embedding)
    step = env.reset()
    labyrinth = env.env if isinstance(env, RowEnv) else None
    whole = {} if labyrinth is None else {"doors": labyrinth.doors[0]}
    rows: dict[str, list[Any]] = {}
    while True:
        acted, state = act(
            policy,
            bonus,
            state,
            step,
            rng.random(1) < (1 if config.acts_at_random else config.evaluation.epsilon),
            rng.integers(env.num_actions, size=1),
            config.dqn.reset_state,
            learner.embed,
        )
        row = {
            "obs": step.obs[0],
            "a_tm1": step.a_tm1[0],
            "r_t": step.r_t[0],
            "r_in": acted.r_in[0],
            "is_last": step.is_last[0],
            "q": acted.q[0].numpy(),
            "z": devices.fetch(state.z_tm1[0]),  # the state is that before the next row
        }
        if labyrinth is not None:
            row["room"] = labyrinth.room[0]
        if acted.prediction is not None:
            row["prediction"] = devices.fetch(acted.prediction[0])
        picture = env.picture() if isinstance(env, GymEnv) else None
        if picture is not None:
            row["picture"] = picture
        for key, value in row.items():
            rows.setdefault(key, []).append(value)
        if step.episode_end[0]:
            break
        env.send(acted.action)
        step = env.recv()
    env.close()
    meta = {
        "environment": _name(trained),
        "agent": config.agent,
        "seed": int(seeds[0]),
        "score": float(step.episode_return[0]),
        "frames": trained.frames,
    }
    if sum(frame.nbytes for frame in rows.get("picture", [])) > MAX_PICTURE_BYTES:
        del rows["picture"]
    return Episode({k: np.stack(v) for k, v in rows.items()} | whole, meta)


def _name(trained: Trained) -> str:
    config = trained.config
    if config.workload == "atari":
        return f"atari {config.atari.game}"
    if config.workload == "gym":
        return config.gym.env
    return f"lwm/Labyrinth-v0 size={config.env.size}"


def record(trained: Trained, directory: Path, count: int) -> list[Path]:
    """Write ``count`` episodes, one per test seed; returns their files."""
    paths = []
    for k in range(count):
        path = episode_path(directory, k)
        write_episode(path, play(trained, k))
        paths.append(path)
    return paths
