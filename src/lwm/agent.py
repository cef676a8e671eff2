"""The recurrent dueling DQN: its inputs, its Q-values, its TD loss."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lwm.config import DQNConfig
from lwm.networks import GRU, DuelingHead, one_hot
from lwm.returns import lambda_targets, n_step_targets, rescale, unrescale


class RecurrentDQN(nn.Module):
    """(observation, previous action, previous reward + bonus) -> Q-values, through a GRU."""

    def __init__(self, embedding: int, num_actions: int, config: DQNConfig) -> None:
        super().__init__()
        self.num_actions = num_actions
        self.features = nn.Linear(embedding + num_actions + 1, config.features)
        self.core = GRU(config.features, config.hidden)
        self.head = DuelingHead(config.hidden, config.head, num_actions)

    def initial(self, batch: int) -> Tensor:
        """[batch, hidden] state at an episode's start."""
        return self.core.initial(batch)

    def inputs(self, obs: Tensor, a_tm1: Tensor, reward: Tensor, is_first: Tensor) -> Tensor:
        """What the network sees in each row: [..., D], [...], [...], [...] -> [..., D + A + 1].

        ``reward`` is r_t + r_in_t.  The action and the reward of a first row are zero (row 28).
        """
        kept = (~is_first).to(torch.float32)[..., None]
        action = one_hot(a_tm1, self.num_actions)
        return torch.cat([obs, action * kept, reward[..., None] * kept], -1)

    def step(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """One row: inputs [B, ...], h [B, H] -> Q-values [B, A], next h."""
        h = self.core.step(F.relu(self.features(x)), h)
        return self.head(h), h

    def states(self, x: Tensor, is_first: Tensor | None, h: Tensor) -> Tensor:
        """Inputs [T, B, ...], h [B, H] -> the state after each row [T, B, H]."""
        return self.core.unroll(F.relu(self.features(x)), is_first, h)


class TDInput(NamedTuple):
    """A window as the TD loss sees it; rows before ``burn_in`` only warm the state up."""

    x: Tensor
    """[T, B, ...] network inputs."""
    a_tm1: Tensor
    """[T, B]."""
    reward: Tensor
    """[T, B] extrinsic + bonus, as the target pays it."""
    is_first: Tensor
    """[T, B]."""
    is_last: Tensor
    """[T, B]."""
    discount_t: Tensor
    """[T, B]."""
    h: Tensor
    """[B, H] state that precedes row 0."""


def td_errors(
    online: RecurrentDQN, target: RecurrentDQN, window: TDInput, burn_in: int, config: DQNConfig
) -> tuple[Tensor, Tensor, Tensor]:
    """Rescaled TD errors of the trained rows: (delta [U, B], valid [U, B], Q-values [U, B, A]).

    U = T - burn_in - n.  Double Q: the online network chooses, the target network values.
    ``is_last`` rows are never trained: their delta is 0 and valid is False.
    """
    cut = window.is_first if config.reset_state else None
    with torch.no_grad():
        valued = target.states(window.x, cut, window.h)[burn_in:]
        h = window.h
        if burn_in:
            before = cut[:burn_in] if cut is not None else None
            h = online.states(window.x[:burn_in], before, h)[-1]
    after = cut[burn_in:] if cut is not None else None
    q = online.head(online.states(window.x[burn_in:], after, h))
    with torch.no_grad():
        best = q.argmax(-1, keepdim=True)
        v_t = unrescale(target.head(valued).gather(-1, best).squeeze(-1))
        rows = slice(burn_in, None)
        args = (window.reward[rows], window.discount_t[rows], window.is_last[rows], v_t)
        if config.trace > 0:
            goal = lambda_targets(*args, config.gamma, config.trace)
            goal = goal[: len(goal) + 1 - config.n_step]
        else:
            goal = n_step_targets(*args, config.gamma, config.n_step)
        goal = rescale(goal)
    trained = len(goal)
    a_t = window.a_tm1[burn_in + 1 : burn_in + 1 + trained]
    chosen = q[:trained].gather(-1, a_t[..., None]).squeeze(-1)
    valid = ~window.is_last[burn_in : burn_in + trained]
    return (goal - chosen) * valid, valid, q[:trained]


def choose(q: Tensor, explore: Tensor, random_action: Tensor) -> Tensor:
    """Epsilon-greedy: [B, A], [B] bool, [B] int64 -> actions [B]."""
    return torch.where(explore, random_action, q.argmax(-1))
