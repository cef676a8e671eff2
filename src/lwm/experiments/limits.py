"""What the labyrinth allows: players that do not learn, as rows beside the agents' scores."""

from __future__ import annotations

from typing import Any

from lwm.envs import oracles
from lwm.errors import BadInput
from lwm.experiments import rows
from lwm.machine import machine_facts

PATH = rows.RESULTS / "limits.csv"
COLUMNS = ("size", "player", "episodes", "score", "standard_error", "command", "commit", "machine")
SIZES = (2, 3, 4, 5, 6, 8)
EPISODES = 16384
SEED = 7
COMMAND = "lwm reproduce limits"


def status() -> str:
    """How many rows are there."""
    return f"{len(rows.read(PATH, COLUMNS))} of {5 * len(SIZES) - 6} rows"


def table() -> dict[tuple[int, str], float]:
    """(size, player) -> score, from the committed rows."""
    return {(int(r["size"]), r["player"]): float(r["score"]) for r in rows.read(PATH, COLUMNS)}


def main(only: list[str], seeds: int | None, jobs: int | None, show: bool) -> int:
    """Compute (unless ``show``) and print the rows."""
    if only or seeds or jobs:
        raise BadInput("limits takes no option but --show")
    if not show:
        facts = machine_facts()
        found: list[dict[str, Any]] = []
        for size in SIZES:
            for row in oracles.limits(size, EPISODES, SEED):
                found.append(
                    {**row, "command": COMMAND, "commit": facts["commit"], "machine": facts["cpu"]}
                )
        rows.write(PATH, COLUMNS, found)
    for r in rows.read(PATH, COLUMNS):
        print(
            f"{r['size']}x{r['size']}  {r['player']:22} {float(r['score']):9.2f} "
            f"± {float(r['standard_error']):.2f}"
        )
    return 0
