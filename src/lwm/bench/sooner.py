"""How long on one core until an agent has the paper's score on the labyrinth: ``best`` and
``paper``.

Every so many frames the weights play 1,024 validation episodes; two successive scores that reach
the paper's are an arrival, and its time is that of the first of them.  Time is the processor's, of
training alone: what a core without other work would need.  A preset that does not arrive within its
1M frames counts with its whole run, and the ratio is then a lower bound.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

from lwm.bench.report import read, save
from lwm.config import Config, load_preset
from lwm.errors import BadInput
from lwm.evaluate import evaluate
from lwm.experiments.table1 import PAPER
from lwm.machine import machine_facts
from lwm.training import Trainer

OUT = Path("results") / "sooner.json"
COLUMNS = ("size", "preset", "seed", "arrived", "frames", "seconds", "scores", "commit", "machine")
"""``frames``, ``seconds``: until the arrival, or of the whole run; ``scores``: ``[frames, score]``
of every validation."""
AIM = 5.0
PRESETS = ("best", "paper")
EPISODES = 1024
_EVERY = 25_000

Rows = list[dict[str, Any]]


def run(
    size: int = 4, out: Path = OUT, changes: dict[str, Any] | None = None, goal: float | None = None
) -> str:
    """Train both presets on ``size``, write ``out``, return a table and the ratio.

    ``changes``, ``goal`` (instead of the paper's score): for tests.
    """
    if goal is None:
        if (size, "lwm", "") not in PAPER:
            raise BadInput(f"--size {size}: the paper has scores for 3, 4 and 5")
        goal = PAPER[size, "lwm", ""]
    rows = []
    for preset in PRESETS:
        config = load_preset(preset, {"env.size": size, **(changes or {})})
        rows.append(_row(config, goal))
        same = ("size", "preset", "seed")
        old = [r for r in read(out, COLUMNS) if any(r[k] != rows[-1][k] for k in same)]
        save(out, [*old, rows[-1]])  # in the place of an older one
    return "\n".join([*lines(rows, goal), "", f"rows: {out}"])


def arrival(scores: list[tuple[int, float]], goal: float) -> int | None:
    """Index of the first of two successive scores that reach ``goal``."""
    reached = [score >= goal for _, score in scores]
    return next((i for i, both in enumerate(pairwise(reached)) if all(both)), None)


def lines(rows: Rows, goal: float) -> list[str]:
    """The rows as a table, and how much sooner the first one arrived."""
    told = [f"{'size':6}{'preset':10}{'frames':>12}{'minutes':>10}  {goal:g} reached"]
    for row in rows:
        told.append(
            f"{row['size']}×{row['size']:<4}{row['preset']:10}{row['frames']:>12,}"
            f"{row['seconds'] / 60:>10.1f}  {'yes' if row['arrived'] else 'no'}"
        )
    best, paper = rows
    if not best["arrived"]:
        return [*told, "", f"{best['preset']} did not arrive: there is no ratio"]
    ratio = paper["seconds"] / best["seconds"]
    bound = "" if paper["arrived"] else "at least "
    verdict = "met" if ratio >= AIM else "missed"
    return [*told, "", f"{bound}{ratio:.1f} times sooner (aim: {AIM:g} times; {verdict})"]


def _row(config: Config, goal: float) -> dict[str, Any]:
    scores: list[tuple[int, float]] = []
    spent: list[float] = []
    for frames, seconds, score in _validations(config):
        scores.append((frames, score))
        spent.append(seconds)
        told = f"{config.preset} {frames:>9,} frames {seconds / 60:6.1f} min {score:9.2f}"
        print(told, file=sys.stderr, flush=True)
        if arrival(scores, goal) is not None:
            break
    found = arrival(scores, goal)
    at = -1 if found is None else found
    facts = machine_facts(config.threads)
    outcome = (found is not None, scores[at][0], spent[at], scores, facts["commit"], facts["cpu"])
    own = (config.env.size, config.preset, config.seed)
    return dict(zip(COLUMNS, (*own, *outcome), strict=True))


def _validations(config: Config) -> Iterator[tuple[int, float, float]]:
    """-> frames, seconds of training so far, score; at regular frames and at the run's end."""
    began = time.process_time()
    trainer = Trainer(config)
    with closing(trainer):
        due, told, spent = _EVERY, 0, 0.0
        for event in trainer.run():
            if event.frames >= due or (event.kind == "end" and event.frames > told):
                spent += time.process_time() - began
                scores = evaluate(config, trainer.learner, EPISODES, "validation")
                yield event.frames, spent, float(scores.returns.mean())
                told, due = event.frames, (event.frames // _EVERY + 1) * _EVERY
                began = time.process_time()
