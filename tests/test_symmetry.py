"""Turned windows are walks through turned labyrinths."""

from __future__ import annotations

import numpy as np

from lwm.symmetry import GROUP, turned
from lwm.types import Unroll

UP, DOWN, LEFT, RIGHT = range(4)
MOVES = {UP: (-1, 0), DOWN: (1, 0), LEFT: (0, -1), RIGHT: (0, 1)}


def _unroll(obs: np.ndarray, a_tm1: np.ndarray, is_first: np.ndarray, h: np.ndarray) -> Unroll:
    T, B = a_tm1.shape
    zero = np.zeros((T, B), np.float32)
    off = np.zeros((T, B), np.bool_)
    belief, origin = np.zeros((B, 0), np.float32), np.zeros((B, 2), np.int64)
    return Unroll(obs, a_tm1, zero, is_first, off, zero + 1, h, belief, zero, origin)


def test_the_group_is_the_square_s() -> None:
    assert len({tuple(p) for p in GROUP}) == 8
    assert (GROUP[0] == np.arange(4)).all()
    for p in GROUP:
        # Opposite directions stay opposite: no shear, no exchange of axes by halves.
        assert {p[UP], p[DOWN]} in ({UP, DOWN}, {LEFT, RIGHT})
        for q in GROUP:
            assert tuple(p[q]) in {tuple(r) for r in GROUP}


def test_quarter_turn_by_hand() -> None:
    """A room open to the left, then a step to the left, in all orientations."""
    obs = np.zeros((2, 8, 4), np.int8)
    obs[0, :, LEFT] = 1
    obs[1, :, RIGHT] = 1
    a_tm1 = np.stack([np.zeros(8, np.int64), np.full(8, LEFT)])
    is_first = np.array([[True] * 8, [False] * 8])
    got = turned(_unroll(obs, a_tm1, is_first, np.zeros((8, 3), np.float32)), np.arange(8))
    for k in range(8):
        to = int(GROUP[k][LEFT])
        dy, dx = MOVES[to]
        back = next(d for d, move in MOVES.items() if move == (-dy, -dx))
        assert got.obs[0, k].tolist() == [int(d == to) for d in range(4)]
        assert got.obs[1, k].tolist() == [int(d == back) for d in range(4)]
        assert got.a_tm1[:, k].tolist() == [0, to]
    assert {int(a) for a in got.a_tm1[1]} == {UP, DOWN, LEFT, RIGHT}


def test_a_window_with_a_past_stays() -> None:
    rng = np.random.default_rng(0)
    obs = rng.integers(2, size=(5, 3, 4)).astype(np.int8)
    a_tm1 = rng.integers(4, size=(5, 3))
    is_first = np.zeros((5, 3), np.bool_)
    is_first[0, 1] = True
    h = np.zeros((3, 2), np.float32)
    h[:2] = 1  # window 0 has a past; 1 too, but it begins with an episode; 2 has none
    a_tm1[0, 1] = 0
    before = _unroll(obs, a_tm1, is_first, h)
    got = turned(before, np.full(3, 2))
    assert (got.obs[:, 0] == obs[:, 0]).all() and (got.a_tm1[:, 0] == a_tm1[:, 0]).all()
    assert (got.obs[:, 1:].sum(-1) == obs[:, 1:].sum(-1)).all()
    assert (got.a_tm1[1:, 1:] == GROUP[2][a_tm1[1:, 1:]]).all()
    assert got.a_tm1[0, 1] == 0


def test_a_turn_and_its_inverse_give_the_window_back() -> None:
    rng = np.random.default_rng(1)
    obs = rng.integers(2, size=(6, 8, 4)).astype(np.int8)
    a_tm1 = rng.integers(4, size=(6, 8))
    is_first = rng.random((6, 8)) < 0.3
    a_tm1[is_first] = 0
    before = _unroll(obs, a_tm1, is_first, np.zeros((8, 2), np.float32))
    inverse = np.array(
        [next(k for k in range(8) if (GROUP[k][p] == range(4)).all()) for p in GROUP]
    )
    back = turned(turned(before, np.arange(8)), inverse)
    assert (back.obs == obs).all() and (back.a_tm1 == a_tm1).all()
