"""Figure 5: returns of the last actor while training on Atari, from run directories."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lwm import runs
from lwm.errors import BadInput, RunFailed
from lwm.experiments import campaign
from lwm.experiments.options import PAPER_ATARI_FRAMES, Options, missing_viz

LAST = ("episode/return_last_actor", "episode/return_last")
"""Mean return of the lowest-ε actor's games since the last row of metrics."""
ALL = "episode/return"
"""The same over all actors: drawn where a run does not tell its last actor's."""

GOAL_GAME, GOAL = "montezuma_revenge", 2500.0
PAPER_GOAL = (24.5e6, 43.2e6, 33.6e6, 28.2e6, 41.0e6)
"""Frames at which the paper's five seeds first reached 2500 on Montezuma's Revenge."""


class Curve(NamedTuple):
    """Returns of one run."""

    run: Path
    game: str
    agent: str
    """With its preset and what differs from it: seeds of different settings are not averaged."""
    seed: int
    key: str
    """Which metric it is."""
    frames: NDArray[np.float64]
    """[n] emulator frames."""
    returns: NDArray[np.float64]
    """[n]."""


class Band(NamedTuple):
    """Several seeds on one axis of frames."""

    frames: NDArray[np.float64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def read(run: Path, limit: float = np.inf) -> Curve | None:
    """The curve of a run up to ``limit`` emulator frames; None if it is not Atari or has none."""
    config = runs.read_config(run)
    if config.get("workload") != "atari":
        return None
    repeat = config["atari"]["action_repeat"]
    rows = [r for r in runs.read_metrics(run) if r["frames"] * repeat <= limit]
    for key in (*LAST, ALL):
        told = [(r["frames"] * repeat, r[key]) for r in rows if r.get(key) is not None]
        if told:
            x, y = np.array(told, np.float64).T
            label = campaign.label(config)
            return Curve(Path(run), config["atari"]["game"], label, config["seed"], key, x, y)
    return None


def band(curves: Sequence[Sequence[NDArray[np.float64]]], points: int = 200) -> Band:
    """Mean, least and greatest of curves (x, y), where every one of them has a value."""
    start, end = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    grid = np.linspace(start, max(start, end), points)
    values = np.stack([np.interp(grid, x, y) for x, y in curves])
    return Band(grid, values.mean(0), values.min(0), values.max(0))


def reached(curve: Curve, goal: float = GOAL) -> float | None:
    """The first frame at which the drawn return is at least ``goal``; None: never."""
    hits = np.flatnonzero(curve.returns >= goal)
    return float(curve.frames[hits[0]]) if len(hits) else None


def collect(options: Options) -> list[Curve]:
    """Curves of the runs that were given, or of those under runs/."""
    places = options.runs or [Path("runs")]
    if not options.runs and not places[0].is_dir():
        raise RunFailed("no run of Atari under runs/: make one with lwm reproduce atari")
    for place in options.runs:
        if not place.exists():
            raise BadInput(f"{place} does not exist")
    limit = np.inf if options.scale is None else options.scale * PAPER_ATARI_FRAMES
    found = [path for place in places for path in runs.find_runs(place)]
    curves = [curve for path in found if (curve := read(path, limit)) is not None]
    if not curves:
        where = ", ".join(map(str, places))
        raise RunFailed(f"no run of Atari with returns under {where}: lwm reproduce atari")
    return curves


def grouped(curves: Sequence[Curve]) -> dict[tuple[str, str, str], list[Curve]]:
    """(game, agent with its settings, metric) -> its seeds; one seed twice is refused."""
    groups: dict[tuple[str, str, str], list[Curve]] = {}
    for c in curves:
        group = groups.setdefault((c.game, c.agent, c.key), [])
        for other in group:
            if other.seed == c.seed:
                raise BadInput(
                    f"{other.run} and {c.run} are both seed {c.seed} of {c.game} ({c.agent}): "
                    "name one of them with --runs"
                )
        group.append(c)
    return groups


def status() -> str:
    """Whether the picture is there."""
    path = Options().pictures / "figure5.png"
    return str(path) if path.is_file() else "not drawn yet"


def main(options: Options) -> int:
    """Read, draw, and say when Montezuma's 2500 was reached."""
    options.allow("figure5", "scale", "out", "runs")
    curves = collect(options)
    groups = grouped(curves)
    from lwm.plots import dynamics

    out = options.pictures / "figure5.png"
    drawn = {
        key: (band([(c.frames, c.returns) for c in group]), len(group))
        for key, group in groups.items()
    }
    try:
        dynamics.bands(drawn, out)
    except ImportError as error:
        raise missing_viz(error) from error
    for (game, agent, key), (found, seeds) in sorted(drawn.items()):
        # Where seeds ended at different frames, the shortest decides.
        frames = found.frames[-1]
        print(
            f"{game} ({agent}): {seeds} seed(s), {frames:,.0f} frames "
            f"(scale {frames / PAPER_ATARI_FRAMES:.2g}), drawn: {key}"
        )
    for c in (c for c in curves if c.game == GOAL_GAME):
        first = reached(c)
        told = "not reached" if first is None else f"first reached at {first:,.0f} frames"
        print(f"{GOAL_GAME} ({c.agent}) seed {c.seed}: {GOAL:.0f} {told} ({c.key})")
    if any(c.game == GOAL_GAME for c in curves):
        print("paper: at " + ", ".join(f"{f / 1e6:g}M" for f in PAPER_GOAL) + " frames")
    print(f"picture: {out}")
    return 0
