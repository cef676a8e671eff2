"""Returns of Atari games while training, as the paper draws them: those of the last actor.

The last actor explores least (row 27), so its returns are nearest to what the agent can do.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lwm.errors import BadInput
from lwm.plots.style import BLUE, GREEN, ORANGE, PALE, PINK, RED, SKY, write
from lwm.runs import read_config, read_metrics

_AGENTS = {"lwm": BLUE, "dqn": ORANGE, "lwm-ff": SKY, "random": RED}
_OTHERS = (PINK, GREEN)
LAST, ALL = "episode/return_last_actor", "episode/return"


def game_curves(runs: Sequence[Path], out: Path) -> None:
    """Whole-game returns over emulator frames as a PNG: a panel a game, a colour an agent.

    A thick line is the last actor of a run, a thin one the mean over its actors.

    Args:
        runs: run directories of Atari.
        out: the file to write.
    """
    from matplotlib.figure import Figure

    panels: dict[str, list[tuple[dict[str, Any], list[dict[str, Any]]]]] = {}
    for run in runs:
        config, rows = read_config(run), list(read_metrics(run))
        if config["workload"] != "atari":
            raise BadInput(f"{run} is no run of Atari")
        if not any(ALL in row for row in rows):
            raise BadInput(f"{run} has no returns to draw yet")
        panels.setdefault(config["atari"]["game"], []).append((config, rows))
    if not panels:
        raise BadInput("no runs to draw")
    figure = Figure(figsize=(8, 0.6 + 3.4 * len(panels)), layout="constrained")
    grid = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    colours = dict(_AGENTS)
    for axes, (game, found) in zip(grid, sorted(panels.items()), strict=True):
        for config, rows in found:
            agent = config["agent"]
            colour = colours.setdefault(agent, _OTHERS[len(colours) % len(_OTHERS)])
            repeat = config["atari"]["action_repeat"]
            _line(axes, rows, ALL, repeat, colour, 0.8, f"{agent}: all actors")
            _line(axes, rows, LAST, repeat, colour, 1.8, f"{agent}: last actor")
        axes.set_title(f"{game}: return of a game while learning", loc="left", fontsize=10)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1e6:g} M")
        axes.grid(axis="y", color=PALE, lw=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    grid[-1].set_xlabel("emulator frames")
    labels = [axes.get_legend_handles_labels() for axes in grid]
    names = {text: line for pair in labels for line, text in zip(*pair, strict=True)}
    figure.legend(names.values(), names.keys(), loc="outside lower center", ncols=4, frameon=False)
    _save(figure, out)


def _line(
    axes: Any,
    rows: Sequence[dict[str, Any]],
    key: str,
    repeat: int,
    colour: str,
    width: float,
    label: str,
) -> None:
    """One number over frames; rows without it (no game ended) are passed over."""
    points = [(row["frames"] * repeat, row[key]) for row in rows if key in row]
    if points:
        axes.plot(*zip(*points, strict=True), color=colour, lw=width, label=label)


def _save(figure: Any, out: Path) -> None:
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=130)
    write(out, data)
