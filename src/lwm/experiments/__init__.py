"""Tables and figures of the paper as commands: one file each, found by its id.

An experiment is a module of this package with ``main(options) -> exit code`` and ``status() ->
str``; one that ends in a table also has ``markdown() -> str``, which the report shows, and where
the table needs one ``legend() -> list[str]``.  To add one, write the module and its line in
``REGISTRY``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

from lwm.errors import BadInput
from lwm.settings import hint


class Entry(NamedTuple):
    """One line of ``lwm reproduce --list``."""

    what: str
    here: str
    """Cost on one core of the machine of the committed rows."""
    gpu: str
    """Cost with one GPU (estimates; the paper's own number where it gives one)."""


_SECONDS = "as here: no GPU used"

REGISTRY = {
    "table1": Entry(
        "labyrinth scores: agents, presets, the supplementary's ablations, switches",
        "10 to 20 minutes a run, 45 on 5×5 with preset best",
        "as here: nets too small for a GPU",
    ),
    "atari": Entry(
        "Freeway and Montezuma at a laptop's scale: lwm against dqn, scores and coverage",
        "25 to 40 minutes a run on one core",
        "7.5 hours a run at scale 1 (paper, T4)",
    ),
    "table2": Entry(
        "Atari scores: six games, five seeds, lwm and dqn beside the paper's methods and others'",
        "33 hours a run on one core at scale 1 (0.66 per million frames, results/bench.json)",
        "7.5 hours a run at scale 1 (paper, T4)",
    ),
    "table3": Entry(
        "ablations of lwm on Atari: feed-forward world model, random features; any game",
        "as table2; about 30 minutes a run at scale 0.02",
        "7.5 hours a run at scale 1 (paper, T4)",
    ),
    "claims": Entry(
        "sentences of the paper that nobody tested: 4×4 labyrinth, 300k frames; Φ on Montezuma",
        "5 minutes a labyrinth run (15 of them), 40 minutes one of Atari (3)",
        "as here: nets too small for a GPU",
    ),
    "noisy-tv": Entry(
        "a TV that shows noise when re-tuned: what five bonuses pay for it, and who watches",
        "not measured as a whole, 105 runs: of table1's and atari's length, or shorter",
        "not measured",
    ),
    "minigrid": Entry(
        "MiniGrid: lwm against no bonus, RND and random features on MultiRoom; three more tasks",
        "25 to 30 minutes a run on one core (42 of them)",
        "not measured",
    ),
    "limits": Entry(
        "what the labyrinth allows: random walk, blind walk, Bayes-optimal, full map",
        "a minute",
        _SECONDS,
    ),
    "figure1": Entry("how Φ is trained, on real pairs of Montezuma frames", "seconds", _SECONDS),
    "figure2": Entry("W-MSE in five panels and as an animation", "seconds", _SECONDS),
    "figure3": Entry(
        "representations of Montezuma's Revenge: the paper's picture, and numbers for it",
        "about 35 minutes of two cores at scale 0.1",
        "about an hour at scale 1 (estimate)",
    ),
    "figure4": Entry("the labyrinth: map, and what is seen of it", "seconds", _SECONDS),
    "figure5": Entry(
        "training dynamics on Atari, from run directories",
        "seconds, once the runs are there",
        "the same; the runs: 7.5 hours each (paper, T4)",
    ),
}


def find(name: str) -> Any:
    """The module of an experiment."""
    if name not in REGISTRY:
        raise BadInput(f"unknown experiment {name!r}{hint(name, REGISTRY)}")
    return import_module(f"lwm.experiments.{name.replace('-', '_')}")


def listing() -> str:
    """Each id with what it is, what it costs, and what is already there."""
    lines = []
    for name, entry in REGISTRY.items():
        lines.append(f"{name:8} {entry.what}")
        cost = f"here: {entry.here}; one GPU: {entry.gpu}"
        lines += [f"{'':8}   cost   {cost}", f"{'':8}   there  {find(name).status()}"]
    return "\n".join(lines)
