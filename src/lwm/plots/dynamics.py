"""Figure 5's picture: for each game the mean over seeds, and the band from least to greatest."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lwm.plots.style import BLACK, BLUE, GREEN, INK, ORANGE, PALE, PINK, RED, SKY, write

_COLOURS = (BLUE, ORANGE, GREEN, PINK, RED, SKY, BLACK)


class Band(Protocol):
    """Several seeds on one axis of frames, all [n]."""

    @property
    def frames(self) -> NDArray[np.float64]:
        """Emulator frames."""

    @property
    def mean(self) -> NDArray[np.float64]:
        """Over seeds."""

    @property
    def low(self) -> NDArray[np.float64]:
        """Least of them."""

    @property
    def high(self) -> NDArray[np.float64]:
        """Greatest of them."""


def bands(
    groups: Mapping[tuple[str, str, str], tuple[Band, int]],
    out: Path,
    unit: str = "emulator frames",
) -> None:
    """A panel a game as a PNG; who is in several has the same colour in all.

    Args:
        groups: (game, agent and preset, metric) -> its band and number of seeds.
        out: the file to write.
        unit: what the axis counts.
    """
    from matplotlib.figure import Figure

    games = sorted({game for game, _, _ in groups})
    columns = 2 if len(games) == 4 else min(3, len(games))
    rows = -(-len(games) // columns)
    most = max(sum(key[0] == game for key in groups) for game in games)
    size = (max(5.0, 3.6 * columns), (2.9 + 0.18 * most) * rows)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid[len(games) :]:
        axes.axis("off")
    agents = sorted({agent for _, agent, _ in groups})
    colours = {agent: _COLOURS[n % len(_COLOURS)] for n, agent in enumerate(agents)}
    for axes, game in zip(grid, games, strict=False):
        drawn = sorted(key for key in groups if key[0] == game)
        for key in drawn:
            band, seeds = groups[key]
            colour = colours[key[1]]
            label = f"{key[1]}, {seeds} seed{'s' * (seeds > 1)}"
            label += "" if "last" in key[2] else ", all actors"
            axes.fill_between(band.frames, band.low, band.high, color=colour, alpha=0.22, lw=0)
            axes.plot(band.frames, band.mean, color=colour, lw=1.5, label=label)
        _finish(axes, game.replace("_", " "), unit)
        # From zero: a score that never left it is a flat line at the bottom, not a zoom into it.
        highest = max(float(groups[key][0].high.max()) for key in drawn)
        lowest = min(float(groups[key][0].low.min()) for key in drawn)
        axes.set_ylim(min(0.0, 1.08 * lowest), max(1.0, 1.08 * highest))
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=110)
    write(out, data)


def _finish(axes: Any, title: str, unit: str) -> None:
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    axes.set_xlabel(unit, fontsize=9)
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", nbins=5)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1e6:g} M" if x >= 1e6 else f"{x / 1e3:g} k")
    axes.grid(axis="y", color=PALE, lw=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    # Below: inside it would hide curves.
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0, -0.17))
