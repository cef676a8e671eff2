"""The lower half of Algorithm 1: one update of the world model and the DQN from one batch."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lwm import devices
from lwm.agent import RecurrentDQN, TDInput, td_errors
from lwm.config import Config
from lwm.devices import Metrics
from lwm.encoder import EncoderLearner, PhiLearner
from lwm.errors import CheckpointError, RunFailed
from lwm.intrinsic import Window
from lwm.networks import round_products
from lwm.novelty import AnyBonus, Novelty, load_parts, parts_tree
from lwm.representations import DistillationLearner, InverseLearner
from lwm.returns import sequence_priority
from lwm.senses import Sense, bits_of, grey_frames
from lwm.streams import torch_seeded
from lwm.symmetry import GROUP
from lwm.types import Pairs, Unroll
from lwm.vision import working_dtype

Tree = dict[str, Any]


class LearnerState:
    """Networks, optimisers and moments: all that learning changes."""

    def __init__(
        self, config: Config, inputs: int, num_actions: int, sense: Sense | None = None
    ) -> None:
        """``inputs``: numbers in an observation; ``sense``: how they are seen (None: as bits, or
        as frames where the config says so)."""
        self.config = config
        self.device = devices.pick(config.device)
        if sense is None:
            sense = grey_frames() if config.sees_images else bits_of(inputs)
        with torch_seeded(config.seed, "init"):
            # Drawn on the CPU, so that a seed's first weights are the same on every device.
            trunk = None
            if sense.kind == "image":
                dtype = working_dtype(config.precision, self.device)
                trunk = sense.trunk(config.gym.pixel_unit, config.dqn.features, dtype)
            vectors = sense.kind == "vector"
            dqn = RecurrentDQN(inputs, num_actions, config.dqn, trunk, vectors)
            self.dqn = dqn.to(self.device)
            self.novelty = Novelty(config, sense, num_actions, self.device)
        if config.unroll_precision == "bfloat16":
            parts = self.novelty.bonus.parts().values()
            round_products(config.unroll_threads, self.dqn, *parts)
        self.target = copy.deepcopy(self.dqn).requires_grad_(False)
        averaged = config.dqn.average > 0
        self.average = copy.deepcopy(self.target) if averaged else None
        self.optimiser = torch.optim.Adam(
            self.dqn.parameters(),
            lr=config.dqn.learning_rate,
            eps=config.dqn.adam_epsilon,
            fused=True,
        )
        self.updates = 0
        self.look(0.0)

    @property
    def policy(self) -> RecurrentDQN:
        """The network that is scored: the online one, or its average where the config asks."""
        return self.average or self.dqn

    def look(self, progress: float) -> None:
        """See the walk in as many orientations as the config asks for at this share of the run."""
        many = self.config.within(progress, self.config.dqn.symmetric_share)
        self.dqn.views = self.policy.views = len(GROUP) if many else 1

    @property
    def bonus(self) -> AnyBonus:
        """What pays for the new."""
        return self.novelty.bonus

    @property
    def encoder(self) -> PhiLearner | None:
        """Phi, where observations are not their own embedding."""
        return self.novelty.encoder

    @property
    def embedding(self) -> int:
        """Dimensions of z."""
        return self.novelty.size

    def embed(self, obs: NDArray[Any] | Tensor) -> Tensor:
        """Phi: observations [..., *shape] -> z [..., D]; D = 0 where no one asks."""
        return self.novelty.embed(obs)

    def _parts(self) -> dict[str, nn.Module | torch.optim.Optimizer]:
        parts: dict[str, nn.Module | torch.optim.Optimizer] = {
            "dqn": self.dqn,
            "target": self.target,
            "optimiser": self.optimiser,
        }
        return parts if self.average is None else {**parts, "average": self.average}

    def state_tree(self) -> Tree:
        """Everything as a tree of NumPy arrays and plain values."""
        return {
            "updates": self.updates,
            **self.novelty.state_tree(),
            **parts_tree(self._parts()),
        }

    def load_tree(self, tree: Tree) -> None:
        """Inverse of ``state_tree``; a tree of another architecture is an error."""
        try:
            load_parts(self._parts(), tree)
            self.novelty.load_tree(tree)
            self.updates = int(tree["updates"])
        except (
            LookupError, RuntimeError, TypeError, ValueError, AttributeError, ArithmeticError
        ) as e:  # fmt: skip
            reason = str(e).splitlines()[0]
            raise CheckpointError(f"the checkpoint does not fit this config: {reason}") from None


def learn_encoder(
    state: LearnerState, pairs: Pairs, offsets: Tensor
) -> tuple[LearnerState, Metrics]:
    """One update of Phi by W-MSE on N pairs of neighbours, moved by ``offsets`` [2N, 2] if any."""
    assert isinstance(state.encoder, EncoderLearner)
    return state, state.encoder.learn(pairs.x, pairs.y, offsets)


def learn_features(state: LearnerState, unroll: Unroll) -> tuple[LearnerState, Metrics]:
    """One update of another Phi on windows of two rows: inverse dynamics or distillation."""
    phi, real = state.encoder, ~unroll.is_first[1]
    if isinstance(phi, InverseLearner):
        rows = (unroll.obs[0, real], unroll.obs[1, real], unroll.a_tm1[1, real])
        metrics = phi.learn(*(devices.put(v, state.device) for v in rows))
    else:
        assert isinstance(phi, DistillationLearner)
        metrics = phi.learn(unroll.obs[1])
    return state, {f"encoder/{key}": value for key, value in metrics.items()}


def learn(
    state: LearnerState,
    unroll: Unroll,
    progress: float,
    weight: NDArray[np.float32] | None = None,
) -> tuple[LearnerState, NDArray[np.float32], Metrics]:
    """One update: recompute the bonus, train the world model on it, train the DQN with it.

    ``progress`` in [0, 1] is the share of the frame budget spent, for schedules; ``weight`` [B]
    the windows' importance (None: all 1).  Returns the state (updated in place), the windows' new
    priorities [B], and metrics.
    """
    config = state.config
    burn_in = config.replay.burn_in
    window, z, metrics = rewarded(state, unroll, progress)
    td = td_errors(state.dqn, state.target, window, burn_in, config.dqn)
    loss = td.delta.square().sum(0)
    loss = (loss if weight is None else loss * devices.put(weight, state.device)).mean()
    metrics["dqn/loss"] = loss.detach()
    metrics["dqn/q_mean"] = td.q.detach().mean()
    if config.dqn.auxiliary > 0:
        following = z[burn_in + 1 : burn_in + 1 + len(td.delta)]
        guessed = _auxiliary_loss(state.dqn, td.h, td.a_t, following, td.valid)
        metrics["dqn/auxiliary"] = guessed.detach().double() / len(td.delta)
        loss = loss + config.dqn.auxiliary * guessed
    _step(state, loss, _learning_rate(config, progress), metrics)
    _move_towards(state.target, state.dqn, config.dqn.tau)
    if state.average is not None:
        # Short histories average over what there is: no bias towards the initial weights.
        rate = max(1 - config.dqn.average, 1 / (state.updates + 1))
        _move_towards(state.average, state.dqn, rate)
    state.updates += 1
    priority = sequence_priority(td.delta.detach(), td.valid, config.replay.priority_eta)
    return state, devices.fetch(priority), metrics


@torch.no_grad()
def priorities(state: LearnerState, unroll: Unroll, progress: float) -> NDArray[np.float32]:
    """Priorities [B] of windows that have none yet, bonus included; nothing is trained (row 20)."""
    config = state.config
    window, _, _ = rewarded(state, unroll, progress, train=False)
    td = td_errors(state.dqn, state.target, window, config.replay.burn_in, config.dqn)
    priority = sequence_priority(td.delta, td.valid, config.replay.priority_eta)
    return devices.fetch(priority)


def pretrain(state: LearnerState, unroll: Unroll) -> tuple[LearnerState, Metrics]:
    """One update on warm-up rows: the world model, and the DQN's memory where it has that head."""
    window, z, metrics = rewarded(state, unroll, 0.0)
    if state.config.dqn.auxiliary > 0:
        cut = window.is_first if state.config.dqn.reset_state else None
        h = state.dqn.states(window.x, cut, window.h)[:-1]
        loss = _auxiliary_loss(state.dqn, h, window.a_tm1[1:], z[1:], ~window.is_last[:-1])
        metrics["dqn/auxiliary"] = loss.detach().double() / len(h)
        _step(state, loss, state.config.dqn.learning_rate, metrics)
    return state, metrics


def rewarded(
    state: LearnerState, unroll: Unroll, progress: float, train: bool = True
) -> tuple[TDInput, Tensor, Metrics]:
    """The window with its bonus recomputed, or as stored (and the bonus model trained): -> what the
    DQN learns from, embeddings [T, B, D], metrics."""
    config = state.config
    obs, a_tm1, r_t, is_first, is_last, discount_t, h = (
        devices.put(v, state.device)
        for v in (
            unroll.obs,
            unroll.a_tm1,
            unroll.r_t,
            unroll.is_first,
            unroll.is_last,
            unroll.discount_t,
            unroll.h,
        )
    )
    if train:
        state.novelty.observe(obs)
    z = state.embed(obs)
    stored = config.intrinsic.start_belief == "stored"
    belief = devices.put(unroll.belief, state.device) if stored else None
    seen = Window(z, a_tm1, is_first, is_last, belief)
    if train:
        r_in, metrics = state.bonus.learn(seen, config.replay.burn_in)
    else:
        r_in, metrics = state.bonus.recompute(seen), {}
    if config.intrinsic.stored_bonus:
        r_in = devices.put(unroll.r_in, state.device)
    if config.agent == "dqn":
        r_in = torch.zeros_like(r_in)  # row 3: whatever the actors saw, the learner gets no bonus
    if not config.dqn.truncation_bootstraps:
        discount_t = discount_t * ~is_last
    if config.replay.start_state == "zero":
        h = torch.zeros_like(h)
    if train and state.dqn.normaliser is not None:
        state.dqn.normaliser.observe(obs.flatten(0, 1))
    x = state.dqn.inputs(obs, a_tm1, state.dqn.told_reward(r_t, r_in), is_first)
    reward = r_t + beta_share(config, progress) * r_in
    return TDInput(x, a_tm1, reward, is_first, is_last, discount_t, h), z, metrics


def _step(state: LearnerState, loss: Tensor, learning_rate: float, metrics: Metrics) -> None:
    """One optimiser step of the DQN; numbers that are not finite end the run before it."""
    state.optimiser.zero_grad(set_to_none=True)
    loss.backward()
    limit = state.config.dqn.clip_norm or float("inf")
    norm = nn.utils.clip_grad_norm_(state.dqn.parameters(), limit)
    metrics["dqn/grad_norm"] = norm
    if not devices.is_true(loss.isfinite() & norm.isfinite()):
        what = "gradient" if devices.is_true(loss.isfinite()) else "loss"
        raise RunFailed(f"a {what} is not finite after {state.updates} updates")
    for group in state.optimiser.param_groups:
        group["lr"] = learning_rate
    state.optimiser.step()


def _auxiliary_loss(
    dqn: RecurrentDQN, h: Tensor, a_t: Tensor, following: Tensor, valid: Tensor
) -> Tensor:
    """Cross-entropy of the next observation's bits, summed over rows, mean over the batch.

    States [U, B, H], actions [U, B], next embeddings [U, B, D], transitions that are real [U, B].
    """
    logits = dqn.next_bits(h, a_t)
    fault = nn.functional.binary_cross_entropy_with_logits(logits, following, reduction="none")
    return (fault.mean(-1) * valid).sum(0).mean()


def _learning_rate(config: Config, progress: float) -> float:
    """The rate at this point of the run: constant, or falling linearly in its last part."""
    c = config.dqn
    if c.final_learning_rate == 0 or c.anneal_share == 0:
        return c.learning_rate
    share = _between(progress, 1 - c.anneal_share, 1.0)
    return c.learning_rate + share * (c.final_learning_rate - c.learning_rate)


def beta_share(config: Config, progress: float) -> float:
    """Scale of the bonus in the target relative to beta: 1, or moving within part of the run."""
    c = config.intrinsic
    if c.final_beta < 0 or c.beta == 0:
        return 1.0
    return 1.0 + _between(progress, c.fade_from, c.fade_until) * (c.final_beta / c.beta - 1.0)


def _between(progress: float, start: float, stop: float) -> float:
    """How much of the stretch from ``start`` to ``stop`` is over, in [0, 1]."""
    if progress >= stop:
        return 1.0
    return max(progress - start, 0.0) / (stop - start)


@torch.no_grad()
def _move_towards(slow: nn.Module, fast: nn.Module, rate: float) -> None:
    """slow <- slow + rate (fast - slow), parameter by parameter; what is counted is taken over."""
    torch._foreach_lerp_(list(slow.parameters()), list(fast.parameters()), rate)
    for mine, theirs in zip(slow.buffers(), fast.buffers(), strict=True):
        mine.copy_(theirs)
