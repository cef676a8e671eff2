"""The recurrent dueling DQN: its inputs, its Q-values, its TD loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lwm.networks import GRU, DuelingHead, one_hot
from lwm.returns import disadvantage, lambda_targets, n_step_targets, rescale, unrescale
from lwm.sections import DQNConfig
from lwm.vision import Normaliser, Trunk


@dataclass(frozen=True)
class ImageInputs:
    """What the network sees where observations are images; sliced in time like a tensor."""

    frames: Tensor
    """[..., *shape] as stored."""
    rest: Tensor
    """[..., A + 1] previous action one-hot, previous reward + bonus."""

    def __getitem__(self, rows: slice) -> ImageInputs:
        return ImageInputs(self.frames[rows], self.rest[rows])


Inputs = Tensor | ImageInputs


class ImageFeatures(nn.Module):
    """CNN, FC, ReLU; the action and the reward join behind it (Tab. "Atari DQN")."""

    def __init__(self, width: int, trunk: Trunk) -> None:
        super().__init__()
        self.trunk = trunk
        self.projection = nn.Linear(trunk.width, width)

    def forward(self, x: ImageInputs) -> Tensor:
        """[..., *shape] and [..., A + 1] -> the RNN's input [..., width + A + 1]."""
        ahead = x.rest.shape[:-1]
        flat = self.trunk(x.frames.reshape(-1, *x.frames.shape[len(ahead) :]))
        weight, bias = (v.to(flat.dtype) for v in (self.projection.weight, self.projection.bias))
        y = F.relu(F.linear(flat, weight, bias)).float()
        return torch.cat([y.view(*ahead, -1), x.rest], -1)


class RecurrentDQN(nn.Module):
    """(observation, previous action, previous reward + bonus) -> Q-values, through a GRU."""

    def __init__(
        self,
        inputs: int,
        num_actions: int,
        config: DQNConfig,
        trunk: Trunk | None = None,
        normalise: bool = False,
    ) -> None:
        """``inputs``: numbers in an observation; ``trunk``: layers for those that are images;
        ``normalise``: bring those that are vectors to mean 0 and variance 1."""
        super().__init__()
        self.num_actions = num_actions
        self.sees_images = trunk is not None
        self.normaliser = Normaliser(inputs) if normalise else None
        self.error_input = config.error_input
        self.views = 1
        """Orientations of the walk that it acts on: 1, or 8 (``dqn.symmetric_share``)."""
        width = config.features
        if trunk is None:
            self.features: nn.Module = nn.Linear(inputs + num_actions + 1, width)
        else:
            self.features = ImageFeatures(width, trunk)
            width += num_actions + 1
        self.core = GRU(width, config.hidden)
        self.head = DuelingHead(config.hidden, config.head, num_actions)
        self.guess = (
            nn.Sequential(
                nn.Linear(config.hidden + num_actions, config.head),
                nn.ReLU(),
                nn.Linear(config.head, inputs),
            )
            if config.auxiliary > 0
            else None
        )

    def initial(self, batch: int) -> Tensor:
        """[batch, hidden] state at an episode's start."""
        return self.core.initial(batch)

    def told_reward(self, r_t: Tensor, r_in: Tensor) -> Tensor:
        """The reward among the inputs [...]: with the bonus, if the config asks for that."""
        return r_t + r_in if self.error_input else r_t

    def inputs(self, obs: Tensor, a_tm1: Tensor, reward: Tensor, is_first: Tensor | None) -> Inputs:
        """What the network sees in each row: obs [..., D] numbers or [..., *shape] images, [...],
        [...], [...] -> [..., D + A + 1], or the images beside [..., A + 1].

        ``reward`` is that of ``told_reward``.  The action and the reward of a first row are zero
        (row 28); ``is_first`` None: no row is a first one.
        """
        rest = torch.cat([one_hot(a_tm1, self.num_actions), reward[..., None]], -1)
        if is_first is not None:
            rest.masked_fill_(is_first[..., None], 0)
        if self.sees_images:
            return ImageInputs(obs, rest)
        seen = obs.float() if self.normaliser is None else self.normaliser(obs)
        return torch.cat([seen, rest], -1)

    def step(self, x: Inputs, h: Tensor) -> tuple[Tensor, Tensor]:
        """One row: inputs [B, ...], h [B, H] -> Q-values [B, A], next h."""
        h = self.core.step(self._features(x), h)
        return self.head(h), h

    def states(self, x: Inputs, is_first: Tensor | None, h: Tensor) -> Tensor:
        """Inputs [T, B, ...], h [B, H] -> the state after each row [T, B, H]."""
        return self.core.unroll(self._features(x), is_first, h)

    def _features(self, x: Inputs) -> Tensor:
        return self.features(x) if self.sees_images else F.relu(self.features(x))

    def next_bits(self, h: Tensor, action: Tensor) -> Tensor:
        """Auxiliary head: states [..., H], actions [...] -> logits of the next observation."""
        assert self.guess is not None
        return self.guess(torch.cat([h, one_hot(action, self.num_actions)], -1))


class TDInput(NamedTuple):
    """A window as the TD loss sees it; rows before ``burn_in`` only warm the state up."""

    x: Inputs
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


class TDOutput(NamedTuple):
    """What the TD loss needs, for the U trained rows of a window."""

    delta: Tensor
    """[U, B] TD errors in rescaled space; 0 where not valid."""
    valid: Tensor
    """[U, B] False on ``is_last`` rows, which are never trained."""
    q: Tensor
    """[U, B, A] Q-values."""
    h: Tensor
    """[U, B, H] states after the rows."""
    a_t: Tensor
    """[U, B] actions taken in the rows."""


def td_errors(
    online: RecurrentDQN, target: RecurrentDQN, window: TDInput, burn_in: int, config: DQNConfig
) -> TDOutput:
    """TD errors of the U = T - burn_in - n trained rows.

    Double Q: the online network chooses, the target network values.
    """
    cut = window.is_first if config.reset_state else None
    with torch.no_grad():
        valued = target.states(window.x, cut, window.h)[burn_in:]
        h = window.h
        if burn_in:
            before = cut[:burn_in] if cut is not None else None
            h = online.states(window.x[:burn_in], before, h)[-1]
    after = cut[burn_in:] if cut is not None else None
    states = online.states(window.x[burn_in:], after, h)
    q = online.head(states)
    with torch.no_grad():
        best = q.argmax(-1, keepdim=True)
        values = unrescale(target.head(valued))
        v_t = values.gather(-1, best).squeeze(-1)
        rows = slice(burn_in, None)
        args = (window.reward[rows], window.discount_t[rows], window.is_last[rows], v_t)
        if config.trace > 0:
            goal = lambda_targets(*args, config.gamma, config.trace)
            goal = goal[: len(goal) + 1 - config.n_step]
        else:
            goal = n_step_targets(*args, config.gamma, config.n_step)
        trained = len(goal)
        a_t = window.a_tm1[burn_in + 1 : burn_in + 1 + trained]
        if config.gap > 0:
            goal = goal + config.gap * disadvantage(values[:trained], a_t)
        goal = rescale(goal)
    chosen = q[:trained].gather(-1, a_t[..., None]).squeeze(-1)
    valid = ~window.is_last[burn_in : burn_in + trained]
    return TDOutput((goal - chosen) * valid, valid, q[:trained], states[:trained], a_t)


def choose(q: Tensor, explore: Tensor, random_action: Tensor) -> Tensor:
    """Epsilon-greedy: [B, A], [B] bool, [B] int64 -> actions [B]."""
    return torch.where(explore, random_action, q.argmax(-1))
