"""Intervals and interquartile means, against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from lwm.statistics import half_width, interquartile_mean, stratified_bootstrap, task_weights


def mean(x: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    return float(x @ weights)


def test_students_interval_by_hand() -> None:
    # Standard deviation 1, three values, t(0.975, 2) = 4.303; then 5 values, t(0.975, 4) = 2.776.
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(4.303 / 3**0.5)
    assert half_width([0, 0, 0, 0, 5]) == pytest.approx(2.776 * 5**0.5 / 5**0.5)
    assert half_width([4.0]) is None
    assert half_width([2.0, 2.0]) == 0.0


def test_interquartile_mean_by_hand() -> None:
    # Of eight, the middle four; of four, the middle two; order does not matter.
    assert interquartile_mean([100, 1, 2, 3, 4, 5, 6, -100]) == pytest.approx(3.5)
    assert interquartile_mean([9, 1, 2, 1000]) == pytest.approx(5.5)
    # Of three (a third each), the middle one whole and a quarter of either neighbour:
    # (1/12 * 0 + 1/3 * 3 + 1/12 * 12) / (1/2) = 4.
    assert interquartile_mean([0, 3, 12]) == pytest.approx(4.0)
    # Of two, all of both halves' inner quarters; one value is itself.
    assert interquartile_mean([2, 4]) == pytest.approx(3.0)
    assert interquartile_mean([7]) == 7.0
    with pytest.raises(ValueError):
        interquartile_mean([])


def test_a_task_weighs_the_same_whatever_its_number_of_seeds() -> None:
    # One task scores 0 with one seed, the other 1 with three: half the weight each, so the middle
    # half is a quarter of each.  By number of values it would be 0 once and 1 three times: 1.
    tasks = [[0.0], [1.0, 1.0, 1.0]]
    assert task_weights(tasks).tolist() == pytest.approx([1 / 2, 1 / 6, 1 / 6, 1 / 6])
    assert interquartile_mean([0, 1, 1, 1], task_weights(tasks)) == pytest.approx(0.5)
    assert interquartile_mean([0, 1, 1, 1]) == 1.0
    # Weights 0.1, 0.4, 0.5 of 1, 10, 100: the cuts leave 0, 0.25 and 0.25 of the weight.
    assert interquartile_mean([100, 1, 10], [0.5, 0.1, 0.4]) == pytest.approx(55.0)
    with pytest.raises(ValueError):
        task_weights([[1.0], []])


def test_the_bootstrap_weighs_tasks_alike() -> None:
    # Constant tasks of two and six seeds: the mean of task means is 1/2, that of scores 3/4.
    assert stratified_bootstrap([[0.0] * 2, [1.0] * 6], mean) == pytest.approx((0.5, 0.5))
    assert stratified_bootstrap([[0.0] * 2, [1.0] * 6]) == pytest.approx((0.5, 0.5))


def test_bootstrap_draws_within_tasks() -> None:
    # Each task is constant: drawing within tasks changes nothing, drawing across them would.
    assert stratified_bootstrap([[0.0] * 3, [1.0] * 3], mean) == pytest.approx((0.5, 0.5))
    # Two tasks of two seeds: means are 0, 1/4, 1/2 ... with known chances, so the 95 % interval
    # reaches both ends (the ends have a chance of 1/16 each).
    low, high = stratified_bootstrap([[0.0, 1.0], [0.0, 1.0]], mean)
    assert (low, high) == (0.0, 1.0)


def test_bootstrap_is_the_same_each_time_and_about_right() -> None:
    scores = [np.random.default_rng(k).normal(k, 1.0, 50) for k in range(4)]
    first = stratified_bootstrap(scores, mean)
    assert first == stratified_bootstrap(scores, mean)
    # 200 scores of spread 1 around task means: the interval of the mean is about ± 1.96/sqrt(200).
    assert first is not None
    assert first[1] - first[0] == pytest.approx(2 * 1.96 / 200**0.5, rel=0.15)
    assert first[0] < np.mean(scores) < first[1]


def test_a_task_with_one_seed_has_no_interval() -> None:
    assert stratified_bootstrap([[1.0, 2.0], [3.0]]) is None
    assert stratified_bootstrap([]) is None
