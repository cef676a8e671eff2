"""A trajectory on the screen and in four latent spaces, with the same numbers everywhere."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lwm.plots.style import GREY, INK, PALE, write

POINTS = 9
"""Moments that are numbered, as in the paper: the first, the last and those evenly between."""


def numbered(rows: int) -> list[int]:
    """Rows of a trajectory that carry the numbers 1, 2, ..."""
    return [int(r) for r in np.linspace(0, rows - 1, min(POINTS, rows)).round()]


def latent_figure(
    screen: NDArray[np.uint8],
    path: NDArray[np.float64],
    panels: Mapping[str, NDArray[np.float64]],
    out: Path,
) -> None:
    """Draw the paper's Figure 3 as a PNG.

    Args:
        screen: [210, 160, 3] a screenshot.
        path: [T, 2] where the agent was on it (column, row); NaN where it was elsewhere.
        panels: name -> [T, 2] its observations in the plane.
        out: the file to write.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5.6), layout="constrained", facecolor="white")
    grid = figure.add_gridspec(2, 3, width_ratios=(1.5, 1, 1))
    axes = figure.add_subplot(grid[:, 0])
    # A pixel of the console is wider than high; below row 188 the screen is empty.
    axes.imshow(screen[:188], aspect=0.72, interpolation="nearest")
    axes.plot(*path.T, color="white", lw=1.1, alpha=0.9, zorder=2)
    dots = _trace(axes, path, size=16)
    _frame(axes, "Trajectory")
    bar = figure.colorbar(dots, ax=axes, location="bottom", shrink=0.7, aspect=40, pad=0.02)
    bar.set_label("agent step", fontsize=9, color=GREY)
    bar.ax.tick_params(labelsize=8, colors=GREY)
    bar.outline.set_visible(False)
    for place, (name, points) in zip(
        (grid[0, 1], grid[0, 2], grid[1, 1], grid[1, 2]), panels.items(), strict=True
    ):
        axes = figure.add_subplot(place)
        axes.plot(*points.T, color=GREY, lw=0.7, alpha=0.55, zorder=1)
        _trace(axes, points, size=20)
        _frame(axes, name)
        axes.margins(0.09)
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=160)
    write(out, data)


def _trace(axes: Any, points: NDArray[np.float64], size: float) -> Any:
    """The moments [T, 2] coloured by time, and the numbered ones; -> the dots, for a scale."""
    time = np.arange(len(points))
    dots = axes.scatter(*points.T, c=time, cmap="viridis", s=size, lw=0.35, edgecolor=INK, zorder=3)
    marks = numbered(len(points))
    ring = {"s": 165, "c": "white", "edgecolor": INK, "lw": 1.1, "zorder": 4}
    axes.scatter(*points[marks].T, **ring)
    for number, row in enumerate(marks, 1):
        if np.isfinite(points[row]).all():
            axes.annotate(
                str(number), points[row], ha="center", va="center_baseline", fontsize=9,
                fontweight="bold", color=INK, zorder=5,
            )  # fmt: skip
    return dots


def _frame(axes: Any, title: str) -> None:
    axes.set_title(title, fontsize=11, color=INK)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color(PALE)
