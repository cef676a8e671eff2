"""The rows of a benchmark for a person, on disk, and in the docs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lwm.bench.common import COLUMNS, explained
from lwm.bench.probe import LEAVES
from lwm.errors import RunFailed, reason
from lwm.files import replace_between, write_json_atomic

OUT = Path("results") / "bench.json"
DOCS = Path("docs") / "speed.md"
BEGIN, END = "<!-- bench: written by `lwm bench` -->\n", "<!-- /bench -->"
_WHAT = {"bonus": "128 image environments in Stable-Baselines3's PPO"}
"""What was measured, where it is not preset ``paper``."""
_HEAD = ("stage", "ms a call", "calls a cycle", "share", "GFLOP/s", "of matmul", "GB/s", "of copy")

Row = dict[str, Any]


def bound(row: Row) -> tuple[str, float]:
    """Which of the machine's rates is the nearer limit of a stage, and how near it is; "" where
    neither was measured."""
    if row["of_matmul"] is None and row["of_copy"] is None:
        return "", 0.0
    found = {"matmul": row["of_matmul"] or 0.0, "copy": row["of_copy"] or 0.0}
    name = max(found, key=lambda k: found[k])
    return name, found[name]


def cells(row: Row) -> list[str]:
    """A row as text, in the order of the table's head."""
    per_second = [
        "" if row[k] is None else f"{row[k] / row['ms'] * scale:.1f}"
        for k, scale in (("gflop", 1e3), ("mbytes", 1.0))
    ]
    of = ["" if row[k] is None else f"{row[k]:.0%}" for k in ("of_matmul", "of_copy")]
    share = f"{row['share']:.1%}"
    texts = [row["stage"], f"{row['ms']:.3f}", f"{row['calls']:g}", share]
    return [*texts, per_second[0], of[0], per_second[1], of[1]]


def table(rows: list[Row]) -> list[str]:
    """Lines for a terminal; the last column names the rate that binds."""
    lines = [f"{_HEAD[0]:14}" + "".join(f"{name:>14}" for name in _HEAD[1:]) + "  bound by"]
    for row in rows:
        first, *rest = cells(row)
        lines.append(f"{first:14}" + "".join(f"{text:>14}" for text in rest) + f"  {bound(row)[0]}")
    return lines


def summary(rows: list[Row]) -> list[str]:
    """How much of the cycle the stages explain, and where there is most to gain."""
    leaves = [row for row in rows if row["stage"] in LEAVES]
    first = max(leaves, key=lambda row: row["share"] * (1 - min(bound(row)[1], 1)))
    name, share = bound(first)
    return [
        f"stages explain {explained(rows):.1%} of the cycle",
        f"the next second is in: {first['stage']} ({first['share']:.0%} of the cycle, at "
        f"{share:.0%} of the {name} rate)",
    ]


def write(out: Path, rows: list[Row]) -> None:
    """Put these rows in the place of older ones of their workload, cores and precision."""
    names = {group_of(row) for row in rows}
    kept = [row for row in read(out) if group_of(row) not in names]
    save(out, [*kept, *rows])
    if out == OUT:
        try:
            replace_between(DOCS, BEGIN, END, markdown([*kept, *rows]) + "\n")
        except OSError as error:
            raise RunFailed(f"cannot write {DOCS}: {reason(error)}") from error


def group_of(row: Row) -> tuple[str, int, str]:
    """What was measured together: workload, cores, and precision where it is a choice: that of
    the others follows the processor."""
    return row["workload"], row["cores"], row["dtype"] if row["workload"] == "labyrinth" else ""


def save(out: Path, found: Any) -> None:
    """Write what was found as JSON, in one piece."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_json_atomic(out, found)
    except OSError as error:
        raise RunFailed(f"cannot write {out}: {reason(error)}") from error


def read(out: Path, columns: tuple[str, ...] = COLUMNS) -> list[Row]:
    """The rows that are there; a file that is no list of rows is as good as none."""
    try:
        found = json.loads(out.read_text(encoding="utf-8"))
        return [row for row in found if tuple(row) == columns]
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
        return []
    except OSError as error:
        raise RunFailed(f"cannot read {out}: {reason(error)}") from error


def markdown(rows: list[Row]) -> str:
    """The rows as the tables of docs/speed.md, one for each workload and number of cores."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        key = (row["workload"], row["cores"], row["dtype"], row["commit"])
        groups.setdefault(key, []).append(row)
    parts = []
    for (workload, cores, dtype, commit), group in groups.items():
        head = [*_HEAD, "bound by"]
        lines = [
            f"**{workload}**, {_WHAT.get(workload, 'preset `paper`')}, {cores} "
            f"core{'s' * (cores > 1)}, {dtype}; commit {commit}",
            "",
            "| " + " | ".join(head) + " |",
            "|" + "---|" * len(head),
            *("| " + " | ".join([*cells(row), bound(row)[0]]) + " |" for row in group),
        ]
        if workload not in _WHAT:
            lines += ["", "; ".join(summary(group)) + "."]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)
