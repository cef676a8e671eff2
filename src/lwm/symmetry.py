"""The eight symmetries of a square grid, applied to replay windows of the labyrinth.

A walk through a labyrinth, mirrored or turned, is a walk through another labyrinth: the four
passage bits and the four actions are permuted alike.  Used by preset ``best`` to see each walk in
eight orientations: in the learner one at random (a stored state belongs to the orientation that it
was made in, so only windows that start without a past are turned), in the actors all at once.
"""

from __future__ import annotations

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


def turned(unroll: Unroll, which: NDArray[np.int64]) -> Unroll:
    """Windows [T, B] seen in other orientations: ``which`` [B] in 0 .. 7.

    A window whose first row carries a past (a state that is not zero) stays as it is.
    """
    past = unroll.h.any(1) | unroll.belief.any(1)
    where = GROUP[np.where(past & ~unroll.is_first[0], 0, which)]
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
