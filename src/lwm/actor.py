"""The upper half of Algorithm 1: what an actor does with one row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lwm import devices
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
    """[B, A], on the host."""
    prediction: Tensor | None
    """[B, D] what the world model had predicted for this row, if there is one."""


def initial_state(dqn: RecurrentDQN, bonus: Bonus, batch: int, embedding: int) -> ActorState:
    """The state before the first row of B environments."""
    h = dqn.initial(batch)
    return ActorState(h, bonus.initial(batch), h.new_zeros(batch, embedding))


def embed_bits(obs: NDArray[Any] | Tensor) -> Tensor:
    """Phi of the labyrinth is the identity: [..., 4] bits -> float32."""
    return torch.as_tensor(obs).float()


@torch.inference_mode()
def act(
    dqn: RecurrentDQN,
    bonus: Bonus,
    state: ActorState,
    step: Step,
    explore: NDArray[np.bool_],
    random_action: NDArray[np.int64],
    reset_state: bool = True,
    embed: Callable[[Tensor], Tensor] = embed_bits,
) -> tuple[Acted, ActorState]:
    """Bonus of the row just received, Q-values, epsilon-greedy action, next state."""
    device = state.h.device
    obs = devices.put(step.obs, device)
    z = embed(obs)
    a_tm1 = devices.put(step.a_tm1, device)
    # Most rows are nobody's first: what would change nothing is left out.
    is_first = devices.put(step.is_first, device) if step.is_first.any() else None
    r_in, belief, prediction = bonus.step(state.belief, state.z_tm1, a_tm1, z, is_first)
    if bonus.masks_last:
        r_in = r_in * ~devices.put(step.is_last, device)
    h = state.h
    if reset_state and is_first is not None:
        h = h * ~is_first[:, None]
    reward = dqn.told_reward(devices.put(step.r_t, device), r_in)
    x = dqn.inputs(obs, a_tm1, reward, is_first)
    q, h_next = dqn.step(x, h)
    action = choose(q, devices.put(explore, device), devices.put(random_action, device))
    fetch = devices.fetch
    told = torch.from_numpy(fetch(q))
    acted = Acted(fetch(action), fetch(h), fetch(belief), fetch(r_in), told, prediction)
    return acted, ActorState(h_next, belief, z)


def ladder(base: float, low: float, high: float, actors: int) -> NDArray[np.float64]:
    """[actors] exploration rates base**i, i from ``low`` to ``high`` (row 27)."""
    return base ** np.linspace(low, high, actors)
