"""An episode as an animated GIF: the map, and beside it what the agent saw, valued, predicted."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from lwm.episodes import Episode
from lwm.errors import BadInput
from lwm.plots.style import BLUE, GREEN, GREY, INK, PALE, RED, write

_WAYS = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
_UNSEEN = "#A9B0BC"
_WIDTH, _HEIGHT, _MAP = 640, 404, 336
_SHARP = 2  # frames are drawn this much larger and then reduced, for smooth edges
_MAX_FRAMES = 200


def animate_episode(episode: Episode, out: Path) -> None:
    """A labyrinth episode as an animated GIF: the map, and beside it what the agent thought.

    Rooms are coloured by the bonus of the latest visit.  A long episode is shown in at most 200
    frames; the last one is held.
    """
    from PIL import Image

    episode.check()
    if not {"room", "doors"} <= episode.fields.keys():
        raise BadInput("only labyrinth episodes can be animated: there is no room or doors field")
    rooms, room = len(episode.fields["doors"]), episode.fields["room"]
    if round(rooms**0.5) ** 2 != rooms or room.min() < 0 or room.max() >= rooms:
        raise BadInput(
            f"not an episode of a square labyrinth: {rooms} rooms, one of them {room.max()}"
        )
    rows = np.linspace(0, episode.rows - 1, min(episode.rows, _MAX_FRAMES)).round().astype(int)
    # One palette for all frames: what stands still is the same bytes and costs nothing.
    palette = Image.new("P", (1, 1))
    palette.putpalette(_palette())
    frames = [
        _frame(episode, row).quantize(palette=palette, dither=Image.Dither.NONE) for row in rows
    ]
    pace = int(np.clip(12_000 / len(frames), 60, 700))
    times = [pace] * (len(frames) - 1) + [3000]
    data = io.BytesIO()
    frames[0].save(data, "GIF", save_all=True, append_images=frames[1:], loop=0, duration=times)
    write(out, data)


def _palette() -> list[int]:
    """Red, green, blue of up to 256 colours: the scale of the bonus, and each ink fading out."""
    from PIL.ImageColor import getrgb

    colours = {_heat(k / 40) for k in range(-40, 41)}
    for ink in (INK, GREY, BLUE, RED, GREEN, _UNSEEN, PALE):
        for ground in ("#FFFFFF", _UNSEEN):
            colours |= {_blend(getrgb(ground), getrgb(ink), k / 8) for k in range(9)}
    return [channel for colour in sorted(colours) for channel in colour]


def _frame(episode: Episode, row: int) -> Any:
    """One row of an episode as a Pillow image."""
    from PIL import Image

    large = Image.new("RGB", (_WIDTH * _SHARP, _HEIGHT * _SHARP), "white")
    pen = _Pen(large)
    _draw_map(pen, episode, row)
    _draw_thoughts(pen, episode, row)
    return large.resize((_WIDTH, _HEIGHT), Image.Resampling.BOX)


@cache
def _font(size: int) -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(size)


class _Pen:
    """Pillow's drawing calls, in pixels of the reduced picture."""

    def __init__(self, image: Any) -> None:
        from PIL import ImageDraw

        self._draw = ImageDraw.Draw(image)

    def box(self, x: float, y: float, w: float, h: float, colour: Any, edge: Any = None) -> None:
        corners = [round(v * _SHARP) for v in (x, y, x + w, y + h)]
        corners[2:] = [v - 1 for v in corners[2:]]
        self._draw.rectangle(corners, colour, edge, width=_SHARP if edge else 0)

    def line(self, points: Sequence[tuple[float, float]], width: float, colour: Any) -> None:
        scaled = [(round(x * _SHARP), round(y * _SHARP)) for x, y in points]
        self._draw.line(scaled, colour, round(width * _SHARP), joint="curve")

    def disc(self, x: float, y: float, radius: float, colour: Any) -> None:
        corners = [v * _SHARP for v in (x - radius, y - radius, x + radius, y + radius)]
        self._draw.ellipse(corners, colour, "white", 3)

    def text(
        self, x: float, y: float, text: str, size: int = 13, colour: str = INK, anchor: str = "lm"
    ) -> None:
        where = (x * _SHARP, y * _SHARP)
        self._draw.text(where, text, colour, _font(size * _SHARP), anchor)


def _draw_map(pen: _Pen, episode: Episode, row: int) -> None:
    """Left: rooms by bonus of the latest visit, path, walls with doors, agent, colour scale."""
    room, r_in, doors = (episode.fields[k] for k in ("room", "r_in", "doors"))
    side = round(len(doors) ** 0.5)
    cell, edge = _MAP / side, 18
    strongest = max(float(np.abs(r_in).max()), 1e-6)
    latest = {int(room[t]): float(r_in[t]) for t in range(row + 1)}
    centres = [
        (edge + (n % side + 0.5) * cell, edge + (n // side + 0.5) * cell) for n in range(side**2)
    ]
    for number, (x, y) in enumerate(centres):
        fill = _heat(latest[number] / strongest) if number in latest else _UNSEEN
        pen.box(x - cell / 2, y - cell / 2, cell, cell, fill)
    thick, gap = max(1.0, cell / 48), {True: 0.44, False: 0.0}
    walk = [centres[n] for n in room[: row + 1]]
    if row:
        pen.line(walk, 2, GREY)
        pen.line(walk[-4:], 4, GREY)
    for number, (x, y) in enumerate(centres):
        if number in latest and cell >= 56:
            pen.text(x - cell / 2 + 8, y + cell / 2 - 12, f"{latest[number]:+.1f}", 11)
        for (dx, dy), door in zip(_WAYS.values(), doors[number].astype(bool), strict=True):
            # Half a wall on either side of its middle; a door leaves a gap between them.
            for turn in (-cell / 2, cell / 2):
                (x1, x2), (y1, y2) = (
                    sorted(at + out * cell / 2 + side_step * turn * s for s in (gap[door], 1))
                    for at, out, side_step in ((x, dx, dy), (y, dy, dx))
                )
                pen.box(x1 - thick, y1 - thick, x2 - x1 + 2 * thick, y2 - y1 + 2 * thick, INK)
    x, y = walk[-1]
    pen.disc(x, y, cell * 0.17, BLUE)
    if row + 1 < episode.rows:
        dx, dy = list(_WAYS.values())[int(episode.fields["a_tm1"][row + 1])]
        tip = (x + dx * cell * 0.14, y + dy * cell * 0.14)
        pen.line([(x, y), tip], max(2.0, cell / 28), "white")
    low = edge + _MAP + 14
    pen.text(edge, low + 8, "bonus at the latest visit", 12, GREY)
    for k in range(96):
        pen.box(edge + 196 + k, low, 1, 14, _heat(k / 47.5 - 1))
    pen.text(edge + 190, low + 8, f"-{strongest:.1f}", 12, GREY, "rm")
    pen.text(edge + 298, low + 8, f"+{strongest:.1f}", 12, GREY)


def _draw_thoughts(pen: _Pen, episode: Episode, row: int) -> None:
    """Right: step and return, Q-values, bonus, predicted and seen doors."""
    f, left, right = episode.fields, 390, 622
    side, steps = round(len(f["doors"]) ** 0.5), episode.rows - 1
    pen.text(left, 28, f"{side}x{side} labyrinth, {episode.meta['agent']}", 17)
    pen.text(left, 54, f"step {row} of {steps}, return {f['r_t'][: row + 1].sum():.0f}", 13, GREY)
    if row == steps:
        solved = len(np.unique(f["room"])) == side * side
        text = "all rooms visited" if solved else "cut off at the time limit"
        pen.text(left, 76, text, 14, GREEN if solved else RED)
    if "q" in f:
        q, gap = f["q"][row], max(float(np.ptp(f["q"], axis=1).max()), 1e-6)
        chosen = int(f["a_tm1"][row + 1]) if row < steps else -1
        pen.text(left, 108, "Q-values (rescaled), bar: nearness to the best", 11, GREY)
        for way, name in enumerate(_WAYS):
            y, colour = 130 + way * 22, BLUE if way == chosen else GREY
            pen.text(left, y, name, 13, colour)
            pen.box(left + 44, y - 7, 130, 14, PALE)
            pen.box(left + 44, y - 7, max(130 * (1 - (q.max() - q[way]) / gap), 1), 14, colour)
            pen.text(right, y, f"{q[way]:.2f}", 13, INK, "rm")
    paid = float(f["r_in"][row])
    length = paid / max(float(np.abs(f["r_in"]).max()), 1e-6) * 65
    pen.text(left, 230, "bonus of this step", 11, GREY)
    pen.box(left + 44, 243, 130, 14, PALE)
    pen.box(left + 109 + min(length, 0), 243, max(abs(length), 1), 14, _heat(length / 65))
    pen.line([(left + 109, 240), (left + 109, 260)], 1, INK)
    pen.text(right, 250, f"{paid:+.2f}", 13, INK, "rm")
    pen.text(left, 284, "doors of this room, darker: surer", 11, GREY)
    predicted = f["prediction"][row] if "prediction" in f and row else None
    for x, name, bits in ((left + 62, "predicted", predicted), (left + 164, "seen", f["obs"][row])):
        pen.box(x - 30, 298, 60, 60, PALE)
        for (dx, dy), bit in zip(_WAYS.values(), [] if bits is None else bits, strict=False):
            w, h = (26, 10) if dy else (10, 26)
            shade = _blend((255, 255, 255), (34, 40, 51), float(np.clip(bit, 0, 1)))
            pen.box(x + dx * 25 - w / 2, 328 + dy * 25 - h / 2, w, h, shade, INK)
        pen.text(x, 374, name if bits is not None else "no prediction", 13, INK, "mm")


def _heat(share: float) -> tuple[int, int, int]:
    """Colour of a bonus in [-1, 1]: blue for expected, white for 0, orange for surprising."""
    end = (230, 140, 30) if share > 0 else (86, 180, 233)
    return _blend((255, 255, 255), end, min(abs(share), 1.0) ** 0.5)


def _blend(a: Sequence[int], b: Sequence[int], share: float) -> tuple[int, int, int]:
    red, green, blue = (round(x + (y - x) * share) for x, y in zip(a[:3], b[:3], strict=True))
    return red, green, blue
