"""The eight symmetries of a square grid, applied to walks through the labyrinth.

A walk through a labyrinth, mirrored or turned, is a walk through another labyrinth: the four
passage bits and the four actions are permuted alike.  Preset ``best`` learns from 4×4 on from walks
in random orientations (a stored state belongs to the orientation that it was made in, so only
windows that start without a past are turned).  An agent can also act on all of them at once
(``dqn.symmetric_share``).
"""

from __future__ import annotations

import functools

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


@functools.cache
def _ways(device: torch.device) -> tuple[Tensor, Tensor]:
    """[8, 4] where each symmetry takes each direction, and from where it brings it."""
    with torch.inference_mode(False):
        to = torch.from_numpy(GROUP)
        return to.to(device), to.argsort(1).to(device)


def bits_in_all(bits: Tensor) -> Tensor:
    """Passage bits [B, 4] in every orientation [8 B, 4], orientation by orientation."""
    _, back = _ways(bits.device)
    return bits[:, back].transpose(0, 1).flatten(0, 1)


def actions_in_all(action: Tensor) -> Tensor:
    """Actions [B] in every orientation [8 B]."""
    to, _ = _ways(action.device)
    return to[:, action].flatten()


def mean_of_all(q: Tensor) -> Tensor:
    """Q-values in every orientation [8 B, 4] -> their mean, turned back [B, 4]."""
    to, _ = _ways(q.device)
    views = q.view(len(to), -1, 4)
    return views.gather(-1, to[:, None].expand_as(views)).mean(0)
