"""Replay: a ring of rows [time, environment]; windows are addressed in it, never copied ahead."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lwm.frames import CompressedFrames, Frames, RawFrames
from lwm.pairs import draw_pairs
from lwm.priorities import WindowPriorities
from lwm.types import Pairs, Step, Unroll

_FIELDS = ("a_tm1", "r_t", "is_first", "is_last", "discount_t", "h", "belief", "r_in")
_STATES = ("h", "belief")  # of these fields: kept of every `state_every`-th row


class Replay:
    """The newest ``rows`` rows of each of B environments.

    Rows are named by their number since the run began; row k lives in slot k % rows.

    ``compress``: keep each frame compressed, without loss.  ``state_every``: keep the recurrent
    states of every so many rows only, where prioritised windows begin.  ``window``: rows in a
    prioritised window (None: no priorities), ``alpha`` and ``beta``: exponents of its priority and
    importance weight.
    """

    def __init__(
        self,
        rows: int,
        envs: int,
        obs_shape: tuple[int, ...],
        obs_dtype: Any,
        hidden: int,
        belief: int = 0,
        *,
        compress: bool = False,
        state_every: int = 1,
        window: int | None = None,
        alpha: float = 0.9,
        beta: float = 0.6,
    ) -> None:
        self.rows = rows
        self.envs = envs
        self.count = 0
        self.state_every = state_every
        self.window = window
        self._obs: Frames = (CompressedFrames if compress else RawFrames)(
            rows, envs, obs_shape, obs_dtype
        )
        self._a_tm1 = np.zeros((rows, envs), np.int64)
        self._r_t = np.zeros((rows, envs), np.float32)
        self._is_first = np.zeros((rows, envs), np.bool_)
        self._is_last = np.zeros((rows, envs), np.bool_)
        self._discount_t = np.zeros((rows, envs), np.float32)
        self._r_in = np.zeros((rows, envs), np.float32)
        # The states of row k, a multiple of state_every, live in slot k // state_every % states:
        # among any `rows` neighbours there are at most that many multiples.
        states = -(-rows // state_every)
        self._h = np.zeros((states, envs, hidden), np.float32)
        self._belief = np.zeros((states, envs, belief), np.float32)
        self._priorities = (
            WindowPriorities(rows, envs, state_every, window, alpha, beta) if window else None
        )

    def __len__(self) -> int:
        """Rows per environment that can be sampled."""
        return min(self.count, self.rows)

    @property
    def oldest(self) -> int:
        """Number of the oldest row that is still there."""
        return self.count - len(self)

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use; compressed frames only as far as there are any."""
        arrays = sum(getattr(self, f"_{k}").nbytes for k in _FIELDS)
        return arrays + self._obs.nbytes + (self._priorities.nbytes if self._priorities else 0)

    def append(
        self,
        step: Step,
        h: NDArray[np.float32],
        r_in: NDArray[np.float32],
        belief: NDArray[np.float32] | None = None,
    ) -> None:
        """Add one row: ``h`` [B, H] is the DQN state that precedes it, ``r_in`` [B] its bonus,
        ``belief`` [B, Hb] the world model's state after it (None: not kept)."""
        slot = self.count % self.rows
        self._obs.put(slot, step.obs)
        self._a_tm1[slot] = step.a_tm1
        self._r_t[slot] = step.r_t
        self._is_first[slot] = step.is_first
        self._is_last[slot] = step.is_last
        self._discount_t[slot] = step.discount_t
        self._r_in[slot] = r_in
        state, between = divmod(self.count, self.state_every)
        if not between:
            self._h[state % len(self._h)] = h
            if belief is not None:
                self._belief[state % len(self._h)] = belief
        self.count += 1
        if self._priorities:
            self._priorities.advance(self.count)

    def sample(
        self,
        rng: np.random.Generator,
        batch: int,
        length: int,
        align: tuple[float, int] = (0.0, 0),
    ) -> Unroll:
        """``batch`` windows of ``length`` rows, uniform over (row, environment), time-major.

        ``align = (share, offset)``: that share of the windows is moved back to the nearest start
        for which row ``offset`` is the first row of an episode, where there is one.
        The windows carry recurrent states only if these are kept for every row.
        """
        starts = len(self) - length + 1
        if starts < 1:
            raise ValueError(f"replay has {len(self)} rows, a window takes {length}")
        oldest = self.oldest
        flat = rng.integers(starts * self.envs, size=batch)
        first, env = oldest + flat // self.envs, flat % self.envs
        share, offset = align
        if share > 0:
            chosen = rng.random(batch) < share
            first[chosen] = self._aligned(first[chosen], env[chosen], oldest, offset)
        return self.windows(first, env, length, states=self.state_every == 1)

    def windows(
        self,
        first: NDArray[np.int64],
        env: NDArray[np.int64],
        length: int,
        states: bool = True,
    ) -> Unroll:
        """The windows that begin at rows ``first`` [B] of environments ``env`` [B].

        ``states``: with their recurrent states, else these have width 0.
        """
        slot = (first + np.arange(length)[:, None]) % self.rows
        none = np.zeros((len(env), 0), np.float32)
        h, belief = self._states(first, env) if states else (none, none)
        return Unroll(
            obs=self._obs.get(slot, env),
            a_tm1=self._a_tm1[slot, env],
            r_t=self._r_t[slot, env],
            is_first=self._is_first[slot, env],
            is_last=self._is_last[slot, env],
            discount_t=self._discount_t[slot, env],
            h=h,
            belief=belief,
            r_in=self._r_in[slot, env],
            origin=np.stack([first, env], axis=1),
        )

    def _states(
        self, first: NDArray[np.int64], env: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """States [B, H] before and beliefs [B, Hb] after rows ``first`` [B]."""
        place, between = np.divmod(first, self.state_every)
        if np.any(between):
            raise ValueError(f"a window with states begins at a multiple of {self.state_every}")
        place %= len(self._h)
        return self._h[place, env], self._belief[place, env]

    def _aligned(
        self, first: NDArray[np.int64], env: NDArray[np.int64], oldest: int, offset: int
    ) -> NDArray[np.int64]:
        """Starts moved back so that row ``offset`` begins an episode; unchanged where none does."""
        reach = 256
        back = np.arange(reach)[:, None]
        rows = first + offset - back
        begins = self._is_first[rows % self.rows, env] & (rows - offset >= oldest)
        moved = first - begins.argmax(0)
        return np.where(begins.any(0), moved, first)

    @property
    def priorities(self) -> WindowPriorities:
        """The windows' priorities; an error where there are none."""
        if self._priorities is None:
            raise ValueError("this replay was made without prioritised windows")
        return self._priorities

    def new_windows(self) -> NDArray[np.int64]:
        """Names [N, 2] (first row, environment) of the complete windows without a priority."""
        return self.priorities.missing(self.count)

    def set_priorities(self, origin: NDArray[np.int64], p: NDArray[np.floating]) -> None:
        """Give windows ``origin`` [B, 2] the priorities ``p`` [B]; overwritten ones are ignored."""
        self.priorities.set(self.count, origin, p)

    def sample_prioritised(
        self, rng: np.random.Generator, batch: int
    ) -> tuple[Unroll, NDArray[np.float32]]:
        """``batch`` windows drawn by priority, and their importance weights [B] (row 20)."""
        origin, weight = self.priorities.sample(rng, self.count, batch)
        assert self.window is not None
        return self.windows(origin[:, 0], origin[:, 1], self.window), weight

    def sample_pairs(self, rng: np.random.Generator, n: int, max_shift: int) -> Pairs:
        """``n`` pairs of frames t and t + k of one episode, k uniform in 1 ... ``max_shift``."""
        t, env, k = draw_pairs(rng, self._is_first, self.count, n, max_shift)
        return Pairs(self._obs.get(t % self.rows, env), self._obs.get((t + k) % self.rows, env))

    def check_valid(self) -> None:
        """Raise if a stored row contradicts the time law, or a part of replay itself."""
        live = np.arange(self.oldest, self.count) % self.rows
        first, last = self._is_first[live], self._is_last[live]
        if np.any(first & last):
            raise ValueError("a row is both first and last")
        if np.any(last[:-1] != first[1:]):
            raise ValueError("a last row is not followed by a first row")
        if np.any(self._r_t[live][first] != 0):
            raise ValueError("a first row carries a reward")
        if np.any((self._discount_t[live] == 0) & ~last):
            raise ValueError("discount 0 on a row that is not last")
        places = self._state_places(self.oldest, self.count)
        if not (np.isfinite(self._h[places]).all() and np.isfinite(self._belief[places]).all()):
            raise ValueError("a recurrent state is not finite")
        self._obs.check_valid(live)
        if self._priorities:
            self._priorities.check_valid(self.count)

    def get_state(self) -> dict[str, Any]:
        """Everything, for a checkpoint; arrays are not copied, compressed frames are."""
        used, states = len(self), self._states_in_use()
        obs = self._obs.get_state(used)
        return self.get_index() | {"obs": obs} | self._get_fields(slice(used), slice(states))

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what ``get_state`` returned."""
        self.set_index(state)
        used, states = len(self), self._states_in_use()
        self._obs.set_state(used, state["obs"])
        self._set_fields(slice(used), slice(states), state)

    # For checkpoints that grow: a row never changes once it is appended, so that a block of rows
    # needs writing only once.  A checkpoint is then the blocks still in the ring, and the index.

    def get_index(self) -> dict[str, Any]:
        """All but the rows: the count of rows, and the priorities if there are any."""
        ranked = {"priorities": self._priorities.get_state()} if self._priorities else {}
        return {"count": self.count} | ranked

    def set_index(self, index: dict[str, Any]) -> None:
        """Restore what ``get_index`` returned; the rows themselves come by ``set_rows``."""
        if ("priorities" in index) != (self._priorities is not None):
            raise ValueError("priorities on one side only")
        self.count = int(index["count"])
        if self._priorities:
            self._priorities.set_state(index["priorities"])

    def set_blocks(
        self, index: dict[str, Any], blocks: Iterable[tuple[int, dict[str, NDArray[Any]]]]
    ) -> None:
        """Restore an index and all rows: blocks that follow one another, each with the number of
        its first row; rows that have left the ring may be among them."""
        self.set_index(index)
        reached = None
        for first, block in blocks:
            if first != reached and (reached is not None or first > self.oldest):
                break
            self.set_rows(first, block)
            reached = first + len(block["obs"])
        if reached != (self.count or None):
            raise ValueError(f"the rows from {reached or self.oldest} on are missing")

    def get_rows(self, first: int, stop: int) -> dict[str, NDArray[Any]]:
        """A copy of rows ``first`` ... ``stop`` - 1: arrays [T, envs, ...], frames unpacked, and
        the states that are kept of these rows."""
        if not self.oldest <= first <= stop <= self.count:
            raise ValueError(f"rows {first} to {stop} are not all there")
        slots, places = np.arange(first, stop) % self.rows, self._state_places(first, stop)
        obs = self._obs.get(slots[:, None], np.arange(self.envs))
        return {"obs": obs} | self._get_fields(slots, places)

    def set_rows(self, first: int, block: dict[str, NDArray[Any]]) -> None:
        """Put back what ``get_rows(first, ...)`` returned; of several blocks the oldest first, as
        rows that have left the ring share their slots with later ones."""
        stop = first + len(block["obs"])
        slots, places = np.arange(first, stop) % self.rows, self._state_places(first, stop)
        for slot, obs in zip(slots.tolist(), block["obs"], strict=True):
            self._obs.put(slot, obs)
        self._set_fields(slots, places, block)

    def _get_fields(self, slots: Any, places: Any) -> dict[str, NDArray[Any]]:
        """All arrays but the observations: rows at ``slots``, states at ``places``."""
        return {k: getattr(self, f"_{k}")[places if k in _STATES else slots] for k in _FIELDS}

    def _set_fields(self, slots: Any, places: Any, values: dict[str, NDArray[Any]]) -> None:
        """Inverse of ``_get_fields``."""
        for k, there in self._get_fields(slots, places).items():
            if values[k].shape != there.shape:
                raise ValueError(f"replay {k} of shape {values[k].shape}, expected {there.shape}")
            getattr(self, f"_{k}")[places if k in _STATES else slots] = values[k]

    def _state_places(self, first: int, stop: int) -> NDArray[np.int64]:
        """Where the states of rows ``first`` ... ``stop`` - 1 are, of those that are kept."""
        every = self.state_every
        return np.arange(-(-first // every), -(-stop // every)) % len(self._h)

    def _states_in_use(self) -> int:
        """How many of the places for states have been written."""
        return min(-(-self.count // self.state_every), len(self._h))
