"""Layouts of the labyrinth: random spanning trees carved by the recursive backtracker.

Directions are always in the order up, down, left, right; rooms are numbered row by row.  The doors
of a room are kept as four bits, bit i for direction i.

Randomness is a function, not a stream: draw d of episode e under seed s is a hash of (s, e, d).  So
one environment and many in parallel play the same episodes, and layouts can be carved in batches
before they are needed.  Draw 0 is the start room, draws 1 .. size*size-1 are the carving moves and
draw size*size is the cell where carving starts, if that is random; what an episode needs beside its
layout takes draws behind these.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]
CARVE_STARTS = ("corner", "random")
_GAMMA, _MUL1, _MUL2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK64 = (1 << 64) - 1

BITS = np.array([[(code >> i) & 1 for i in range(4)] for code in range(16)], np.int8)
"""[16, 4] four bits, as an observation shows them."""
_CHOICES = [[i for i in range(4) if code >> i & 1] for code in range(16)]
"""[16][count] the directions whose bits are set."""
_COUNT = np.array([len(c) for c in _CHOICES])
_PICK = np.array([[*c, *[4] * (4 - len(c))] for c in _CHOICES]).ravel()
"""[16 * 4] the k-th direction whose bit is set; 4 (nowhere) if there is none."""
_DOOR = np.array([1, 2, 4, 8, 0], np.uint8)
_DOOR_BACK = np.array([2, 1, 8, 4, 0], np.uint8)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The output function of splitmix64, elementwise on any shape."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_MUL1)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_MUL2)
    return x ^ (x >> np.uint64(31))


def _mix_one(x: int) -> int:
    """:func:`_mix` of one Python integer."""
    x &= _MASK64
    x = (x ^ (x >> 30)) * _MUL1 & _MASK64
    x = (x ^ (x >> 27)) * _MUL2 & _MASK64
    return x ^ (x >> 31)


def _draws(seeds: ArrayLike, episodes: ArrayLike, count: int) -> Ints:
    """[N, count] 32-bit draws 0 .. count-1 of episodes [N] under seeds [N]."""
    gamma = np.uint64(_GAMMA)
    seed = np.atleast_1d(np.asarray(seeds)).astype(np.uint64)
    episode = np.atleast_1d(np.asarray(episodes)).astype(np.uint64)
    key = _mix(_mix(seed + gamma) + episode * gamma)
    draws = _mix(key[:, None] + np.arange(1, count + 1, dtype=np.uint64) * gamma)
    return (draws >> np.uint64(32)).astype(np.int64)


def draw(seeds: Ints, episodes: Ints, numbers: Ints) -> Ints:
    """[N] the 32-bit draws ``numbers`` [N] of episodes [N] under seeds [N], one each."""
    gamma = np.uint64(_GAMMA)
    key = _mix(_mix(seeds.astype(np.uint64) + gamma) + episodes.astype(np.uint64) * gamma)
    draws = _mix(key + (numbers.astype(np.uint64) + np.uint64(1)) * gamma)
    return (draws >> np.uint64(32)).astype(np.int64)


def carve_bits(
    seeds: ArrayLike, episodes: ArrayLike, size: int, carve_start: str = "corner"
) -> tuple[NDArray[np.uint8], Ints]:
    """Layouts of many episodes by the recursive backtracker, all carved side by side.

    Args:
        seeds: [N] or scalar, each in [0, 2**63).
        episodes: [N] or scalar episode numbers.
        size: rooms along one side.
        carve_start: ``corner`` for room 0, ``random`` for any room.

    Returns:
        doors [N, size*size] as four bits per room; start rooms [N].
    """
    rooms, width = size * size, size + 2  # a closed border spares all tests for the edge
    draws = _draws(seeds, episodes, rooms + 1)
    lanes = np.arange(len(draws))
    area = width * width
    step = np.array([-width, width, -1, 1, 0])
    padded = np.arange(area).reshape(width, width)[1:-1, 1:-1].ravel()
    free = np.zeros((len(lanes), area), np.uint8)
    free[:, padded] = 1
    doors = np.zeros_like(free)
    flat_free, flat_doors, flat_draws = free.reshape(-1), doors.reshape(-1), draws.reshape(-1)

    begin = (draws[:, rooms] * rooms) >> 32 if carve_start == "random" else np.zeros_like(lanes)
    here = lanes * area + padded[begin]
    flat_free[here] = 0
    # The stacks of all lanes, [depth, lane]; `top` is a flat index into them.
    stack = np.empty((rooms + 1) * len(lanes), np.int64)
    stack[lanes] = here
    top = lanes.copy()
    next_draw = lanes * (rooms + 1) + 1
    weights = np.array([1, 2, 4, 8], np.uint8)
    carved = 0
    while carved < len(lanes) * (rooms - 1):
        # Every lane either carves one door or goes back one room.  Going back is direction 4:
        # no move, no door, so that both need the same few operations.
        code = flat_free.take(here[:, None] + step[:4]).dot(weights)
        count = _COUNT.take(code)
        way = _PICK.take(code * 4 + ((flat_draws.take(next_draw) * count) >> 32))
        moving = way < 4
        carved += int(np.count_nonzero(moving))
        next_draw += moving
        there = here + step.take(way)
        flat_doors[here] |= _DOOR.take(way)
        flat_doors[there] |= _DOOR_BACK.take(way)
        flat_free[there] = 0
        stack[top + len(lanes)] = there
        top = np.maximum(top + np.where(moving, len(lanes), -len(lanes)), lanes)
        here = stack.take(top)
    return doors[:, padded], (draws[:, 0] * rooms) >> 32


def carve(
    seeds: ArrayLike, episodes: ArrayLike, size: int, carve_start: str = "corner"
) -> tuple[NDArray[np.bool_], Ints]:
    """As :func:`carve_bits`, with doors as [N, size*size, 4] bool."""
    bits, start = carve_bits(seeds, episodes, size, carve_start)
    return BITS[bits].astype(np.bool_), start


def carve_one(
    seed: int, episode: int, size: int, carve_start: str = "corner"
) -> tuple[list[int], int]:
    """The layout of one episode: doors of each room as four bits, and the start room."""
    rooms = size * size
    key = _mix_one(_mix_one(seed + _GAMMA) + episode * _GAMMA)

    def draw(number: int, count: int) -> int:
        return (_mix_one(key + (number + 1) * _GAMMA) >> 32) * count >> 32

    doors, free = [0] * rooms, [True] * rooms
    here = draw(rooms, rooms) if carve_start == "random" else 0
    free[here] = False
    path = [here]
    for number in range(1, rooms):
        while not (choices := _free_neighbours(free, here, size)):
            path.pop()
            here = path[-1]
        way, there = choices[draw(number, len(choices))]
        doors[here] |= 1 << way
        doors[there] |= 1 << (way ^ 1)
        free[there] = False
        path.append(there)
        here = there
    return doors, draw(0, rooms)


def _free_neighbours(free: list[bool], room: int, size: int) -> list[tuple[int, int]]:
    """(direction, room) of each unvisited neighbour, in the order of the directions."""
    row, column = divmod(room, size)
    found = []
    if row > 0 and free[room - size]:
        found.append((0, room - size))
    if row < size - 1 and free[room + size]:
        found.append((1, room + size))
    if column > 0 and free[room - 1]:
        found.append((2, room - 1))
    if column < size - 1 and free[room + 1]:
        found.append((3, room + 1))
    return found


def layout_probabilities(size: int) -> dict[tuple[int, ...], Fraction]:
    """Every layout (four door bits per room) with its exact probability.

    Follows all choices of the recursive backtracker from room 0, so it is meant for size <= 4.
    """
    found: dict[tuple[int, ...], Fraction] = {}

    def carve(doors: list[int], free: list[bool], path: list[int], chance: Fraction) -> None:
        while path and not (choices := _free_neighbours(free, path[-1], size)):
            path = path[:-1]
        if not path:
            found[tuple(doors)] = found.get(tuple(doors), Fraction(0)) + chance
            return
        for way, there in choices:
            more_doors, less_free = doors.copy(), free.copy()
            more_doors[path[-1]] |= 1 << way
            more_doors[there] |= 1 << (way ^ 1)
            less_free[there] = False
            carve(more_doors, less_free, [*path, there], chance / len(choices))

    rooms = size * size
    carve([0] * rooms, [False] + [True] * (rooms - 1), [0], Fraction(1))
    return found


def in_any_orientation(
    layouts: dict[tuple[int, ...], Fraction], size: int
) -> dict[tuple[int, ...], Fraction]:
    """The layouts, each in one of its eight orientations with equal chance.

    A policy that treats all orientations alike scores the same on these as on ``layouts``.
    """
    found: dict[tuple[int, ...], Fraction] = {}
    for doors, chance in layouts.items():
        for mirrored in (doors, _mirrored(doors, size)):
            seen = mirrored
            for _ in range(4):
                seen = _quarter_turn(seen, size)
                found[seen] = found.get(seen, Fraction(0)) + chance / 8
    return found


def _mirrored(doors: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Left and right exchanged."""
    rooms = (doors[row * size + size - 1 - c] for row in range(size) for c in range(size))
    return tuple(d & 0b0011 | (d & 0b0100) << 1 | (d & 0b1000) >> 1 for d in rooms)


def _quarter_turn(doors: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Clockwise: the left column becomes the top row, what was up is right."""
    rooms = (doors[(size - 1 - c) * size + row] for row in range(size) for c in range(size))
    up_down_left_right = (3, 2, 0, 1)
    return tuple(sum((d >> w & 1) << to for w, to in enumerate(up_down_left_right)) for d in rooms)
