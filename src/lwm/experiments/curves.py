"""What runs told while they trained, as rows: their directories are not kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lwm import runs
from lwm.experiments import campaign, rows, runner
from lwm.experiments.figure5 import Band, band
from lwm.plots import dynamics

POINTS = 60
"""Rows of a curve, each the mean of its part of the run."""

Key = tuple[str, str, str]
"""Panel, line, metric: as ``dynamics.bands`` takes them."""


def keep(
    path: Path,
    columns: tuple[str, ...],
    job: runner.Job,
    named: Mapping[str, Any],
    told: Mapping[str, str],
    repeat: int = 1,
) -> None:
    """Append the curve of a finished run, if it tells one.

    ``named``: cells that say which run it is; ``told``: column -> the metric that it is the mean
    of, over all rows of the log that have it; ``repeat``: frames that an agent step counts for.
    """
    every = runs.read_metrics(job.directory)
    log = [row for row in every if any(metric in row for metric in told.values())]
    if not log:
        return
    _, origin = campaign.outcome(job)
    parts = np.array_split(np.array(log, dtype=object), min(POINTS, len(log)))
    found = [
        {
            **named,
            **origin,
            "frames": part[-1]["frames"] * repeat,
            **{column: _mean(part, metric) for column, metric in told.items()},
        }
        for part in parts
    ]
    rows.append_all(path, columns, found, ("command", "frames"))


def _mean(part: Iterable[Mapping[str, Any]], metric: str) -> float | None:
    values = [row[metric] for row in part if row.get(metric) is not None]
    return float(np.mean(values)) if values else None


def draw(points: Iterable[tuple[Key, str, str, str]], out: Path, unit: str) -> bool:
    """Points (key, run, frames, value) as a picture: the mean over runs of a key, and their band.

    Points without a value are left out; False if none is left.  Without the extra ``viz`` an
    ``ImportError``.
    """
    found: dict[Key, dict[str, list[tuple[float, float]]]] = {}
    for key, run, frames, value in points:
        if value:
            found.setdefault(key, {}).setdefault(run, []).append((float(frames), float(value)))
    if not found:
        return False
    lines: dict[Key, tuple[Band, int]] = {
        key: (band([(x, y) for x, y in (np.array(p).T for p in of.values())]), len(of))
        for key, of in found.items()
    }
    dynamics.bands(lines, out, unit)
    return True
