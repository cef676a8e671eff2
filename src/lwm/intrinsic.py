"""Algorithm 2: the bonus, and what it is compared with.

Every bonus has the same methods, so the actor and the learner do not know which one runs:
``initial`` and ``step`` while acting, ``observe`` for what counts real steps, and ``learn`` on a
replay window (recompute the bonus, then train).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lwm import devices
from lwm.config import Config
from lwm.devices import Metrics
from lwm.errors import RunFailed
from lwm.world_model import WorldModel, bit_loss, certain_share, prediction_error


class Window(NamedTuple):
    """A replay window as a bonus sees it, time-major."""

    z: Tensor
    """[T, B, D] embeddings."""
    a_tm1: Tensor
    """[T, B]."""
    is_first: Tensor
    """[T, B]."""
    is_last: Tensor
    """[T, B]."""
    belief: Tensor | None = None
    """[B, Hb] world-model state after row 0; None: zero."""
    unpaid: int | None = None
    """How many transitions stay out of what errors are normalised by; None: as row 9 has it."""


class RunningMoments:
    """Running mean and standard deviation of the prediction error."""

    def __init__(self, momentum: float, device: torch.device = devices.CPU) -> None:
        self.momentum = momentum
        self.mean = torch.zeros((), dtype=torch.float64, device=device)
        self.std = torch.ones((), dtype=torch.float64, device=device)
        self.updates = 0

    def set(self, mean: float, std: float, updates: int) -> None:
        """Go on from these numbers."""
        self.mean, self.std = self.mean.new_tensor(mean), self.std.new_tensor(std)
        self.updates = updates

    def update(self, error: Tensor) -> None:
        """One EMA step towards the mean and std of errors [N]; the first batch is taken whole."""
        if error.numel() < 2:
            return
        std, mean = (v.double() for v in torch.std_mean(error))
        keep = self.momentum if self.updates else 0.0
        self.mean = keep * self.mean + (1 - keep) * mean
        self.std = keep * self.std + (1 - keep) * std
        self.updates += 1

    def normalise(self, error: Tensor, clip: float) -> Tensor:
        """(error - mean) / std, clipped to [-clip, clip] (clip 0: not at all); same shape."""
        scaled = (error - self.mean) / self.std.clamp(min=1e-6)
        return scaled.clamp(-clip, clip) if clip > 0 else scaled


class NoBonus:
    """r_in = 0 everywhere: the plain recurrent DQN."""

    hidden = 0
    masks_last = False

    def __init__(self, device: torch.device = devices.CPU) -> None:
        self.device = device

    def initial(self, batch: int) -> Tensor:
        """[batch, 0]: nothing is carried."""
        return torch.zeros(batch, 0, device=self.device)

    def step(
        self, belief: Tensor, z_tm1: Tensor, a_tm1: Tensor, z: Tensor, is_first: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """-> bonus [B], next belief, prediction of z (None: there is no model).

        ``is_first`` None: no row is a first one.
        """
        return z.new_zeros(len(z)), belief, None

    def observe(self, z_tm1: Tensor, a_tm1: Tensor, is_first: Tensor) -> None:
        """Nothing to count."""

    def recompute(self, window: Window) -> Tensor:
        """-> bonus [T, B]; nothing changes."""
        return window.z.new_zeros(window.a_tm1.shape)

    def learn(self, window: Window, burn_in: int) -> tuple[Tensor, Metrics]:
        """-> bonus [T, B], metrics."""
        return self.recompute(window), {}

    def parts(self) -> dict[str, nn.Module | torch.optim.Optimizer]:
        """Networks and optimisers that a checkpoint saves, by name."""
        return {}

    def state_tree(self) -> dict[str, Any]:
        """Values for a checkpoint."""
        return {}

    def load_tree(self, tree: dict[str, Any]) -> None:
        """Inverse of ``state_tree``."""


class CountBonus(NoBonus):
    """MBIE-EB: beta / sqrt(n(x, a)), neither normalised nor clipped (row 35)."""

    def __init__(
        self, bits: int, num_actions: int, beta: float, device: torch.device = devices.CPU
    ) -> None:
        super().__init__(device)
        self.beta = beta
        self.counts = torch.zeros(2**bits, num_actions, dtype=torch.int64, device=device)
        self.place = 2 ** torch.arange(bits, device=device)

    def step(
        self, belief: Tensor, z_tm1: Tensor, a_tm1: Tensor, z: Tensor, is_first: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """-> bonus of having come from (z_tm1, a_tm1) [B], belief, None."""
        r_in = self._bonus(z_tm1, a_tm1)
        return r_in if is_first is None else r_in * ~is_first, belief, None

    def observe(self, z_tm1: Tensor, a_tm1: Tensor, is_first: Tensor) -> None:
        """Count the transitions of one actor cycle, once each."""
        rows = (self._key(z_tm1)[~is_first], a_tm1[~is_first])
        self.counts.index_put_(rows, torch.ones_like(rows[1]), accumulate=True)

    def learn(self, window: Window, burn_in: int) -> tuple[Tensor, Metrics]:
        """-> bonus [T, B] from the present counts, metrics."""
        r_in = self.recompute(window)
        return r_in, {"bonus/mean": r_in[1:].mean()}

    def recompute(self, window: Window) -> Tensor:
        """-> bonus [T, B] from the present counts."""
        r_in = window.z.new_zeros(window.a_tm1.shape)
        r_in[1:] = self._bonus(window.z[:-1], window.a_tm1[1:]) * ~window.is_first[1:]
        return r_in

    def _key(self, z: Tensor) -> Tensor:
        return (z.long() * self.place).sum(-1)

    def _bonus(self, z: Tensor, action: Tensor) -> Tensor:
        return self.beta * self.counts[self._key(z), action].clamp(min=1).float().rsqrt()

    def state_tree(self) -> dict[str, Any]:
        """The counts."""
        return {"counts": devices.fetch(self.counts)}

    def load_tree(self, tree: dict[str, Any]) -> None:
        """Inverse of ``state_tree``."""
        self.counts.copy_(torch.from_numpy(tree["counts"]))


class ErrorBonus:
    """An error per row, normalised and clipped as Algorithm 2 has it; whose, subclasses say."""

    def __init__(self, config: Config, device: torch.device = devices.CPU) -> None:
        self.config = config.intrinsic
        self.masks_last = config.intrinsic.boundary == "mask"
        self.moments = RunningMoments(config.intrinsic.momentum, device)

    def observe(self, z_tm1: Tensor, a_tm1: Tensor, is_first: Tensor) -> None:
        """Nothing to count: actors read the moments and never move them."""

    def _move_moments(self, error: Tensor, window: Window, burn_in: int) -> None:
        """Towards the errors of rows 1 .. T-1 [T-1, B] that are real and behind the burn-in."""
        valid, skipped = ~window.is_first[1:], window.unpaid
        if skipped is None:
            skipped = 0 if self.config.moments_include_burn_in else max(burn_in - 1, 0)
        self.moments.update(devices.select(error[skipped:], valid[skipped:]))

    def _paid(self, error: Tensor, valid: Tensor, window: Window) -> Tensor:
        """Errors of rows 1 .. T-1 [T-1, B], and which are real -> bonus of all rows [T, B]."""
        r_in = error.new_zeros(window.a_tm1.shape)
        r_in[1:] = self._bonus(error) * valid
        return r_in * ~window.is_last if self.masks_last else r_in

    def _bonus(self, error: Tensor) -> Tensor:
        return self.config.beta * self.moments.normalise(error, self.config.clip)

    def parts(self) -> dict[str, nn.Module | torch.optim.Optimizer]:
        """Networks and optimisers that a checkpoint saves, by name."""
        return {}

    def state_tree(self) -> dict[str, Any]:
        """Moments; networks and optimisers are the learner's to save."""
        m = self.moments
        return {**devices.floats({"mean": m.mean, "std": m.std}), "updates": m.updates}

    def load_tree(self, tree: dict[str, Any]) -> None:
        """Inverse of ``state_tree``."""
        self.moments.set(float(tree["mean"]), float(tree["std"]), int(tree["updates"]))


class ResidualBonus(ErrorBonus):
    """The size of z itself, where z is an error already (RND): no model predicts it."""

    hidden = 0

    def initial(self, batch: int) -> Tensor:
        """[batch, 0]: nothing is carried."""
        return torch.zeros(batch, 0, device=self.moments.mean.device)

    def step(
        self, belief: Tensor, z_tm1: Tensor, a_tm1: Tensor, z: Tensor, is_first: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """One row while acting: -> bonus [B], belief, None."""
        r_in = self._bonus(z.square().mean(-1))
        return r_in if is_first is None else r_in * ~is_first, belief, None

    def recompute(self, window: Window) -> Tensor:
        """-> bonus [T, B] with the present moments."""
        return self._paid(window.z[1:].square().mean(-1), ~window.is_first[1:], window)

    def learn(self, window: Window, burn_in: int) -> tuple[Tensor, Metrics]:
        """-> bonus [T, B], metrics; the moments move first."""
        error, valid = window.z[1:].square().mean(-1), ~window.is_first[1:]
        self._move_moments(error, window, burn_in)
        r_in = self._paid(error, valid, window)
        return r_in, {"bonus/mean": r_in[burn_in:].mean(), "bonus/std": r_in[burn_in:].std()}


class WorldModelBonus(ErrorBonus):
    """The paper's bonus: normalised, clipped prediction error of the latent world model."""

    def __init__(self, model: WorldModel, config: Config) -> None:
        """``model`` is on the device where it is to be trained."""
        super().__init__(config, next(model.parameters()).device)
        self.model = model
        self.reset_state = config.dqn.reset_state
        self.optimiser = torch.optim.Adam(
            model.parameters(),
            lr=config.world_model.learning_rate,
            eps=config.world_model.adam_epsilon,
            fused=True,
        )
        self.hidden = config.world_model.hidden
        self.loss = config.world_model.loss
        self.clip_norm = config.world_model.clip_norm
        self.foretells_bits = config.world_model.sigmoid_output

    def initial(self, batch: int) -> Tensor:
        """[batch, hidden] zero belief."""
        return self.model.initial(batch)

    def step(
        self, belief: Tensor, z_tm1: Tensor, a_tm1: Tensor, z: Tensor, is_first: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """One row while acting: -> bonus [B], next belief [B, H], the prediction of z [B, D].

        On a first row there is no transition: the bonus is 0 and the belief starts anew.
        """
        prediction, advanced = self.model.step(z_tm1, a_tm1, belief)
        r_in = self._bonus(prediction_error(prediction, z))
        if is_first is not None:
            r_in = r_in * ~is_first
            if self.reset_state:
                advanced = advanced * ~is_first[:, None]
        return r_in, advanced, prediction

    @torch.no_grad()
    def recompute(self, window: Window) -> Tensor:
        """The bonus of a window [T, B] with the present model and moments; nothing changes."""
        _, prediction, goal, valid = self._predictions(window)
        return self._paid(prediction_error(prediction, goal), valid, window)

    def learn(self, window: Window, burn_in: int) -> tuple[Tensor, Metrics]:
        """Recompute the bonus of a window [T, B] with the present model, then train on it.

        Bonus and gradient come from the same forward pass; the moments move first (row 9).
        """
        outputs, prediction, goal, valid = self._predictions(window)
        error = prediction_error(prediction, goal)
        fault = bit_loss(outputs, goal) if self.loss == "bce" else error
        real = valid.sum().clamp(min=1)
        loss = (fault * valid).sum() / real
        with torch.no_grad():
            self._move_moments(error, window, burn_in)
            r_in = self._paid(error, valid, window)
            paid = r_in[burn_in:].abs()
            metrics: Metrics = {
                "bonus/mean": r_in[burn_in:].mean(),
                "bonus/std": r_in[burn_in:].std(),
                "bonus/last_share": (
                    (paid * window.is_last[burn_in:]).sum() / paid.sum().clamp(min=1e-12)
                ),
                "world_model/loss": loss.detach(),
                "world_model/unexplained": (
                    (error * valid).sum()
                    / real
                    / goal.flatten(0, 1).var(0, correction=0).mean().clamp(min=1e-12)
                ),
                "world_model/error_mean": self.moments.mean,
                "world_model/error_std": self.moments.std,
            }
            if self.foretells_bits:
                wrong = (prediction - goal) * valid[..., None]
                metrics["world_model/certain_share"] = certain_share(wrong)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        limit = self.clip_norm or math.inf
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        if not devices.is_true(loss.isfinite() & norm.isfinite()):
            raise RunFailed("the world model's loss or gradient is not finite")
        self.optimiser.step()
        return r_in, metrics

    def _predictions(self, window: Window) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of rows 1 .. T-1: outputs, predictions, goals [T-1, B, D], which are real [T-1, B]."""
        z, is_first = window.z, window.is_first
        cut = is_first[:-1] if self.reset_state else None
        belief = self.model.initial(z.shape[1]) if window.belief is None else window.belief
        outputs = self.model.unroll(z[:-1], window.a_tm1[1:], cut, belief)
        goal = z[1:]
        if self.config.boundary == "reset":
            following = torch.cat([z[2:], z[-1:]])
            goal = torch.where(window.is_last[1:, :, None], following, goal)
        return outputs, self.model.foretell(outputs, z[:-1]), goal, ~is_first[1:]

    def parts(self) -> dict[str, nn.Module | torch.optim.Optimizer]:
        """Networks and optimisers that a checkpoint saves, by name."""
        return {"world_model": self.model, "world_model_optimiser": self.optimiser}


Bonus = NoBonus | CountBonus | ResidualBonus | WorldModelBonus


def build_bonus(
    config: Config, embedding: int, num_actions: int, device: torch.device = devices.CPU
) -> Bonus:
    """The bonus that ``config.agent`` asks for, on ``device``."""
    if config.bonus == "none":
        return NoBonus(device)
    if config.bonus == "mbie-eb":
        return CountBonus(embedding, num_actions, config.intrinsic.beta, device)
    if config.representation == "rnd":
        return ResidualBonus(config, device)
    recurrent = config.bonus != "lwm-ff"
    model = WorldModel(embedding, num_actions, config.world_model, recurrent)
    return WorldModelBonus(model.to(device), config)
