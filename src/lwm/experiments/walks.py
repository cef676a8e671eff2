"""Fresh play of a trained agent, row by row, and what any agent would make of the same rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lwm import devices
from lwm.actor import act, initial_state
from lwm.coverage import RAM
from lwm.envs.vector import RowEnv, make_env
from lwm.evaluate import Trained
from lwm.learner import LearnerState
from lwm.streams import environment_seeds, generator
from lwm.types import Step


class Walks(NamedTuple):
    """T rows of N environments on test seeds; episodes follow one another."""

    steps: list[Step]
    """[T] rows."""
    place: NDArray[np.int64]
    """[T, N] the labyrinth's room, or [T, N, 3] room, x and y where a game's RAM tells."""
    visited: NDArray[np.bool_]
    """[T, N, rooms] of the labyrinth in the present episode, this row's included; else [T, N, 0].
    """

    @property
    def is_first(self) -> NDArray[np.bool_]:
        """[T, N]."""
        return np.stack([step.is_first for step in self.steps])


class Trace(NamedTuple):
    """What an agent makes of the rows."""

    r_in: NDArray[np.float32]
    """[T, N] bonus."""
    h: NDArray[np.float32]
    """[T, N, H] the DQN's state after the row."""
    belief: NDArray[np.float32]
    """[T, N, Hb] the world model's, after predicting the row: it knows the way here, and has not
    seen the row itself."""


def play(trained: Trained, envs: int, rows: int, epsilon: NDArray[np.float64]) -> Walks:
    """The agent plays ``rows`` rows of ``envs`` test environments, ``epsilon`` [envs] at random."""
    config, learner = trained.config, trained.learner
    atari = config.workload == "atari"
    if atari and config.atari.game not in RAM:
        raise ValueError(f"the RAM of {config.atari.game} does not tell positions")
    env = make_env(config, environment_seeds("test", envs), atari)
    rng = generator(config.seed, "walks")
    state = initial_state(learner.policy, learner.bonus, envs, learner.embedding)
    steps, place, visited = [], [], []
    try:
        step = env.reset()
        for t in range(rows):
            steps.append(Step._make(np.array(v) for v in step))
            if isinstance(env, RowEnv):
                place.append(env.env.room)
                visited.append(env.env.visited)
            else:
                place.append(env.ram[:, list(RAM[config.atari.game])].astype(np.int64))
                visited.append(np.zeros((envs, 0), np.bool_))
            if t + 1 == rows:
                break
            explore = rng.random(envs) < epsilon
            random_action = rng.integers(env.num_actions, size=envs)
            acted, state = act(
                learner.policy,
                learner.bonus,
                state,
                step,
                explore,
                random_action,
                config.dqn.reset_state,
                learner.embed,
            )
            env.send(acted.action)
            step = env.recv()
    finally:
        env.close()
    return Walks(steps, np.stack(place), np.stack(visited))


def trace(learner: LearnerState, walks: Walks, forget: bool = False) -> Trace:
    """What ``learner`` makes of the rows, whoever played; ``forget``: its belief is zero before
    every prediction."""
    envs = len(walks.steps[0].r_t)
    none, zero = np.zeros(envs, np.bool_), np.zeros(envs, np.int64)
    state = initial_state(learner.policy, learner.bonus, envs, learner.embedding)
    found = []
    for step in walks.steps:
        if forget:
            state = state._replace(belief=torch.zeros_like(state.belief))
        acted, state = act(
            learner.policy,
            learner.bonus,
            state,
            step,
            none,
            zero,
            learner.config.dqn.reset_state,
            learner.embed,
        )
        found.append((acted.r_in, devices.fetch(state.h[:envs]), acted.belief))
    return Trace(*(np.stack(v) for v in zip(*found, strict=True)))


def first_visits(walks: Walks) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """[T, N] rows that are no first ones; those of them where a room is entered for the first time
    in the episode; those where the room is another than in the row before."""
    inside = ~walks.is_first
    inside[0] = False
    seen = walks.visited.sum(-1)
    new, moved = np.zeros_like(inside), np.zeros_like(inside)
    new[1:] = seen[1:] > seen[:-1]
    moved[1:] = walks.place[1:] != walks.place[:-1]
    return inside, new & inside, moved & inside


def open_neighbours(walks: Walks) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """[T, N, 4] doors of the present room, and whether the room behind each was visited (False
    where there is no door)."""
    doors = np.stack([step.obs for step in walks.steps]) > 0
    size = round(walks.visited.shape[-1] ** 0.5)
    behind = walks.place[..., None] + np.array([-size, size, -1, 1])
    known = np.take_along_axis(walks.visited, np.where(doors, behind, 0), axis=-1)
    return doors, known & doors
