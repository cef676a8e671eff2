"""What W-MSE is compared with, on the same Φ: inverse dynamics features, CPC|Action (Sec. 3.3), and
the distillation of a random network (RND).

Random features need no code: they are Φ as initialised.  The learners own their network's head and
optimiser, and share Φ's architecture, learning rate and Adam with ``EncoderLearner``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lwm.encoder import Encoder, Observations, PhiLearner
from lwm.networks import GRU, one_hot
from lwm.sections import EncoderConfig

HIDDEN = 256
"""Width of the inverse model's hidden layer and of the GRU (as the world model has)."""


class InverseLearner(PhiLearner):
    """IDF: two neighbouring embeddings, concatenated, through a small network to the action."""

    def __init__(self, encoder: Encoder, num_actions: int, config: EncoderConfig) -> None:
        self.head = nn.Sequential(
            nn.Linear(2 * config.embedding, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, num_actions)
        )
        self.head.to(next(encoder.parameters()).device)
        super().__init__(encoder, config, self.head)

    def logits(self, x: Tensor, y: Tensor) -> Tensor:
        """x_t, x_{t+1} [N, 84, 84] or [N, inputs] -> scores of the action between them [N, A]."""
        z = self.encoder(torch.cat([x, y]))
        return self.head(torch.cat(z.chunk(2), 1))

    def learn(self, x: Tensor, y: Tensor, action: Tensor) -> dict[str, float]:
        """One update on N transitions: x_t, x_{t+1} [N, ...], a_t [N] int64."""
        self.count_in(torch.cat([x, y]))
        logits = self.logits(x, y)
        loss = F.cross_entropy(logits, action)
        self._step(loss)
        hits = (logits.detach().argmax(1) == action).float().mean()
        return {"loss": loss.item(), "accuracy": hits.item()}

    @torch.no_grad()
    def accuracy(self, x: Tensor, y: Tensor, action: Tensor) -> float:
        """Share of actions [N] that are recognised between x_t and x_{t+1} [N, 84, 84]."""
        parts = zip(x.split(256), y.split(256), action.split(256), strict=True)
        hits = sum(int((self.logits(a, b).argmax(1) == c).sum()) for a, b, c in parts)
        return hits / len(action)


class DistillationLearner(PhiLearner):
    """RND (Burda et al. 2018): Φ learns to be a fixed random network of its own kind.

    z is what it is still wrong by: large where observations are new, small where they are not.
    """

    def __init__(self, encoder: Encoder, fixed: Encoder, config: EncoderConfig) -> None:
        self.fixed = fixed.requires_grad_(False)
        super().__init__(encoder, config, self.fixed)  # saved with Φ; Adam sees no gradient of it

    def _embed(self, obs: Tensor) -> Tensor:
        return self.encoder(obs) - self.fixed(obs)

    def learn(self, obs: Observations) -> dict[str, float]:
        """One update on N observations [N, ...]."""
        seen = self._put(obs)
        self.count_in(seen)
        loss = self._embed(seen).square().mean()
        self._step(loss)
        return {"loss": loss.item()}


class ContrastiveLearner:
    """CPC|Action: a GRU over embedding and action predicts the next embedding; InfoNCE."""

    def __init__(self, encoder: Encoder, num_actions: int, config: EncoderConfig) -> None:
        self.encoder = encoder
        self.num_actions = num_actions
        self.core = GRU(config.embedding + num_actions, HIDDEN)
        self.output = nn.Linear(HIDDEN, config.embedding)
        self.optimiser = _adam([self.encoder, self.core, self.output], config)

    def predict(self, z: Tensor, action: Tensor) -> Tensor:
        """z_t [T, B, D], a_t [T, B] -> predictions of z_{t+1} [T, B, D]; the GRU starts at 0."""
        inputs = torch.cat([z, one_hot(action, self.num_actions)], -1)
        return self.output(self.core.unroll(inputs, None, self.core.initial(z.shape[1])))

    def learn(self, frames: Tensor, action: Tensor) -> dict[str, float]:
        """One update on B sequences inside an episode: x_t [T, B, 84, 84] uint8, a_t [T, B] int64
        (that of the last row leads out of the sequence and is not read)."""
        steps, batch = frames.shape[:2]
        z = self.encoder(frames.flatten(0, 1)).view(steps, batch, -1)
        prediction = self.predict(z[:-1], action[:-1])
        loss, accuracy = info_nce(prediction.flatten(0, 1), z[1:].flatten(0, 1))
        _step(self.optimiser, loss)
        return {"loss": loss.item(), "accuracy": accuracy}


def info_nce(prediction: Tensor, target: Tensor) -> tuple[Tensor, float]:
    """Predictions [N, D], targets [N, D] -> InfoNCE, and the share of right choices.

    Each prediction must choose its own target among all N of the batch, by the dot product.
    """
    scores = prediction @ target.t()
    own = torch.arange(len(scores))
    hits = (scores.detach().argmax(1) == own).float().mean()
    return F.cross_entropy(scores, own), hits.item()


def _adam(modules: list[nn.Module], config: EncoderConfig) -> torch.optim.Optimizer:
    parameters = [p for module in modules for p in module.parameters()]
    return torch.optim.Adam(
        parameters, lr=config.learning_rate, eps=config.adam_epsilon, fused=True
    )


def _step(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    optimiser.step()
