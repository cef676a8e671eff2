"""Φ and the bonus in its space, for observations of any space: all that learns what is new."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lwm import devices
from lwm.config import Config, replace
from lwm.encoder import Encoder, EncoderLearner
from lwm.intrinsic import WorldModelBonus, build_bonus
from lwm.networks import load_optimiser, optimiser_tree
from lwm.rivals import ICMBonus, RNDBonus
from lwm.senses import Sense
from lwm.streams import torch_seeded
from lwm.vision import VectorTrunk

KINDS = ("lwm", "lwm-ff", "lwm-rf", "rnd", "icm")

Part = nn.Module | torch.optim.Optimizer


def fitted(config: Config, sense: Sense) -> Config:
    """The config with what follows from the observations."""
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

    def __init__(self, config: Config, sense: Sense, num_actions: int) -> None:
        """``config.agent`` says which: one of ``KINDS``."""
        self.kind, self.sense = config.agent, sense
        self.device = devices.pick(config.device)
        self.encoder: EncoderLearner | None = None
        """Φ, if there is one that learns."""
        self._phi: EncoderLearner | None = None
        self.size = sense.size
        """Of what the bonus is given of an observation."""
        with torch_seeded(config.seed, "init"):
            if self.kind in ("rnd", "icm"):
                rival = (
                    RNDBonus(sense, config.intrinsic, self.device)
                    if self.kind == "rnd"
                    else ICMBonus(sense, num_actions, config.intrinsic, self.device)
                )
                self.bonus: RNDBonus | ICMBonus | WorldModelBonus = rival
                return
            if sense.kind != "bits":
                self.size = config.encoder.embedding
            built = build_bonus(config, self.size, num_actions, self.device)
            assert isinstance(built, WorldModelBonus)
            self.bonus = built
            if sense.kind != "bits":
                trunk = sense.trunk(config.gym.pixel_unit, config.encoder.width)
                phi = Encoder(self.size, trunk=trunk).to(self.device)
                self._phi = EncoderLearner(phi, config.encoder)
                self.encoder = None if self.kind == "lwm-rf" else self._phi

    def __str__(self) -> str:
        if self.kind in ("rnd", "icm"):
            return self.kind.upper()
        if self._phi is None:
            return "the bits themselves"
        network = "CNN" if self.sense.image is not None else "MLP"
        return f"{network} + {'W-MSE' if self.encoder is not None else 'nothing: Φ stays random'}"

    def embed(self, rows: NDArray[Any]) -> Tensor:
        """Rows [..., *shape] as the bonus takes them [..., size]."""
        if self._phi is not None:
            return self._phi.embed(rows)
        ahead = rows.shape[: rows.ndim - len(self.sense.shape)]
        flat = np.ascontiguousarray(rows).reshape(*ahead, self.size)
        return devices.put(flat, self.device).float()

    def observe(self, rows: NDArray[Any]) -> None:
        """Count rows in whose Φ stays random: it still takes inputs of mean 0 and variance 1."""
        if self._phi is not None and isinstance(self._phi.encoder.trunk, VectorTrunk):
            flat = devices.put(rows.reshape(-1, rows.shape[-1]), self.device)
            self._phi.encoder.trunk.observe(flat)

    def state_tree(self) -> dict[str, Any]:
        """Everything as a tree of NumPy arrays and plain values."""
        tree: dict[str, Any] = {"bonus": self.bonus.state_tree()}
        if self._phi is not None:
            tree["encoder"] = self._phi.state_tree()
        for name, part in self.bonus.parts().items():
            tree[name] = (
                {k: devices.fetch(v) for k, v in part.state_dict().items()}
                if isinstance(part, nn.Module)
                else optimiser_tree(part)
            )
        return tree

    def load_tree(self, tree: dict[str, Any]) -> None:
        """Inverse of ``state_tree``; a tree of another architecture raises."""
        for name, part in self.bonus.parts().items():
            if isinstance(part, nn.Module):
                part.load_state_dict({k: torch.from_numpy(v) for k, v in tree[name].items()})
            else:
                load_optimiser(part, tree[name])
        self.bonus.load_tree(tree["bonus"])
        if self._phi is not None:
            self._phi.load_tree(tree["encoder"])
