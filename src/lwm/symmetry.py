"""The eight symmetries of a square grid, applied to replay windows of the labyrinth.

A walk through a labyrinth, mirrored or turned, is a walk through another labyrinth: the four
passage bits and the four actions are permuted alike.  Used by preset ``best`` to see each walk in
eight orientations: in the learner one at random (a stored state belongs to the orientation that it
was made in, so only windows that start without a past are turned), in the actors all at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lwm.types import Unroll

_QUARTER_TURN = np.array([3, 2, 0, 1])  # of up, down, left, right: up -> right -> down -> left
_MIRROR = np.array([0, 1, 3, 2])


def _group() -> NDArray[np.int64]:
    """[8, 4] where each symmetry takes each direction; the first one changes nothing."""
    turns = [np.arange(4)]
    for _ in range(3):
        turns.append(_QUARTER_TURN[turns[-1]])
    return np.stack([*turns, *(_MIRROR[turn] for turn in turns)])


GROUP = _group()


class Views(NamedTuple):
    """Windows of a batch that are the same but for their orientation."""

    to: Tensor
    """[B, 4] where the orientation of each takes each direction."""
    window: Tensor
    """[B] the first place in the batch that has the same window."""


def repeated(unroll: Unroll, views: int) -> tuple[Unroll, NDArray[np.int64]]:
    """The windows [T, B] with fewer of those that can be turned, each ``views`` times.

    -> the windows, and the first place of the same window [B].
    """
    lane = np.arange(len(unroll.h))
    free = np.flatnonzero(~_with_a_past(unroll))
    kept = len(free) // views
    lane[free[: kept * views]] = np.repeat(free[:kept], views)
    first = np.full(len(lane), len(lane))
    np.minimum.at(first, lane, np.arange(len(lane)))
    batch_first = {"h", "belief", "origin"}
    again = {
        name: rows[lane] if name in batch_first else rows[:, lane]
        for name, rows in unroll._asdict().items()
    }
    return Unroll(**again), first[lane]


def in_views(unroll: Unroll, views: int, rng: np.random.Generator) -> tuple[Unroll, Views | None]:
    """The windows [T, B] in random orientations; with ``views`` of each that can be turned."""
    B, among = len(unroll.h), len(GROUP)
    if views == 1:
        return turned(unroll, rng.integers(among, size=B)), None
    unroll, window = repeated(unroll, views)
    # The n-th copy of a window has the n-th entry of the window's own order of orientations.
    order = rng.permuted(np.tile(np.arange(among), (B, 1)), axis=1)
    copy = np.zeros(B, np.int64)
    for lane in range(B):
        copy[lane] = np.count_nonzero(window[:lane] == window[lane])
    which = np.where(_with_a_past(unroll), 0, order[window, copy])
    seen = Views(torch.from_numpy(GROUP[which]), torch.from_numpy(window))
    return turned(unroll, which), seen


def mean_of_views(q: Tensor, views: Views) -> Tensor:
    """Q-values [T, B, 4] -> their mean over the views of each window, turned back [T, B, 4]."""
    to, window = views.to.to(q.device), views.window.to(q.device)
    own = q.gather(-1, to.expand_as(q))
    count = torch.bincount(window, minlength=len(window)).clamp(min=1)
    total = torch.zeros_like(own).index_add_(1, window, own)
    return (total / count[:, None])[:, window]


def _with_a_past(unroll: Unroll) -> NDArray[np.bool_]:
    """[B] windows whose first row carries a past (a state that is not zero)."""
    return (unroll.h.any(1) | unroll.belief.any(1)) & ~unroll.is_first[0]


def turned(unroll: Unroll, which: NDArray[np.int64]) -> Unroll:
    """Windows [T, B] seen in other orientations: ``which`` [B] in 0 .. 7.

    A window with a past stays as it is.
    """
    where = GROUP[np.where(_with_a_past(unroll), 0, which)]
    obs = np.empty_like(unroll.obs)
    np.put_along_axis(obs, np.broadcast_to(where, obs.shape), unroll.obs, axis=-1)
    a_tm1 = where[np.arange(len(where)), unroll.a_tm1] * ~unroll.is_first
    return unroll._replace(obs=obs, a_tm1=a_tm1)


_TO = torch.from_numpy(GROUP)
_FROM = _TO.argsort(1)


def bits_in_all(bits: Tensor) -> Tensor:
    """Passage bits [B, 4] in every orientation [8 B, 4], orientation by orientation."""
    return bits[:, _FROM.to(bits.device)].transpose(0, 1).flatten(0, 1)


def actions_in_all(action: Tensor) -> Tensor:
    """Actions [B] in every orientation [8 B]."""
    return _TO.to(action.device)[:, action].flatten()


def mean_of_all(q: Tensor) -> Tensor:
    """Q-values in every orientation [8 B, 4] -> their mean, turned back [B, 4]."""
    views = q.view(len(_TO), -1, 4)
    back = _TO.to(q.device)[:, None].expand_as(views)
    return views.gather(-1, back).mean(0)
