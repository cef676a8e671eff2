"""Many labyrinths of :mod:`lwm.envs.labyrinth` at once, in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from lwm.envs.labyrinth import METADATA, check_options
from lwm.envs.labyrinth_layouts import BITS, Ints, carve_bits
from lwm.envs.labyrinth_render import frame


class LabyrinthVectorEnv(VectorEnv[NDArray[np.int8], NDArray[np.int64], NDArray[Any]]):
    """N labyrinths in NumPy, a handful of array operations per step whatever N is.

    Autoreset is NEXT_STEP: the step after an episode's end ignores that lane's action and returns
    the first observation of its next episode, with reward 0.  Arguments as ``LabyrinthEnv``.
    """

    metadata: dict[str, Any] = METADATA | {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(
        self,
        num_envs: int = 1,
        size: int = 3,
        time_limit: int = 1000,
        carve_start: str = "corner",
        render_mode: str | None = None,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs is at least 1, not {num_envs}")
        self.num_envs = num_envs
        self.size, self.time_limit = check_options(size, time_limit, carve_start)
        self.carve_start = carve_start
        self.render_mode = render_mode
        self.single_observation_space = spaces.MultiBinary(4)
        self.single_action_space = spaces.Discrete(4)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

        self._rooms = rooms = self.size * self.size
        self._carved = self.size
        self._lanes = np.arange(num_envs)
        # Tables look up "4 * door bits + action", so doors are kept times four.
        step = np.array([-self.size, self.size, -1, 1])
        self._move = np.where(BITS > 0, step, 0).ravel()
        self._look = BITS.view(np.int32).ravel().repeat(4)
        self._doors4 = np.zeros(num_envs * rooms, np.int64)
        self._unvisited = np.ones(num_envs * rooms, np.uint8)
        self._at = self._lanes * rooms  # lane * rooms + room: index into both
        self._code4 = np.zeros(num_envs, np.int64)
        self._left = np.zeros(num_envs, np.int64)
        self._deadline = np.zeros(num_envs, np.int64)
        self._clock = 0
        self._finished = self._lanes[:0]

        self._seeds: Ints | None = None
        self._episode = np.zeros(num_envs, np.int64)
        # Layouts ahead of need: episode e waits in row lane * depth + e % depth.  The depth trades
        # memory for the size of the batches, whose cost per layout falls until some hundreds.
        self._depth = max(4, min(64, 512 // num_envs))
        self._queue_doors4 = np.zeros((num_envs * self._depth, rooms), np.uint8)
        self._queue_at = np.zeros(num_envs * self._depth, np.int64)
        self._queued_to = np.zeros(num_envs, np.int64)

    def reset(
        self,
        *,
        seed: int | Sequence[int] | Ints | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[NDArray[np.int8], dict[str, Any]]:
        """Start an episode in every lane.

        Args:
            seed: s gives lane i the seed s + i and [N] integers give each its own, both starting
                at episode 0; None goes on to the next episode of the present seeds.
            options: not used.

        Returns:
            observations [N, 4], an empty info.
        """
        if seed is None and self._seeds is not None:
            self._episode += 1
        else:
            self._seeds = self._new_seeds(seed)
            self._episode[:] = 0
            self._queued_to[:] = 0
        self._begin_episodes(self._lanes, depth=1)
        self._finished = self._lanes[:0]
        return self._arrive(), {}

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int8], NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Actions [N] to observations [N, 4], rewards, terminated, truncated [N], an empty info."""
        if self._seeds is None:
            raise ResetNeeded("call reset() before step()")
        actions = self._check_actions(actions)
        self._clock += 1
        self._at += self._move.take(self._code4 + actions)
        rewards = np.full(self.num_envs, -1.0)
        if self._finished.size:
            self._episode[self._finished] += 1
            self._begin_episodes(self._finished, self._depth)
            rewards[self._finished] = 0.0
        obs = self._arrive()
        terminated = self._left == 0
        truncated = (self._deadline == self._clock) & ~terminated
        self._finished = (terminated | truncated).nonzero()[0]
        return obs, rewards, terminated, truncated, {}

    def _arrive(self) -> NDArray[np.int8]:
        """Mark the present rooms as visited and look around in them: [N, 4]."""
        self._left -= self._unvisited.take(self._at)
        self._unvisited[self._at] = 0
        self._code4 = self._doors4.take(self._at)
        return self._look.take(self._code4).view(np.int8).reshape(-1, 4)

    def _begin_episodes(self, lanes: Ints, depth: int) -> None:
        """Put the layouts of their present episodes into some lanes [M], agents in their start
        rooms, nothing visited; queue `depth` episodes ahead if the queue has run out."""
        episode = self._episode[lanes]
        if (episode >= self._queued_to[lanes]).any():
            self._refill(depth)
        slot = lanes * self._depth + episode % self._depth
        doors4 = self._queue_doors4.take(slot, axis=0)
        self._by_lane(self._doors4)[lanes] = doors4
        self._at[lanes] = self._queue_at.take(slot)
        self._by_lane(self._unvisited)[lanes] = doors4 > 0  # a room without doors is not there
        self._left[lanes] = self._carved**2
        self._deadline[lanes] = self._clock + self.time_limit

    def _by_lane(self, flat: NDArray[Any]) -> NDArray[Any]:
        """A view [N, size*size] of an array of all rooms of all lanes."""
        return flat.reshape(self.num_envs, self._rooms)

    def _refill(self, depth: int) -> None:
        """Carve all missing layouts up to `depth` episodes from the present one, in every lane."""
        assert self._seeds is not None
        first = np.maximum(self._queued_to, self._episode)
        missing = np.maximum(self._episode + depth - first, 0)
        lane = self._lanes.repeat(missing)
        episode = np.arange(len(lane)) + (first - (missing.cumsum() - missing)).repeat(missing)
        doors, start = carve_bits(self._seeds[lane], episode, self._carved, self.carve_start)
        slot = lane * self._depth + episode % self._depth
        there = self._carved_rooms()
        self._queue_doors4[slot] = 0
        self._queue_doors4[slot[:, None], there] = doors * 4
        self._queue_at[slot] = lane * self._rooms + there[start]
        self._queued_to = first + missing

    @property
    def carved_size(self) -> int:
        """Rooms along one side of the labyrinths that episodes have from now on.

        Set below ``size``, they lie in the upper left corner of the map.  The rooms around them are
        out of reach, and count as visited.
        """
        return self._carved

    @carved_size.setter
    def carved_size(self, size: int) -> None:
        if not 2 <= size <= self.size:
            raise ValueError(f"carved_size lies in 2 .. {self.size}, not {size}")
        if size != self._carved:
            self._carved = size
            np.minimum(self._queued_to, self._episode + 1, out=self._queued_to)

    def _carved_rooms(self) -> Ints:
        """[carved_size**2] the rooms of the map that these labyrinths have."""
        side = np.arange(self._carved)
        return (side[:, None] * self.size + side).ravel()

    def _new_seeds(self, seed: int | Sequence[int] | Ints | None) -> Ints:
        """[N] one seed per lane."""
        if seed is None:
            return self.np_random.integers(2**63, size=self.num_envs)
        seeds = np.asarray(seed)
        if seeds.dtype.kind not in "iu" or seeds.shape not in ((), (self.num_envs,)):
            raise ValueError(f"seed is an integer or {self.num_envs} integers, not {seed!r}")
        if seeds.min() < 0 or seeds.max() >= 2**63 - self.num_envs:
            raise ValueError(f"a seed lies in [0, 2**63 - num_envs), not {seed!r}")
        if seeds.ndim == 0:
            super().reset(seed=int(seeds))
            return int(seeds) + self._lanes
        return seeds.astype(np.int64)

    def _check_actions(self, actions: Any) -> Ints:
        """The actions as int64 [N], or an error; what ended lanes are given does not matter."""
        given = np.asarray(actions)
        if given.shape != (self.num_envs,) or given.dtype.kind not in "iu":
            raise ValueError(f"actions are {self.num_envs} integers, not {actions!r}")
        given = given.astype(np.int64, copy=False)
        # One reduction: a negative number sets the sign of the union, 4 and more set a high bit.
        if np.bitwise_or.reduce(given) >> 2:
            given = given.copy()
            given[self._finished] = 0
            if np.bitwise_or.reduce(given) >> 2:
                raise ValueError(f"an action is 0, 1, 2 or 3, not {actions!r}")
        return given

    @property
    def doors(self) -> NDArray[np.bool_]:
        """[N, size*size, 4] doors of the present layouts."""
        return BITS.take(self._by_lane(self._doors4) >> 2, axis=0).astype(np.bool_)

    @property
    def room(self) -> Ints:
        """[N] the agents' rooms, row-major."""
        return self._at - self._lanes * self._rooms

    @property
    def visited(self) -> NDArray[np.bool_]:
        """[N, size*size] rooms visited in the present episodes."""
        return np.equal(self._by_lane(self._unvisited), 0)

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Everything that :meth:`set_state` needs to go on exactly, as plain arrays."""
        if self._seeds is None:
            raise ResetNeeded("call reset() before get_state()")
        finished = np.zeros(self.num_envs, np.bool_)
        finished[self._finished] = True
        return {
            "seed": self._seeds.copy(),
            "episode": self._episode.copy(),
            "doors": (self._by_lane(self._doors4) >> 2).astype(np.uint8),
            "room": self.room,
            "visited": self.visited,
            "steps_left": self._deadline - self._clock,
            "finished": finished,
        }

    def set_state(self, state: dict[str, NDArray[Any]]) -> None:
        """Go on from where :meth:`get_state` was called, on an environment made alike."""
        if state["doors"].shape != (self.num_envs, self._rooms):
            raise ValueError(
                f"the state is of {state['doors'].shape} (environments, rooms), "
                f"not {(self.num_envs, self._rooms)}"
            )
        self._seeds = state["seed"].astype(np.int64)
        self._episode = state["episode"].astype(np.int64)
        self._queued_to = self._episode + 1
        self._doors4 = state["doors"].astype(np.int64).ravel() * 4
        self._at = self._lanes * self._rooms + state["room"]
        self._code4 = self._doors4.take(self._at)
        unvisited = ~state["visited"].astype(np.bool_)
        self._unvisited = unvisited.astype(np.uint8).ravel()
        self._left = unvisited.sum(axis=1)
        self._clock = 0
        self._deadline = state["steps_left"].astype(np.int64)
        self._finished = state["finished"].nonzero()[0]

    def render(self) -> Any:
        """A tuple of N maps, as text or as [H, W, 3] pixels; None without a render mode."""
        if self.render_mode is None:
            return None
        if self._seeds is None:
            raise ResetNeeded("call reset() before render()")
        rows = zip(self.doors, self.room, self.visited, strict=True)
        return tuple(frame(self.render_mode, doors, int(at), seen) for doors, at, seen in rows)
