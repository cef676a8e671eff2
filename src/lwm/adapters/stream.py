"""A bonus that trains itself from the transitions that pass by."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lwm.arguments import flags
from lwm.bonus import Bonus
from lwm.streams import generator

CAPACITY = 50_000
MEMORY = 2**30
"""Bytes of observations that are held unless somebody asks for more."""


class Stream:
    """The newest transitions of B environments, and a bonus that learns from them.

    Environments may reset within a step, so each has a ring of rows of its own: an episode of T
    actions takes T + 1 rows, the final observation included.
    """

    def __init__(
        self,
        bonus: Bonus,
        *,
        capacity: int | None = None,
        every: int = 128,
        warmup: int = 1_000,
        batch: int = 16,
        length: int = 32,
    ) -> None:
        """``capacity`` rows over all environments (None: 50 000, or as many as a gigabyte holds,
        but two windows of each environment); one update per ``every`` transitions, on
        ``batch`` windows of ``length`` transitions, once ``warmup`` transitions have been seen.
        Then the bonus settles, all at once: from there on it pays."""
        lanes, sense = bonus.num_envs, bonus.sense
        for name, value in (("every", every), ("batch", batch), ("length", length)):
            if value < 1:
                raise ValueError(f"expected {name} of at least 1, got {value}")
        if capacity is None:
            fit = MEMORY // (sense.size * sense.dtype.itemsize)
            capacity = max(min(CAPACITY, fit), 2 * length * lanes)
        rows = capacity // lanes
        if rows < 2 * length:
            raise ValueError(
                f"expected a capacity of at least {2 * length * lanes} rows (twice a window of "
                f"each environment), got {capacity}"
            )
        self.bonus, self.every, self.warmup = bonus, every, warmup
        self.batch, self.length = batch, length
        self._rows = np.zeros((rows, lanes, *sense.shape), sense.dtype)
        self._action = np.full((rows, lanes), int(bonus.action_space.start), np.int64)
        self._first = np.zeros((rows, lanes), np.bool_)
        self._count = np.zeros(lanes, np.int64)
        self._rng = generator(bonus.config.seed, "stream")
        self._due = 0
        self.transitions = 0
        self.metrics: dict[str, float] = {}
        """Of the latest update."""
        self.learning = True
        """False: transitions are paid, but neither remembered nor learned from."""
        self._gap = np.zeros(lanes, np.bool_)
        """[B] transitions went by that were not remembered."""

    def step(
        self,
        obs: Any,
        action: NDArray[np.integer],
        next_obs: Any,
        is_first: NDArray[np.bool_],
        real: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.float32]:
        """``Bonus.step``, remembered, and now and then an update.

        ``real`` [B]: where False there was no transition, and the bonus is 0 (None: all are).
        """
        bonus, shape = self.bonus, (self.bonus.num_envs,)
        happened = np.ones(shape, np.bool_) if real is None else flags(real, shape, "real")
        first = flags(is_first, shape, "is_first") | ~bonus.known
        after = bonus.rows(next_obs, "next_obs")
        new = first | self._gap
        seen = bonus.rows(obs, "obs") if new.any() else after
        r_in = bonus.step_rows(seen[first], action, after, first) * happened
        if not self.learning:
            self._gap[:] = True
            return r_in
        begun = np.flatnonzero(new & happened)
        self._append(begun, seen[begun], None)
        self._gap[begun] = False
        taken = np.flatnonzero(happened)
        self._append(taken, after[taken], np.asarray(action)[taken])
        self.transitions += len(taken)
        if self.transitions >= self.warmup:
            self._due += len(taken)
            while bonus.settle and not bonus.settled and self._update():
                pass
        while self._due >= self.every:
            self._due -= self.every
            self._update()
        return r_in

    def _append(
        self, lanes: NDArray[np.int64], rows: NDArray[Any], action: NDArray[np.integer] | None
    ) -> None:
        """A row each; those without an action are first ones."""
        at = self._count[lanes] % len(self._rows)
        self._rows[at, lanes] = rows
        self._action[at, lanes] = int(self.bonus.action_space.start) if action is None else action
        self._first[at, lanes] = action is None
        self._count[lanes] += 1

    def _update(self) -> bool:
        """One update, if there are rows enough; -> whether there were."""
        need = self.length + 1
        able = np.flatnonzero(self._count >= need)
        if not len(able):
            return False
        lane = self._rng.choice(able, self.batch)
        held = np.minimum(self._count[lane], len(self._rows))
        start = self._count[lane] - held + self._rng.integers(held - need + 1)
        at = (start + np.arange(need)[:, None]) % len(self._rows)
        self.metrics = self.bonus.update_rows(
            self._rows[at, lane], self._action[at, lane][1:], self._first[at, lane]
        )
        return True
