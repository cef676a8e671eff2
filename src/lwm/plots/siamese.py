"""Figure 1's picture: pairs of frames, their shifts, two branches of one Φ, whitening, MSE."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lwm.plots.style import BLUE, GREEN, GREY, INK, ORANGE, write


class Pairs(Protocol):
    """Pairs [N, 84, 84] before and after the shift, rows t [N], shifts k [N], offsets [2N, 2]."""

    @property
    def x(self) -> NDArray[np.uint8]:
        """Frames at t."""

    @property
    def y(self) -> NDArray[np.uint8]:
        """Frames at t + k."""

    @property
    def x_shifted(self) -> NDArray[np.uint8]:
        """Frames at t, moved."""

    @property
    def y_shifted(self) -> NDArray[np.uint8]:
        """Frames at t + k, moved."""

    @property
    def t(self) -> NDArray[np.int64]:
        """Rows."""

    @property
    def k(self) -> NDArray[np.int64]:
        """Shifts in time."""

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Shifts in space, down and right."""


def training_scheme(pairs: Pairs, shown: NDArray[np.int64], loss: float, out: Path) -> None:
    """The first of ``shown`` with the scheme beside it, the others below, as a PNG.

    Args:
        pairs: a batch.
        shown: numbers of the pairs to draw.
        loss: of the whole batch, before any update.
        out: the file to write.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2 + 1.5 * (len(shown) > 1)))
    height = 4.2 / figure.get_figheight()
    base = 1 - height
    first = int(shown[0])
    for row, name in enumerate(("x", "y")):
        bottom = base + height * (0.52 - 0.45 * row)
        for column, late in enumerate((False, True)):
            axes = figure.add_axes((0.02 + 0.17 * column, bottom, 0.155, height * 0.37))
            _frame(axes, pairs, first, name, late)
    _scheme(figure.add_axes((0.36, base, 0.63, height)), len(pairs.t), loss)
    for place, number in enumerate(shown[1:]):
        left = 0.02 + 0.5 * place
        for column, (name, late) in enumerate(
            (("x", False), ("x", True), ("y", False), ("y", True))
        ):
            axes = figure.add_axes((left + 0.118 * column, 0.02, 0.108, base * 0.74))
            _frame(axes, pairs, int(number), name, late, 7.5)
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=110)
    write(out, data)


def _frame(axes: Any, pairs: Pairs, number: int, name: str, late: bool, size: float = 9) -> None:
    """One frame; ``name`` is x or y, ``late`` after the shift."""
    picture = getattr(pairs, f"{name}_shifted" if late else name)[number]
    t, k = int(pairs.t[number]), int(pairs.k[number])
    if late:
        down, right = pairs.offsets[number + (len(pairs.t) if name == "y" else 0)]
        title = f"moved {down:+d}, {right:+d}".replace("-", "−")
    else:
        title = f"$x_t$, t = {t}" if name == "x" else f"$x_{{t+k}}$, k = {k}"
    axes.imshow(picture, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axes.set_title(title, fontsize=size, color=INK, pad=3)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_color(BLUE if late else GREY)


def _scheme(axes: Any, pairs: int, loss: float) -> None:
    """Boxes from the shifted frames to the loss."""
    axes.set(xlim=(0, 10), ylim=(0, 10))
    axes.axis("off")
    high, low = 7.1, 2.6
    for y, z, v in ((high, "$z_t$", "$v_t$"), (low, "$z_{t+k}$", "$v_{t+k}$")):
        _arrow(axes, (0.05, y), (0.75, y))
        _box(axes, 1.7, y, 1.8, 2.2, "Φ\nCNN and\nprojection", BLUE)
        _arrow(axes, (2.65, y), (3.95, y))
        axes.text(3.3, y + 0.3, z, ha="center", color=INK, fontsize=11)
        axes.plot([5.65, 6.95], [y, y], color=INK, lw=1.3)
        axes.text(6.3, y + 0.3, v, ha="center", color=INK, fontsize=11)
        _arrow(axes, (6.95, y), (7.58, 4.85 + (0.4 if y == high else -0.4)))
    axes.plot([1.7, 1.7], [low + 1.15, high - 1.15], color=GREY, ls=":", lw=1.5)
    axes.text(1.85, 4.85, "the same\nweights", va="center", fontsize=9, color=GREY)
    _box(
        axes, 4.8, 4.85, 1.6, 6.9, f"whitening\n\nof all {2 * pairs}\nz together\n\n32 → 32", ORANGE
    )
    _box(axes, 8.55, 4.85, 1.9, 1.5, "MSE\n(W-MSE loss)", GREEN)
    axes.text(
        8.7, 3.4, f"these {pairs} pairs,\nuntrained Φ: {loss:.1f}", ha="center", va="center",
        fontsize=9, color=GREY,
    )  # fmt: skip


def _box(axes: Any, x: float, y: float, w: float, h: float, text: str, colour: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    style = "round,pad=0.02,rounding_size=0.15"
    axes.add_patch(
        FancyBboxPatch((x - w / 2, y - h / 2), w, h, style, fc=colour + "22", ec=colour, lw=1.5)
    )
    axes.text(x, y, text, ha="center", va="center", fontsize=9.5, color=INK)


def _arrow(axes: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    look = {"arrowstyle": "-|>", "color": INK, "lw": 1.3, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops=look)
