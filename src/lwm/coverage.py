"""How much of a game was explored, where its RAM tells (a score stays 0 for a long time)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lwm.config import Config
from lwm.errors import BadInput

RAM = {"montezuma_revenge": (3, 42, 43)}
"""Game -> addresses of the room, x and y."""

_CELL = 8
"""Pixels of x and y that count as one position."""


class Coverage:
    """The distinct positions (room, x div 8, y div 8) seen so far."""

    def __init__(self, game: str) -> None:
        if game not in RAM:
            known = ", ".join(RAM)
            raise BadInput(f"coverage needs the game's RAM map; {game} has none (known: {known})")
        self._addresses = list(RAM[game])
        side = 256 // _CELL
        self.seen = np.zeros((256, side, side), np.bool_)

    def add(self, ram: NDArray[np.uint8]) -> None:
        """Note where B games are: [B, 128]."""
        room, x, y = ram[:, self._addresses].T
        self.seen[room, x // _CELL, y // _CELL] = True

    @property
    def rooms(self) -> int:
        """Rooms entered."""
        return int(self.seen.any((1, 2)).sum())

    @property
    def positions(self) -> int:
        """Positions visited, over all rooms."""
        return int(self.seen.sum())


def coverage_of(game: str, wanted: str) -> Coverage | None:
    """A counter where one is ``wanted``: ``on``, ``off``, or ``auto`` (where the RAM tells)."""
    asked = wanted == "on" or (wanted == "auto" and game in RAM)
    return Coverage(game) if asked else None


def coverage_in(config: Config) -> Coverage | None:
    """The counter that a run asks for; without the games' RAM there is none."""
    c = config.atari
    if config.workload != "atari" or c.backend != "own":
        return None
    return coverage_of(c.game, c.coverage)
