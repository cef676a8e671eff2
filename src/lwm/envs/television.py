"""The noisy TV of the supplementary: one more action, *re-tune*, and a screen that shows noise.

In the labyrinth one random room has the TV: 8 more observation bits, zero in all other rooms, fixed
until somebody re-tunes in front of it.  Over images the TV is a patch of 28 x 28 pixels, always
shown, which only re-tuning draws anew.  Screens are functions of the environment's seed and of how
often it was re-tuned, so that a run goes on exactly where it was saved.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from lwm.envs.labyrinth_layouts import Ints, draw
from lwm.envs.labyrinth_vector import LabyrinthVectorEnv
from lwm.envs.rows import Env, RowEnv
from lwm.types import Step

SCREEN_BITS = 8
PATCH = 28
"""Pixels along a side of the screen, in the upper right corner of the picture."""

_SCREENS = np.array([[code >> i & 1 for i in range(SCREEN_BITS)] for code in range(256)], np.int8)


class Television:
    """What B environments with a TV tell about their latest row."""

    changed: NDArray[np.bool_]
    """[B] the action that led here was re-tune, and the screen is another one."""
    watched: NDArray[np.bool_]
    """[B] the step was spent with the TV: re-tuning, or in the labyrinth in its room."""

    def _told(self) -> dict[str, NDArray[np.bool_]]:
        return {"changed": self.changed, "watched": self.watched}

    def _tell(self, state: dict[str, Any]) -> None:
        """Inverse of ``_told``."""
        self.changed, self.watched = (np.array(state[key]) for key in ("changed", "watched"))


class TelevisionLabyrinth(LabyrinthVectorEnv):
    """N labyrinths with a TV in one of the rooms; arguments as :class:`LabyrinthVectorEnv`.

    Observations are the four door bits and the screen's eight; action 4 is re-tune: the agent
    stays where it is, and in the TV's room the screen is drawn anew.
    """

    RETUNE = 4

    def __init__(
        self,
        num_envs: int = 1,
        size: int = 3,
        time_limit: int = 1000,
        carve_start: str = "corner",
        render_mode: str | None = None,
    ) -> None:
        super().__init__(num_envs, size, time_limit, carve_start, render_mode)
        self.single_observation_space = spaces.MultiBinary(4 + SCREEN_BITS)
        self.single_action_space = spaces.Discrete(5)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.tv_room = np.zeros(num_envs, np.int64)
        self.screen = np.zeros(num_envs, np.int64)
        self.changed = np.zeros(num_envs, np.bool_)
        self._tuned = np.zeros(num_envs, np.int64)

    @property
    def watched(self) -> NDArray[np.bool_]:
        """[N] the agent is in the TV's room."""
        return np.equal(self.room, self.tv_room)

    def reset(self, **options: Any) -> tuple[NDArray[np.int8], dict[str, Any]]:
        """Start an episode in every lane, with a TV in a room of its own."""
        obs, info = super().reset(**options)
        self.changed = np.zeros(self.num_envs, np.bool_)
        self._place(self._lanes)
        return self._with_screen(obs), info

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int8], NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Actions [N] to observations [N, 12] and what else the labyrinth tells."""
        retune = np.equal(actions, self.RETUNE)
        begun = self._finished
        walked = self._check_actions(np.where(retune, 0, actions))
        # Who re-tunes finds no door: the table of moves keeps the agent where it is.
        self._code4 = np.where(retune, 0, self._code4)
        obs, reward, terminated, truncated, info = super().step(walked)
        if begun.size:
            self._place(begun)
            retune[begun] = False
        shown = self.screen.copy()
        tuned = (retune & self.watched).nonzero()[0]
        self._tuned[tuned] += 1
        self._show(tuned)
        self.changed = self.screen != shown
        self.changed[begun] = False
        return self._with_screen(obs), reward, terminated, truncated, info

    def _place(self, lanes: Ints) -> None:
        """A TV, not re-tuned yet, in a random room of each of the lanes [M]."""
        assert self._seeds is not None
        number = np.full(len(lanes), self._rooms + 1)
        drawn = draw(self._seeds[lanes], self._episode[lanes], number)
        there = self._carved_rooms()
        self.tv_room[lanes] = there[drawn * len(there) >> 32]
        self._tuned[lanes] = 0
        self._show(lanes)

    def _show(self, lanes: Ints) -> None:
        """The screens of lanes [M], as often as they have been re-tuned."""
        assert self._seeds is not None
        number = self._rooms + 2 + self._tuned[lanes]
        drawn = draw(self._seeds[lanes], self._episode[lanes], number)
        self.screen[lanes] = drawn >> (32 - SCREEN_BITS)

    def _with_screen(self, obs: NDArray[np.int8]) -> NDArray[np.int8]:
        """Door bits [N, 4] -> [N, 12]."""
        return np.concatenate([obs, _SCREENS[np.where(self.watched, self.screen, 0)]], axis=1)

    def get_state(self) -> dict[str, NDArray[Any]]:
        """As the labyrinth's, and the TV's."""
        tv = {"tv_room": self.tv_room.copy(), "screen": self.screen.copy()}
        return super().get_state() | tv | {"tuned": self._tuned.copy()}

    def set_state(self, state: dict[str, NDArray[Any]]) -> None:
        """Inverse of ``get_state``."""
        super().set_state(state)
        self.tv_room = np.array(state["tv_room"])
        self.screen = np.array(state["screen"])
        self._tuned = np.array(state["tuned"])


class LabyrinthTelevision(RowEnv, Television):
    """Labyrinths with a TV as rows."""

    def __init__(self, env: TelevisionLabyrinth, seeds: NDArray[np.int64]) -> None:
        super().__init__(env, seeds)
        self._labyrinth = env

    def reset(self) -> Step:
        """The first row of every environment, from its own seed."""
        return self._noted(super().reset())

    def recv(self) -> Step:
        """The row that follows the actions sent."""
        return self._noted(super().recv())

    def _noted(self, step: Step) -> Step:
        self.changed, self.watched = self._labyrinth.changed, self._labyrinth.watched
        return step

    def get_state(self) -> dict[str, Any]:
        """As labyrinths without a TV, and what it told last."""
        return super().get_state() | self._told()

    def set_state(self, state: dict[str, Any]) -> None:
        """Inverse of ``get_state``."""
        super().set_state(state)
        self._tell(state)


class ImageTelevision(Television):
    """Any environment of images with a TV over a corner of the picture.

    The last action is re-tune; the environment behind the screen is given its first one, which in
    Atari does nothing.
    """

    def __init__(self, env: Env, seeds: NDArray[np.int64]) -> None:
        self.env = env
        self.num_envs, self.num_actions = env.num_envs, env.num_actions + 1
        self.obs_shape, self.obs_dtype = env.obs_shape, env.obs_dtype
        self._seeds = np.asarray(seeds, np.int64)
        self._retune = np.zeros(self.num_envs, np.bool_)
        self._tuned = np.zeros(self.num_envs, np.int64)
        self._patch = np.zeros((self.num_envs, PATCH, PATCH), np.uint8)

    @property
    def ram(self) -> NDArray[np.uint8]:
        """Of the environments behind the screens."""
        return self.env.ram

    def reset(self) -> Step:
        """The first row of every environment, with the first screen of its seed."""
        self._tuned[:] = 0
        self._draw(np.arange(self.num_envs))
        self.changed = np.zeros(self.num_envs, np.bool_)
        self.watched = self.changed
        return self._screened(self.env.reset())

    def send(self, actions: NDArray[np.int64]) -> None:
        """Start a step: [B] actions; those of environments about to reset are ignored."""
        self._retune = np.equal(actions, self.num_actions - 1)
        self.env.send(np.where(self._retune, 0, actions))

    def recv(self) -> Step:
        """The row that follows the actions sent."""
        step = self.env.recv()
        tuned = self._retune & ~step.is_first
        self._tuned += tuned
        self._draw(tuned.nonzero()[0])
        self.changed = self.watched = tuned  # 784 pixels of noise are never the same twice
        a_tm1 = np.where(tuned, self.num_actions - 1, step.a_tm1)
        return self._screened(step)._replace(a_tm1=a_tm1)

    def _draw(self, lanes: NDArray[np.int64]) -> None:
        for i in lanes:
            # Three words: the games' own streams have two.
            rng = np.random.Generator(np.random.PCG64([self._seeds[i], self._tuned[i], PATCH]))
            self._patch[i] = rng.integers(256, size=(PATCH, PATCH), dtype=np.uint8)

    def _screened(self, step: Step) -> Step:
        obs = step.obs.copy()
        obs[:, :PATCH, -PATCH:] = self._patch
        return step._replace(obs=obs)

    def set_time_limit(self, steps: int) -> None:
        """Truncate episodes that begin from now on after so many steps."""
        self.env.set_time_limit(steps)

    def rest(self, lanes: NDArray[np.int64]) -> None:
        """Nobody will look at the rows of environments ``lanes`` any more."""
        self.env.rest(lanes)

    def get_state(self) -> dict[str, Any]:
        """Everything that the following rows depend on."""
        return {"env": self.env.get_state(), "tuned": self._tuned.copy()} | self._told()

    def set_state(self, state: dict[str, Any]) -> None:
        """Inverse of ``get_state``."""
        self.env.set_state(state["env"])
        self._tuned = np.array(state["tuned"])
        self._tell(state)
        self._draw(np.arange(self.num_envs))

    def rejoin(self, step: Step) -> Step:
        """The saved row ``step``, changed where the environments cannot go on from it."""
        return self._screened(self.env.rejoin(step))

    def close(self) -> None:
        """Release what the environments hold."""
        self.env.close()
