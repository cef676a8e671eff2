"""Limits of the labyrinth: by hand on 2x2, exactly where it can be, else within standard errors."""

from __future__ import annotations

import numpy as np
import pytest

from lwm.envs.labyrinth import LabyrinthEnv
from lwm.envs.labyrinth_layouts import in_any_orientation, layout_probabilities
from lwm.envs.oracles import (
    BayesExplorer,
    blind_dfs,
    full_map_optimum,
    limits,
    random_walk,
)


def assert_mean(returns: np.ndarray, expected: float, rounding: float = 0.0) -> None:
    """The mean lies within 4 standard errors of the expected value, itself rounded."""
    error = returns.std(ddof=1) / np.sqrt(len(returns))
    assert abs(returns.mean() - expected) < 4 * error + rounding, (returns.mean(), expected, error)


def test_2x2_by_hand() -> None:
    """A corridor of four rooms, so the start is an end or next to one, each half of the time.

    Random: from room k of a corridor the next room takes 4 + the time of room k-1 on average, so
    4 + 8 + 12 = 24 from end to end; from beside an end 1 * 2 / (2 * 1/4) = 4 to either end, then
    24.  Depth first: 3 from an end; else 4 or 5, by luck.  With the map: 3 or 4.  The explorer can
    tell from its doors where it stands, except in room 3, opposite to where carving began.
    """
    assert_mean(random_walk(2, 8192, 0), -(24 + 28) / 2)
    assert_mean(blind_dfs(2, 8192, 0), -(3 + 4.5) / 2)
    assert_mean(full_map_optimum(2, 8192, 0), -(3 + 4) / 2)
    assert set(full_map_optimum(2, 100, 0)) == {-3.0, -4.0}
    assert set(blind_dfs(2, 100, 0)) == {-3.0, -4.0, -5.0}
    assert BayesExplorer(2).value == pytest.approx(-(3 / 2 + 4 / 4 + 4.5 / 4))


@pytest.mark.parametrize(("size", "score"), [(3, -159), (4, -487), (5, -835)])
def test_random_walk(size: int, score: float) -> None:
    """The published scores are simulated means, so their own error is allowed for as well."""
    returns = random_walk(size, 4096, 1)
    assert returns.shape == (4096,) and returns.min() >= -1000
    assert_mean(returns, score, rounding=3.0)


def test_the_random_walk_obeys_its_limit_and_seed() -> None:
    assert set(random_walk(5, 50, 0, time_limit=20)) == {-20.0}
    assert (random_walk(3, 50, 7) == random_walk(3, 50, 7)).all()
    assert (random_walk(3, 50, 7) != random_walk(3, 50, 8)).any()


@pytest.mark.parametrize(
    ("size", "dfs", "optimum"),
    [
        (3, -11.67, -10.26),
        (4, -23.72, -20.04),
        (5, -39.95, -33.05),
        (6, -60.18, -49.21),
        (8, -113.4, -91.13),
    ],
)
def test_depth_first_and_full_map(size: int, dfs: float, optimum: float) -> None:
    walked, known = blind_dfs(size, 8192, 3), full_map_optimum(size, 8192, 3)
    assert_mean(walked, dfs, rounding=0.06)
    assert_mean(known, optimum, rounding=0.06)
    assert (walked <= known).all()


def test_depth_first_equals_a_walk_on_foot() -> None:
    """The closed form against a player that really walks, on the same labyrinths."""
    rng = np.random.default_rng(0)
    env = LabyrinthEnv(4)
    steps = (-4, 4, -1, 1)
    returns = []
    for seed in range(3000):
        obs, _ = env.reset(seed=seed)
        at, untried, way_back, count, over = 0, {}, [], 0, False
        while not over:
            if at not in untried:
                entrance = way_back[-1] if way_back else None
                untried[at] = [way for way in range(4) if obs[way] and way != entrance]
                rng.shuffle(untried[at])
            forward = bool(untried[at])
            action = untried[at].pop() if forward else way_back.pop()
            if forward:
                way_back.append(action ^ 1)
            at += steps[action]
            obs, _, over, _, _ = env.step(action)
            count += 1
        returns.append(-count)
    difference = np.array(returns) - blind_dfs(4, 3000, 0)
    assert difference.any()  # other luck, same distribution
    assert_mean(difference, 0.0)


@pytest.mark.parametrize(("size", "value"), [(3, -10.63), (4, -21.12)])
def test_the_bayes_optimal_explorer(size: int, value: float) -> None:
    explorer = BayesExplorer(size)
    assert explorer.value == pytest.approx(value, abs=0.005)
    played = explorer.simulate(1500, 0)
    assert_mean(played, explorer.value)
    assert (played <= full_map_optimum(size, 1500, 0)).all()


def test_the_bayes_optimal_explorer_with_slips() -> None:
    explorer = BayesExplorer(3)
    slipping = explorer.simulate(8000, 100, epsilon=0.01)
    assert_mean(slipping, -10.74, rounding=0.005)
    assert slipping.mean() < explorer.simulate(8000, 100).mean() - 0.05
    assert_mean(explorer.simulate(1000, 0, epsilon=1.0), -159, rounding=3.0)


def test_the_best_that_treats_all_orientations_alike() -> None:
    """2x2 is a corridor of four rooms.  From an end it takes 3 steps; from an inner room 4 if the
    near end comes first and 5 if not, which nobody can know where no orientation is preferred."""
    assert BayesExplorer(2, any_orientation=True).value == pytest.approx(-(3 / 2 + 4.5 / 2))
    assert BayesExplorer(3, any_orientation=True).value < BayesExplorer(3).value - 0.5


def test_layouts_in_any_orientation() -> None:
    """3x3: all that can be made of the 14 by turning and mirroring, none preferred."""
    plain = layout_probabilities(3)
    alike = in_any_orientation(plain, 3)
    assert sum(alike.values()) == 1 and set(plain) < set(alike)
    for doors, chance in alike.items():
        grid = np.array(doors).reshape(3, 3)
        bits = np.stack([grid >> way & 1 for way in range(4)], -1)  # up, down, left, right
        turned = np.rot90(bits, -1)[..., [2, 3, 1, 0]]  # clockwise: left is up now
        upside_down = bits[::-1][..., [1, 0, 2, 3]]
        for other in (turned, upside_down):
            code = (other << np.arange(4)).sum(-1).ravel()
            assert alike[tuple(code.tolist())] == chance


def test_what_an_explorer_knows() -> None:
    """2x2, one door that leads right: only room 0 of the layout that was carved right first, or
    room 2 of the same; both are ends of the corridor."""
    explorer = BayesExplorer(2)
    info = explorer.begin(np.array([0, 0, 0, 1], np.int8))
    assert info.belief.bit_count() == 2
    assert explorer.policy(info) == 3
    assert explorer.observe(info, 0, np.array([0, 0, 0, 1], np.int8)) == info
    info = explorer.observe(info, 3, np.array([0, 1, 1, 0], np.int8))
    assert info.belief.bit_count() == 1
    assert (info.visited, info.at) == (0b11, 1)
    assert explorer.policy(info) == 1
    back = explorer.observe(info, 2, np.array([0, 0, 0, 1], np.int8))
    assert (back.belief, back.visited, back.at) == (info.belief, 0b11, 0)
    with pytest.raises(ValueError, match="no layout"):
        explorer.begin(np.ones(4, np.int8))


@pytest.mark.parametrize("size", [1, 5])
def test_sizes_of_the_explorer(size: int) -> None:
    with pytest.raises(ValueError, match="sizes 2, 3 and 4"):
        BayesExplorer(size)


def test_rows_of_limits() -> None:
    rows = limits(3, 256, 0)
    bayes = ["bayes-optimal", "bayes-any-orientation", "bayes-optimal-eps0.01"]
    names = ["random", "blind-dfs", *bayes, "full-map"]
    assert [row["player"] for row in rows] == names
    assert [row["episodes"] for row in rows] == [256, 256, 0, 0, 256, 256]
    assert {row["size"] for row in rows} == {3}
    by_name = {row["player"]: row for row in rows}
    assert by_name["random"]["score"] < by_name["blind-dfs"]["score"] < by_name["full-map"]["score"]
    optimum = full_map_optimum(3, 256, 0)
    assert by_name["full-map"]["score"] == optimum.mean()
    assert by_name["full-map"]["standard_error"] == pytest.approx(optimum.std(ddof=1) / 16)
    assert [row["player"] for row in limits(5, 64, 0)] == ["random", "blind-dfs", "full-map"]
