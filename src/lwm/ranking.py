"""Priorities of new windows from the Q-values that the actors computed anyway (row 20).

All actors append a row at once, so their windows become complete together, every ``unroll`` rows.
The TD errors of such windows are formed from what was known while acting: the value of the action
taken, the largest value, and the reward with its bonus.  Nothing is computed twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lwm.actor import Acted
from lwm.config import Config
from lwm.returns import n_step_targets, rescale, sequence_priority, unrescale
from lwm.types import Step

_FIELDS = ("taken", "best", "reward", "discount", "is_last")


class Ranking:
    """What the last ``window`` rows of B actors were worth to them."""

    def __init__(self, config: Config) -> None:
        self.config = config
        shape = (config.window, config.loop.actors)
        self.rows = {name: np.zeros(shape, np.float32) for name in _FIELDS}
        self.noted = 0
        """Rows since the actors began to use the DQN."""

    def note(self, step: Step, acted: Acted, share: float = 1.0) -> None:
        """Remember one row [B] and the values [B, A] in it; targets have ``share`` of the bonus."""
        q = acted.q.numpy()
        values = (
            np.take_along_axis(q, acted.action[:, None], 1)[:, 0],
            q.max(1),
            step.r_t + share * acted.r_in,
            step.discount_t,
            step.is_last,
        )
        slot = self.noted % self.config.window
        for name, value in zip(_FIELDS, values, strict=True):
            self.rows[name][slot] = value
        self.noted += 1

    def priorities(self) -> NDArray[np.float32] | None:
        """[B] of the windows that end with the newest row; None: some rows were not noted."""
        c = self.config
        if self.noted < c.window:
            return None
        order = (self.noted + np.arange(c.replay.burn_in, c.window)) % c.window
        taken, best, reward, discount, last = (
            torch.from_numpy(self.rows[name][order]) for name in _FIELDS
        )
        is_last = last > 0
        if not c.dqn.truncation_bootstraps:
            discount = discount * ~is_last
        goal = n_step_targets(reward, discount, is_last, unrescale(best), c.dqn.gamma, c.dqn.n_step)
        valid = ~is_last[: len(goal)]
        delta: Tensor = (rescale(goal) - taken[: len(goal)]) * valid
        return sequence_priority(delta, valid, c.replay.priority_eta).numpy()

    def get_state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"noted": self.noted, **self.rows}

    def set_state(self, state: dict[str, Any]) -> None:
        """Inverse of ``get_state``."""
        self.noted = int(state["noted"])
        for name, kept in self.rows.items():
            kept[:] = state[name]
