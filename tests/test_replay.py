"""Replay whose observation is the row's own name: where a window came from can be read off it."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from numpy.typing import NDArray

from lwm.replay import Replay
from lwm.types import Step, Unroll

ENVS = 3
HIDDEN = 2


def row(
    k: int,
    episode: int = 5,
    *,
    r_t: float | None = None,
    is_first: bool | None = None,
    is_last: bool | None = None,
    discount: float = 1.0,
) -> Step:
    """Row ``k`` of every environment; episodes take ``episode`` rows, environment e begins e later.

    The observation is (row number, environment); the action k % 4.
    """
    place = (k + np.arange(ENVS)) % episode
    first = (place == 0) | (k == 0) if is_first is None else np.full(ENVS, is_first)
    last = place == episode - 1 if is_last is None else np.full(ENVS, is_last)
    if k == 0 and is_last is None:
        last &= ~first
    reward = np.where(first, 0.0, -1.0) if r_t is None else np.full(ENVS, r_t)
    return Step(
        obs=np.stack([np.full(ENVS, k), np.arange(ENVS)], 1),
        a_tm1=np.full(ENVS, k % 4),
        r_t=reward.astype(np.float32),
        is_first=first,
        is_last=last,
        discount_t=np.full(ENVS, discount, np.float32),
        episode_return=np.zeros(ENVS, np.float32),
        episode_length=np.zeros(ENVS, np.int64),
        episode_end=last,
    )


def state(k: int) -> NDArray[np.float32]:
    """[B, H] recurrent state that precedes row ``k``: (k, environment)."""
    return np.stack([np.full(ENVS, k), np.arange(ENVS)], 1).astype(np.float32)


def append(replay: Replay, k: int, step: Step | None = None) -> None:
    """Add row k; its state is (k, env), its belief (-k, -env), its bonus k / 8."""
    replay.append(step or row(k), state(k), np.full(ENVS, k / 8, np.float32), -state(k))


def filled(count: int, rows: int = 20) -> Replay:
    replay = Replay(rows, ENVS, (2,), np.int64, HIDDEN, HIDDEN)
    for k in range(count):
        append(replay, k)
    return replay


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("count", [7, 20, 21, 39, 40, 53])
def test_windows_are_consecutive_rows_of_one_environment(count: int) -> None:
    replay = filled(count)
    oldest = max(0, count - 20)
    assert len(replay) == count - oldest
    u = replay.sample(generator(), 500, 5)
    first, env = u.origin.T
    assert (first >= oldest).all() and (first + 5 <= count).all()
    expected = first + np.arange(5)[:, None]
    assert u.obs.shape == (5, 500, 2)
    np.testing.assert_array_equal(u.obs[..., 0], expected)
    np.testing.assert_array_equal(u.obs[..., 1], np.broadcast_to(env, (5, 500)))
    np.testing.assert_array_equal(u.a_tm1, expected % 4)
    np.testing.assert_array_equal(u.r_in, (expected / 8).astype(np.float32))
    # The stored state precedes row 0 of the window, and is that environment's.
    np.testing.assert_array_equal(u.h, np.stack([first, env], 1))
    np.testing.assert_array_equal(u.belief, -np.stack([first, env], 1))
    begins = ((expected + env) % 5 == 0) | (expected == 0)
    np.testing.assert_array_equal(u.is_first, begins)
    np.testing.assert_array_equal(u.r_t, np.where(begins, 0, -1))
    np.testing.assert_array_equal(u.is_last, (expected + env) % 5 == 4)
    np.testing.assert_array_equal(u.discount_t, np.ones((5, 500)))


def test_no_window_crosses_the_write_head() -> None:
    # 33 rows in a ring of 20: rows 13 .. 32 are there; row 13 lies just behind row 32 in the ring.
    u = filled(33).sample(generator(), 2000, 6)
    assert u.origin[:, 0].min() == 13
    assert u.origin[:, 0].max() == 27
    assert (np.diff(u.obs[..., 0], axis=0) == 1).all()


def test_every_window_is_equally_likely() -> None:
    # 16 starts (13 .. 28) of 3 environments; 200 draws for each expected.
    u = filled(33).sample(generator(), 48 * 200, 5)
    hits = np.zeros((16, ENVS))
    np.add.at(hits, (u.origin[:, 0] - 13, u.origin[:, 1]), 1)
    chi_square = ((hits - 200) ** 2 / 200).sum()
    # 47 degrees of freedom: mean 47, standard deviation sqrt 94 = 9.7.
    assert 47 - 4 * 9.7 < chi_square < 47 + 5 * 9.7


def test_a_window_may_take_all_there_is_and_no_more() -> None:
    replay = filled(33)
    u = replay.sample(generator(), 10, 20)
    assert (u.origin[:, 0] == 13).all()
    with pytest.raises(ValueError, match="a window takes 21"):
        replay.sample(generator(), 10, 21)
    with pytest.raises(ValueError, match="replay has 4 rows"):
        filled(4).sample(generator(), 1, 5)


def test_beliefs_are_kept_where_there_is_room_for_them() -> None:
    replay = Replay(20, ENVS, (2,), np.int64, HIDDEN)
    replay.append(row(0), state(0), np.zeros(ENVS, np.float32))
    assert replay.sample(generator(), 4, 1).belief.shape == (4, 0)


def test_named_windows() -> None:
    u = filled(33).windows(np.array([14, 20]), np.array([2, 0]), 3)
    np.testing.assert_array_equal(u.obs[..., 0], [[14, 20], [15, 21], [16, 22]])
    np.testing.assert_array_equal(u.obs[..., 1], [[2, 0]] * 3)


def test_sampling_hands_out_copies() -> None:
    replay = filled(20)
    replay.sample(generator(), 50, 5).obs[:] = -1
    assert replay.sample(generator(), 50, 5).obs.min() >= 0


@pytest.mark.parametrize("offset", [0, 3])
def test_alignment_moves_row_offset_onto_a_first_row(offset: int) -> None:
    # Episodes of 5 rows: there is a first row at most 4 rows back, but near the oldest row it may
    # lie too far back to have `offset` rows before it.  Then the window stays.
    replay = filled(33)
    drawn = replay.sample(generator(1), 400, 6)
    moved = replay.sample(generator(1), 400, 6, align=(1.0, offset))
    stayed = 0
    for (first, env), (to, same_env), begins in zip(
        drawn.origin, moved.origin, moved.is_first[offset], strict=True
    ):
        candidates = [s for s in range(13, first + 1) if (s + offset + env) % 5 == 0]
        assert same_env == env
        assert to == max(candidates, default=first)
        assert begins == bool(candidates)
        stayed += not candidates
    assert 0 < stayed < 200
    np.testing.assert_array_equal(np.diff(moved.obs[..., 0], axis=0), 1)


def test_alignment_of_a_share() -> None:
    def aligned(share: float) -> float:
        u = filled(33).sample(generator(2), 4000, 6, align=(share, 3))
        return float(u.is_first[3].mean())

    # One start in five is aligned by itself.  Starts are 13 .. 27; the oldest aligned ones are 17,
    # 16 and 15 in the three environments, so 11 + 12 + 13 of 45 can be moved onto a first row.
    none, half, every = aligned(0.0), aligned(0.5), aligned(1.0)
    assert none == pytest.approx(0.2, abs=0.03)
    assert every == pytest.approx(0.8, abs=0.03)
    assert half == pytest.approx((none + every) / 2, abs=0.03)


@pytest.mark.parametrize("count", [3, 20, 47])
def test_rows_that_obey_the_time_law_are_valid(count: int) -> None:
    filled(count).check_valid()


def test_a_terminal_row_is_valid() -> None:
    replay = Replay(20, ENVS, (2,), np.int64, HIDDEN, HIDDEN)
    append(replay, 0, row(0, is_first=True, is_last=False))
    append(replay, 1, row(1, is_first=False, is_last=True, discount=0.0))
    append(replay, 2, row(2, is_first=True, is_last=False))
    replay.check_valid()


VIOLATIONS = {
    "a row is both first and last": row(1, is_first=True, is_last=True),
    "a last row is not followed by a first row": row(1, is_first=False, is_last=False),
    "a first row carries a reward": row(1, is_first=True, is_last=False, r_t=-1.0),
    "discount 0 on a row that is not last": row(1, is_first=True, is_last=False, discount=0.0),
}


@pytest.mark.parametrize("message", VIOLATIONS)
def test_violations_of_the_time_law_are_found(message: str) -> None:
    replay = Replay(2, ENVS, (2,), np.int64, HIDDEN, HIDDEN)
    append(replay, 0, row(0, is_first=True, is_last=True))  # a violation, but soon overwritten
    append(replay, 1, row(1, is_first=False, is_last=True))
    append(replay, 2, row(2, is_first=True, is_last=False))
    replay.check_valid()
    append(replay, 3, row(3, is_first=False, is_last=True))
    append(replay, 4, VIOLATIONS[message])
    with pytest.raises(ValueError, match=message):
        replay.check_valid()


def test_a_first_row_out_of_nowhere_is_found() -> None:
    replay = filled(2)
    append(replay, 2, row(2, is_first=True, is_last=False, r_t=0.0))
    with pytest.raises(ValueError, match="a last row is not followed by a first row"):
        replay.check_valid()


def same(a: Unroll, b: Unroll) -> bool:
    return all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("count", [6, 20, 33])
def test_state_goes_into_another_replay(count: int) -> None:
    old = filled(count)
    saved = copy.deepcopy(old.get_state())
    new = Replay(20, ENVS, (2,), np.int64, HIDDEN, HIDDEN)
    new.set_state(saved)
    for k in range(count, count + 30):  # both go on alike, around the ring
        assert same(old.sample(generator(k), 20, 5), new.sample(generator(k), 20, 5))
        append(old, k)
        append(new, k)
    assert new.count == count + 30
    # What was saved is not the new replay's own memory.
    assert np.array_equal(saved["obs"], filled(count).get_state()["obs"])


def test_state_of_another_shape_is_refused() -> None:
    saved = filled(20).get_state()
    with pytest.raises(ValueError):
        Replay(21, ENVS, (2,), np.int64, HIDDEN + 1, HIDDEN).set_state(saved)
