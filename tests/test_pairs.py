"""Positive pairs: never across an episode, every shift as often, every place as often."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from lwm.pairs import draw_pairs


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def ring(count: int, rows: int, envs: int, episode: int) -> NDArray[np.bool_]:
    """First rows of episodes of ``episode`` rows; environment e begins e rows earlier."""
    first = np.zeros((rows, envs), np.bool_)
    for k in range(count):
        first[k % rows] = (k + np.arange(envs)) % episode == 0
    return first


def slow_pairs(count: int, rows: int, envs: int, episode: int, k: int) -> set[tuple[int, int]]:
    """All (t, environment) for which t + k is in the ring and in the same episode, by loops."""
    return {
        (t, e)
        for t in range(max(0, count - rows), count - k)
        for e in range(envs)
        if (t + e) // episode == (t + k + e) // episode
    }


@pytest.mark.parametrize("episode", [2, 3, 5, 1000])
@pytest.mark.parametrize("count", [6, 20, 33, 57])
def test_all_pairs_and_no_others(count: int, episode: int) -> None:
    max_shift = min(3, episode - 1)
    first = ring(count, 20, 3, episode)
    t, env, k = draw_pairs(generator(), first, count, 4000, max_shift)
    for shift in range(1, max_shift + 1):
        drawn = {(int(a), int(b)) for a, b in zip(t[k == shift], env[k == shift], strict=True)}
        assert drawn == slow_pairs(count, 20, 3, episode, shift)


def test_shifts_and_places_are_uniform() -> None:
    # Episodes of 4 rows: shift 3 fits one place in four, so that most of its draws are repeated.
    n = 12_000
    t, env, k = draw_pairs(generator(1), ring(57, 20, 3, 4), 57, n, 3)
    for shift in (1, 2, 3):
        chosen = k == shift
        # n / 3 expected, standard deviation sqrt(n * 2 / 9) = 52.
        assert abs(np.count_nonzero(chosen) - n / 3) < 4 * 52
        places = sorted(slow_pairs(57, 20, 3, 4, shift))
        hits = np.array([np.count_nonzero(chosen & (t == a) & (env == e)) for a, e in places])
        expected = np.count_nonzero(chosen) / len(places)
        chi_square = ((hits - expected) ** 2 / expected).sum()
        free = len(places) - 1  # mean, with a variance of twice that
        assert abs(chi_square - free) < 4.5 * np.sqrt(2 * free)


def test_a_shift_that_fits_nowhere_becomes_a_smaller_one() -> None:
    t, env, k = draw_pairs(generator(), ring(33, 20, 3, 3), 33, 500, 5)
    assert set(k) == {1, 2}
    # Shifts 2, 3, 4 and 5 become 2.
    assert np.count_nonzero(k == 2) == pytest.approx(400, abs=40)
    for a, e, shift in zip(t, env, k, strict=True):
        assert (a, e) in slow_pairs(33, 20, 3, 3, shift)


def test_a_rare_place_is_found() -> None:
    # Every row begins an episode but one: only rows 40 and 41 of environment 1 are neighbours.
    first = np.ones((30, 2), np.bool_)
    first[41 % 30, 1] = False
    t, env, k = draw_pairs(generator(), first, 50, 20, 2)
    assert set(t) == {40} and set(env) == {1} and set(k) == {1}


def test_where_there_are_no_pairs() -> None:
    with pytest.raises(ValueError, match="no two neighbouring rows"):
        draw_pairs(generator(), np.ones((30, 2), np.bool_), 50, 20, 2)
    with pytest.raises(ValueError, match="replay has 2 rows, pairs need 3"):
        draw_pairs(generator(), np.zeros((30, 2), np.bool_), 2, 20, 2)


def test_same_seed_same_pairs() -> None:
    def draw() -> list[list[int]]:
        rng = generator(5)
        return [x.tolist() for x in draw_pairs(rng, ring(57, 20, 3, 4), 57, 99, 3)] + [
            rng.integers(100, size=3).tolist()
        ]

    assert draw() == draw()
