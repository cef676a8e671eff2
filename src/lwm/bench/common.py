"""How speed is measured, whatever the workload.

Times of a shared machine mean little by themselves, so everything is measured in turn, round after
round in one run: some real cycles with their stages (``probe``), a matrix product in either
precision, a copy of memory.  On one core time is processor time, which is what the clock on the
wall says when nothing else runs; on more cores it is the wall's.  Of the rounds the fastest tenth
counts, the same rounds for a cycle and for all of its stages, so that these add up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from lwm.bench.cost import Cost
from lwm.bench.probe import LEAVES, STAGES, Clock, Probe
from lwm.training import Trainer

COLUMNS = (
    "workload", "stage", "cores", "dtype", "ms", "gflop", "of_matmul", "commit",
    "mbytes", "of_copy", "calls", "share", "of_theirs",
)  # fmt: skip
"""``ms``, ``gflop``, ``mbytes``: of one call; ``calls``: of these in a cycle; ``share``: of the
cycle's time; ``of_matmul``, ``of_copy``: of the machine's own rates in the same run;
``of_theirs``: the environments' steps per second over those of the reference."""
METHOD = "fastest tenth of interleaved rounds"
COPIED = 64 << 20
"""Bytes of the array that is copied: more than fits into caches."""

Work = dict[str, tuple[int, Callable[[], object]]]
"""Name -> (calls in a round, the call)."""
Rounds = list[dict[str, float]]


def clock(cores: int) -> Clock:
    """Processor time; with more cores than one the wall's, as they share the work."""
    return time.process_time if cores == 1 else time.perf_counter


def measure(work: Work, seconds: float, clock: Clock = time.process_time) -> dict[str, float]:
    """Each entry's undisturbed seconds per call, over rounds in which each has its turn."""
    took: dict[str, list[float]] = {name: [] for name in work}
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(next(iter(took.values()))) < 3:
        for name, (calls, function) in work.items():
            began = clock()
            for _ in range(calls):
                function()
            took[name].append((clock() - began) / calls)
    return {name: undisturbed(times) for name, times in took.items()}


def measure_cycles(
    trainer: Trainer,
    cycles: int,
    cycle: Callable[[], object],
    work: Work,
    seconds: float,
    clock: Clock,
    others: Callable[[], float] = lambda: 0.0,
) -> dict[str, float]:
    """Seconds of each stage in a cycle (``learner`` and ``cycle`` too), and of ``work`` per call.

    A round is ``cycles`` times ``cycle``, and the work.  ``others``: processor time of other
    processes that play the games; it is counted as the environments'.
    """
    probe = Probe(clock)
    rounds: Rounds = []
    times: dict[str, list[float]] = {}
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(rounds) < 3:
        with probe.on(trainer):
            theirs = others()
            for _ in range(cycles):
                probe.cycle(cycle)
            theirs = others() - theirs
        took = probe.take()
        took["env"] += theirs
        took["cycle"] += theirs
        rounds.append({stage: t / cycles for stage, t in took.items()})
        for name, (calls, function) in work.items():
            began = clock()
            for _ in range(calls):
                function()
            times.setdefault(name, []).append((clock() - began) / calls)
    found = quiet(rounds, "cycle")
    return found | {name: undisturbed(values) for name, values in times.items()}


def quiet(rounds: Rounds, by: str) -> dict[str, float]:
    """The mean of the tenth of the rounds with the least ``by``; the first one only warms up."""
    chosen = sorted(rounds[1:] or rounds, key=lambda r: r[by])
    chosen = chosen[: max(len(chosen) // 10, 1)]
    return {name: float(np.mean([r[name] for r in chosen])) for name in chosen[0]}


def undisturbed(times: list[float]) -> float:
    """What a call takes when nothing disturbs it."""
    return quiet([{"": t} for t in times], "")[""]


def references(shape: tuple[int, int, int], calls: int, dtypes: tuple[torch.dtype, ...]) -> Work:
    """A matrix product [rows, in] [in, out] in each dtype, and a copy of much memory."""
    n, k, m = shape
    work: Work = {}
    for dtype in dtypes:
        a, b = torch.ones(n, k, dtype=dtype), torch.ones(k, m, dtype=dtype)
        out = torch.empty(n, m, dtype=dtype)
        work[matmul_name(dtype)] = (calls, partial(torch.mm, a, b, out=out))
    source, goal = np.ones(COPIED, np.uint8), np.zeros(COPIED, np.uint8)
    return {**work, "_copy": (1, lambda: np.copyto(goal, source))}


def matmul_name(dtype: torch.dtype) -> str:
    """The entry of a dtype's matrix product."""
    return "_matmul_" + str(dtype).removeprefix("torch.")


def rates(low: Mapping[str, float], shape: tuple[int, int, int], dtype: str) -> tuple[float, float]:
    """Operations a second of the product in ``dtype``, bytes a second of the copy (each byte is
    read and written)."""
    n, k, m = shape
    return 2 * n * k * m / low[f"_matmul_{dtype}"], 2 * COPIED / low["_copy"]


def stage_rows(
    workload: str,
    low: Mapping[str, float],
    costs: Mapping[str, Cost],
    calls: Mapping[str, float],
    rates: tuple[float, float],
    dtype: str,
    commit: str | None,
    cores: int = 1,
    of_theirs: float | None = None,
) -> list[dict[str, Any]]:
    """The rows of bench.json.

    ``low``: seconds a cycle by stage; ``costs``: of one call; ``calls``: of them in a cycle;
    ``rates``: the machine's own, operations and bytes a second.
    """
    rows = []
    for stage in STAGES:
        cost = costs.get(stage)
        if cost is None:
            continue
        each = low[stage] / calls[stage]
        flop = cost.flop or None
        moved = cost.bytes or None
        row = (
            workload,
            stage,
            cores,
            dtype,
            1e3 * each,
            flop and flop / 1e9,
            flop and flop / each / rates[0],
            commit,
            moved and moved / 1e6,
            moved and moved / each / rates[1],
            calls[stage],
            low[stage] / low["cycle"],
            of_theirs if stage == "env" else None,
        )
        rows.append(dict(zip(COLUMNS, row, strict=True)))
    return rows


def explained(rows: list[dict[str, Any]]) -> float:
    """Share of the cycle that its stages add up to."""
    return float(sum(row["share"] for row in rows if row["stage"] in LEAVES))
