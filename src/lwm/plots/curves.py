"""Scores as curves over a run and as dots by agent.

Scores are negative step counts, from -10 to -1000 in one picture: axes are logarithmic in -score,
better is up (or to the right).
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from lwm.errors import BadInput
from lwm.plots.style import BLACK, BLUE, GREEN, ORANGE, PALE, PINK, RED, SKY, write
from lwm.runs import read_config, read_metrics
from lwm.statistics import half_width

_RUNS = (BLUE, ORANGE, SKY, RED, PINK, GREEN)
_LINES: tuple[tuple[str, Any], ...] = ((PINK, "--"), (GREEN, "-"), (RED, "-."), (BLACK, ":"))
_PLAYERS: dict[str, tuple[str, str, Any]] = {
    "random": ("random walk", RED, "-."),
    "blind-dfs": ("blind DFS", ORANGE, "--"),
    "bayes-optimal-eps0.01": ("Bayes-optimal, ε = 0.01", GREEN, ":"),
    "bayes-optimal": ("Bayes-optimal", GREEN, "-"),
    "full-map": ("full map", SKY, "-"),
}
_BETA = re.compile(r"intrinsic\.beta=\S+")
_ORDER = ("random", "dqn", "lwm", "lwm-ff", "mbie-eb", "", "paper", "best", "official")


def learning_curve(runs: Sequence[Path], out: Path, limits: Mapping[str, float]) -> None:
    """Return while training and validation scores over frames, as a PNG.

    Args:
        runs: run directories, a colour each.
        out: the file to write.
        limits: name -> score of the horizontal lines to compare with.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.add_subplot()
    shown = [-score for score in limits.values()]
    sizes = set()
    for number, run in enumerate(runs):
        config, rows = read_config(run), list(read_metrics(run))
        trained = [(r["frames"], -r["episode/return"]) for r in rows if r.get("episode/return")]
        if not trained:
            raise BadInput(f"{run} has no returns to draw yet")
        x, y = zip(*trained, strict=True)
        label = f"{config['agent']}, preset {config['preset']}, seed {config['seed']}"
        colour = _RUNS[number % len(_RUNS)]
        axes.plot(x, y, color=colour, lw=1.3, alpha=0.6, label=f"{label}: training")
        scored = [r for r in rows if r.get("kind") == "validation"]
        _points(axes, scored, colour, f"{label}: validation, 95 % interval")
        shown += [*y, *(-r["score"] for r in scored)]
        sizes.add(f"{config['env']['size']}×{config['env']['size']}")
    for number, (name, score) in enumerate(limits.items()):
        colour, dash = _LINES[number % len(_LINES)]
        text = f"{name}: {_minus(score)}"
        axes.axhline(-score, color=colour, ls=dash, lw=1.3, zorder=1, label=text)
    _score_axis(axes, "y", min(shown) * 0.9, max(shown) * 1.1)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1e6:g} M" if x >= 1e6 else f"{x / 1e3:g} k")
    axes.set(xlabel="environment frames", ylabel="return of an episode (log scale)")
    axes.set_title(f"{', '.join(sorted(sizes))} labyrinth: return while learning", loc="left")
    axes.grid(axis="y", color=PALE, lw=0.8)
    figure.legend(loc="outside lower left", ncols=2, frameon=False, fontsize=9)
    _save(figure, out)


def _points(axes: Any, scored: Sequence[Mapping[str, Any]], colour: str, label: str) -> None:
    """Validation scores with their intervals; the last one in figures."""
    if not scored:
        return
    x, y = [r["frames"] for r in scored], [-r["score"] for r in scored]
    # One episode has no interval.
    ends = [[r["score"] if r[e] is None else r[e] for e in ("high", "low")] for r in scored]
    bars = np.abs(np.array(ends) + np.array(y)[:, None]).T
    axes.errorbar(x, y, bars, color=colour, fmt="o", ms=4, elinewidth=1, label=label)
    under = {"xytext": (0, -14), "textcoords": "offset points", "ha": "center", "fontsize": 9}
    axes.annotate(_minus(-y[-1]), (x[-1], y[-1]), **under)


def score_plot(
    rows: Sequence[Mapping[str, Any]],
    out: Path,
    limits: Mapping[tuple[int, str], float] | None = None,
    paper: Mapping[tuple[int, str, str], float] | None = None,
) -> None:
    """Scores by size and agent, all of them and near the limits, as a PNG.

    Args:
        rows: each with size, agent, variant, preset, seed and score (text will do).
        out: the file to write.
        limits: (size, player) -> score, drawn as lines (``experiments.limits.table``).
        paper: (size, agent, variant) -> the paper's score, drawn as diamonds.
    """
    from matplotlib.figure import Figure

    if not rows:
        raise BadInput("no rows to draw")
    groups: dict[int, dict[tuple[str, str, str], list[float]]] = {}
    for row in rows:
        key = (str(row["agent"]), str(row["variant"]), str(row["preset"]))
        groups.setdefault(int(row["size"]), {}).setdefault(key, []).append(-float(row["score"]))
    sizes = sorted(groups)
    heights = [len(groups[size]) + 2.0 for size in sizes]
    figure = Figure(figsize=(12, 0.3 * sum(heights) + 1), layout="constrained")
    grid = figure.subplots(len(sizes), 2, sharey="row", squeeze=False, height_ratios=heights)
    for (whole, near), size in zip(grid, sizes, strict=True):
        lines = {p: -(limits or {})[size, p] for p in _PLAYERS if (size, p) in (limits or {})}
        published = {k[1:]: -v for k, v in (paper or {}).items() if k[0] == size}
        values = [*lines.values(), *published.values(), *chain(*groups[size].values())]
        best = min(values)
        for axes, low, high in (
            (whole, best * 0.9, max(values) * 1.1),
            (near, best * 0.99, lines.get("blind-dfs", best * 1.2) * 1.06),
        ):
            _score_panel(axes, groups[size], lines, published, high)
            _score_axis(axes, "x", low, high)
        whole.set_title(f"{size}×{size}: all scores", loc="left", fontsize=10)
        told = [p for p in ("blind-dfs", "bayes-optimal", "full-map") if p in lines]
        text = "  ".join(f"{_PLAYERS[p][0]} {_minus(-lines[p])}" for p in told)
        near.set_title(f"near: {text}", loc="left", fontsize=7.5)
    for axes in grid[-1]:
        axes.set_xlabel("mean return, log scale")
    labels = [axes.get_legend_handles_labels() for axes in grid.flat]
    names = {text: line for found in labels for line, text in zip(*found, strict=True)}
    figure.legend(names.values(), names.keys(), loc="outside lower center", ncols=4, frameon=False)
    _save(figure, out)


def _score_panel(
    axes: Any,
    groups: Mapping[tuple[str, str, str], list[float]],
    lines: Mapping[str, float],
    published: Mapping[tuple[str, str], float],
    worst: float,
) -> None:
    """A line of dots for each (agent, variant, preset), with its mean and the paper's score.

    All numbers are -score; ``worst`` is where the panel ends on the left.
    """
    for player, limit in lines.items():
        name, colour, dash = _PLAYERS[player]
        axes.axvline(limit, color=colour, ls=dash, lw=1.4, zorder=1, label=name)
    seeds = {"s": 18, "color": BLUE, "alpha": 0.6, "lw": 0, "zorder": 3, "label": "ours, a seed"}
    middle = {"color": BLACK, "fmt": "|", "ms": 13, "mew": 2, "elinewidth": 1.2, "zorder": 4}
    diamond = {"s": 38, "marker": "D", "facecolor": "none", "edgecolor": PINK, "lw": 1.6}
    keys = sorted(groups, key=_rank)
    for place, (agent, variant, preset) in enumerate(keys):
        steps = np.array(groups[agent, variant, preset])
        mean, half = steps.mean(), half_width(steps) or 0.0
        spread = np.linspace(-0.2, 0.2, len(steps) + 2)[1:-1]
        axes.scatter(steps, place + spread, **seeds)
        interval = [[min(half, mean * 0.99)], [half]]
        axes.errorbar(mean, place, xerr=interval, label="ours, mean, 95 % interval", **middle)
        # The paper's setting is the one to set beside its number, not our improvements on it; of
        # MBIE-EB we run three betas, and its number stands beside each.
        told = "" if agent == "mbie-eb" and _BETA.fullmatch(variant) else variant
        if (agent, told) in published and preset != "best":
            axes.scatter(published[agent, told], place, zorder=5, label="paper", **diamond)
        if mean - half > worst:
            left = axes.get_yaxis_transform()
            axes.text(0.01, place, "◀ off the scale", transform=left, va="center", fontsize=7)
    axes.set_yticks(range(len(keys)), [_name(*key) for key in keys], fontsize=8)
    axes.set_ylim(len(keys) - 0.4, -0.6)
    axes.grid(axis="y", color=PALE, lw=0.8)


def _rank(key: tuple[str, str, str]) -> list[Any]:
    """Known agents and presets in the order of the paper's tables, others behind by name."""
    return [_ORDER.index(part) if part in _ORDER else len(_ORDER) for part in key] + [key]


def _name(agent: str, variant: str, preset: str) -> str:
    """``lwm, paper, boundary=mask``: settings without their section, in lines that leave room."""
    settings = [setting.partition(".")[2] or setting for setting in variant.split()]
    return fill(", ".join([agent, preset, *settings]), 48)


def _score_axis(axes: Any, which: str, low: float, high: float) -> None:
    """A logarithmic axis of -score from ``high`` to ``low``: better scores up or to the right."""
    from matplotlib.ticker import MaxNLocator, NullLocator

    getattr(axes, f"set_{which}scale")("log")
    getattr(axes, f"set_{which}lim")(high, low)
    if high > 4 * low:
        ticks = np.outer(10.0 ** np.arange(-1, 7), (1, 2, 5)).ravel()
    else:
        ticks = np.array(MaxNLocator(7).tick_values(low, high))
    axis = getattr(axes, f"{which}axis")
    axis.set_ticks(ticks[(ticks >= low) & (ticks <= high)])
    axis.set_major_formatter(lambda value, _: _minus(-value))
    axis.set_minor_locator(NullLocator())
    axes.spines[["top", "right"]].set_visible(False)


def _minus(score: float) -> str:
    return f"{score:.4g}".replace("-", "−")


def _save(figure: Any, out: Path) -> None:
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=130)
    write(out, data)
