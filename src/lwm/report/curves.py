"""Learning curves of run directories as inline SVG, in the colours of the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lwm import runs
from lwm.experiments import atari, campaign, limits, table1
from lwm.experiments.figure5 import ALL, LAST
from lwm.report.page import escape

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 300, 62, 12, 10, 34
_COLOURS = ("--blue", "--orange", "--green", "--pink")
_DASHES = ("", "6 3", "2 3", "9 3 2 3")
_POINTS = 240

Line = list[tuple[float, float]]


class Run(NamedTuple):
    """The curve of one run."""

    task: str
    label: str
    metric: str
    points: Line
    """(frames, return)."""
    marks: dict[str, float]
    """Name -> score of the lines to compare with."""
    unit: str
    """What is counted on the axis: emulator frames, say."""


def charts(found: Sequence[Path]) -> str:
    """A chart for each task, a line for each run."""
    read = [curve for run in found if (curve := _read(run)) is not None]
    if not read:
        return (
            "<p>No run with returns was given. Train one (<code>lwm train …</code>) and give its "
            "directory to <code>lwm report</code>.</p>"
        )
    tasks = dict.fromkeys(curve.task for curve in read)
    note = (
        "<p>Returns of episodes while training, as logged: with exploration, and with parameters "
        "that change within an episode, which shakes an agent out of loops that the final "
        "parameters can stay in until the time limit. They may lie above or below the scores in "
        "the tables, and stand for none.</p>"
    )
    return note + "".join(_chart(task, [c for c in read if c.task == task]) for task in tasks)


def _read(run: Path) -> Run | None:
    config, rows = runs.read_config(run), list(runs.read_metrics(run))
    label = f"{campaign.label(config)}, seed {config['seed']}"
    keys: tuple[str, ...] = (ALL,)
    marks: dict[str, float] = {}
    repeat, unit = 1, "frames"
    if config.get("workload") == "atari":
        game, repeat = config["atari"]["game"], config["atari"]["action_repeat"]
        keys, unit = (*LAST, ALL), "emulator frames"
        task, marks = game, {"paper, 50M frames": atari.PAPER[game]} if game in atari.PAPER else {}
    elif config.get("workload") == "gym":
        task, unit = config["gym"]["env"], "agent steps"
    else:
        size = config["env"]["size"]
        task, known = f"{size}×{size} labyrinth", limits.table()
        paper, blind = table1.PAPER.get((size, "lwm", "")), known.get((size, "blind-dfs"))
        marks = {
            name: value
            for name, value in (("paper, lwm", paper), ("blind depth-first walk", blind))
            if value is not None
        }
    for key in keys:
        points = [(r["frames"] * repeat, float(r[key])) for r in rows if r.get(key) is not None]
        if points:
            return Run(task, label, key, _thinned(points), marks, unit)
    return None


def _thinned(points: Line) -> Line:
    """At most ``_POINTS`` points, each the mean of its neighbours."""
    parts = np.array_split(np.array(points), min(len(points), _POINTS))
    return [(float(x), float(y)) for x, y in (part.mean(0) for part in parts)]


def _chart(task: str, curves: Sequence[Run]) -> str:
    """One task.  Scores below 0 (labyrinth) are drawn on a logarithmic axis of -score."""
    marks = curves[0].marks
    values = [y for curve in curves for _, y in curve.points] + list(marks.values())
    logarithmic = max(values) < 0
    far = max(x for curve in curves for x, _ in curve.points) or 1.0
    low, high = min(values), max(values)
    height: Callable[[float], float] = (lambda y: -math.log(-y)) if logarithmic else (lambda y: y)
    ticks = [t for t in _ticks(low, high, logarithmic) if low <= t <= high]
    bottom, top = height(low), height(high)
    space = (top - bottom) or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        share = (height(y) - bottom) / space * 0.94 + 0.03
        wide, tall = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
        return _LEFT + x / far * wide, _TOP + (1 - share) * tall

    drawn = [_grid(at(0, tick)[1], f"{tick:g}".replace("-", "−")) for tick in ticks]
    for part in range(5):
        x = far * part / 4
        drawn.append(
            f'<text class="soft" x="{at(x, low)[0]:.0f}" y="{_HEIGHT - 14}" text-anchor='
            f'"{("start", "middle", "end")[(part > 0) + (part == 4)]}">{_frames(x)}</text>'
        )
    keys = []
    for number, (name, score) in enumerate(marks.items()):
        dash, y = _DASHES[1 + number % 3], at(0, score)[1]
        drawn.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
            f'stroke="var(--soft)" stroke-width="1.5" stroke-dasharray="{dash}"/>'
        )
        text = f"{name}: " + f"{score:.4g}".replace("-", "−")
        keys.append(f'<li><svg width="26" height="8" style="display:inline" aria-hidden="true">'
                    f'<line x2="26" y1="4" y2="4" stroke="var(--soft)" stroke-width="2" '
                    f'stroke-dasharray="{dash}"/></svg> {escape(text)}</li>')  # fmt: skip
    for number, curve in enumerate(curves):
        colour, dash = _COLOURS[number % 4], _DASHES[number // 4 % 4]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in curve.points))
        drawn.append(
            f'<polyline points="{path}" fill="none" stroke="var({colour})" stroke-width="1.6" '
            f'stroke-dasharray="{dash}"/>'
        )
        keys.append(f'<li><i style="background:var({colour})"></i>{escape(curve.label)} '
                    f'<span class="soft">({escape(curve.metric)})</span></li>')  # fmt: skip
    scale = "return (logarithmic)" if logarithmic else "return"
    title = f"{task}: {scale} over {curves[0].unit}"
    return (
        f'<h3>{escape(title)}</h3><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'role="img" aria-label="{escape(title)}">{"".join(drawn)}</svg>'
        f'<ul class="keys">{"".join(keys)}</ul>\n'
    )


def _grid(y: float, text: str) -> str:
    return (
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
        f'stroke="var(--line)"/><text class="soft" x="{_LEFT - 8}" y="{y + 4:.1f}" '
        f'text-anchor="end">{text}</text>'
    )


def _ticks(low: float, high: float, logarithmic: bool) -> Iterable[float]:
    if logarithmic:
        close = low / high < 5  # a small part of a decade: more marks
        parts = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8) if close else (1, 2, 5)
        return [-m * 10.0**e for e in range(-1, 6) for m in parts]
    span = (high - low) or 1.0
    step = 10.0 ** math.floor(math.log10(span / 4))
    step *= next(m for m in (1, 2, 5, 10) if span / (m * step) <= 6)
    return [step * k for k in range(math.floor(low / step), math.ceil(high / step) + 1)]


def _frames(x: float) -> str:
    return f"{x / 1e6:.3g} M" if x >= 1e6 else f"{x / 1e3:.3g} k" if x >= 1e3 else f"{x:.0f}"
