"""The noisy TV's picture: what each bonus pays for noise, beside what it pays elsewhere."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lwm.plots.style import BLUE, INK, ORANGE, PALE, write


def bars(panels: Mapping[str, Sequence[tuple[str, float, float]]], out: Path) -> None:
    """A panel each, one below the other, as a PNG.

    Args:
        panels: title -> for each bonus its name, its mean on re-tune steps, and elsewhere.
        out: the file to write.
    """
    from matplotlib.figure import Figure

    heights = [len(rows) + 2 for rows in panels.values()]  # the title and the axis take two
    figure = Figure(figsize=(7.5, 0.4 + 0.28 * sum(heights)), layout="constrained")
    grid = figure.subplots(len(panels), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    for axes, (title, rows) in zip(grid, panels.items(), strict=True):
        place = np.arange(len(rows))
        tv, elsewhere = np.array([r[1:] for r in rows]).T
        axes.barh(place - 0.2, tv, 0.38, color=ORANGE, label="on re-tune steps")
        axes.barh(place + 0.2, elsewhere, 0.38, color=BLUE, label="elsewhere")
        axes.set_yticks(place, [r[0] for r in rows], fontsize=8)
        axes.axvline(0, color=INK, lw=0.8)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_title(title, loc="left", fontsize=10, color=INK)
        axes.set_xlabel("mean normalised, clipped bonus", fontsize=9)
        axes.tick_params(labelbottom=True)
        axes.grid(axis="x", color=PALE, lw=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    labelled = grid[0].get_legend_handles_labels()
    figure.legend(*labelled, loc="outside upper right", ncols=2, frameon=False, fontsize=8)
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=110)
    write(out, data)
