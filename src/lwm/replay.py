"""Replay: a ring of rows [time, environment]; windows are addressed in it, never copied ahead."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lwm.types import Step, Unroll

_FIELDS = ("obs", "a_tm1", "r_t", "is_first", "is_last", "discount_t", "h", "belief", "r_in")


class Replay:
    """The newest ``rows`` rows of each of B environments.

    Rows are named by their number since the run began; row k lives in slot k % rows.
    """

    def __init__(
        self,
        rows: int,
        envs: int,
        obs_shape: tuple[int, ...],
        obs_dtype: Any,
        hidden: int,
        belief: int = 0,
    ) -> None:
        self.rows = rows
        self.envs = envs
        self.count = 0
        self._obs = np.zeros((rows, envs, *obs_shape), obs_dtype)
        self._a_tm1 = np.zeros((rows, envs), np.int64)
        self._r_t = np.zeros((rows, envs), np.float32)
        self._is_first = np.zeros((rows, envs), np.bool_)
        self._is_last = np.zeros((rows, envs), np.bool_)
        self._discount_t = np.zeros((rows, envs), np.float32)
        self._h = np.zeros((rows, envs, hidden), np.float32)
        self._belief = np.zeros((rows, envs, belief), np.float32)
        self._r_in = np.zeros((rows, envs), np.float32)

    def __len__(self) -> int:
        """Rows per environment that can be sampled."""
        return min(self.count, self.rows)

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
        self._obs[slot] = step.obs
        self._a_tm1[slot] = step.a_tm1
        self._r_t[slot] = step.r_t
        self._is_first[slot] = step.is_first
        self._is_last[slot] = step.is_last
        self._discount_t[slot] = step.discount_t
        self._h[slot] = h
        self._r_in[slot] = r_in
        if belief is not None:
            self._belief[slot] = belief
        self.count += 1

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
        """
        starts = len(self) - length + 1
        if starts < 1:
            raise ValueError(f"replay has {len(self)} rows, a window takes {length}")
        oldest = self.count - len(self)
        flat = rng.integers(starts * self.envs, size=batch)
        first, env = oldest + flat // self.envs, flat % self.envs
        share, offset = align
        if share > 0:
            chosen = rng.random(batch) < share
            first[chosen] = self._aligned(first[chosen], env[chosen], oldest, offset)
        return self.windows(first, env, length)

    def windows(self, first: NDArray[np.int64], env: NDArray[np.int64], length: int) -> Unroll:
        """The windows that begin at rows ``first`` [B] of environments ``env`` [B]."""
        slot = (first + np.arange(length)[:, None]) % self.rows
        return Unroll(
            obs=self._obs[slot, env],
            a_tm1=self._a_tm1[slot, env],
            r_t=self._r_t[slot, env],
            is_first=self._is_first[slot, env],
            is_last=self._is_last[slot, env],
            discount_t=self._discount_t[slot, env],
            h=self._h[slot[0], env],
            belief=self._belief[slot[0], env],
            r_in=self._r_in[slot, env],
            origin=np.stack([first, env], axis=1),
        )

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

    def check_valid(self) -> None:
        """Raise if a stored row contradicts the time law."""
        live = np.arange(self.count - len(self), self.count) % self.rows
        first, last = self._is_first[live], self._is_last[live]
        if np.any(first & last):
            raise ValueError("a row is both first and last")
        if np.any(last[:-1] != first[1:]):
            raise ValueError("a last row is not followed by a first row")
        if np.any(self._r_t[live][first] != 0):
            raise ValueError("a first row carries a reward")
        if np.any((self._discount_t[live] == 0) & ~last):
            raise ValueError("discount 0 on a row that is not last")

    def get_state(self) -> dict[str, Any]:
        """Everything, for a checkpoint; the arrays are not copied."""
        used = len(self)
        return {"count": self.count} | {k: getattr(self, f"_{k}")[:used] for k in _FIELDS}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what ``get_state`` returned."""
        self.count = int(state["count"])
        for k in _FIELDS:
            getattr(self, f"_{k}")[: len(self)] = state[k]
