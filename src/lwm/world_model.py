"""The latent world model: (z_t, a_t, belief) -> the next embedding z_{t+1} (Sec. 3.4)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lwm.networks import GRU, Dense, FeedForward, one_hot
from lwm.sections import WorldModelConfig


class WorldModel(nn.Module):
    """FC, then GRU (or its feed-forward stand-in), then two FC layers."""

    def __init__(
        self, embedding: int, num_actions: int, config: WorldModelConfig, recurrent: bool = True
    ) -> None:
        super().__init__()
        self.num_actions = num_actions
        self.relu_features = config.relu_features
        self.sigmoid_output = config.sigmoid_output
        self.residual = config.residual
        self.features = nn.Linear(embedding + num_actions, config.features)
        core = GRU if recurrent else FeedForward
        self.core = core(config.features, config.hidden)
        self.head = Dense(config.hidden, config.head)
        self.output = nn.Linear(config.head, embedding)

    def initial(self, batch: int) -> Tensor:
        """[batch, hidden] belief at an episode's start."""
        return self.core.initial(batch)

    def step(self, z: Tensor, action: Tensor, belief: Tensor) -> tuple[Tensor, Tensor]:
        """z_t [B, D], a_t [B], belief [B, H] -> prediction of z_{t+1} [B, D], next belief."""
        belief = self.core.step(self._inputs(z, action), belief)
        return self.foretell(self._outputs(belief), z), belief

    def unroll(self, z: Tensor, action: Tensor, is_first: Tensor | None, belief: Tensor) -> Tensor:
        """z_t [T, B, D], a_t [T, B], is_first_t [T, B] -> the last layer's outputs [T, B, D].

        ``foretell`` makes predictions of z_{t+1} of them; of bits they are the logits.
        """
        return self._outputs(self.core.unroll(self._inputs(z, action), is_first, belief))

    def foretell(self, outputs: Tensor, z: Tensor) -> Tensor:
        """The last layer's outputs of rows whose embeddings are z -> the next embeddings; [..., D]
        all."""
        if self.residual:
            return z + outputs
        return torch.sigmoid(outputs) if self.sigmoid_output else outputs

    def _inputs(self, z: Tensor, action: Tensor) -> Tensor:
        x = self.features(torch.cat([z, one_hot(action, self.num_actions)], -1))
        # Not in place: what a linear layer returns is a view, and its gradient would be copied.
        return F.relu(x) if self.relu_features else x

    def _outputs(self, belief: Tensor) -> Tensor:
        return self.output(F.relu(self.head(belief)))


def bit_loss(logits: Tensor, z: Tensor) -> Tensor:
    """[..., D] logits, [..., D] bits -> cross-entropy, mean over the bits [...].

    From logits: float32 has no probability between 1 - 6e-8 and 1, and at 1 no gradient is left.
    """
    return F.binary_cross_entropy_with_logits(logits, z, reduction="none").mean(-1)


def prediction_error(prediction: Tensor, z: Tensor) -> Tensor:
    """[..., D], [..., D] -> mean squared error over the embedding [...] (Alg. 2)."""
    return (prediction - z).square().mean(-1)


CERTAIN = 0.99
"""A bit that is foretold wrongly by more than this passes less than a hundredth of its error back
through the sigmoid: squared error hardly unlearns it."""


def certain_share(error: Tensor) -> Tensor:
    """Errors of single bits [...] -> share of their squares that is of certain ones []."""
    square = error.square()
    return (square * (error.abs() > CERTAIN)).sum() / square.sum().clamp(min=1e-12)
