"""The guard: today's ratios against the committed ones.

Ratios within one run say the same on a busy machine and on an idle one, nearly.  What seems lost is
measured again, twice at most, and is lost only if it is so every time.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lwm import kernels
from lwm.bench import instructions
from lwm.bench.common import explained
from lwm.bench.report import OUT, Row, group_of, read
from lwm.errors import BadInput, RunFailed

LIMIT = 0.15
"""A ratio may fall by this share."""
AGAIN = 2
SMALL = 0.02
"""Stages with a smaller share of the cycle are left out: their times are noise."""

_EXTRAS = {"atari": ("atari", "ale_py"), "bonus": ("sb3", "stable_baselines3")}
"""Workload -> the extra that it needs, and the module in it."""

Losses = dict[tuple[str, str], str]
"""(stage, ratio) -> what to say."""


def ratios(rows: list[Row]) -> dict[tuple[str, str], float]:
    """What is compared of one workload's rows: (stage, name of the ratio) -> value."""
    found = {}
    for row in rows:
        stage = row["stage"]
        if row["share"] >= SMALL:
            name = "of_matmul" if row["of_matmul"] is not None else "of_copy"
            if row[name] is not None:
                found[stage, name] = row[name]
        if row["of_theirs"] is not None:
            found[stage, "of_theirs"] = row["of_theirs"]
    return {**found, ("stages", "explained"): explained(rows)}


def losses(committed: list[Row], measured: list[Row], limit: float = LIMIT) -> Losses:
    """The ratios of ``committed`` that ``measured`` falls short of by more than ``limit``; both of
    one workload."""
    now = {(row["stage"], name): row.get(name) for row in measured for name in row}
    now["stages", "explained"] = explained(measured)
    workload = committed[0]["workload"]
    found = {}
    for (stage, name), before in ratios(committed).items():
        value = now.get((stage, name))
        if value is None:
            found[stage, name] = f"{workload} {stage}: {name} was {before:.3f} and is gone"
        elif value < before * (1 - limit):
            lost = 1 - value / before
            found[stage, name] = (
                f"{workload} {stage}: {name} {value:.3f}, was {before:.3f} ({lost:.0%} lost)"
            )
    return found


def lasting(committed: list[Row], measure: Callable[[], list[Row]]) -> list[str]:
    """What is lost in every measurement: one, and up to two more while there is anything."""
    found = losses(committed, measure())
    for _ in range(AGAIN):
        if not found:
            break
        again = losses(committed, measure())
        found = {key: again[key] for key in found if key in again}
    return list(found.values())


def run(seconds: float | None = None, out: Path = OUT) -> str:
    """Measure each workload that ``out`` has rows of; losses are printed and are an error."""
    groups: dict[tuple[str, int, str], list[Row]] = {}
    for row in read(out):
        groups.setdefault(group_of(row), []).append(row)
    if not groups:
        raise BadInput(f"{out} has no rows to compare with: run lwm bench labyrinth first")
    lines, lost = [], []
    for (workload, cores, chosen), committed in groups.items():
        extra, needs = _EXTRAS.get(workload, ("", "lwm"))
        if find_spec(needs) is None:
            lines.append(f"{workload}: left out, the extra lwm[{extra}] is not installed")
            continue
        if chosen == "bfloat16" and not kernels.multiplies_bfloat16():
            lines.append(f"{workload}, {chosen}: left out, this processor has no such products")
            continue
        module = import_module(f"lwm.bench.{workload}")
        spend = module.SECONDS / 2 if seconds is None else seconds

        how = (spend, cores, chosen) if chosen else (spend, cores)

        def measure(module: Any = module, how: tuple[Any, ...] = how) -> list[Row]:
            rows: list[Row] = module.measured(*how)[0]
            return rows

        found = lasting(committed, measure)
        lost += found
        verdict = f"{len(found)} lost" if found else "none lost"
        what = ", ".join(filter(None, (workload, f"{cores} core(s)", chosen)))
        lines.append(f"{what}: {len(ratios(committed))} ratios, {verdict} (limit {LIMIT:.0%})")
    if lost:
        print("\n".join(lost))
        raise RunFailed(f"{len(lost)} ratios fell by more than {LIMIT:.0%}")
    return "\n".join([*lines, instructions.run(check=True)])
