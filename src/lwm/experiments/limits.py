"""What the labyrinth allows: players that do not learn, as rows beside the agents' scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lwm.envs import oracles
from lwm.experiments import rows
from lwm.experiments.options import Options
from lwm.machine import machine_facts

PATH = rows.RESULTS / "limits.csv"
COLUMNS = ("size", "player", "episodes", "score", "standard_error", "command", "commit", "machine")
SIZES = (2, 3, 4, 5, 6, 8)
EPISODES = 16384
SEED = 7
COMMAND = "lwm reproduce limits"


def status() -> str:
    """How many rows are there."""
    return f"{len(rows.read(PATH, COLUMNS))} of {6 * len(SIZES) - 9} rows"


def table() -> dict[tuple[int, str], float]:
    """(size, player) -> score, from the committed rows."""
    return {(int(r["size"]), r["player"]): float(r["score"]) for r in rows.read(PATH, COLUMNS)}


def main(options: Options) -> int:
    """Compute (unless ``show``) and print the rows; at a smaller scale nothing is written."""
    options.allow("limits", "show", "scale")
    episodes = options.share(EPISODES)
    if episodes < EPISODES and not options.show:
        for size in SIZES:
            for row in oracles.limits(size, episodes, SEED):
                print(_line(row))
        print(
            f"scale {episodes / EPISODES:.2g} ({episodes:,} episodes a row): not written to {PATH}"
        )
        return 0
    if not options.show:
        facts = machine_facts()
        found: list[dict[str, Any]] = []
        for size in SIZES:
            for row in oracles.limits(size, EPISODES, SEED):
                found.append(
                    {**row, "command": COMMAND, "commit": facts["commit"], "machine": facts["cpu"]}
                )
        rows.write(PATH, COLUMNS, found)
    for r in rows.read(PATH, COLUMNS):
        print(_line(r))
    print(f"scale 1 ({EPISODES:,} episodes a row)")
    return 0


def _line(row: Mapping[str, Any]) -> str:
    return (
        f"{row['size']}x{row['size']}  {row['player']:22} {float(row['score']):9.2f} "
        f"± {float(row['standard_error']):.2f}"
    )


def markdown() -> str:
    """A line for each size, a column for each player."""
    known = table()
    players = list(dict.fromkeys(player for _, player in known))
    lines = ["| size | " + " | ".join(players) + " |", "|---" * (len(players) + 1) + "|"]
    for size in sorted({size for size, _ in known}):
        cells = [f"{known[size, p]:.2f}" if (size, p) in known else "–" for p in players]
        lines.append(f"| {size}×{size} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
