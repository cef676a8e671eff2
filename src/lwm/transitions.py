"""Transitions as sequences: rows one after the other, the final observation of an episode too."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Sequences(NamedTuple):
    """B sequences of T transitions, time-major: transition i leads from obs[i] to obs[i+1]."""

    obs: Any
    """[T+1, B, ...] observations of the space (a dict of such arrays for a Dict space)."""
    action: NDArray[np.integer]
    """[T, B]."""
    is_first: NDArray[np.bool_]
    """[T+1, B] the observation is the first of its episode; into such a row no transition leads."""


def sequences_of(
    obs: Any, action: Any, next_obs: Any, is_first: Any
) -> tuple[Sequences, NDArray[np.int64]]:
    """Transitions of B environments in the order of time, as agents store them -> sequences.

    All [T, B, ...]: ``next_obs`` the true next observation, at an episode's end the final one;
    ``is_first`` refers to ``obs``.  Each final observation gets a row of its own, so an end costs a
    row; environments with fewer ends begin with rows that count nowhere.  Also -> ``where`` [T, B]:
    ``np.take_along_axis(bonus.compute(*sequences), where, 0)`` is each transition's bonus [T, B].
    """
    first, taken = np.asarray(is_first, np.bool_), np.asarray(action)
    if taken.ndim != 2 or not len(taken) or first.shape != taken.shape:
        raise ValueError(
            "expected action and is_first [T, B] of one shape, T at least 1, got "
            f"{list(taken.shape)} and {list(first.shape)}"
        )
    T, B = taken.shape
    for name, given in (("obs", obs), ("next_obs", next_obs)):
        for part in given.values() if isinstance(given, dict) else (given,):
            if np.shape(part)[:2] != (T, B):
                raise ValueError(
                    f"{name}: expected a batch of {[T, B]}, got {list(np.shape(part)[:2])}"
                )
    # A transition is followed by a row for where it led, unless the next one goes on from there.
    ends = np.concatenate([first[1:], np.ones_like(first[:1])])
    length = T + ends.sum(0)
    offset = length.max() - length
    at = np.arange(T)[:, None] + np.concatenate([0 * ends[:1], np.cumsum(ends, 0)[:-1]]) + offset
    # Row -> transition, and which of its two ends; what comes before repeats the first row.
    source, second = np.zeros((length.max(), B), np.int64), np.zeros((length.max(), B), np.bool_)
    begins = np.ones(second.shape, np.bool_)
    t, lane = np.indices((T, B))
    source[at, lane], begins[at, lane] = t, first | (t == 0)
    over, own = np.nonzero(ends)
    after = at[over, own] + 1
    source[after, own], second[after, own], begins[after, own] = over, True, False
    lanes = np.arange(B)

    def rows(before: Any, reached: Any) -> Any:
        if isinstance(before, dict):
            return {key: rows(value, reached[key]) for key, value in before.items()}
        before, reached = np.asarray(before), np.asarray(reached)
        pick = second.reshape(*second.shape, *(1,) * (before.ndim - 2))
        return np.where(pick, reached[source, lanes], before[source, lanes])

    return Sequences(rows(obs, next_obs), taken[source[:-1], lanes], begins), at
