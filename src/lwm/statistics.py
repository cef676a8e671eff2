"""How sure a mean is: intervals over seeds, and over several tasks at once.

Over the seeds of one task: Student's t.  Over several tasks: the interquartile mean of normalised
scores with a stratified bootstrap interval (seeds are drawn anew within each task), since few
seeds of many tasks are better pooled than averaged one by one.  Every task has the same weight.
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


def interval(values: ArrayLike, digits: int = 2) -> str:
    """95 % interval of the mean over seeds by Student's t; one seed has none."""
    half, mean = half_width(values), float(np.mean(np.asarray(values, np.float64)))
    return "–" if half is None else f"[{mean - half:.{digits}f}, {mean + half:.{digits}f}]"


def task_weights(tasks: Sequence[ArrayLike]) -> Floats:
    """Weight of each score of all tasks end to end [n]: tasks weigh the same, whatever their number
    of seeds, and so do the seeds of a task.  They sum to 1."""
    counts = [len(np.asarray(task)) for task in tasks]
    if not counts or not min(counts):
        raise ValueError("no values")
    return np.repeat([1 / (len(counts) * n) for n in counts], counts)


def interquartile_mean(values: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Mean of the middle half [n]: a quarter of the weight is cut off at each end.

    A value at one of the two cuts counts in part.  ``weights`` [n]: the same for all if not given.
    """
    x = np.asarray(values, np.float64).ravel()
    if not len(x):
        raise ValueError("no values")
    given = np.ones(len(x)) if weights is None else np.asarray(weights, np.float64).ravel()
    order = np.argsort(x, kind="stable")
    edges = np.concatenate([[0.0], np.cumsum(given[order])]) / given.sum()
    kept = np.diff(np.clip(edges, 0.25, 0.75))
    return float(x[order] @ kept / kept.sum())


def stratified_bootstrap(
    tasks: Sequence[ArrayLike],
    statistic: Callable[[Floats, Floats], float] = interquartile_mean,
    draws: int = 2000,
    seed: int = 0,
) -> tuple[float, float] | None:
    """95 % percentile interval of ``statistic`` over all scores pooled.

    Args:
        tasks: for each task its scores, one a seed; they may differ in number.
        statistic: of the pooled scores [n] and their weights [n] (``task_weights``).
        draws: how often the seeds of each task are drawn anew, with replacement.
        seed: of those draws.

    Returns:
        Low and high; None if any task has a single seed, whose spread cannot be known.
    """
    scores = [np.asarray(task, np.float64) for task in tasks]
    if not scores or min(map(len, scores)) < 2:
        return None
    rng, weights = np.random.default_rng(seed), task_weights(scores)
    drawn = np.concatenate([s[rng.integers(len(s), size=(draws, len(s)))] for s in scores], axis=1)
    low, high = np.quantile([statistic(row, weights) for row in drawn], (0.025, 0.975))
    return float(low), float(high)
