"""Φ: observations to embeddings, trained with W-MSE on what is close in time (Sec. 3.1, 3.2).

What sees an observation is a trunk (``vision``); what trains it is the same for all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lwm import devices
from lwm.devices import Metrics
from lwm.sections import EncoderConfig
from lwm.vision import ConvTrunk, Trunk, VectorTrunk
from lwm.whitening import WMSEOutput, w_mse

Observations = Tensor | NDArray[Any]

COLLAPSED_RANK = 2.0
"""The representation is taken for collapsed if its effective rank stays below this (and below half
of its dimensions, where these are few) ..."""
COLLAPSED_UPDATES = 100
"""... for so many updates on end."""

_CHUNK = 256
"""Frames embedded at a time: larger batches take more memory and are no faster."""


class Encoder(nn.Module):
    """Φ: a trunk, then a linear projection (row 32: the outputs are linear)."""

    def __init__(
        self,
        embedding: int,
        dtype: torch.dtype = torch.float32,
        trunk: Trunk | None = None,
    ) -> None:
        """``trunk`` None: the paper's convolutions, computed in ``dtype``."""
        super().__init__()
        self.trunk = ConvTrunk(dtype) if trunk is None else trunk
        self.projection = nn.Linear(self.trunk.width, embedding)

    def forward(self, frames: Tensor) -> Tensor:
        """Observations [B, ...] as the trunk takes them -> z [B, D] float32."""
        features = self.trunk(frames)
        # Row 17: whatever the convolutions compute in, z is float32 and never autocast.
        with torch.autocast(features.device.type, enabled=False):
            return self.projection(features.float())


class PhiLearner:
    """Φ, its Adam, and how both are saved; what it is trained for, subclasses say.

    Never trained, it has random features.
    """

    def __init__(self, encoder: Encoder, config: EncoderConfig, *heads: nn.Module) -> None:
        """``encoder`` is on the device where it is to be trained; ``heads`` are trained with it."""
        self.encoder = encoder
        self.heads = nn.ModuleList(heads)
        self.device = next(encoder.parameters()).device
        self.optimiser = torch.optim.Adam(
            self._parameters(), lr=config.learning_rate, eps=config.adam_epsilon, fused=True
        )
        self.counts: dict[str, int] = {}
        """Whole numbers that are saved with Φ."""

    def _parameters(self) -> list[nn.Parameter]:
        return [*self.encoder.parameters(), *self.heads.parameters()]

    @torch.no_grad()  # not inference mode: the world model is trained on these z
    def embed(self, obs: Observations) -> Tensor:
        """Observations [..., *shape] -> z [..., D] float32, without gradient."""
        seen = self._put(obs)
        ahead = seen.ndim - self.encoder.trunk.axes
        flat = seen.reshape(-1, *seen.shape[ahead:])
        z = torch.cat([self._embed(part) for part in flat.split(_CHUNK)])
        return z.view(*seen.shape[:ahead], z.shape[-1])

    def _embed(self, obs: Tensor) -> Tensor:
        """[B, ...] -> z [B, D]."""
        return self.encoder(obs)

    def count_in(self, obs: Tensor) -> None:
        """Let what normalises its inputs know observations [N, ...]; images are seen as they are.

        A Φ that is trained with W-MSE does this as it learns.
        """
        for network in (self.encoder, *self.heads):
            if isinstance(network, Encoder) and isinstance(network.trunk, VectorTrunk):
                network.trunk.observe(obs)

    def _put(self, obs: Observations) -> Tensor:
        return devices.put(obs, self.device) if isinstance(obs, np.ndarray) else obs

    def _step(self, loss: Tensor | None) -> bool:
        """One step of Adam on a loss, if there is one with finite gradients; whether there was."""
        if loss is None:
            return False
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        grads = [p.grad for p in self._parameters() if p.grad is not None]
        if not devices.is_true(nn.utils.get_total_norm(grads).isfinite()):
            return False
        self.optimiser.step()
        return True

    def state_tree(self) -> dict[str, Any]:
        """Weights, Adam's moments by parameter number (absent before the first step), counts."""
        moments = self.optimiser.state_dict()["state"]
        heads = {k: devices.fetch(v) for k, v in self.heads.state_dict().items()}
        return {
            "encoder": {k: devices.fetch(v) for k, v in self.encoder.state_dict().items()},
            "optimiser": {
                str(i): {k: devices.fetch(v) for k, v in s.items()} for i, s in moments.items()
            },
            "counts": dict(self.counts),
            **({"heads": heads} if heads else {}),
        }

    def load_tree(self, tree: dict[str, Any]) -> None:
        """Inverse of ``state_tree``; a tree of another architecture raises."""
        weights = {k: torch.from_numpy(v) for k, v in tree["encoder"].items()}
        self.encoder.load_state_dict(weights)
        heads = {k: torch.from_numpy(v) for k, v in tree.get("heads", {}).items()}
        self.heads.load_state_dict(heads)
        moments = {
            int(i): {k: torch.from_numpy(np.array(v)) for k, v in s.items()}
            for i, s in tree["optimiser"].items()
        }
        for i, parameter in enumerate(self._parameters()):
            # Adam's fused kernel would read beyond arrays that are too short.
            own = moments.get(i, {})
            if any(own[k].shape != parameter.shape for k in own if k != "step"):
                raise ValueError(f"Adam's moments of parameter {i} have another shape")
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": moments, "param_groups": groups})
        self.counts = {name: int(tree["counts"][name]) for name in self.counts}


class EncoderLearner(PhiLearner):
    """Φ trained with W-MSE, and the counts of what went wrong."""

    def __init__(self, encoder: Encoder, config: EncoderConfig) -> None:
        """``encoder`` is on the device where it is to be trained."""
        super().__init__(encoder, config)
        self.wrap, self.centre = config.wrap_shift, config.centre
        self.rank_limit = min(COLLAPSED_RANK, config.embedding / 2)
        self.counts = {"updates": 0, "jittered": 0, "skipped": 0, "low_rank": 0}
        """Calls of ``learn``, those that needed jitter, those that changed nothing, and for how
        many on end the effective rank has been too low."""

    @property
    def collapsed(self) -> bool:
        """The alarm: all frames look alike to Φ, or differ along one line only."""
        return self.counts["low_rank"] >= COLLAPSED_UPDATES

    def learn(self, pairs_x: Observations, pairs_y: Observations, offsets: Tensor) -> Metrics:
        """One update on N pairs of observations [N, ...]; -> metrics.

        ``offsets`` [2N, 2] int64 shift images, those of ``pairs_x`` first.  If the covariance
        cannot be factored or a gradient is not finite, nothing changes but the counts.
        """
        both = torch.cat([self._put(pairs_x), self._put(pairs_y)])
        seen = self.encoder.trunk.varied(both, offsets.to(self.device), self.wrap)
        z = self.encoder(seen)
        out = w_mse(z)
        stepped = self._step(out.loss)
        spread, mean = torch.var_mean(z.detach(), 0)
        if stepped and self.centre:
            # The bias has no gradient: moved, Φ is as good for W-MSE as it was.
            with torch.no_grad():
                self.encoder.projection.bias.sub_(self.centre * mean)
        self._count(out, stepped)
        metrics: Metrics = {
            "encoder/condition": out.condition,
            "encoder/rank": out.rank,
            "encoder/jitter": out.jitter or 0.0,
            "encoder/jittered": float(out.jitter is not None),
            "encoder/skipped": float(not stepped),
            "encoder/collapsed": float(self.collapsed),
        }
        if out.paper_loss is None:  # metrics are written as JSON: what does not exist is left out
            return metrics
        offset = (mean.square().mean() / spread.mean().clamp(min=1e-12)).sqrt()
        return {"encoder/loss": out.paper_loss, "encoder/offset": offset, **metrics}

    def _count(self, out: WMSEOutput, stepped: bool) -> None:
        c = self.counts
        c["updates"] += 1
        c["jittered"] += out.jitter is not None
        c["skipped"] += not stepped
        c["low_rank"] = c["low_rank"] + 1 if devices.is_true(out.rank < self.rank_limit) else 0
