"""Φ and the bonus in its space, for observations of any space: all that learns what is new."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lwm import devices
from lwm.config import Config, replace
from lwm.encoder import Encoder, EncoderLearner, PhiLearner
from lwm.intrinsic import Bonus, build_bonus
from lwm.networks import load_optimiser, optimiser_tree
from lwm.representations import DistillationLearner, InverseLearner
from lwm.rivals import ICMBonus, RNDBonus
from lwm.senses import PIXEL_UNIT, Sense
from lwm.vision import working_dtype

LATENT = ("lwm", "lwm-ff")
"""Bonuses with a world model: one that is given images themselves predicts their scaled pixels."""
KINDS = ("lwm", "lwm-ff", "lwm-rf", "rnd", "icm")

AnyBonus = Bonus | RNDBonus | ICMBonus
Part = nn.Module | torch.optim.Optimizer


def fitted(config: Config, sense: Sense) -> Config:
    """The config of a run on any environment, with what follows from its observations."""
    return replace(
        config,
        {
            "encoder.spatial_shift": min(config.encoder.spatial_shift, sense.shift),
            # Bits are predicted as probabilities, as on the labyrinth.
            "world_model.sigmoid_output": sense.kind == "bits",
        },
    )


class Novelty:
    """A bonus, and Φ where it needs one."""

    def __init__(
        self, config: Config, sense: Sense, num_actions: int, device: torch.device = devices.CPU
    ) -> None:
        """``config.bonus`` says which; weights are drawn from torch's own generator."""
        self.kind, self.sense, self.device = config.bonus, sense, device
        self.encoder: PhiLearner | None = None
        """Φ, where observations are not their own embedding."""
        self.bonus: AnyBonus
        self.size = sense.size
        """Of what the bonus is given of an observation."""
        self.representation = "pixels"
        if self.kind == "rnd":
            self.bonus = RNDBonus(sense, config.intrinsic, device)
            return
        if self.kind == "icm":
            self.bonus = ICMBonus(sense, num_actions, config.intrinsic, device)
            return
        representation = config.representation
        if config.workload == "gym" and sense.kind == "bits":
            representation = "pixels"
        self.representation = "none" if self.kind == "none" else representation
        if self.representation == "none" and sense.kind != "bits":
            self.size = 0
        if self.representation not in ("none", "pixels"):
            self.size = config.encoder.embedding
        self.bonus = build_bonus(config, self.size, num_actions, device)
        if self.representation not in ("none", "pixels"):
            self.encoder = self._phi(config, num_actions)

    def _phi(self, config: Config, num_actions: int) -> PhiLearner:
        c = config.encoder

        def network() -> Encoder:
            dtype = working_dtype(config.precision, self.device)
            trunk = self.sense.trunk(config.gym.pixel_unit, c.hidden, dtype)
            return Encoder(c.embedding, trunk=trunk).to(self.device)

        if self.representation == "idf":
            return InverseLearner(network(), num_actions, c)
        if self.representation == "rnd":
            return DistillationLearner(network(), network(), c)
        return (EncoderLearner if self.representation == "wmse" else PhiLearner)(network(), c)

    def __str__(self) -> str:
        if self.kind in ("none", "rnd", "icm"):
            return {"none": "no bonus"}.get(self.kind, self.kind.upper())
        if self.encoder is None:
            return "the bits themselves"
        network = "CNN" if self.sense.image is not None else "MLP"
        how = {"wmse": "W-MSE", "rf": "random features", "idf": "inverse dynamics", "rnd": "RND"}
        return f"{network} + {how[self.representation]}, {self.size} dimensions"

    def embed(self, obs: NDArray[Any] | Tensor) -> Tensor:
        """Stored observations [..., *shape] as the bonus takes them [..., size]."""
        if self.encoder is not None:
            return self.encoder.embed(obs)
        seen = devices.put(obs, self.device) if isinstance(obs, np.ndarray) else obs
        ahead = seen.shape[: seen.ndim - len(self.sense.shape)]
        if not self.size:
            return torch.zeros(*ahead, 0, device=self.device)
        flat = seen.float().reshape(*ahead, self.size)
        return flat / PIXEL_UNIT - 1 if self.kind in LATENT and self.sense.image else flat

    def observe(self, obs: Tensor) -> None:
        """Let a Φ that stays random count observations [..., size] in: like one that learns, it
        takes vectors of mean 0 and variance 1."""
        if self.representation == "rf" and self.encoder is not None:
            self.encoder.count_in(obs.flatten(0, -len(self.sense.shape) - 1))

    def state_tree(self) -> dict[str, Any]:
        """Everything as a tree of NumPy arrays and plain values."""
        tree: dict[str, Any] = {"bonus": self.bonus.state_tree()}
        if self.encoder is not None:
            tree["encoder"] = self.encoder.state_tree()
        return {**tree, **parts_tree(self.bonus.parts())}

    def load_tree(self, tree: dict[str, Any]) -> None:
        """Inverse of ``state_tree``; a tree of another architecture raises."""
        load_parts(self.bonus.parts(), tree)
        self.bonus.load_tree(tree["bonus"])
        if self.encoder is not None:
            self.encoder.load_tree(tree["encoder"])


def parts_tree(parts: dict[str, Part]) -> dict[str, Any]:
    """Networks and optimisers by name, as arrays."""
    return {
        name: {k: devices.fetch(v) for k, v in part.state_dict().items()}
        if isinstance(part, nn.Module)
        else optimiser_tree(part)
        for name, part in parts.items()
    }


def load_parts(parts: dict[str, Part], tree: dict[str, Any]) -> None:
    """Inverse of ``parts_tree``."""
    for name, part in parts.items():
        if isinstance(part, nn.Module):
            part.load_state_dict({k: torch.from_numpy(np.array(v)) for k, v in tree[name].items()})
        else:
            load_optimiser(part, tree[name])
