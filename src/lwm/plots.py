"""Pictures from rows and run directories; nothing here knows how training works.

Scores are negative step counts, from -10 to -1000 in one picture: axes are logarithmic in -score,
better is up (or right).  Colours are those of Okabe and Ito, which colour-blind readers can tell
apart.  Needs the extra ``viz``; matplotlib and Pillow are loaded only when something is drawn.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lwm import runs
from lwm.episodes import Episode
from lwm.errors import BadInput
from lwm.files import write_bytes_atomic

BLACK, BLUE, ORANGE, GREEN, RED, SKY, PINK = (
    "#000000", "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7",
)  # fmt: skip
_RUN_COLOURS = (BLUE, RED, GREEN, PINK, SKY, ORANGE)
_DASHES: tuple[Any, ...] = ("--", ":", "-.", (0, (6, 1)), (0, (1, 1)), (0, (3, 1, 1, 1, 1, 1)))
_GREY = "#5F6774"
# Quantiles 0.975 of Student's t for 1 .. 9 degrees of freedom.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
_DPI = 130


def learning_curve(runs_: Sequence[Path], out: Path, limits: Mapping[str, float]) -> None:
    """Return while training and validation scores over frames, a PNG.

    Args:
        runs_: run directories, one colour each.
        out: the PNG to write.
        limits: name -> score of the horizontal lines to compare with.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.6), layout="constrained")
    axes = figure.add_subplot()
    shown: list[float] = [-v for v in limits.values()]
    sizes = set()
    for run, colour in zip(runs_, _cycled(_RUN_COLOURS, len(runs_)), strict=True):
        config = runs.read_config(run)
        size = config["env"]["size"]
        sizes.add(f"{size}×{size}")
        label = f"{config['agent']}, preset {config['preset']}, seed {config['seed']}"
        rows = list(runs.read_metrics(run))
        trained = [(r["frames"], -r["episode/return"]) for r in rows if r.get("episode/return")]
        scored = [r for r in rows if r.get("kind") == "validation"]
        if not trained and not scored:
            raise BadInput(f"{run} has no returns to draw yet")
        shown += [y for _, y in trained] + [-r["score"] for r in scored]
        if trained:
            axes.plot(*zip(*trained, strict=True), color=colour, lw=1.2, alpha=0.55,
                      label=f"training return: {label}")  # fmt: skip
        if scored:
            y = np.array([-r["score"] for r in scored])
            spread = [y - [-r["high"] for r in scored], [-r["low"] for r in scored] - y]
            axes.errorbar([r["frames"] for r in scored], y, np.maximum(spread, 0), fmt="o", ms=4,
                          color=colour, elinewidth=1, label="validation score, 95 % interval",
                          zorder=3)  # fmt: skip
    for (name, score), dash in zip(limits.items(), _cycled(_DASHES, len(limits)), strict=True):
        axes.axhline(-score, color=BLACK, lw=1.1, ls=dash, label=f"{name}: {_minus(score)}")
    _score_axis(axes, "y", min(shown) * 0.93, max(shown) * 1.08)
    axes.xaxis.set_major_formatter(lambda x, _: _frames(x))
    axes.set_xlim(left=0)
    axes.set_xlabel("environment frames (steps of the environments)")
    axes.set_ylabel("return of an episode (log scale)")
    axes.set_title(f"{', '.join(sorted(sizes))} labyrinth: return while learning", loc="left")
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(0, -0.16), ncols=2)
    _save(figure, out)


def score_plot(
    rows: Sequence[Mapping[str, Any]],
    out: Path,
    limits: Mapping[tuple[int, str], float] | None = None,
    paper: Mapping[tuple[int, str, str], float] | None = None,
) -> None:
    """Scores by size and agent, in full and near the limits: dots per seed, mean and 95 % interval.

    Args:
        rows: each with size, agent, variant, preset, seed and score (text will do).
        out: the PNG to write.
        limits: (size, player) -> score: vertical lines, as ``experiments.limits.table`` has them.
        paper: (size, agent, variant) -> the paper's score: diamonds.
    """
    from matplotlib.figure import Figure

    if not rows:
        raise BadInput("no rows to draw")
    groups: dict[int, dict[tuple[str, str, str], list[float]]] = {}
    for row in rows:
        key = (str(row["agent"]), str(row["preset"]), str(row["variant"]))
        groups.setdefault(int(row["size"]), {}).setdefault(key, []).append(float(row["score"]))
    sizes = sorted(groups)
    lines = {s: {p: v for (n, p), v in (limits or {}).items() if n == s} for s in sizes}
    heights = [len(groups[s]) + 2.2 for s in sizes]
    figure = Figure(figsize=(11, 0.30 * sum(heights) + 1.1), layout="constrained")
    grid = figure.subplots(len(sizes), 2, sharey="row", squeeze=False, height_ratios=heights)
    for (whole, near), size in zip(grid, sizes, strict=True):
        published = {a: v for (n, a, x), v in (paper or {}).items() if n == size and not x}
        scores = [-v for group in groups[size].values() for v in group]
        marks = [-v for v in (*lines[size].values(), *published.values())]
        best = min(scores + marks)
        walk = -lines[size].get("blind-dfs", -1.2 * best)
        for axes, low, high in (
            (whole, best * 0.9, max(scores + marks) * 1.1),
            (near, best * 0.99, max(walk, best) * 1.06),
        ):
            _score_panel(axes, groups[size], published, lines[size], (low, high))
        whole.set_title(f"{size}×{size}: all scores", loc="left", fontsize=10)
        known = " · ".join(f"{p} {_minus(v)}" for p, v in lines[size].items())
        near.set_title(f"near the limits   {known}", loc="left", fontsize=8)
    for axes in grid[-1]:
        axes.set_xlabel("mean return of an episode (log scale; right is better)")
    found = {t: h for axes in grid.flat for h, t in zip(*axes.get_legend_handles_labels())}
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=4, frameon=False,
                  fontsize=9)  # fmt: skip
    _save(figure, out)


def _score_panel(
    axes: Any,
    groups: Mapping[tuple[str, str, str], list[float]],
    published: Mapping[str, float],
    lines: Mapping[str, float],
    view: tuple[float, float],
) -> None:
    """One panel: a line of dots for each (agent, preset, variant), better to the right."""
    players = ("random", "blind-dfs", "bayes-optimal", "bayes-optimal-eps0.01", "full-map")
    look = dict(zip(players, zip((RED, ORANGE, GREEN, GREEN, SKY), _DASHES)))
    for player, score in lines.items():
        colour, dash = look.get(player, (_GREY, ":"))
        axes.axvline(-score, color=colour, ls=dash, lw=1.4, label=player, zorder=1)
    keys = sorted(groups, key=lambda k: (k[0] not in ("random", "dqn", "lwm"), k[0], k[2], k[1]))
    for place, key in enumerate(keys):
        score = -np.array(groups[key])
        nudge = np.linspace(-0.16, 0.16, len(score)) if len(score) > 1 else np.zeros(1)
        axes.scatter(score, place + nudge, s=16, color=BLUE, alpha=0.6, lw=0, label="ours, one seed",
                     zorder=3)  # fmt: skip
        mean, half = score.mean(), _half_width(score)
        axes.errorbar(mean, place, xerr=[[min(half, mean * 0.999)], [half]], fmt="|", ms=13, mew=2,
                      color=BLACK, elinewidth=1.2, label="ours, mean and 95 % interval",
                      zorder=4)  # fmt: skip
        if key[0] in published and key[1] != "best" and not key[2]:
            axes.scatter(-published[key[0]], place, marker="D", s=38, facecolor="none",
                         edgecolor=PINK, lw=1.6, label="paper", zorder=5)  # fmt: skip
        if mean > view[1]:
            axes.annotate("◀ off to the left", (0.01, place), xycoords=("axes fraction", "data"),
                          va="center", fontsize=7, color=_GREY)  # fmt: skip
    axes.set_yticks(range(len(keys)), [_name(k) for k in keys], fontsize=8)
    axes.set_ylim(len(keys) - 0.4, -0.6)
    axes.grid(axis="y", color="#E6E8EC", lw=0.8)
    _score_axis(axes, "x", *view)


def _name(key: tuple[str, str, str]) -> str:
    agent, preset, variant = key
    tail = " ".join(part.rpartition(".")[2] if "=" not in part else
                    part.partition("=")[0].rpartition(".")[2] + "=" + part.partition("=")[2]
                    for part in variant.split())  # fmt: skip
    return f"{agent}, {preset}" + (f", {tail}" if tail else "")


def _half_width(score: NDArray[np.float64]) -> float:
    """Half of the 95 % interval of the mean by Student's t; 0 for a single seed."""
    n = len(score)
    return float(_T[min(n - 2, 8)] * score.std(ddof=1) / np.sqrt(n)) if n > 1 else 0.0


def _score_axis(axes: Any, which: str, low: float, high: float) -> None:
    """A logarithmic axis of -score between ``low`` and ``high``, better scores up or right."""
    axis = getattr(axes, f"{which}axis")
    getattr(axes, f"set_{which}scale")("log")
    getattr(axes, f"set_{which}lim")(high, low)
    digits = (1, 2, 5) if high > 4 * low else (1, 1.1, 1.2, 1.3, 1.5, 1.7, 2, 2.2, 2.5, 3, 4, 5, 7)
    ticks = [d * 10.0**k for k in range(-1, 7) for d in digits]
    axis.set_ticks([t for t in ticks if low <= t <= high])
    axis.set_major_formatter(lambda value, _: _minus(-value))
    axis.set_minor_locator(_null_locator())
    axes.spines[["top", "right"]].set_visible(False)


def _null_locator() -> Any:
    from matplotlib.ticker import NullLocator

    return NullLocator()


def _cycled(values: Sequence[Any], count: int) -> list[Any]:
    return [values[k % len(values)] for k in range(count)]


def _minus(value: float) -> str:
    return f"{value:.4g}".replace("-", "−")


def _frames(value: float) -> str:
    return f"{value / 1e6:g} M" if value >= 1e6 else f"{value / 1e3:g} k" if value else "0"


def _save(figure: Any, out: Path) -> None:
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=_DPI)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_bytes_atomic(out, data.getvalue())
