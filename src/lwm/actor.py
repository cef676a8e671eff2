"""The upper half of Algorithm 1: what an actor does with one row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lwm.agent import RecurrentDQN, choose
from lwm.intrinsic import Bonus
from lwm.types import Step


class ActorState(NamedTuple):
    """What the actors carry from row to row."""

    h: Tensor
    """[B, H] DQN state before the next row."""
    belief: Tensor
    """[B, Hb] world-model state before the next row's prediction."""
    z_tm1: Tensor
    """[B, D] embedding of the row before."""


class Acted(NamedTuple):
    """What acting on one row gave."""

    action: NDArray[np.int64]
    """[B]."""
    h: NDArray[np.float32]
    """[B, H] the DQN state that preceded the row (replay stores it)."""
    belief: NDArray[np.float32]
    """[B, Hb] the world model's state after the row."""
    r_in: NDArray[np.float32]
    """[B] the bonus of the row."""
    q: Tensor
    """[B, A]."""
    prediction: Tensor | None
    """[B, D] what the world model had predicted for this row, if there is one."""


def initial_state(dqn: RecurrentDQN, bonus: Bonus, batch: int, embedding: int) -> ActorState:
    """The state before the first row of B environments."""
    return ActorState(dqn.initial(batch), bonus.initial(batch), torch.zeros(batch, embedding))


def embed_bits(obs: NDArray[Any]) -> Tensor:
    """Phi of the labyrinth is the identity: [..., 4] bits -> float32."""
    return torch.from_numpy(obs.astype(np.float32))


@torch.inference_mode()
def act(
    dqn: RecurrentDQN,
    bonus: Bonus,
    state: ActorState,
    step: Step,
    explore: NDArray[np.bool_],
    random_action: NDArray[np.int64],
    reset_state: bool = True,
    embed: Callable[[NDArray[Any]], Tensor] = embed_bits,
) -> tuple[Acted, ActorState]:
    """Bonus of the row just received, Q-values, epsilon-greedy action, next state."""
    z = embed(step.obs)
    a_tm1 = torch.from_numpy(step.a_tm1)
    # Most rows are nobody's first: what would change nothing is left out.
    is_first = torch.from_numpy(step.is_first) if step.is_first.any() else None
    r_in, belief, prediction = bonus.step(state.belief, state.z_tm1, a_tm1, z, is_first)
    if bonus.masks_last:
        r_in = r_in * ~torch.from_numpy(step.is_last)
    h = state.h
    if reset_state and is_first is not None:
        h = h * ~is_first[:, None]
    seen = torch.from_numpy(step.obs) if dqn.sees_images else z
    x = dqn.inputs(seen, a_tm1, torch.from_numpy(step.r_t) + r_in, is_first)
    q, h_next = dqn.step(x, h)
    action = choose(q, torch.from_numpy(explore), torch.from_numpy(random_action))
    acted = Acted(action.numpy(), h.numpy(), belief.numpy(), r_in.numpy(), q, prediction)
    return acted, ActorState(h_next, belief, z)


def ladder(base: float, low: float, high: float, actors: int) -> NDArray[np.float64]:
    """[actors] exploration rates base**i, i from ``low`` to ``high`` (row 27)."""
    return base ** np.linspace(low, high, actors)
