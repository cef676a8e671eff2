"""Tables and figures of the paper as commands: one file each, found by its id."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from lwm.errors import BadInput

IDS = {
    "table1": "labyrinth scores: agents, presets, the supplementary's ablations, switches",
    "atari": "Freeway and Montezuma at a laptop's scale: lwm against dqn, scores and coverage",
    "figure3": "representations of Montezuma's Revenge: the paper's picture, and numbers for it",
    "limits": "what the labyrinth allows: random walk, blind walk, Bayes-optimal, full map",
}


def find(name: str) -> Any:
    """The module of an experiment: it has ``main(only, seeds, jobs, show)``."""
    if name not in IDS:
        raise BadInput(f"unknown experiment {name!r}; choose from {', '.join(IDS)}")
    return import_module(f"lwm.experiments.{name}")


def listing() -> str:
    """Each id with what it is, and what is already there."""
    return "\n".join(f"{name:10} {what}; {find(name).status()}" for name, what in IDS.items())
