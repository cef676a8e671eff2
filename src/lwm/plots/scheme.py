"""Figure 2's pictures: points of a trajectory in two dimensions, coloured by time."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lwm.plots.style import GREY, INK, write

Points = NDArray[np.float64]

_TITLES = {
    "initial": "a) initial latent space Z",
    "whitened": "b) V, obtained by whitening",
    "pulled": "c) positives pull each other",
    "intermediate": "d) on the way: scatter is kept",
    "final": "e) final: in the order of time",
}
_SPAN = 2.6  # whitened points: 2.6 standard deviations in view
_MAX_FRAMES = 56


def five_panels(panels: Mapping[str, Points], pull: Points, out: Path) -> None:
    """The five stages as a PNG: three above, two below.

    Args:
        panels: [M, 2] by name of the panel.
        pull: [M, 2] direction in which each point of panel ``pulled`` is drawn.
        out: the file to write.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6.2), layout="constrained")
    grid = figure.add_gridspec(2, 6)
    places = [grid[0, :2], grid[0, 2:4], grid[0, 4:], grid[1, 1:3], grid[1, 3:5]]
    axes = [figure.add_subplot(place) for place in places]
    for ax, (name, points) in zip(axes, panels.items(), strict=True):
        dots = _panel(ax, points, name, pull if name == "pulled" else None)
    bar = figure.colorbar(dots, ax=axes, shrink=0.5, aspect=30, pad=0.01)
    bar.set_label("time t", color=INK)
    bar.outline.set_visible(False)
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=110)
    write(out, data)


def animation(z: Points, v: Points, pull: Points, out: Path) -> None:
    """The same as an animated GIF: stages a to c are held, then the steps, faster and faster.

    Args:
        z: [M, 2] before whitening.
        v: [steps + 1, M, 2] whitened.
        pull: [M, 2] as in ``five_panels``.
        out: the file to write.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    def picture(name: str, points: Points, arrows: Points | None, title: str | None = None) -> Any:
        figure = Figure(figsize=(4.2, 4.3), dpi=100, layout="constrained")
        canvas = FigureCanvasAgg(figure)
        _panel(figure.add_subplot(), points, name, arrows, title)
        canvas.draw()
        pixels = np.asarray(canvas.buffer_rgba())[..., :3]
        return Image.fromarray(pixels.copy())

    last = len(v) - 1
    # Early steps move most: squares spend more frames on them.
    rows = np.unique((np.linspace(0, 1, min(last, _MAX_FRAMES)) ** 2 * last).round().astype(int))[
        1:
    ]
    shots = [
        (picture("initial", z, None), 1600),
        (picture("whitened", v[0], None), 1600),
        (picture("pulled", v[0], pull), 1800),
        *((picture("steps", v[row], None, f"d) step {row} of {last}"), 90) for row in rows),
        (picture("final", v[-1], None), 3000),
    ]
    # One palette for all frames: what stands still costs nothing.
    palette = shots[-1][0].quantize(96)
    # Shades that are almost white would be taken for white's: the ground stays white.
    colours = np.array(palette.getpalette()).reshape(-1, 3)
    colours[colours.min(1) >= 248] = 255
    palette.putpalette(colours.ravel().tolist())
    frames = [shot.quantize(palette=palette, dither=Image.Dither.NONE) for shot, _ in shots]
    data = io.BytesIO()
    times = [time for _, time in shots]
    frames[0].save(data, "GIF", save_all=True, append_images=frames[1:], loop=0, duration=times)
    write(out, data)


def _panel(
    axes: Any, points: Points, name: str, pull: Points | None, title: str | None = None
) -> Any:
    """Points [M, 2] by time on square axes, a thin line through them; -> the dots."""
    axes.plot(*points.T, color=GREY, lw=0.7, alpha=0.55, zorder=1)
    if pull is not None:
        axes.quiver(
            *points.T, *(0.13 * pull).T, angles="xy", scale_units="xy", scale=1, width=0.005,
            color=INK, zorder=3,
        )  # fmt: skip
    look = {"c": np.arange(len(points)), "cmap": "viridis", "s": 46, "lw": 0.6, "zorder": 2}
    dots = axes.scatter(*points.T, edgecolor="white", **look)
    if name == "initial":
        middle, reach = points.mean(0), 1.12 * np.abs(points - points.mean(0)).max()
        axes.set(xlim=middle[0] + [-reach, reach], ylim=middle[1] + [-reach, reach])
    else:
        span = (-_SPAN, _SPAN)
        circle = np.linspace(0, 2 * np.pi, 90)
        axes.plot(np.cos(circle), np.sin(circle), color=GREY, lw=0.7, ls=":", zorder=0)
        axes.set(xlim=span, ylim=span)
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(title or _TITLES[name], fontsize=10, color=INK)
    axes.spines[:].set_color("#C9CED6")
    return dots
