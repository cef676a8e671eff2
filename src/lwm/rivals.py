"""Bonuses that ours is compared with: RND and ICM, as published (row 37).

They have the methods of those in ``intrinsic``, with one difference: the ``z`` that they are given
are observations as stored, [..., *shape] flattened to float32 [..., size].  Neither has a memory.
Both divide their error by the running standard deviation of its discounted sum, which is taken on
the windows that are learned from.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lwm import devices
from lwm.devices import Metrics
from lwm.errors import RunFailed
from lwm.intrinsic import NoBonus, Window
from lwm.networks import one_hot
from lwm.sections import IntrinsicConfig
from lwm.senses import Sense
from lwm.vision import ImageTrunk, Normaliser, VectorTrunk

GAMMA = 0.99
"""Discount of the sums of errors."""
RND_FEATURES = 128
RND_CLIP = 5.0
"""Normalised observations are clipped to this."""
ICM_FEATURES = 64
ICM_HIDDEN = 256
ICM_FORWARD = 0.2
"""Weight of the forward loss; the inverse loss has the rest."""
VECTOR_WIDTH = 128
RATE = 1e-4


class ReturnScale:
    """Running standard deviation of discounted sums of errors."""

    def __init__(self, momentum: float, device: torch.device) -> None:
        self.momentum = momentum
        self.std = torch.ones((), dtype=torch.float64, device=device)
        self.updates = 0

    def update(self, error: Tensor, valid: Tensor) -> None:
        """One step towards the std of the sums in a window: errors and which are real [T, B]."""
        if error.numel() < 2:
            return
        total, sums = error.new_zeros(error.shape[1]), []
        for e, real in zip(error.flip(0), valid.flip(0), strict=True):
            total = (e + GAMMA * total) * real  # nothing is carried across an episode's start
            sums.append(total)
        std = torch.stack(sums).double().std()
        keep = self.momentum if self.updates else 0.0
        self.std = keep * self.std + (1 - keep) * std
        self.updates += 1


class _Feedforward(NoBonus, ABC):
    """What RND and ICM share: error of each transition -> bonus; one optimiser."""

    def __init__(self, config: IntrinsicConfig, device: torch.device) -> None:
        super().__init__(device)
        self.config = config
        self.scale = ReturnScale(config.momentum, device)
        self.networks: nn.ModuleDict
        self.optimiser: torch.optim.Optimizer

    @abstractmethod
    def errors(self, z_tm1: Tensor, a_tm1: Tensor, z: Tensor) -> Tensor:
        """[N, size], [N], [N, size] -> the error of each transition [N]."""

    @abstractmethod
    def loss(
        self, z_tm1: Tensor, a_tm1: Tensor, z: Tensor, valid: Tensor
    ) -> tuple[Tensor, Tensor, Metrics]:
        """Of N transitions: -> what to minimise [], errors [N], metrics."""

    @torch.no_grad()
    def step(
        self, belief: Tensor, z_tm1: Tensor, a_tm1: Tensor, z: Tensor, is_first: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """One row while acting: -> bonus [B], belief as it was, None."""
        r_in = self._bonus(self.errors(z_tm1, a_tm1, z))
        return r_in if is_first is None else r_in * ~is_first, belief, None

    @torch.no_grad()
    def recompute(self, window: Window) -> Tensor:
        """The bonus of a window [T, B] with the present networks; nothing changes."""
        error = self.errors(*_transitions(window)).view(-1, window.a_tm1.shape[1])
        return self._paid(error, window)

    def learn(self, window: Window, burn_in: int) -> tuple[Tensor, Metrics]:
        """Recompute the bonus of a window [T, B], then train on it."""
        valid = ~window.is_first[1:]
        loss, error, metrics = self.loss(*_transitions(window), valid.flatten())
        with torch.no_grad():
            error = error.view(-1, window.a_tm1.shape[1])
            skipped = window.unpaid or 0  # no memory to warm up: None leaves nothing out
            self.scale.update(error[skipped:], valid[skipped:])
            r_in = self._paid(error, window)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        if not devices.is_true(loss.isfinite()):
            raise RunFailed("the loss of the bonus is not finite")
        self.optimiser.step()
        told: Metrics = {
            "bonus/mean": r_in[burn_in:].mean(),
            "bonus/std": r_in[burn_in:].std(),
            "bonus/loss": loss.detach(),
            "bonus/return_std": self.scale.std,
        }
        return r_in, {**told, **metrics}

    def _paid(self, error: Tensor, window: Window) -> Tensor:
        r_in = error.new_zeros(window.a_tm1.shape)
        r_in[1:] = self._bonus(error) * ~window.is_first[1:]
        return r_in

    def _bonus(self, error: Tensor) -> Tensor:
        scaled = (error / self.scale.std.clamp(min=1e-8)).float()
        clip = self.config.clip
        return self.config.beta * (scaled.clamp(max=clip) if clip > 0 else scaled)

    def parts(self) -> dict[str, nn.Module | torch.optim.Optimizer]:
        """What a checkpoint saves of it, by name."""
        return {"rival": self.networks, "rival_optimiser": self.optimiser}

    def state_tree(self) -> dict[str, Any]:
        """The scale; networks and optimiser are saved as ``parts``."""
        return {**devices.floats({"std": self.scale.std}), "updates": self.scale.updates}

    def load_tree(self, tree: dict[str, Any]) -> None:
        """Inverse of ``state_tree``."""
        self.scale.std = self.scale.std.new_tensor(float(tree["std"]))
        self.scale.updates = int(tree["updates"])


class RNDBonus(_Feedforward):
    """Random network distillation: how well is a random function of the observation known?"""

    def __init__(self, sense: Sense, config: IntrinsicConfig, device: torch.device) -> None:
        super().__init__(config, device)
        self.normaliser = Normaliser(sense.size, RND_CLIP)
        self.networks = nn.ModuleDict(
            {
                "normaliser": self.normaliser,
                "target": _features(sense, RND_FEATURES),
                "predictor": nn.Sequential(
                    _features(sense, RND_FEATURES),
                    nn.ReLU(),
                    nn.Linear(RND_FEATURES, RND_FEATURES),
                ),
            }
        ).to(device)
        self.networks["target"].requires_grad_(False)
        trained = self.networks["predictor"].parameters()
        self.optimiser = torch.optim.Adam(trained, lr=RATE, fused=True)

    def errors(self, z_tm1: Tensor, a_tm1: Tensor, z: Tensor) -> Tensor:
        """The error of arriving at z [N]."""
        x = self.normaliser(z)
        return F.mse_loss(
            self.networks["predictor"](x), self.networks["target"](x), reduction="none"
        ).mean(-1)

    def loss(
        self, z_tm1: Tensor, a_tm1: Tensor, z: Tensor, valid: Tensor
    ) -> tuple[Tensor, Tensor, Metrics]:
        """The predictor's error, on all rows; the normaliser counts them first."""
        self.normaliser.observe(z)
        error = self.errors(z_tm1, a_tm1, z)
        return error.mean(), error.detach(), {}


class ICMBonus(_Feedforward):
    """Intrinsic curiosity module: a forward model in features that tell the action taken."""

    def __init__(
        self, sense: Sense, num_actions: int, config: IntrinsicConfig, device: torch.device
    ) -> None:
        super().__init__(config, device)
        self.num_actions = num_actions
        self.normaliser = Normaliser(sense.size)
        wide = ICM_FEATURES
        self.networks = nn.ModuleDict(
            {
                "normaliser": self.normaliser,
                "features": _features(sense, wide),
                "inverse": _mlp(2 * wide, num_actions),
                "ahead": _mlp(wide + num_actions, wide),
            }
        ).to(device)
        self.optimiser = torch.optim.Adam(self.networks.parameters(), lr=RATE, fused=True)

    def errors(self, z_tm1: Tensor, a_tm1: Tensor, z: Tensor) -> Tensor:
        """The forward model's error [N]."""
        return self._forward(self._features(z_tm1), a_tm1, self._features(z))

    def loss(
        self, z_tm1: Tensor, a_tm1: Tensor, z: Tensor, valid: Tensor
    ) -> tuple[Tensor, Tensor, Metrics]:
        """Inverse and forward loss over the real transitions."""
        self.normaliser.observe(z)
        before, after = self._features(z_tm1), self._features(z)
        logits = self.networks["inverse"](torch.cat([before, after], -1))
        inverse = F.cross_entropy(logits, a_tm1, reduction="none")
        error = self._forward(before, a_tm1, after)
        each = (1 - ICM_FORWARD) * inverse + ICM_FORWARD * error
        real = valid.sum().clamp(min=1)
        right = (logits.argmax(-1) == a_tm1) & valid
        metrics: Metrics = {"icm/accuracy": right.sum() / real}
        return (each * valid).sum() / real, error.detach(), metrics

    def _features(self, z: Tensor) -> Tensor:
        return self.networks["features"](self.normaliser(z))

    def _forward(self, before: Tensor, a_tm1: Tensor, after: Tensor) -> Tensor:
        x = torch.cat([before, one_hot(a_tm1, self.num_actions)], -1)
        return 0.5 * F.mse_loss(self.networks["ahead"](x), after, reduction="none").mean(-1)


def _transitions(window: Window) -> tuple[Tensor, Tensor, Tensor]:
    """Rows t-1, actions and rows t, of all transitions of a window, flat."""
    z = window.z
    return z[:-1].flatten(0, 1), window.a_tm1[1:].flatten(), z[1:].flatten(0, 1)


def _features(sense: Sense, features: int) -> nn.Module:
    """From rows that are normalised already to features."""
    trunk: ImageTrunk | VectorTrunk
    if sense.image is not None:
        trunk = ImageTrunk(sense.image, sense.beside, 1.0, offset=0.0)
    else:
        trunk = VectorTrunk(sense.size, VECTOR_WIDTH, normalise=False)
    return nn.Sequential(trunk, nn.Linear(trunk.width, features))


def _mlp(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, ICM_HIDDEN), nn.ReLU(), nn.Linear(ICM_HIDDEN, outputs))
