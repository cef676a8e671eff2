"""Which frames make a positive pair: t and t + k of one episode (row 11 of the specification)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_ROUNDS = 8  # of drawing by chance, before all pairs are listed


def draw_pairs(
    rng: np.random.Generator, is_first: NDArray[np.bool_], count: int, n: int, max_shift: int
) -> tuple[Ints, Ints, Ints]:
    """Row t [n], environment [n] and shift k [n] of ``n`` pairs: k is uniform in 1 ... max_shift,
    and (t, environment) uniform over those that have a row k later in their episode.

    ``is_first`` [rows, envs] is a ring to which ``count`` rows have been appended.  A k for which
    there is no pair is replaced by the next smaller one for which there is.
    """
    rows, envs = is_first.shape
    held = min(count, rows)
    oldest = count - held
    if not 0 < max_shift < held:
        raise ValueError(f"replay has {held} rows, pairs need {max_shift + 1}")
    k = rng.integers(1, max_shift + 1, size=n)
    t, env = np.zeros_like(k), np.zeros_like(k)
    todo = np.arange(n)
    for _ in range(_ROUNDS):
        # k is kept when t is drawn anew: else long shifts, which cross more ends, would be rarer.
        flat = rng.integers((held - k[todo]) * envs)
        t[todo], env[todo] = oldest + flat // envs, flat % envs
        todo = todo[_crosses(is_first, t[todo], env[todo], k[todo])]
        if not len(todo):
            return t, env, k
    place, env[todo], k[todo] = _listed(rng, is_first[np.arange(oldest, count) % rows], k[todo])
    t[todo] = oldest + place
    return t, env, k


def _crosses(is_first: NDArray[np.bool_], t: Ints, env: Ints, k: Ints) -> NDArray[np.bool_]:
    """Whether an episode begins in rows t + 1 ... t + k [n]."""
    ahead = np.arange(1, k.max(initial=0) + 1)[:, None]
    begins = is_first[(t + ahead) % len(is_first), env] & (ahead <= k)
    crosses: NDArray[np.bool_] = np.any(begins, axis=0)
    return crosses


def _listed(
    rng: np.random.Generator, is_first: NDArray[np.bool_], k: Ints
) -> tuple[Ints, Ints, Ints]:
    """Pairs (t, environment, k) [n] drawn from the list of all of them, for episodes about as short
    as the shifts; ``is_first`` [T, envs] in the order of time."""
    episode = np.cumsum(is_first, axis=0)
    k = k.copy()
    t, env = np.zeros_like(k), np.zeros_like(k)
    for shift in range(int(k.max()), 0, -1):
        wanted = k == shift
        rows, envs = np.nonzero(episode[shift:] == episode[:-shift])
        if not len(rows):
            k[wanted] -= 1
            continue
        chosen = rng.integers(len(rows), size=np.count_nonzero(wanted))
        t[wanted], env[wanted] = rows[chosen], envs[chosen]
    if not k.all():
        raise ValueError("replay has no two neighbouring rows of one episode")
    return t, env, k
