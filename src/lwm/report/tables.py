"""Tables of results: every experiment's own, every other file of rows, and over several tasks."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np

from lwm import experiments
from lwm.errors import BadInput
from lwm.experiments import atari, limits, rows, table1
from lwm.experiments.options import PAPER_ATARI_FRAMES
from lwm.report import page
from lwm.statistics import interquartile_mean, stratified_bootstrap, task_weights

_SOURCE = ("command", "commit", "machine")
_MOST = 300  # rows of a file that is shown as it is


def results() -> str:
    """A table for each experiment that has rows, then files of rows that belong to none."""
    parts, known = [], set()
    for name, entry in experiments.REGISTRY.items():
        module = experiments.find(name)
        if hasattr(module, "markdown") and hasattr(module, "PATH"):
            known.add(module.PATH.name)
            if module.PATH.is_file():
                text = f"{entry.what}. From {module.PATH}, by lwm reproduce {name}."
                tables = module.markdown().split("\n\n")
                body = "".join(page.from_markdown(table, text) for table in tables)
                legend = module.legend() if hasattr(module, "legend") else []
                lines = "".join(f"<li>{page.escape(line)}</li>" for line in legend)
                parts.append(_part(name, body + (f"<ul>{lines}</ul>" if lines else "")))
    for path in sorted([*rows.RESULTS.glob("*.csv"), *rows.RESULTS.glob("*.json")]):
        body = "" if path.name in known else _plain(path)
        if body:
            parts.append(_part(path.stem, body))
    if not parts:
        return f"<p>No rows under {rows.RESULTS}/ yet: run <code>lwm reproduce</code>.</p>"
    note = (
        "<p>Intervals are 95 % intervals of the mean over seeds (Student's t); a row of one seed "
        "has none. Of few seeds with skewed scores they can reach values that no score has. "
        "“–”: not measured, or not given in the paper.</p>"
    )
    return note + "".join(parts)


def _part(name: str, body: str) -> str:
    return f"<h3>{page.escape(name)}</h3>\n{body}"


def load(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file, or of a JSON list of objects, as text."""
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".csv":
            return [
                {k: v or "" for k, v in row.items() if k}
                for row in csv.DictReader(text.splitlines())
            ]
        found = json.loads(text)
        if not isinstance(found, list):
            return []
        # Lists in cells are for programs.
        return [
            {k: _cell(v) for k, v in row.items() if not isinstance(v, list)}
            for row in found
            if isinstance(row, dict)
        ]
    except (OSError, ValueError, csv.Error) as error:
        raise BadInput(f"cannot read {path}: {error}") from error


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _plain(path: Path) -> str:
    found = load(path)[:_MOST]
    head = [name for name in (found[0] if found else {}) if name not in _SOURCE]
    cells = [[row.get(name, "–") for name in head] for row in found]
    return page.table(head, cells, f"As it stands in {path}.") if found else ""


def over_tasks() -> str:
    """Agents scored on several tasks: interquartile mean and its interval, on one scale."""
    parts = []
    known = limits.table()
    maze: dict[str, dict[str, list[float]]] = {}
    for row in table1.read():
        size = int(row["size"])
        low, high = known.get((size, "random")), known.get((size, "blind-dfs"))
        if row["variant"] or low is None or high is None:
            continue
        share = (float(row["score"]) - low) / (high - low)
        agent = f"{row['agent']}, {row['preset']}"
        maze.setdefault(agent, {}).setdefault(f"{size}×{size}", []).append(share)
    parts.append(_aggregate(maze, "Labyrinth: 0 is a random walk, 1 a blind depth-first walk with "
                                  "perfect memory (a better player passes 1)."))  # fmt: skip
    games: dict[str, dict[str, list[float]]] = {}
    for row in rows.read(atari.PATH, atari.COLUMNS, atari.fault):
        if row["game"] in atari.RANDOM_HUMAN:
            low, high = atari.RANDOM_HUMAN[row["game"]]
            share = (float(row["score"]) - low) / (high - low)
            frames = atari.scale_of(row) * PAPER_ATARI_FRAMES / 1e6
            agent = f"{row['agent']}, {atari.preset_of(row)}, {frames:g}M frames"
            games.setdefault(agent, {}).setdefault(row["game"], []).append(share)
    parts.append(_aggregate(games, "Atari: 0 is a random player, 1 a human."))
    return "".join(parts)


def _shared(groups: dict[str, dict[str, list[float]]]) -> tuple[list[str], list[str]]:
    """Agents to compare, and the tasks that all of them have, at least two.

    Those with most tasks come first; an agent that would leave fewer than two is not compared.
    """
    chosen: list[str] = []
    tasks: set[str] = set()
    for agent in sorted(groups, key=lambda name: (-len(groups[name]), name)):
        both = tasks & set(groups[agent]) if chosen else set(groups[agent])
        if len(both) >= 2:
            chosen.append(agent)
            tasks = both
    return sorted(chosen), sorted(tasks)


def _aggregate(groups: dict[str, dict[str, list[float]]], caption: str) -> str:
    """A row for each agent that can be compared; nothing if there is none."""
    agents, tasks = _shared(groups)
    if not agents:
        return ""
    lines = []
    for agent in agents:
        scores = [groups[agent][task] for task in tasks]
        interval = stratified_bootstrap(scores)
        told = "–" if interval is None else f"[{interval[0]:.3f}, {interval[1]:.3f}]"
        middle = interquartile_mean(np.concatenate(scores), task_weights(scores))
        counts = ", ".join(f"{task}: {len(groups[agent][task])}" for task in tasks)
        lines.append([agent, f"{middle:.3f}", told, counts])
    head = ["agent, preset", "interquartile mean", "95 % interval", "seeds by task"]
    tail = (
        f" Over the tasks that all agents shown have: {', '.join(tasks)}; all weigh the same, "
        "whatever their numbers of seeds. Stratified bootstrap; “–” where a task has a single seed."
    )
    others = sorted(set(groups) - set(agents))
    tail += f" Not compared, for want of shared tasks: {'; '.join(others)}." if others else ""
    return page.table(head, lines, caption + tail)
