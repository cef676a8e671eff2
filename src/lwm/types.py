"""The vocabulary: rows of experience, what replay hands out, and what the loop reports.

All code obeys one time diagram.  A *row* is one moment of one environment::

    row            0        1        2    ...  T        T+1      T+2
    obs           x0       x1       x2        xT       y0       y1
    a_tm1          -       a0       a1       aT-1       -       c0      the action that led here
    r_t            -       r1       r2        rT        -       ...     what it paid
    is_first       1        0        0         0        1        0
    is_last        0        0        0         1        0        0      terminated or truncated here
    discount_t     1        1        1      0 or 1      1        1      0 only on true termination

An episode of T actions takes T+1 rows.  The step from an ``is_last`` row to an ``is_first`` row is
no transition: it is not a frame of the budget and has weight 0 in every loss, moment and bonus.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Step(NamedTuple):
    """One row of each of B environments, as an environment returns it."""

    obs: NDArray[Any]
    """[B, ...] observation, in the environment's own dtype."""
    a_tm1: NDArray[np.int64]
    """[B] action that led here; 0 on a first row."""
    r_t: NDArray[np.float32]
    """[B] extrinsic reward it paid; 0 on a first row."""
    is_first: NDArray[np.bool_]
    """[B] first row of an episode."""
    is_last: NDArray[np.bool_]
    """[B] the episode was terminated or truncated on arriving here."""
    discount_t: NDArray[np.float32]
    """[B] 0 only where the environment terminated, else 1."""
    episode_return: NDArray[np.float32]
    """[B] sum of the extrinsic rewards of the reported episode up to this row."""
    episode_length: NDArray[np.int64]
    """[B] agent steps of the reported episode up to this row."""
    episode_end: NDArray[np.bool_]
    """[B] the reported episode ends here.  Differs from ``is_last`` only where training episodes
    are shorter than reported ones (Atari: a life against a whole game)."""

    @property
    def transitions(self) -> int:
        """Real environment transitions that arrive in this row (frames of the budget)."""
        return int(self.is_first.size - np.count_nonzero(self.is_first))


class Unroll(NamedTuple):
    """B windows of T rows each, time-major, as replay hands them to the learner."""

    obs: NDArray[Any]
    """[T, B, ...]."""
    a_tm1: NDArray[np.int64]
    """[T, B]."""
    r_t: NDArray[np.float32]
    """[T, B]."""
    is_first: NDArray[np.bool_]
    """[T, B]."""
    is_last: NDArray[np.bool_]
    """[T, B]."""
    discount_t: NDArray[np.float32]
    """[T, B]."""
    h: NDArray[np.float32]
    """[B, H] recurrent state of the DQN that precedes row 0, as the actor had it (H = 0 where it
    is not stored)."""
    belief: NDArray[np.float32]
    """[B, Hb] the actor's world-model state after row 0 (Hb = 0 where it is not stored)."""
    r_in: NDArray[np.float32]
    """[T, B] bonus as the actor saw it when the row was collected (stale by design)."""
    origin: NDArray[np.int64]
    """[B, 2] (row number since the run began, environment) of row 0: the name of the window."""


class Pairs(NamedTuple):
    """N positive pairs for the encoder: frames of one episode, a few rows apart (row 11)."""

    x: NDArray[Any]
    """[N, ...] the earlier frame."""
    y: NDArray[Any]
    """[N, ...] the later one."""


class Stage(NamedTuple):
    """How far a piece of work between frames has come."""

    name: str
    done: int
    total: int


@dataclass(frozen=True)
class Event:
    """What the training loop yields; consumers write it, the loop never does.

    ``data`` holds only values that the seed determines.
    """

    kind: str
    """``warmup``, ``pretrain``, ``train``, ``end``, ``cycle`` (nothing to tell); of a run on disk
    also ``validation``."""
    frames: int
    """Environment transitions since the run began."""
    data: dict[str, Any] = field(default_factory=dict)
    stage: Stage | None = None
    """While no frames pass: how far the pretraining is."""
