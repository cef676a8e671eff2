"""Replay whose observation is the row's own name: where a window came from can be read off it."""

from __future__ import annotations

import copy
import hashlib
import itertools
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lwm import checkpoint
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


# Drawn by the code before replay knew compression and priorities: the labyrinth's results hang on
# these draws.  Windows of 5 rows; then windows of 6, half of them aligned at row 3.
DRAWN = [
    [28, 0], [23, 0], [23, 2], [27, 1], [22, 0], [25, 1],
    [26, 1], [16, 1], [13, 2], [17, 2], [17, 1], [26, 2],
]  # fmt: skip
DRAWN_ALIGNED = [
    [27, 0], [22, 1], [23, 0], [26, 1], [20, 2], [21, 1],
    [21, 1], [16, 1], [13, 2], [17, 1], [17, 0], [26, 0],
]  # fmt: skip
DRAWN_SHA256 = "28d82cb4533ad1965bfa4264babdbc1a8d36d338fe086566f7375282c38f26a8"


def test_uniform_draws_are_what_they_always_were() -> None:
    replay = filled(33)
    assert replay.sample(generator(7), 12, 5).origin.tolist() == DRAWN
    assert replay.sample(generator(7), 12, 6, align=(0.5, 3)).origin.tolist() == DRAWN_ALIGNED
    digest, rng = hashlib.sha256(), generator(11)
    for count in (7, 20, 33, 53):
        for align in ((0.0, 0), (0.5, 2)):
            for x in filled(count).sample(rng, 40, 5, align):
                digest.update(f"{x.dtype}{x.shape}".encode() + np.ascontiguousarray(x).tobytes())
    assert digest.hexdigest() == DRAWN_SHA256
    assert rng.integers(1 << 30) == 195636744


# From here on: windows of 13 rows that begin at every 8th row, in a ring of 37 rows, which is a
# multiple of neither.
EVERY, WINDOW, ROWS = 8, 13, 37


def windowed(count: int, compress: bool = True) -> Replay:
    replay = Replay(
        ROWS, ENVS, (2,), np.int64, HIDDEN, HIDDEN,
        compress=compress, state_every=EVERY, window=WINDOW,
    )  # fmt: skip
    grow(replay, count)
    return replay


def grow(replay: Replay, count: int) -> None:
    """Append up to ``count`` rows; a new window gets the priority 1 + its first row + env / 8."""
    while replay.count < count:
        append(replay, replay.count)
        new = replay.new_windows()
        replay.set_priorities(new, 1 + new[:, 0] + new[:, 1] / 8)


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("count", [13, 20, 37, 38, 45, 46, 120])
def test_prioritised_windows_and_their_states(count: int, compress: bool) -> None:
    replay = windowed(count, compress)
    replay.check_valid()
    u, weight = replay.sample_prioritised(generator(), 300)
    first, env = u.origin.T
    begin = max(0, count - ROWS)
    assert set(first) == {k for k in range(0, count, EVERY) if begin <= k <= count - WINDOW}
    expected = first + np.arange(WINDOW)[:, None]
    np.testing.assert_array_equal(u.obs[..., 0], expected)
    np.testing.assert_array_equal(u.obs[..., 1], np.broadcast_to(env, (WINDOW, 300)))
    np.testing.assert_array_equal(u.a_tm1, expected % 4)
    np.testing.assert_array_equal(u.r_in, (expected / 8).astype(np.float32))
    np.testing.assert_array_equal(u.h, np.stack([first, env], 1))
    np.testing.assert_array_equal(u.belief, -np.stack([first, env], 1))
    by_hand = (1 + first + env / 8) ** -0.54
    np.testing.assert_allclose(weight, by_hand / by_hand.max(), rtol=1e-5)
    assert weight.shape == (300,) and weight.dtype == np.float32


def test_warm_up_windows_get_their_priorities_later() -> None:
    replay = Replay(ROWS, ENVS, (2,), np.int64, HIDDEN, state_every=EVERY, window=WINDOW)
    for k in range(50):
        replay.append(row(k), state(k), np.zeros(ENVS, np.float32))
    with pytest.raises(ValueError, match="no window has a priority yet"):
        replay.sample_prioritised(generator(), 4)
    new = replay.new_windows()  # rows 13 ... 49 are there
    assert new.tolist() == [[first, env] for first in (16, 24, 32) for env in range(ENVS)]
    replay.set_priorities(new[:4], np.ones(4))
    assert replay.new_windows().tolist() == new[4:].tolist()
    replay.set_priorities(new[4:], np.ones(5))
    assert replay.new_windows().shape == (0, 2)
    for k in range(50, 54):
        replay.append(row(k), state(k), np.zeros(ENVS, np.float32))
    assert replay.new_windows().tolist() == [[40, env] for env in range(ENVS)]


def test_a_window_overwritten_since_it_was_drawn_keeps_nothing() -> None:
    replay = windowed(53)  # rows 16 ... 52
    u, _ = replay.sample_prioritised(generator(), 50)
    assert 16 in u.origin[:, 0]
    grow(replay, 54)
    before = replay.get_index()["priorities"].copy()
    gone = u.origin[u.origin[:, 0] == 16]
    replay.set_priorities(gone, np.full(len(gone), 1e9))
    np.testing.assert_array_equal(replay.get_index()["priorities"], before)
    replay.check_valid()
    assert replay.sample_prioritised(generator(), 500)[0].origin[:, 0].min() == 24


def test_states_are_kept_only_where_windows_begin() -> None:
    replay = windowed(50)
    u = replay.sample(generator(), 40, 5)  # uniform windows begin anywhere, hence without states
    np.testing.assert_array_equal(u.obs[..., 0], u.origin[:, 0] + np.arange(5)[:, None])
    assert u.h.shape == u.belief.shape == (40, 0)
    with pytest.raises(ValueError, match="begins at a multiple of 8"):
        replay.windows(np.array([24, 25]), np.array([0, 1]), 5)
    # 10^6 rows of 512 numbers would be 2 GB; one state per 80 rows is 26 MB.
    assert Replay(800, 1, (1,), np.uint8, 512, state_every=80).nbytes < 60_000
    assert Replay(800, 1, (1,), np.uint8, 512).nbytes > 1_600_000


def test_bytes_in_use_by_hand() -> None:
    """7 rows of 3 environments: action 8, reward, discount and bonus 4 each, two flags, 2 x 8 of
    observation, 5 + 2 numbers of state; with priorities their tree on top."""
    plain = Replay(7, 3, (2,), np.int64, 5, 2)
    assert plain.nbytes == 7 * 3 * (8 + 3 * 4 + 2 + 2 * 8 + (5 + 2) * 4)
    ranked = Replay(7, 3, (2,), np.int64, 5, 2, window=4)
    assert ranked.priorities.nbytes > 0
    assert ranked.nbytes == plain.nbytes + ranked.priorities.nbytes


def test_windows_are_not_moved_unless_asked() -> None:
    """The default of ``align``: uniform over rows, as without a share."""
    replay = filled(20)
    a, b = (replay.sample(generator(3), 64, 4, *more) for more in ((), ((0.0, 0),)))
    assert (a.origin == b.origin).all()
    moved = replay.sample(generator(3), 64, 4, (1.0, 0))
    assert (moved.origin != a.origin).any() and moved.is_first[0].mean() > a.is_first[0].mean()


def test_a_replay_without_windows_has_no_priorities() -> None:
    with pytest.raises(ValueError, match="without prioritised windows"):
        filled(33).sample_prioritised(generator(), 4)


@pytest.mark.parametrize("count", [5, 20, 37, 38, 120])
def test_pairs_stay_in_their_episode(count: int) -> None:
    raw, compressed = windowed(count, False), windowed(count, True)
    x, y = raw.sample_pairs(generator(), 2000, 3)
    assert x.shape == y.shape == (2000, 2)
    assert x[:, 0].min() == max(0, count - ROWS) and y[:, 0].max() == count - 1
    np.testing.assert_array_equal(x[:, 1], y[:, 1])
    assert set(y[:, 0] - x[:, 0]) == {1, 2, 3}
    # Environment e's episodes begin where row + e is a multiple of 5 (and at row 0).
    np.testing.assert_array_equal((x[:, 0] + x[:, 1]) // 5, (y[:, 0] + y[:, 1]) // 5)
    for a, b in zip((x, y), compressed.sample_pairs(generator(), 2000, 3), strict=True):
        np.testing.assert_array_equal(a, b)


def test_pairs_of_a_replay_that_is_too_short() -> None:
    with pytest.raises(ValueError, match="replay has 3 rows, pairs need 4"):
        filled(3).sample_pairs(generator(), 5, 3)


def test_compressed_windows_equal_raw_ones() -> None:
    for count in (13, 50, 120):
        raw, compressed = windowed(count, False), windowed(count, True)
        a, b = (r.sample_prioritised(generator(), 50) for r in (raw, compressed))
        assert same(a[0], b[0]) and np.array_equal(a[1], b[1])
        assert same(raw.sample(generator(), 50, 5), compressed.sample(generator(), 50, 5))


def go_on(replay: Replay, count: int) -> list[bytes]:
    """Append rows up to ``count`` with updates between them; what was drawn on the way."""
    rng, told = generator(1), []
    while replay.count < count:
        grow(replay, replay.count + 1)
        if replay.count >= WINDOW:
            u, weight = replay.sample_prioritised(rng, 5)
            replay.set_priorities(u.origin, rng.random(5))
            told += [x.tobytes() for x in (*u, weight, *replay.sample_pairs(rng, 5, 2))]
    replay.check_valid()
    return told


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("count", [3, 20, 37, 61])
def test_a_restored_replay_goes_on_alike(count: int, compress: bool, tmp_path: Path) -> None:
    old, new = windowed(0, compress), windowed(0, compress)
    go_on(old, count)
    saved = checkpoint.load(checkpoint.save(tmp_path, "step-1", {"replay": old.get_state()}))
    new.set_state(saved["replay"])
    assert go_on(old, 160) == go_on(new, 160)


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("count", [3, 20, 37, 61])
def test_blocks_of_rows_make_a_whole_replay(count: int, compress: bool) -> None:
    # Blocks of 16 rows, each saved once when it is complete; the last one as far as it goes.
    old, new, blocks = windowed(0, compress), windowed(0, compress), {}
    for k in range(1, count + 1):
        go_on(old, k)
        if k % 16 == 0 or k == count:
            first = (k - 1) // 16 * 16
            blocks[first] = copy.deepcopy(old.get_rows(first, k))
    new.set_index(copy.deepcopy(old.get_index()))
    for first in blocks:
        if first + 16 > old.oldest:
            new.set_rows(first, blocks[first])
    assert go_on(old, 160) == go_on(new, 160)


def test_rows_that_are_not_there() -> None:
    replay = windowed(50)
    for first, stop in ((12, 20), (40, 51), (30, 20)):
        with pytest.raises(ValueError, match="are not all there"):
            replay.get_rows(first, stop)
    block = replay.get_rows(20, 30)
    assert block["obs"].shape == (10, ENVS, 2) and block["h"].shape == (1, ENVS, HIDDEN)
    with pytest.raises(ValueError, match=r"replay r_t of shape \(9, 3\), expected \(10, 3\)"):
        replay.set_rows(20, block | {"r_t": block["r_t"][:9]})


def test_states_that_do_not_fit_are_refused() -> None:
    good = windowed(50).get_state()
    for change, message in [
        ({"h": good["h"][:1]}, "replay h of shape"),
        ({"priorities": good["priorities"][:1]}, "priorities"),
        ({"obs": np.zeros((37, 3, 2))}, "not compressed"),
    ]:
        with pytest.raises(ValueError, match=message):
            windowed(0).set_state(good | change)
    with pytest.raises(ValueError, match="priorities on one side only"):
        windowed(0).set_state({k: v for k, v in good.items() if k != "priorities"})


def test_faults_of_the_parts_are_found() -> None:
    replay = windowed(50)
    replay._priorities.get_state()[0, 0] += 1
    with pytest.raises(ValueError, match="a sum of priorities is wrong"):
        replay.check_valid()
    replay = windowed(50)
    replay._h[-1] = np.nan
    with pytest.raises(ValueError, match="a recurrent state is not finite"):
        replay.check_valid()
    replay = windowed(50)
    replay._obs._blobs[0] = b""
    with pytest.raises(ValueError, match="slot 0 do not fill their row"):
        replay.check_valid()


@pytest.mark.parametrize("count", [7, 47])
def test_blocks_that_follow_one_another_make_a_replay(count: int) -> None:
    replay, other = windowed(count), windowed(0)
    edges = [replay.oldest, replay.oldest + 3, count]
    pairs = list(itertools.pairwise(edges))
    parts = [(a, replay.get_rows(a, b)) for a, b in pairs]
    other.set_blocks(replay.get_index(), iter(parts))
    assert other.count == count
    theirs, mine = other.get_rows(replay.oldest, count), replay.get_rows(replay.oldest, count)
    assert all(np.array_equal(theirs[k], mine[k]) for k in mine)
    for bad in ([], parts[:1], parts[1:], [parts[1], parts[0]], [parts[0], parts[0]]):
        with pytest.raises(ValueError, match="missing"):
            windowed(0).set_blocks(replay.get_index(), iter(bad))


def test_an_empty_replay_needs_no_blocks() -> None:
    windowed(0).set_blocks(windowed(0).get_index(), iter(()))
