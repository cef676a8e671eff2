"""Columns of a run's logs as curves of a few hundred points."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np

from lwm.viewer.disk import Log

POINTS = 600
_KEPT = 64
"""Runs whose logs are kept in memory."""

TIMED = ("frames_per_second",)
"""What the page shows of timing.jsonl."""

Curve = dict[str, list[float]]
Told = dict[str, Any]


class Logs:
    """metrics.jsonl and timing.jsonl of the runs looked at last, read on as they grow."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Path, tuple[Log, Log]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, run: Path) -> tuple[Log, Log]:
        """Both logs of a run, up to date."""
        with self._lock:
            if run not in self._kept:
                self._kept[run] = (Log(run / "metrics.jsonl"), Log(run / "timing.jsonl"))
            self._kept.move_to_end(run)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
            logs = self._kept[run]
            for log in logs:
                log.update()
            return logs

    def curves(self, run: Path, keys: set[str] | None = None, points: int = POINTS) -> Told:
        """Name -> curve (all names, or those asked for), with what is odd about the logs."""
        metrics, timing = self.of(run)
        made = {
            key: thinned(column, points)
            for key, column in metrics.columns.items()
            if keys is None or key in keys
        }
        timed = [key for key in TIMED if key in timing.columns]
        made |= {
            key: thinned(timing.columns[key], points)
            for key in timed
            if keys is None or key in keys
        }
        return {
            "version": f"{metrics.version}.{timing.version}",
            "rows": metrics.rows,
            "damaged": metrics.damaged + timing.damaged,
            "keys": sorted({*metrics.columns, *timed}),
            "curves": made,
        }


def thinned(column: tuple[Any, Any], points: int) -> Curve:
    """At most ``points`` points, each the mean of its neighbours; ``low`` and ``high`` are the
    least and the greatest of them, where they are more than one."""
    x, y = (np.array(values, np.float64) for values in column)
    if len(x) <= points:
        return {"x": x.tolist(), "y": _short(y)}
    edges = np.linspace(0, len(x), points + 1).astype(np.int64)[:-1]
    counts = np.diff(np.append(edges, len(x)))
    mean = np.add.reduceat(y, edges) / counts
    return {
        "x": np.round(np.add.reduceat(x, edges) / counts).tolist(),
        "y": _short(mean),
        "low": _short(np.minimum.reduceat(y, edges)),
        "high": _short(np.maximum.reduceat(y, edges)),
    }


def _short(values: Any) -> list[float]:
    return [float(f"{v:.6g}") for v in values.tolist()]
