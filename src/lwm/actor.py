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
from lwm.symmetry import actions_in_all, bits_in_all, mean_of_all
from lwm.types import Step


class ActorState(NamedTuple):
    """What the actors carry from row to row.

    V is 1, or 8 while the walk is seen in all orientations (``dqn.symmetric_share``): states of
    the first one, which is the walk as it is, come first.
    """

    h: Tensor
    """[V B, H] DQN state before the next row."""
    belief: Tensor
    """[V B, Hb] world-model state before the next row's prediction."""
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
    """[B, A], on the host; the mean over orientations where several are seen."""
    prediction: Tensor | None
    """[B, D] what the world model had predicted for this row, if there is one."""


def initial_state(dqn: RecurrentDQN, bonus: Bonus, batch: int, embedding: int) -> ActorState:
    """The state before the first row of B environments."""
    h = dqn.initial(dqn.views * batch)
    return ActorState(h, bonus.initial(dqn.views * batch), h.new_zeros(batch, embedding))


def seen_once(state: ActorState, batch: int) -> ActorState:
    """The state of B environments whose walks are seen as they are from now on."""
    return state._replace(h=state.h[:batch], belief=state.belief[:batch])


def narrowed(state: ActorState, keep: Tensor) -> ActorState:
    """The state of some of the environments: ``keep`` [B] bool."""
    views = len(state.h) // len(keep)
    lanes = keep.repeat(views)
    return ActorState(state.h[lanes], state.belief[lanes], state.z_tm1[keep])


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
    r_t, z_tm1, after, views = devices.put(step.r_t, device), state.z_tm1, z, len(state.h) // len(z)
    if views > 1:
        obs, z_tm1, after = bits_in_all(obs), bits_in_all(z_tm1), bits_in_all(z)
        a_tm1, r_t = actions_in_all(a_tm1), r_t.repeat(views)
        is_first = None if is_first is None else is_first.repeat(views)
    r_in, belief, prediction = bonus.step(state.belief, z_tm1, a_tm1, after, is_first)
    if bonus.masks_last:
        r_in = r_in * ~devices.put(step.is_last, device).repeat(views)
    h = state.h
    if reset_state and is_first is not None:
        h = h * ~is_first[:, None]
    x = dqn.inputs(obs, a_tm1, dqn.told_reward(r_t, r_in), is_first)
    q, h_next = dqn.step(x, h)
    if views > 1:
        q = mean_of_all(q)
    action = choose(q, devices.put(explore, device), devices.put(random_action, device))

    def own(v: Tensor) -> NDArray[Any]:  # of the walk as it is: replay knows no other
        return devices.fetch(v[: len(z)])

    told = torch.from_numpy(devices.fetch(q))
    guess = None if prediction is None else prediction[: len(z)]
    acted = Acted(devices.fetch(action), own(h), own(belief), own(r_in), told, guess)
    return acted, ActorState(h_next, belief, z)


def ladder(base: float, low: float, high: float, actors: int) -> NDArray[np.float64]:
    """[actors] exploration rates base**i, i from ``low`` to ``high`` (row 27)."""
    return base ** np.linspace(low, high, actors)
