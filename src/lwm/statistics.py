"""How sure a mean is: intervals over seeds, and over several tasks at once.

Over the seeds of one task: Student's t.  Over several tasks: the interquartile mean of normalised
scores with a stratified bootstrap interval (seeds are drawn anew within each task), since few
seeds of many tasks are better pooled than averaged one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

_T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179,
         2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093)  # fmt: skip
"""Quantile 0.975 of Student's t for 1 ... 19 degrees of freedom; beyond, the last is used."""


def half_width(values: ArrayLike) -> float | None:
    """Half of the 95 % interval of the mean by Student's t; None for fewer than two values."""
    x = np.asarray(values, np.float64)
    if len(x) < 2:
        return None
    return float(_T975[min(len(x) - 2, len(_T975) - 1)] * x.std(ddof=1) / np.sqrt(len(x)))


def interquartile_mean(values: ArrayLike) -> float:
    """Mean of the middle half [n]: a quarter of the weight is cut off at each end.

    Where n is not a multiple of 4, the values at the two cuts count in part.
    """
    x = np.sort(np.asarray(values, np.float64).ravel())
    if not len(x):
        raise ValueError("no values")
    edges = np.arange(len(x) + 1) / len(x)
    weight = np.clip(edges[1:], 0.25, 0.75) - np.clip(edges[:-1], 0.25, 0.75)
    return float(x @ weight / weight.sum())


def stratified_bootstrap(
    tasks: Sequence[ArrayLike],
    statistic: Callable[[Floats], float] = interquartile_mean,
    draws: int = 2000,
    seed: int = 0,
) -> tuple[float, float] | None:
    """95 % percentile interval of ``statistic`` over all scores pooled.

    Args:
        tasks: for each task its scores, one a seed; they may differ in number.
        statistic: of the pooled scores [n].
        draws: how often the seeds of each task are drawn anew, with replacement.
        seed: of those draws.

    Returns:
        Low and high; None if any task has a single seed, whose spread cannot be known.
    """
    scores = [np.asarray(task, np.float64) for task in tasks]
    if not scores or min(map(len, scores)) < 2:
        return None
    rng = np.random.default_rng(seed)
    drawn = np.concatenate([s[rng.integers(len(s), size=(draws, len(s)))] for s in scores], axis=1)
    low, high = np.quantile([statistic(row) for row in drawn], (0.025, 0.975))
    return float(low), float(high)
