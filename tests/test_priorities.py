"""Priorities against a slow reference: plain loops over a dictionary of windows."""

from __future__ import annotations

import numpy as np
import pytest

from lwm.priorities import FLOOR, SumTree, WindowPriorities

ROWS, ENVS, EVERY, LENGTH = 37, 3, 8, 13


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def slow_find(weights: list[float], u: float) -> int:
    """The item in whose share ``u`` lies, by walking along all of them."""
    for i, weight in enumerate(weights):
        if u < weight:
            return i
        u -= weight
    raise AssertionError("past the end")


@pytest.mark.parametrize("leaves", [1, 2, 3, 8, 13, 100])
def test_find_against_a_walk(leaves: int) -> None:
    # Whole numbers and quarters: every sum is exact, so both must agree on every boundary.
    weights = generator(leaves).integers(0, 5, leaves).astype(float)
    weights[leaves // 2] = 3
    tree = SumTree(leaves)
    tree.fill(weights)
    assert tree.total == weights.sum()
    u = np.arange(0, weights.sum(), 0.25)
    np.testing.assert_array_equal(tree.find(u), [slow_find(weights.tolist(), x) for x in u])


def test_of_equal_items_the_last_counts() -> None:
    tree = SumTree(5)
    tree.set(np.array([3, 1, 3, 3, 0]), np.array([7.0, 1, 8, 9, 2]))
    np.testing.assert_array_equal(tree.leaves, [2, 1, 0, 9, 0])
    assert tree.total == 12
    tree.check_valid()


def test_updates_leave_no_trace_in_the_sums() -> None:
    tree, rng = SumTree(50), generator()
    for size in rng.integers(1, 9, 2000):
        leaf = rng.integers(50, size=size)
        tree.set(leaf, 10.0 ** rng.uniform(-12, 12, size) * (rng.random(size) < 0.7))
    fresh = SumTree(50)
    fresh.fill(tree.leaves)
    assert fresh._nodes.tobytes() == tree._nodes.tobytes()
    tree.check_valid()
    tree.set(np.arange(50), np.zeros(50))
    assert tree.total == 0


def test_an_item_of_weight_0_is_never_found() -> None:
    tree = SumTree(6)
    tree.set(np.array([1, 4]), np.array([0.1, 0.2]))
    above = np.nextafter(tree.total, 1)  # rounding can lead to the total itself, or beyond
    u = np.concatenate([[0.0, tree.total, above], generator().random(1000) * tree.total])
    assert set(tree.find(u)) == {1, 4}


def test_a_tree_that_contradicts_itself_is_found() -> None:
    tree = SumTree(4)
    tree.set(np.array([1]), np.array([2.0]))
    tree.leaves[1] = 3
    with pytest.raises(ValueError, match="a sum of priorities is wrong"):
        tree.check_valid()
    tree.set(np.array([1]), np.array([-2.0]))
    with pytest.raises(ValueError, match="negative or not finite"):
        tree.check_valid()


def windows(alpha: float = 0.9, beta: float = 0.6) -> WindowPriorities:
    return WindowPriorities(ROWS, ENVS, EVERY, LENGTH, alpha, beta)


def valid(count: int) -> list[int]:
    """First rows of the windows of which every row is in the ring, row by row."""
    held = set(range(count)[-ROWS:])
    return [first for first in range(0, count, EVERY) if set(range(first, first + LENGTH)) <= held]


def weights(p: WindowPriorities, count: int) -> dict[tuple[int, int], float]:
    """Weight by name of the valid windows; checks that nothing else has one."""
    p.check_valid(count)
    state = p.get_state()
    return {
        (k * EVERY, env): state[k % len(state), env] for k in p.valid(count) for env in range(ENVS)
    }


@pytest.mark.parametrize("every", [1, 5, 8, 13, 20])
@pytest.mark.parametrize("length", [1, 13, 37])
def test_valid_windows_are_those_whose_rows_are_all_there(every: int, length: int) -> None:
    p = WindowPriorities(ROWS, 1, every, length, 1.0, 1.0)
    for count in range(200):
        held = set(range(count)[-ROWS:])
        expected = [
            first for first in range(0, count, every) if set(range(first, first + length)) <= held
        ]
        found = p.valid(count)
        assert [k * every for k in found] == expected
        # No two of them share a place.
        assert len({k % len(p.get_state()) for k in found}) == len(found)


def test_a_run_against_a_dictionary() -> None:
    p, rng = windows(alpha=1.0), generator()  # weights are then the priorities, to the bit
    known: dict[tuple[int, int], float] = {}
    seen: list[tuple[int, int]] = []
    passed_over = doubled = 0
    for count in range(1, 400):
        p.advance(count)
        known = {name: w for name, w in known.items() if name[0] in valid(count)}
        names = [(first, env) for first in valid(count) for env in range(ENVS)]
        new = [name for name in names if name not in known]
        assert [tuple(name) for name in p.missing(count)] == new
        # Some new windows get a priority at once, some later; some names are old, some twice.
        chosen = [name for name in new if rng.random() < 0.5]
        chosen += [seen[i] for i in (rng.integers(len(seen), size=2) if seen else [])]
        chosen += chosen[:1]
        values = rng.random(len(chosen)) * (rng.random(len(chosen)) < 0.9)
        if chosen:
            p.set(count, np.array(chosen), values)
        for name, value in zip(chosen, values, strict=True):
            if name in names:
                known[name] = max(value, FLOOR)
            else:
                passed_over += 1
        doubled += len(chosen) - len(set(chosen))
        seen = [*seen, *chosen][-60:]
        expected = {name: known.get(name, 0.0) for name in names}
        assert weights(p, count) == expected
        assert p._tree.total == pytest.approx(sum(known.values()), rel=1e-12)
        if known:
            drawn, _ = p.sample(rng, count, 20)
            assert {tuple(name) for name in drawn} <= set(known)
    assert passed_over > 100 and doubled > 100


def test_names_of_windows_that_cannot_be() -> None:
    p = windows()
    for origin in ([[3, 0]], [[8, 0]], [[0, 3]], [[0, -1]]):  # rows 8 ... 20 are not complete
        with pytest.raises(ValueError, match="does not exist"):
            p.set(20, np.array(origin), np.ones(1))
    for value in (np.nan, np.inf, -1.0):
        with pytest.raises(ValueError, match="finite and not negative"):
            p.set(20, np.array([[0, 0]]), np.array([value]))
    with pytest.raises(ValueError, match="one number per window"):
        p.set(20, np.array([[0, 0]]), np.ones(2))
    with pytest.raises(ValueError, match="no window has a priority yet"):
        p.sample(generator(), 20, 4)
    with pytest.raises(ValueError, match="holds 12 rows, a window takes 13"):
        WindowPriorities(12, ENVS, EVERY, LENGTH, 0.9, 0.6)


def test_a_priority_of_a_window_that_is_gone_is_found() -> None:
    p = windows()
    p.set(21, np.array([[0, 0]]), np.ones(1))
    p.check_valid(37)
    with pytest.raises(ValueError, match="a window that is not in replay has a priority"):
        p.check_valid(38)  # row 0 was overwritten, and `advance` was not called
    p.advance(38)
    p.check_valid(38)


def test_windows_are_drawn_in_proportion_to_their_weights() -> None:
    # After 50 rows, 13 ... 49 are there: windows 16, 24 and 32 of three environments.
    p = windows(alpha=0.9)
    names = np.array([(first, env) for first in (16, 24, 32) for env in range(ENVS)])
    priority = np.array([1.0, 0.2, 3.0, 0.0, 0.5, 2.0, 0.05, 1.0, 4.0])
    p.set(50, names, priority)
    share = np.maximum(priority, 1e-6) ** 0.9
    share /= share.sum()
    n = 20_000
    drawn, _ = p.sample(generator(3), 50, n)
    hits = np.array([np.all(drawn == name, axis=1).sum() for name in names])
    assert hits.sum() == n
    assert hits[3] <= 2  # expected: 0.008
    often = share > 1e-3
    chi_square = ((hits - n * share) ** 2 / (n * share))[often].sum()
    # 7 degrees of freedom: beyond 24.3 once in a thousand seeds, below 0.6 likewise.
    assert 0.6 < chi_square < 24.3


def test_importance_weights_by_hand() -> None:
    # p ** 0.5 = 1, 2, 3; to the power -1: 1, 1/2, 1/3; divided by the largest that was drawn.
    p = windows(alpha=0.5, beta=1.0)
    p.set(30, np.array([[0, 0], [8, 1], [16, 2]]), np.array([1.0, 4.0, 9.0]))
    drawn, weight = p.sample(generator(), 30, 50)
    assert weight.dtype == np.float32
    by_name = {(0, 0): 1.0, (8, 1): 1 / 2, (16, 2): 1 / 3}
    np.testing.assert_allclose(weight, [by_name[tuple(name)] for name in drawn], rtol=1e-6)
    assert len(set(weight.tolist())) == 3
    p.set(30, np.array([[0, 0]]), np.array([0.0]))  # hence rarely drawn: the largest is now 1/2
    drawn, weight = p.sample(generator(), 30, 50)
    by_name = {(8, 1): 1.0, (16, 2): 2 / 3}
    np.testing.assert_allclose(weight, [by_name[tuple(name)] for name in drawn], rtol=1e-6)


def test_importance_weights_with_the_papers_exponents() -> None:
    # (p ** 0.9) ** -0.6 = p ** -0.54: 1 for p = 1, and 10 ** -0.54 = 0.28840 for p = 10.
    p = windows()
    p.set(30, np.array([[0, 0], [8, 1]]), np.array([1.0, 10.0]))
    drawn, weight = p.sample(generator(), 30, 50)
    expected = np.where(drawn[:, 0] == 0, 1.0, 0.28840)
    np.testing.assert_allclose(weight, expected, atol=1e-5)
    assert 0 < np.count_nonzero(drawn[:, 0] == 0) < 50


def test_a_restored_tree_goes_on_alike() -> None:
    def go_on(p: WindowPriorities, counts: range, rng: np.random.Generator) -> list[bytes]:
        told = []
        for count in counts:
            p.advance(count)
            new = p.missing(count)
            p.set(count, new, rng.random(len(new)))
            if count >= LENGTH:
                origin, weight = p.sample(rng, count, 6)
                p.set(count, origin, rng.random(6).astype(np.float32))
                told += [new.tobytes(), origin.tobytes(), weight.tobytes()]
        return told

    old, new = windows(), windows()
    go_on(old, range(1, 90), generator(1))
    new.set_state(old.get_state().copy())
    assert go_on(old, range(90, 300), generator(2)) == go_on(new, range(90, 300), generator(2))
    assert old._tree._nodes.tobytes() == new._tree._nodes.tobytes()
    with pytest.raises(ValueError, match=r"priorities \(3, 3\), expected \(4, 3\)"):
        new.set_state(np.zeros((3, 3)))


def test_going_back_to_an_older_state_forgets_later_priorities() -> None:
    p = windows()
    saved = p.get_state().copy()  # nothing has a priority
    p.set(21, p.missing(21), np.ones(2 * ENVS))
    assert len(p.missing(21)) == 0
    p.set_state(saved)
    assert len(p.missing(21)) == 2 * ENVS
