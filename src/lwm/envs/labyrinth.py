"""The Partially Observable Labyrinth: a maze of rooms, of which the agent sees only the doors.

``size`` x ``size`` rooms form a random spanning tree.  An observation tells which of the four walls
of the present room have a door; every step costs 1; the episode ends when all rooms have been
visited.  Directions are always in the order up, down, left, right; rooms are numbered row by row.
"""

from __future__ import annotations

import operator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from lwm.envs.labyrinth_layouts import BITS, CARVE_STARTS, carve_one
from lwm.envs.labyrinth_render import frame

METADATA: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 8}


def check_options(size: int, time_limit: int, carve_start: str) -> tuple[int, int]:
    """Size and time limit as integers; raises ValueError for what no labyrinth can have."""
    try:
        size, time_limit = operator.index(size), operator.index(time_limit)
    except TypeError:
        raise ValueError(
            f"size and time_limit are integers, not {size!r}, {time_limit!r}"
        ) from None
    if size < 2:
        raise ValueError(f"size is at least 2 rooms, not {size}")
    if time_limit < 1:
        raise ValueError(f"time_limit is at least 1 step, not {time_limit}")
    if carve_start not in CARVE_STARTS:
        raise ValueError(f"carve_start is one of {CARVE_STARTS}, not {carve_start!r}")
    return size, time_limit


class LabyrinthEnv(gymnasium.Env[NDArray[np.int8], np.int64]):
    """One labyrinth.

    Args:
        size: rooms along one side, at least 2.
        time_limit: steps after which the episode is truncated.
        carve_start: where carving starts: ``corner`` (the paper's distribution) or ``random``.
        render_mode: ``ansi``, ``rgb_array`` or None.
    """

    metadata: dict[str, Any] = METADATA

    def __init__(
        self,
        size: int = 3,
        time_limit: int = 1000,
        carve_start: str = "corner",
        render_mode: str | None = None,
    ) -> None:
        self.size, self.time_limit = check_options(size, time_limit, carve_start)
        self.carve_start = carve_start
        self.render_mode = render_mode
        self.observation_space = spaces.MultiBinary(4)
        self.action_space = spaces.Discrete(4)
        self._seed: int | None = None
        self._episode = 0
        self._doors: list[int] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.int8], dict[str, Any]]:
        """Start episode 0 of a given seed or, without one, the next episode of the present seed."""
        super().reset(seed=seed)
        if seed is None and self._seed is not None:
            self._episode += 1
        else:
            self._seed = int(self.np_random.integers(2**63)) if seed is None else int(seed)
            self._episode = 0
        self._doors, self._room = carve_one(self._seed, self._episode, self.size, self.carve_start)
        step = (-self.size, self.size, -1, 1)
        self._next = [
            room + step[way] if code >> way & 1 else room
            for room, code in enumerate(self._doors)
            for way in range(4)
        ]
        self._unvisited = [True] * len(self._doors)
        self._unvisited[self._room] = False
        self._left = len(self._doors) - 1
        self._steps = 0
        return BITS[self._doors[self._room]].copy(), {}

    def step(self, action: Any) -> tuple[NDArray[np.int8], float, bool, bool, dict[str, Any]]:
        """Walk up, down, left or right; without a door there, stay."""
        way = operator.index(action)
        if not 0 <= way < 4:
            raise ValueError(f"an action is 0, 1, 2 or 3, not {action!r}")
        if not self._doors:
            raise ResetNeeded("call reset() before step()")
        room = self._room = self._next[self._room * 4 + way]
        if self._unvisited[room]:
            self._unvisited[room] = False
            self._left -= 1
        self._steps += 1
        terminated = self._left == 0
        truncated = self._steps >= self.time_limit and not terminated
        return BITS[self._doors[room]].copy(), -1.0, terminated, truncated, {}

    def render(self) -> Any:
        """The map as text or as [H, W, 3] pixels; None without a render mode."""
        if self.render_mode is None:
            return None
        if not self._doors:
            raise ResetNeeded("call reset() before render()")
        doors, visited = BITS[self._doors] > 0, ~np.array(self._unvisited)
        return frame(self.render_mode, doors, self._room, visited)
