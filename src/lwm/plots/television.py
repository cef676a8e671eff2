"""The noisy TV's picture: what each bonus pays for noise, beside what it pays elsewhere."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap

import numpy as np

from lwm.plots.style import BLUE, INK, ORANGE, PALE, write


def bars(panels: Mapping[str, Sequence[tuple[str, float, float]]], out: Path) -> None:
    """A panel each, as a PNG.

    Args:
        panels: title -> for each bonus its name, its mean on re-tune steps, and elsewhere.
        out: the file to write.
    """
    from matplotlib.figure import Figure

    longest = max(len(rows) for rows in panels.values())
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    size = (5.2 * columns, 0.4 + (1.0 + 0.3 * longest) * lines)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False, sharex=True).ravel()
    for axes in grid[len(panels) :]:
        axes.axis("off")
    for axes, (title, rows) in zip(grid, panels.items(), strict=False):
        place = np.arange(len(rows))
        tv, elsewhere = np.array([r[1:] for r in rows]).T
        axes.barh(place - 0.2, tv, 0.38, color=ORANGE, label="on re-tune steps")
        axes.barh(place + 0.2, elsewhere, 0.38, color=BLUE, label="elsewhere")
        axes.set_yticks(place, [r[0] for r in rows], fontsize=8)
        axes.invert_yaxis()
        axes.axvline(0, color=INK, lw=0.8)
        axes.set_title("\n".join(wrap(title, 58)), loc="left", fontsize=10, color=INK)
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
