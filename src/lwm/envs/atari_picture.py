"""From emulator screens to the agent's picture: max over RGB, then grey, then area resize.

Every number on the way is an integer below 2**24 held in float32, so the matrix products are exact:
the bytes are the same on every machine, with any BLAS, with any number of threads.
"""

from __future__ import annotations

from math import gcd
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

SIZE = 84
# A pair of colours not seen yet.  So far below zero that no weighted sum of greys can hide it.
_UNKNOWN = np.float32(-1e9)


class Display(Protocol):
    """The part of ``ale_py.ALEInterface`` that shows colours."""

    def getScreenRGB(self) -> NDArray[np.uint8]:
        """[H, W, 3] the screen in colour."""


def grey(rgb: NDArray[np.integer]) -> NDArray[np.int64]:
    """[..., 3] colours -> [...] luma of ITU-R BT.601, rounded half up."""
    return (rgb.astype(np.int64) @ np.array([299, 587, 114]) + 500) // 1000


def area_weights(source: int, target: int) -> tuple[int, NDArray[np.float32]]:
    """How ``target`` pixels cover ``source`` ones, as integers.

    The pattern repeats: returns the number of repetitions g and [target/g, source/g] weights.  A
    weight is the shared length in units of g/target source pixels; each row sums to source/g.
    """
    g = gcd(source, target)
    p, q = source // g, target // g
    start, end = np.arange(q)[:, None] * p, np.arange(1, q + 1)[:, None] * p
    left, right = np.arange(p) * q, np.arange(1, p + 1) * q
    shared = np.minimum(end, right) - np.maximum(start, left)
    return g, np.maximum(shared, 0).astype(np.float32)


class Camera:
    """Pictures of one game; its emulators share the colours learned.

    A table over pairs of palette indices holds the grey of the RGB maximum.  The emulator does not
    tell its palette (NTSC and PAL games differ), so colours are learned from its RGB screens as
    they first appear.
    """

    def __init__(self, height: int, width: int) -> None:
        # Screen and picture divide into the same number of bands: 42 times 5 rows -> 2 rows.
        self.bands, self._row_weights = area_weights(height, SIZE)
        self._columns, weights = area_weights(width, SIZE)
        self._divisor = np.float32(self._row_weights.shape[1] * weights.shape[1])
        self._column_weights = np.ascontiguousarray(weights.T)
        self._rgb = np.zeros((256, 3), np.uint8)
        self._known = b""
        self._table = np.full((256, 256), _UNKNOWN, np.float32)
        self._width = width

    def learn(self, display: Display, screen: NDArray[np.uint8]) -> None:
        """Read the colours of ``screen`` [H, W], which must be what the emulator shows now."""
        colours, place = np.unique(screen, return_index=True)
        self._rgb[colours] = display.getScreenRGB().reshape(-1, 3)[place]
        self._known = bytes(sorted({*self._known, *colours.tolist()}))
        known = np.frombuffer(self._known, np.uint8)
        pooled = np.maximum(self._rgb[colours, None], self._rgb[None, known])
        self._table[np.ix_(colours, known)] = grey(pooled)
        self._table[np.ix_(known, colours)] = grey(pooled).T

    def knows(self, screen: NDArray[np.uint8]) -> bool:
        """Whether all colours of ``screen`` [H, W] are known."""
        # Removing the known bytes is the cheapest way to ask: one pass, no temporary arrays.
        return not screen.tobytes().translate(None, self._known)

    def picture(
        self,
        screens: NDArray[np.uint8],
        before: NDArray[np.uint8] | None,
        out: NDArray[np.uint8],
    ) -> bool:
        """Put the picture of two pooled ``screens`` [2, H, W] into ``out`` [84, 84].

        ``before`` is the pair whose picture ``out`` holds: only bands that differ are made anew.
        False, and nothing is put, if a colour is not known yet.
        """
        older, newer = screens.reshape(2, self.bands, -1)
        if before is not None:
            # Eight pixels at a time: an emulator's lines are 160 pixels long.
            fresh = screens.view(np.uint64) != before.view(np.uint64)
            band = np.flatnonzero(fresh.reshape(2, self.bands, -1).any(axis=2).any(axis=0))
            older, newer = older[band], newer[band]
        if not older.size:
            return True
        pairs = np.left_shift(older, 8, dtype=np.uint16)
        pairs |= newer
        greys = np.take(self._table.reshape(-1), pairs, mode="clip")
        greys = greys.reshape(len(pairs), -1, self._width)
        shorter = np.matmul(self._row_weights, greys)  # [bands, 84/bands, W]
        sums = shorter.reshape(-1, self._column_weights.shape[0]) @ self._column_weights
        if sums.min() < 0:
            return False
        sums += self._divisor / 2  # half up: still whole numbers, so exact
        sums /= self._divisor
        rows = out.reshape(self.bands, -1)
        rows[slice(None) if before is None else band] = sums.reshape(len(pairs), -1)
        return True
