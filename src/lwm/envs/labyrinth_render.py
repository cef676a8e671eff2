"""Pictures of a labyrinth, as text and as pixels.  Drawing only: nothing here knows the rules."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

UNVISITED = (52, 58, 70)
VISITED = (206, 214, 226)
WALL = (18, 20, 26)
AGENT = (232, 96, 60)
UP, DOWN, LEFT, RIGHT = range(4)


def draw(
    doors: NDArray[np.bool_], room: int, visited: NDArray[np.bool_], cell: int = 32
) -> NDArray[np.uint8]:
    """A picture of the map seen from above: rooms, walls, doors, shaded visits and the agent.

    Args:
        doors: [size*size, 4] doors of each room: up, down, left, right.
        room: the agent's room, row-major.
        visited: [size*size] rooms seen so far.
        cell: pixels per room.

    Returns:
        [H, W, 3] pixels, H = W = size * cell + wall thickness.
    """
    size = int(np.sqrt(len(doors)))
    wall = max(2, cell // 10)
    side = size * cell + wall
    picture = np.empty((side, side, 3), np.uint8)
    picture[:] = WALL
    for here in range(size * size):
        colour = VISITED if visited[here] else UNVISITED
        top, left = (here // size) * cell + wall, (here % size) * cell + wall
        bottom, right = top + cell - wall, left + cell - wall
        picture[top:bottom, left:right] = colour
        # A room paints only its doors down and right, so that each door is painted once; a door
        # to where nobody has been takes the darker shade.
        gap = max(1, cell // 5)
        for door, step, rows, columns in (
            (DOWN, size, slice(bottom, bottom + wall), slice(left + gap, right - gap)),
            (RIGHT, 1, slice(top + gap, bottom - gap), slice(right, right + wall)),
        ):
            if doors[here, door]:
                both = visited[here] and visited[here + step]
                picture[rows, columns] = VISITED if both else UNVISITED
    _disc(picture, room // size, room % size, cell, wall)
    return picture


def _disc(picture: NDArray[np.uint8], row: int, column: int, cell: int, wall: int) -> None:
    """Paint the agent into the picture [H, W, 3]: a disc with a smooth edge."""
    inside = (
        slice(row * cell + wall, (row + 1) * cell),
        slice(column * cell + wall, (column + 1) * cell),
    )
    patch = picture[inside].astype(np.float64)
    axis = np.arange(cell - wall) - (cell - wall - 1) / 2
    distance = np.hypot(axis[:, None], axis[None, :])
    cover = np.clip(0.32 * (cell - wall) - distance + 0.5, 0, 1)[..., None]
    picture[inside] = np.round(patch * (1 - cover) + np.array(AGENT) * cover).astype(np.uint8)


def text(doors: NDArray[np.bool_], room: int, visited: NDArray[np.bool_]) -> str:
    """The map as lines of text: ``@`` the agent, ``.`` visited, blank unvisited.

    Arguments have the shapes of :func:`draw`; the answer has 2 * size + 1 lines.
    """
    size = int(np.sqrt(len(doors)))
    lines: list[str] = ["+" + "---+" * size]
    for row in range(size):
        middle, below = "|", "+"
        for here in range(row * size, (row + 1) * size):
            mark = "@" if here == room else "." if visited[here] else " "
            middle += f" {mark} " + (" " if doors[here, RIGHT] else "|")
            below += ("   " if doors[here, DOWN] else "---") + "+"
        lines += [middle, below]
    return "\n".join(lines)


def frame(mode: str | None, doors: NDArray[np.bool_], room: int, visited: NDArray[np.bool_]) -> Any:
    """The map in a Gymnasium render mode: text for ``ansi``, pixels for ``rgb_array``."""
    return text(doors, room, visited) if mode == "ansi" else draw(doors, room, visited)
