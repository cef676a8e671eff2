"""Limits of the labyrinth: players that need no learning, to measure learned ones against.

From worst to best: a random walk, a depth-first walk that remembers what it saw but expects
nothing, the best possible explorer (it also knows how layouts are made) and a player who is shown
the map.  All play the layouts of carving start ``corner`` with the first episode of seeds
``seed, seed + 1, ...``: the same labyrinths, so that the players can be compared in pairs.
Returns are negative step counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from math import lcm
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lwm.envs.labyrinth import LabyrinthEnv
from lwm.envs.labyrinth_layouts import (
    BITS,
    carve_bits,
    in_any_orientation,
    layout_probabilities,
)
from lwm.envs.labyrinth_vector import LabyrinthVectorEnv

Floats = NDArray[np.float64]
_LANES = 4096


def random_walk(size: int, episodes: int, seed: int, time_limit: int = 1000) -> Floats:
    """[episodes] returns of uniformly random actions, cut off at the time limit."""
    rng = np.random.default_rng([seed, 1])
    returns = np.zeros(episodes)
    for first in range(0, episodes, _LANES):
        count = min(_LANES, episodes - first)
        env = LabyrinthVectorEnv(count, size, time_limit)
        env.reset(seed=seed + first)
        playing = np.ones(count, np.bool_)
        while playing.any():
            returns[first : first + count] -= playing
            _, _, terminated, truncated, _ = env.step(rng.integers(4, size=count))
            playing &= ~(terminated | truncated)
    return returns


def blind_dfs(size: int, episodes: int, seed: int) -> Floats:
    """[episodes] returns of a depth-first walk with perfect memory and no expectations.

    It enters untried doors in random order, walks back from dead ends and stops when all rooms have
    been seen.  In a tree it passes every door twice, except those between the start and the last
    room seen.  That room is found by taking in every room, from the start on, the door that comes
    last in its random order, until there is none but the one behind.
    """
    rng = np.random.default_rng([seed, 2])
    doors, room = carve_bits(seed + np.arange(episodes), 0, size)
    steps = np.array([-size, size, -1, 1, 0])
    back = np.array([2, 1, 8, 4, 0])
    lanes, behind = np.arange(episodes), np.zeros(episodes, np.int64)
    depth = np.zeros(episodes, np.int64)
    walking = True
    while walking:
        ahead = BITS[doors[lanes, room] & ~behind].astype(np.float64)
        luck = (1 - rng.random(ahead.shape)) * ahead  # in (0, 1]: a wall never wins
        moved = ahead.any(axis=1)
        way = np.where(moved, luck.argmax(axis=1), 4)
        room = room + steps[way]
        # Who has arrived stays: all doors are behind.
        behind = np.where(moved, back[way], 15)
        depth += moved
        walking = bool(moved.any())
    return (depth - 2 * (size * size - 1)).astype(np.float64)


def full_map_optimum(size: int, episodes: int, seed: int) -> Floats:
    """[episodes] returns of a player who knows the map.

    To visit a whole tree costs two steps per door, less the way back from the farthest room.
    """
    bits, start = carve_bits(seed + np.arange(episodes), 0, size)
    down = (bits & 2 > 0).reshape(episodes, size, size)[:, :-1]
    right = (bits & 8 > 0).reshape(episodes, size, size)[:, :, :-1]
    reached = (np.arange(size * size) == start[:, None]).reshape(episodes, size, size)
    farthest = np.zeros(episodes, np.int64)
    while not reached.all():
        wider = reached.copy()
        wider[:, 1:] |= reached[:, :-1] & down
        wider[:, :-1] |= reached[:, 1:] & down
        wider[:, :, 1:] |= reached[:, :, :-1] & right
        wider[:, :, :-1] |= reached[:, :, 1:] & right
        farthest += ~reached.all(axis=(1, 2))
        reached = wider
    return (farthest - 2 * (size * size - 1)).astype(np.float64)


class Info(NamedTuple):
    """What an explorer knows.  Cells are numbered row * size + column, but counted from the upper
    left corner of the box around the visited rooms, since the explorer does not know where it is.
    """

    belief: int
    """Bit layout * size**2 + room: this layout, with the box's corner at this room, is possible."""
    visited: int
    """Bit per visited cell."""
    at: int
    """Cell of the agent."""


class BayesExplorer:
    """The best possible explorer: exact dynamic programming over states of information.

    The prior is every layout with its probability, times a uniform start room.  Walking where it
    has been teaches it nothing, so a decision is always: to which untried door next?  States that
    differ only in where the walk began are one state (:class:`Info`); in a tree of known rooms the
    value of opening a door does not depend on where the agent stands, only the way there does.

    Args:
        size: rooms along one side, 2 to 4 (beyond that there are too many layouts).
        any_orientation: it takes every labyrinth to be mirrored and turned at random.  Its value
            is what a policy can reach at best that treats all orientations alike.
    """

    def __init__(self, size: int, any_orientation: bool = False) -> None:
        if size not in (2, 3, 4):
            raise ValueError(f"the exact explorer is for sizes 2, 3 and 4, not {size}")
        self.size, self.rooms = size, size * size
        prior = layout_probabilities(size)
        if any_orientation:
            prior = in_any_orientation(prior, size)
        self.layouts = list(prior)
        scale = lcm(*(p.denominator for p in prior.values()))
        self._weight = [int(p * scale) for p in prior.values()]
        self._distance = [
            [_distances(doors, a, size) for a in range(self.rooms)] for doors in prior
        ]
        self._steps = (-size, size, -1, 1)
        # _seen[cell][code]: all hypotheses under which this cell of the box has these doors.
        self._seen = [[0] * 16 for _ in range(self.rooms)]
        self._same_weight: dict[int, int] = {}
        for number, doors in enumerate(self.layouts):
            block = ((1 << self.rooms) - 1) << number * self.rooms
            weight = self._weight[number]
            self._same_weight[weight] = self._same_weight.get(weight, 0) | block
            for corner in range(self.rooms):
                bit = 1 << (number * self.rooms + corner)
                for cell in self._cells_of_box(corner):
                    self._seen[cell][doors[corner + cell]] |= bit
        self._plans: dict[tuple[int, int], list[tuple[int, float]]] = {}
        self._policy: dict[Info, int] = {}

    def _cells_of_box(self, corner: int) -> Iterator[int]:
        """Cells that lie inside the labyrinth when the corner is this room."""
        row, column = divmod(corner, self.size)
        for down in range(self.size - row):
            yield from range(down * self.size, down * self.size + self.size - column)

    @cached_property
    def value(self) -> float:
        """Expected return."""
        roots = [Info(belief, 1, 0) for belief in self._seen[0] if belief]
        total = sum(self._mass(info.belief) for info in roots)
        return -sum(self._mass(info.belief) / total * self._cost(info) for info in roots)

    def begin(self, obs: NDArray[np.int8]) -> Info:
        """Knowledge after the first observation [4]."""
        return Info(self._checked(self._seen[0][_code(obs)]), 1, 0)

    def observe(self, info: Info, action: int, obs: NDArray[np.int8]) -> Info:
        """Knowledge after an action and the observation [4] that followed."""
        layout, corner = self._example(info.belief)
        room = corner + info.at
        if not self.layouts[layout][room] >> action & 1:
            return info
        room += self._steps[action]
        if info.visited << corner >> room & 1:
            return info._replace(at=room - corner)
        belief, visited, at = self._enter(info.belief, info.visited, corner, room)
        return Info(self._checked(belief & self._seen[at][_code(obs)]), visited, at)

    def policy(self, info: Info) -> int:
        """The best primitive action: one step on the way to the best untried door."""
        if info not in self._policy:
            layout, corner = self._example(info.belief)
            room, away = corner + info.at, self._distance[layout]
            goal = min(
                self._plan(info.belief, info.visited),
                key=lambda door: away[room][door[0]] + door[1],
            )[0]
            self._policy[info] = next(
                way
                for way, step in enumerate(self._steps)
                if self.layouts[layout][room] >> way & 1
                and away[room + step][goal] < away[room][goal]
            )
        return self._policy[info]

    def simulate(
        self, episodes: int, seed: int, epsilon: float = 0.0, time_limit: int = 1000
    ) -> Floats:
        """[episodes] returns of the policy in the environment, a share epsilon of its actions
        being replaced by random ones."""
        rng = np.random.default_rng([seed, 3])
        env = LabyrinthEnv(self.size, time_limit)
        returns = np.zeros(episodes)
        for number in range(episodes):
            info = self.begin(env.reset(seed=seed + number)[0])
            ended = False
            while not ended:
                slip = epsilon > 0 and rng.random() < epsilon
                action = int(rng.integers(4)) if slip else self.policy(info)
                obs, reward, terminated, truncated, _ = env.step(action)
                info = self.observe(info, action, obs)
                returns[number] += reward
                ended = terminated or truncated
        return returns

    def _cost(self, info: Info) -> float:
        """Expected number of steps that are left."""
        belief, visited, at = info
        layout, corner = self._example(belief)
        away = self._distance[layout][corner + at]
        if belief & (belief - 1):
            return min(away[goal] + later for goal, later in self._plan(belief, visited))
        # One hypothesis left, so the map is known: there and back, less the longest way back.
        left = [r for r in range(self.rooms) if not visited << corner >> r & 1]
        if not left:
            return 0.0
        return 2 * self._span(layout, corner + at, left) - max(away[room] for room in left)

    def _span(self, layout: int, start: int, rooms: list[int]) -> int:
        """Number of doors in the smallest tree that joins the start to some rooms."""
        away = self._distance[layout]
        return sum(
            any(away[start][middle] + away[middle][room] == away[start][room] for room in rooms)
            for middle in range(self.rooms)
            if middle != start
        )

    def _plan(self, belief: int, visited: int) -> list[tuple[int, float]]:
        """(room, expected steps left once it is entered) for each room behind an untried door.

        Rooms are those of the example hypothesis; all others agree with it about known rooms.
        """
        plan = self._plans.get((belief, visited))
        if plan is None:
            layout, corner = self._example(belief)
            known = visited << corner
            plan = [
                (room + step, self._later(belief, visited, corner, room + step, 1 << (way ^ 1)))
                for room, code in enumerate(self.layouts[layout])
                if known >> room & 1
                for way, step in enumerate(self._steps)
                if code >> way & 1 and not known >> (room + step) & 1
            ]
            self._plans[belief, visited] = plan
        return plan

    def _later(self, belief: int, visited: int, corner: int, room: int, entrance: int) -> float:
        """Expected steps left after entering a room, over what may be seen there."""
        belief, visited, at = self._enter(belief, visited, corner, room)
        total = 0.0
        for code in range(16):
            if code & entrance and (seen := belief & self._seen[at][code]):
                total += self._mass(seen) * self._cost(Info(seen, visited, at))
        return total / self._mass(belief)

    def _enter(self, belief: int, visited: int, corner: int, room: int) -> tuple[int, int, int]:
        """Belief, visited cells and own cell after a step into a new room, not yet looked around.

        A room above or left of the box moves the box's corner, for all hypotheses alike.
        """
        up = max(0, corner // self.size - room // self.size)
        left = max(0, corner % self.size - room % self.size)
        shift = up * self.size + left
        at = room - (corner - shift)
        return belief >> shift, visited << shift | 1 << at, at

    def _example(self, belief: int) -> tuple[int, int]:
        """(layout, room of the box's corner) of the first hypothesis."""
        return divmod((belief & -belief).bit_length() - 1, self.rooms)

    def _mass(self, belief: int) -> int:
        """Unnormalised probability.  Few layouts differ in weight, so counting bits is enough."""
        return sum(w * (belief & block).bit_count() for w, block in self._same_weight.items())

    @staticmethod
    def _checked(belief: int) -> int:
        if not belief:
            raise ValueError("no layout of this size explains these observations")
        return belief


def _code(obs: NDArray[np.int8]) -> int:
    """An observation [4] as four bits."""
    up, down, left, right = obs.tolist()
    return up | down << 1 | left << 2 | right << 3


def _distances(doors: tuple[int, ...], start: int, size: int) -> list[int]:
    """[size*size] steps from the start to each room of a layout."""
    away = {start: 0}
    queue = [start]
    for room in queue:
        for way, step in enumerate((-size, size, -1, 1)):
            if doors[room] >> way & 1 and room + step not in away:
                away[room + step] = away[room] + 1
                queue.append(room + step)
    return [away[room] for room in range(size * size)]


def limits(size: int, episodes: int, seed: int) -> list[dict[str, Any]]:
    """The limits of one size: a row per player with its mean return over some episodes.

    ``bayes-optimal`` and ``bayes-any-orientation`` are computed, not played: their rows have 0
    episodes and standard error 0.  Sizes above 4 have no rows for the Bayes-optimal players.
    """
    rows: list[dict[str, Any]] = []

    def add(player: str, returns: Floats) -> None:
        error = float(returns.std(ddof=1) / np.sqrt(len(returns))) if len(returns) > 1 else 0.0
        rows.append(_row(player, size, len(returns), float(returns.mean()), error))

    add("random", random_walk(size, episodes, seed))
    add("blind-dfs", blind_dfs(size, episodes, seed))
    if size <= 4:
        explorer = BayesExplorer(size)
        rows.append(_row("bayes-optimal", size, 0, explorer.value, 0.0))
        alike = BayesExplorer(size, any_orientation=True)
        rows.append(_row("bayes-any-orientation", size, 0, alike.value, 0.0))
        add("bayes-optimal-eps0.01", explorer.simulate(episodes, seed, epsilon=0.01))
    add("full-map", full_map_optimum(size, episodes, seed))
    return rows


def _row(player: str, size: int, episodes: int, score: float, error: float) -> dict[str, Any]:
    return {
        "player": player,
        "size": size,
        "episodes": episodes,
        "score": score,
        "standard_error": error,
    }
