"""Environments that misbehave, as Gymnasium ids: ``faults.worlds:Faulty-<how>-v0``."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

SICK_AFTER = 20
"""Steps of a process until a fault that needs a well beginning shows."""


class Faulty(gym.Env[Any, Any]):
    """Random vectors or frames, episodes of 10 steps; ``how`` names what is wrong with it."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.images = how in ("constant-frames", "black-frames")
        self.observation_space = (
            spaces.Box(0, 255, (16, 16, 1), np.uint8)
            if self.images
            else spaces.Box(-np.inf, np.inf, (6,), np.float32)
        )
        self.action_space = spaces.Discrete(3)
        self.taken = self.total = 0
        self.random = np.random.default_rng(0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """The first observation."""
        self.taken = 0
        if self.how == "raise-on-reset" and self.total:
            raise RuntimeError("no more\nresets")
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        """One step, well or not."""
        self.taken += 1
        self.total += 1
        if self.total > SICK_AFTER:
            self._misbehave()
        ended = self.taken >= (1 if self.how == "one-step" else 10)
        return self._seen(), self._reward(), ended, False, {}

    def _seen(self) -> Any:
        if self.images:
            return np.full((16, 16, 1), 0 if self.how == "black-frames" else 77, np.uint8)
        seen = self.random.normal(size=6).astype(np.float32)
        if self.how == "constant-vectors":
            seen[:] = 3
        if self.how == "rank-1":
            seen[:] = seen[0] * np.arange(6)
        if self.how == "huge-vectors":
            seen *= np.float32(1e30)
        if self.total > SICK_AFTER:
            if self.how == "nan":
                seen[2] = np.nan
            if self.how == "infinite":
                seen[2] = np.inf
            if self.how == "wrong-shape":
                return seen[:5]
        return seen

    def _reward(self) -> Any:
        sick = self.total > SICK_AFTER
        if self.how == "rewards-1e9":
            return 1e9 if self.random.random() < 0.5 else -1e9
        if self.how == "rewards-1e38":
            return 3e38
        if sick and self.how == "nan-reward":
            return float("nan")
        if sick and self.how == "no-reward":
            return None
        return float(self.random.random() < 0.1)

    def _misbehave(self) -> None:
        if self.how == "raise":
            raise RuntimeError("the game\nis broken")
        if self.how == "exit":
            sys.exit(0)
        if self.how == "die":
            os._exit(3)
        if self.how == "hang":
            time.sleep(3600)
        if self.how == "spin":
            while True:
                pass


HOWS = (
    "well", "constant-frames", "black-frames", "constant-vectors", "rank-1", "huge-vectors",
    "one-step", "nan", "infinite", "wrong-shape", "rewards-1e9", "rewards-1e38", "nan-reward",
    "no-reward", "raise", "raise-on-reset", "exit", "die", "hang", "spin",
)  # fmt: skip

for _how in HOWS:
    if f"Faulty-{_how}-v0" not in gym.registry:
        gym.register(f"Faulty-{_how}-v0", entry_point=Faulty, kwargs={"how": _how})
