"""How speed is measured, whatever the workload.

Times of a shared machine mean little by themselves, so everything is measured in turn, round after
round in one run with one BLAS thread, in seconds of processor time (what the clock on the wall
says when nothing else runs), and the low quantile of the rounds is kept.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lwm.errors import RunFailed, reason
from lwm.files import write_json_atomic

COLUMNS = ("workload", "stage", "cores", "dtype", "ms", "gflop", "of_matmul", "commit")
OUT = Path("results") / "bench.json"
_QUANTILE = 0.1
METHOD = f"processor time, low quantile ({_QUANTILE:.0%}) of interleaved rounds"

Work = dict[str, tuple[int, Callable[[], object]]]
"""Name -> (calls in a round, the call)."""


def measure(
    work: Work, seconds: float, clock: Callable[[], float] = time.process_time
) -> dict[str, float]:
    """Low quantile of each entry's seconds per call, over rounds in which each has its turn."""
    took: dict[str, list[float]] = {name: [] for name in work}
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(next(iter(took.values()))) < 3:
        for name, (calls, function) in work.items():
            began = clock()
            for _ in range(calls):
                function()
            took[name].append((clock() - began) / calls)
    return {name: low_quantile(times) for name, times in took.items()}


def low_quantile(times: list[float]) -> float:
    """What it takes undisturbed; the first time pays for caches and allocations."""
    return float(np.quantile(times[1:], _QUANTILE))


def stage_rows(
    workload: str,
    stages: Sequence[str],
    low: Mapping[str, float],
    counts: Mapping[str, float],
    matmul: float,
    dtype: str,
    commit: str | None,
    cores: int = 1,
) -> list[dict[str, Any]]:
    """The rows of bench.json: ``gflop`` is the work of one call in 10^9 operations.

    ``low``: seconds by stage; ``counts``: operations by stage; ``matmul``: operations a second of a
    plain matrix product.
    """
    rows = []
    for stage in stages:
        count = counts.get(stage)
        rate = None if count is None else count / low[stage] / matmul
        values = (1e3 * low[stage], None if count is None else count / 1e9, rate)
        row = (workload, stage, cores, dtype, *values, commit)
        rows.append(dict(zip(COLUMNS, row, strict=True)))
    return rows


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The rows for a person."""
    lines = [f"{'stage':22}{'ms a call':>10}{'GFLOP/s':>10}{'of matmul':>11}"]
    for row in rows:
        work = ""
        if row["gflop"] is not None:
            work = f"{row['gflop'] / row['ms'] * 1e3:10.1f}{row['of_matmul']:11.0%}"
        lines.append(f"{row['stage']:22}{row['ms']:10.3f}{work}")
    return lines


def write(out: Path, rows: list[dict[str, Any]]) -> None:
    """Put these rows in the place of their workload's older ones."""
    names = {row["workload"] for row in rows}
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        kept = [row for row in _read(out) if row["workload"] not in names]
        write_json_atomic(out, [*kept, *rows])
    except OSError as error:
        raise RunFailed(f"cannot write {out}: {reason(error)}") from error


def _read(out: Path) -> list[dict[str, Any]]:
    """The rows that are there; a file that is no list of rows is as good as none."""
    try:
        found = json.loads(out.read_text(encoding="utf-8"))
        return [row for row in found if tuple(row) == COLUMNS]
    except (FileNotFoundError, ValueError, TypeError):
        return []
