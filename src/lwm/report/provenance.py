"""Where numbers come from: command and commit of every row, exact config of every run."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from lwm import experiments, runs
from lwm.config import PRESETS, difference, load_preset
from lwm.errors import LwmError
from lwm.experiments import rows
from lwm.report import page
from lwm.report.tables import load

_NAMES = (
    "claim", "attack", "workload", "study", "phase", "setting", "size", "game", "env", "policy",
    "agent", "bonus", "embedding", "preset", "variant", "player", "representation", "metric",
    "scale", "stage", "cores", "seed",
)  # fmt: skip
_VALUES = ("score", "value", "return", "bonus_tv", "held", "ms")
"""What a row measured, whichever of these it has first."""


def rows_of_results() -> str:
    """Each row of results/ with its command and commit, and what its settings change."""
    lines: list[list[str]] = []
    changed: dict[str, str] = {}
    for path in sorted([*rows.RESULTS.glob("*.csv"), *rows.RESULTS.glob("*.json")]):
        for row in load(path):
            what = ", ".join(row[n] for n in _NAMES if row.get(n))
            named = next((n for n in _VALUES if row.get(n)), "")
            value = f"{named} {row[named]}" if named else "–"
            cells = [path.name, what, value, row.get("commit") or "unknown"]
            lines.append([*cells, row.get("command", "–"), row.get("machine", "–")])
            if path.stem in experiments.REGISTRY:
                changed |= _settings(path.stem, row)
    if not lines:
        return ""
    marked = [[*line[:3], _code(line[3]), _code(line[4]), page.escape(line[5])] for line in lines]
    head = ["file", "row", "value", "commit", "command", "machine"]
    note = (
        "<h3>What each setting changes</h3><p>Against preset <code>paper</code> (Gymnasium: "
        "<code>default</code>), as this version reads the command; the commit above is what "
        "ran.</p>"
    )
    opened = "".join(page.details(name, text) for name, text in sorted(changed.items()))
    text = "Every committed row: what made it, from which commit, on what machine."
    return page.table(head, marked, text, raw=(3, 4, 5)) + (note + opened if opened else "")


def _code(text: str) -> str:
    return f"<code>{page.escape(text)}</code>"


def _settings(name: str, row: dict[str, str]) -> dict[str, str]:
    """Command without its seed -> what it changes in its workload's first preset; rows of training
    runs alone have a config."""
    config_of = getattr(experiments.find(name), "config_of", None)
    if config_of is None:
        return {}
    try:
        config = config_of(row)
        preset = next(iter(PRESETS[config.workload]))
        base = load_preset(preset, workload=config.workload)
    except (LwmError, ValueError, KeyError):
        return {}  # a row of a preset that is no more: its commit still tells
    what = re.sub(r" --seed \d+", "", row["command"])
    apart = {k: v for k, v in difference(config, base).items() if k != "seed"}
    lines = [f"{key} = {new}    ({preset}: {old})" for key, (old, new) in apart.items()]
    return {f"{name}: {what}": "\n".join(lines) or "nothing"}


def run_details(found: Sequence[Path]) -> str:
    """For each run directory: state, commit, score and its whole config."""
    if not found:
        return "<p>None: give run directories to <code>lwm report</code>.</p>"
    lines, opened = [], []
    for run in found:
        machine, status = runs.read_machine(run) or {}, runs.read_status(run) or {}
        result = runs.read_evaluation(run) or {}
        score = f"{result['score']:.2f}" if result.get("score") is not None else "–"
        low, high = result.get("low"), result.get("high")
        interval = "–" if low is None or high is None else f"[{low:.2f}, {high:.2f}]"
        lines.append(
            [
                str(run), str(status.get("state", "–")), f"{status.get('frames', 0):,}", score,
                interval, _code(str(machine.get("commit") or "unknown")),
            ]
        )  # fmt: skip
        opened.append(page.details(f"config of {run}", json.dumps(runs.read_config(run), indent=1)))
    head = ["run", "state", "frames", "score", "95 % interval over episodes", "commit"]
    return page.table(head, lines, "Run directories that were read.", raw=(5,)) + "".join(opened)
