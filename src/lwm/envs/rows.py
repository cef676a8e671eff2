"""Any NEXT_STEP Gymnasium vector environment as rows of the time diagram.

The one interface between environments and the loop: ``reset`` -> row, ``send`` actions, ``recv`` ->
row, ``get_state`` / ``set_state``.  ``send`` and ``recv`` are apart so that environments in other
processes can work while the learner does.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

import numpy as np
from gymnasium.spaces import Discrete
from numpy.typing import NDArray

from lwm.envs.labyrinth_vector import LabyrinthVectorEnv
from lwm.types import Step


class Env(Protocol):
    """B environments as the loop sees them."""

    num_envs: int
    num_actions: int
    obs_shape: tuple[int, ...]
    obs_dtype: Any

    @property
    def ram(self) -> NDArray[np.uint8]:
        """[B, 128] the console's memory at the latest row, where there is one."""

    def reset(self) -> Step:
        """The first row of every environment, from its own seed."""

    def send(self, actions: NDArray[np.int64]) -> None:
        """Start a step: [B] actions; those of environments about to reset are ignored."""

    def recv(self) -> Step:
        """The row that follows the actions sent."""

    def set_time_limit(self, steps: int) -> None:
        """Truncate episodes that begin from now on after so many steps."""

    def rest(self, lanes: NDArray[np.int64]) -> None:
        """Nobody will look at the rows of environments ``lanes`` any more: save their work."""

    def get_state(self) -> dict[str, Any]:
        """Everything that the following rows depend on, between ``recv`` and ``send``."""

    def set_state(self, state: dict[str, Any]) -> None:
        """Inverse of ``get_state``."""

    def rejoin(self, step: Step) -> Step:
        """After ``set_state``: the row ``step`` that was saved with it, changed where the
        environments cannot go on from it."""

    def close(self) -> None:
        """Release what the environments hold."""


class RowEnv:
    """Turns (obs, reward, terminated, truncated) into ``Step`` rows and keeps episode sums."""

    def __init__(self, env: LabyrinthVectorEnv, seeds: NDArray[np.int64]) -> None:
        self.env = env
        self.num_envs = int(env.num_envs)
        self.num_actions = int(cast(Discrete, env.single_action_space).n)
        self.obs_shape: tuple[int, ...] = tuple(env.single_observation_space.shape or ())
        self.obs_dtype = env.single_observation_space.dtype
        self._seeds = seeds
        self._actions = np.zeros(self.num_envs, np.int64)
        self._ended = np.zeros(self.num_envs, np.bool_)
        self._return = np.zeros(self.num_envs, np.float32)
        self._length = np.zeros(self.num_envs, np.int64)

    def reset(self) -> Step:
        """The first row of every environment, from its own seed."""
        obs, _ = self.env.reset(seed=[int(s) for s in self._seeds])
        B = self.num_envs
        self._return, self._length = np.zeros(B, np.float32), np.zeros(B, np.int64)
        self._ended = np.zeros(B, np.bool_)
        off, on = np.zeros(B, np.bool_), np.ones(B, np.bool_)
        zero = np.zeros(B, np.float32)
        return Step(
            obs, np.zeros(B, np.int64), zero, on, off, zero + 1, zero.copy(), self._length, off
        )

    def set_time_limit(self, steps: int) -> None:
        """Truncate episodes that begin from now on after so many steps."""
        self.env.time_limit = steps

    def set_size(self, size: int) -> None:
        """Episodes that begin from now on have labyrinths of so many rooms along one side."""
        self.env.carved_size = size

    def rest(self, lanes: NDArray[np.int64]) -> None:
        """All labyrinths step together: there is nothing to save."""

    def send(self, actions: NDArray[np.int64]) -> None:
        """Start a step: [B] actions; those of environments about to reset are ignored."""
        self._actions = actions

    def recv(self) -> Step:
        """The row that follows the actions sent."""
        obs, reward, terminated, truncated, _ = self.env.step(self._actions)
        first = self._ended
        last = terminated | truncated
        r_t = reward.astype(np.float32)
        keep = ~first
        self._return = (self._return + r_t) * keep
        self._length = (self._length + 1) * keep
        self._ended = last
        return Step(
            obs=obs,
            a_tm1=self._actions * keep,
            r_t=r_t * keep,
            is_first=first,
            is_last=last,
            discount_t=(~terminated).astype(np.float32),
            episode_return=self._return,
            episode_length=self._length,
            episode_end=last,
        )

    @property
    def ram(self) -> NDArray[np.uint8]:
        """Labyrinths have none."""
        raise RuntimeError("a labyrinth has no RAM")

    def close(self) -> None:
        """Nothing to release: these environments live in this process."""

    def get_state(self) -> dict[str, Any]:
        """Environments and episode sums between ``recv`` and ``send``."""
        return {
            "env": self.env.get_state(),
            "ended": self._ended,
            "return": self._return,
            "length": self._length,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Inverse of ``get_state``."""
        self.env.set_state(state["env"])
        self._ended = np.array(state["ended"])
        self._return = np.array(state["return"])
        self._length = np.array(state["length"])

    def rejoin(self, step: Step) -> Step:
        """The saved row ``step``: these labyrinths go on from it."""
        return step
