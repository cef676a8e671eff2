"""The task that the examples share: a corridor with a reward at its far end and nothing before it.

At every place one of four actions leads forward and the others lead back; which one was drawn once,
place by place, so that no habit helps.  An agent that acts at random practically never sees the
reward: it gets all the way in one of 400 million episodes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

LENGTH = 20
ACTIONS = 4


@dataclass
class Tally:
    """What became of all episodes of some corridors."""

    reached: list[bool] = field(default_factory=list)
    """Of each episode that ended: whether it did so at the reward."""
    furthest: int = 0

    def __str__(self) -> str:
        """One line for a person."""
        last = self.reached[-100:]
        return (
            f"reached the goal in {sum(self.reached)} of {len(self.reached)} episodes "
            f"({sum(last)} of the last {len(last)}), furthest place {self.furthest}"
        )


class Corridor(gym.Env[int, int]):
    """Observation: the place.  Reward: 1 at the far end, where the episode ends; else 0."""

    def __init__(self, length: int = LENGTH, tally: Tally | None = None) -> None:
        self.length, self.tally = length, Tally() if tally is None else tally
        self.observation_space = spaces.Discrete(length + 1)
        self.action_space = spaces.Discrete(ACTIONS)
        self.forward = np.random.default_rng(0).integers(ACTIONS, size=length)
        self.place = self.steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Back to the near end."""
        super().reset(seed=seed)
        self.place = self.steps = 0
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """One place forward or back."""
        ahead = int(action) == self.forward[self.place]
        self.place = self.place + 1 if ahead else max(self.place - 1, 0)
        self.steps += 1
        there = self.place == self.length
        late = self.steps == 3 * self.length and not there
        self.tally.furthest = max(self.tally.furthest, self.place)
        if there or late:
            self.tally.reached.append(there)
        return self.place, float(there), there, late, {}


gym.register("Corridor-v0", Corridor)  # for lwm train gym --env corridor:Corridor-v0


def compare(
    run: Callable[[bool, int, int], Tally], steps: int, description: str | None
) -> dict[bool, list[Tally]]:
    """Call ``run(with_bonus, seed, steps)`` for each seed, with and without; print what came of it.

    The command line may ask for other seeds and steps, and ``--quick`` for a few hundred steps.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="seconds: shows only that it runs")
    parser.add_argument("--steps", type=int, default=steps, help="of all environments together")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    args = parser.parse_args()
    seeds = args.seeds[:1] if args.quick else args.seeds
    found: dict[bool, list[Tally]] = {False: [], True: []}
    for seed in seeds:
        for bonus in (False, True):
            tally = run(bonus, seed, 600 if args.quick else args.steps)
            found[bonus].append(tally)
            print(f"seed {seed} {'with   ' if bonus else 'without'} the bonus: {tally}", flush=True)
    return found
