"""Figure 4's picture: a labyrinth from above, and single rooms as the agent sees them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lwm.plots.style import BLUE, INK, PALE, RED, write

_WAYS = ((0, -1), (0, 1), (-1, 0), (1, 0))  # up, down, left, right; y grows downwards
_DOOR = 0.22  # half the width of a door


def map_and_views(
    doors: NDArray[np.bool_],
    rooms: Sequence[int],
    observations: Sequence[NDArray[np.int8]],
    actions: Sequence[str],
    out: Path,
) -> None:
    """The map with the walk (left), and the sequence of observations (right), as a PNG.

    Args:
        doors: [rooms, 4].
        rooms: where the agent was, first to last.
        observations: [4] bits seen in each of them.
        actions: names of the actions between them.
        out: the file to write.
    """
    from matplotlib.figure import Figure

    side = round(len(doors) ** 0.5)
    figure = Figure(figsize=(9, 4.4), layout="constrained")
    whole, seen = figure.subplots(1, 2, width_ratios=(1, 1.3))
    for number in range(side * side):
        _room(whole, number % side, number // side, doors[number])
    where = np.array([(n % side, n // side) for n in rooms], float)
    for place in range(len(where) - 1):
        _arrow(whole, where[place], where[place + 1])
    whole.plot(*where[0], "o", color=RED, ms=15)
    _frame(whole, (-0.62, side - 0.38), (-0.62, side - 0.38))
    whole.set_title(
        "a) the labyrinth, which the agent does not see", fontsize=10, color=INK, pad=10
    )
    for number, bits in enumerate(observations):
        x = number * 1.9
        _room(seen, x, 0, bits.astype(bool))
        if number == 0:
            seen.plot(x, 0, "o", color=RED, ms=15)
        for (dx, dy), bit in zip(_WAYS, bits, strict=True):
            seen.text(x + 0.68 * dx, 0.68 * dy, f"{bit}", ha="center", va="center", color=INK)
        told = "(" + ", ".join(str(int(bit)) for bit in bits) + ")"
        seen.text(x, 1.15, told, ha="center", color=INK, fontsize=11)
        if number < len(actions):
            _arrow(seen, (x + 0.8, 0.0), (x + 1.1, 0.0), 0.0)
            seen.text(x + 0.95, -0.17, f"“{actions[number]}”", ha="center", color=BLUE)
    _frame(seen, (-0.85, 1.9 * (len(observations) - 1) + 0.85), (-1.2, 1.5))
    seen.set_title("b) what it sees: doors up, down, left, right", fontsize=10, color=INK, pad=10)
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=110)
    write(out, data)


def _room(axes: Any, x: float, y: float, doors: NDArray[np.bool_]) -> None:
    """A square around (x, y), walls with gaps where there are doors."""
    axes.fill([x - 0.5, x + 0.5, x + 0.5, x - 0.5], [y - 0.5, y - 0.5, y + 0.5, y + 0.5], PALE)
    for (dx, dy), door in zip(_WAYS, doors, strict=True):
        middle = np.array([x + dx / 2, y + dy / 2])
        along = np.array([abs(dy), abs(dx)], float)
        # A whole wall, or its two ends with a door between them.
        pieces = ((-0.5, -_DOOR), (_DOOR, 0.5)) if door else ((-0.5, 0.5),)
        for piece in pieces:
            ends = np.stack([middle + at * along for at in piece])
            axes.plot(*ends.T, color=INK, lw=3, solid_capstyle="projecting")


def _arrow(axes: Any, start: Any, end: Any, gap: float = 12.0) -> None:
    style = {"arrowstyle": "-|>", "color": BLUE, "lw": 2, "shrinkA": gap, "shrinkB": gap / 2}
    axes.annotate("", end, start, arrowprops=style)


def _frame(axes: Any, x: tuple[float, float], y: tuple[float, float]) -> None:
    axes.set(xlim=x, ylim=(y[1], y[0]))
    axes.set_aspect("equal")
    axes.axis("off")
