"""What a representation is good for, in numbers: order in time, position, predictability, rank.

Pure functions of embeddings; nothing here knows where they come from.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lwm.networks import one_hot
from lwm.whitening import spectrum

Floats = NDArray[np.float64]

MAX_LAG = 64
"""Temporal distances 1 ... MAX_LAG are compared with latent ones."""

UPDATES = 3000
"""Of a forward model."""

_HIDDEN = 256
_BATCH = 256
_RATE = 1e-3


class Transitions(NamedTuple):
    """Steps inside episodes: what a forward model learns from."""

    z: Tensor
    """[N, D] float32 embedding at t."""
    action: Tensor
    """[N] int64 action at t."""
    z_next: Tensor
    """[N, D] float32 embedding at t + 1."""


def ranks(values: Floats) -> Floats:
    """[N] -> ranks from 1; equal values share the mean of theirs."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    mean: Floats = last - (count - 1) / 2
    return mean[place]


def rank_correlation(z: NDArray[np.float32], max_lag: int = MAX_LAG) -> float | None:
    """Spearman's correlation of ||z_t - z_{t+k}|| with k, over all t and k = 1 ... max_lag.

    z [T, D] is one episode.  None if it is too short for the longest lag, or all distances are
    equal.
    """
    if len(z) <= max_lag:
        return None
    wide, lags = z.astype(np.float64), range(1, max_lag + 1)
    latent = [np.linalg.norm(wide[k:] - wide[:-k], axis=1) for k in lags]
    time = [np.full(len(part), float(k)) for k, part in zip(lags, latent, strict=True)]
    a, b = ranks(np.concatenate(latent)), ranks(np.concatenate(time))
    a, b = a - a.mean(), b - b.mean()
    size = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / size) if size > 0 else None


def linear_probe(
    z: NDArray[np.float32],
    target: Floats,
    z_test: NDArray[np.float32],
    target_test: Floats,
) -> float | None:
    """R² on the test set of a least-squares fit with intercept: z [N, D], target [N].

    1: the target can be read off; 0: no better than its mean; None: it does not vary.
    """
    spread = np.square(target_test - target_test.mean()).sum()
    if not spread > 0:
        return None
    predicted = _fit(z, target[:, None], z_test)[:, 0]
    return float(1 - np.square(predicted - target_test).sum() / spread)


def class_probe(
    z: NDArray[np.float32],
    label: NDArray[np.integer],
    z_test: NDArray[np.float32],
    label_test: NDArray[np.integer],
) -> float | None:
    """Accuracy on the test set of least squares on one-hot labels; None: there is one only."""
    names = np.unique(label)
    if len(names) < 2:
        return None
    scores = _fit(z, (label[:, None] == names).astype(np.float64), z_test)
    return float(np.mean(names[scores.argmax(1)] == label_test))


def auc(score: Floats, positive: NDArray[np.bool_]) -> float | None:
    """How often a positive has the higher score than a negative, ties counting half: [N], [N].

    0.5: the score tells nothing; None: there is one kind only.
    """
    n = int(np.count_nonzero(positive))
    pairs = n * (len(positive) - n)
    if not pairs:
        return None
    return float((ranks(score)[positive].sum() - n * (n + 1) / 2) / pairs)


def flag_probe(
    z: NDArray[np.float32],
    flags: NDArray[np.bool_],
    z_test: NDArray[np.float32],
    flags_test: NDArray[np.bool_],
) -> float | None:
    """Area under the curve on the test set of a least-squares fit to flags [N, K], mean over those
    that are sometimes set and sometimes not; None: there is no such flag."""
    scores = _fit(z, flags.astype(np.float64), z_test)
    varies = flags.any(0) & ~flags.all(0)
    each = [auc(scores[:, k], flags_test[:, k]) for k in np.flatnonzero(varies)]
    known = [value for value in each if value is not None]
    return float(np.mean(known)) if known else None


def _fit(z: NDArray[np.float32], target: Floats, z_test: NDArray[np.float32]) -> Floats:
    """Predictions [M, K] for z_test [M, D] of least squares from z [N, D] to target [N, K]."""
    mean, scale = z.mean(0, dtype=np.float64), z.std(0, dtype=np.float64)
    scale = np.where(scale > 0, scale, 1.0)

    def inputs(v: NDArray[np.float32]) -> Floats:
        return np.column_stack([(v - mean) / scale, np.ones(len(v))])

    weights, *_ = np.linalg.lstsq(inputs(z), target, rcond=1e-10)
    predicted: Floats = inputs(z_test) @ weights
    return predicted


class ForwardModel(nn.Module):
    """(z, a) -> z at the next step: what changes, from one hidden layer."""

    def __init__(self, train: Transitions, num_actions: int) -> None:
        super().__init__()
        self.num_actions = num_actions
        width = train.z.shape[1]
        # All dimensions by one scale: how they compare is part of the representation.
        self.mean = train.z.mean(0)
        self.scale = (train.z - self.mean).square().mean().sqrt().clamp(min=1e-12)
        self.hidden = nn.Linear(width + num_actions, _HIDDEN)
        self.change = nn.Linear(_HIDDEN, width)
        self.stay = nn.Linear(width, width)

    def forward(self, z: Tensor, action: Tensor) -> Tensor:
        """z_t [N, D], a_t [N] -> prediction of z_{t+1} [N, D]."""
        x = (z - self.mean) / self.scale
        hidden = torch.relu(self.hidden(torch.cat([x, one_hot(action, self.num_actions)], 1)))
        return self.mean + self.scale * (self.stay(x) + self.change(hidden))


def train_forward_model(
    train: Transitions, num_actions: int, rng: np.random.Generator, updates: int = UPDATES
) -> ForwardModel:
    """A forward model fitted to ``train`` by Adam on the squared error; its weights are drawn from
    PyTorch's generator, its batches from ``rng``."""
    model = ForwardModel(train, num_actions)
    optimiser = torch.optim.Adam(model.parameters(), lr=_RATE, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, updates)
    for _ in range(updates):
        rows = torch.from_numpy(rng.integers(len(train.z), size=_BATCH))
        predicted = model(train.z[rows], train.action[rows])
        loss = ((predicted - train.z_next[rows]) / model.scale).square().mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        schedule.step()
    return model


@torch.no_grad()
def predictability(model: ForwardModel, test: Transitions) -> float | None:
    """1 - squared error of the model / variance of z_{t+1}, summed over dimensions.

    1: the next embedding is known; 0: no better than the mean; None: it does not vary.
    """
    spread = (test.z_next - test.z_next.mean(0)).double().square().sum()
    if not spread > 0:
        return None
    error = (model(test.z, test.action) - test.z_next).double().square().sum()
    return float(1 - error / spread)


def effective_rank(z: Tensor) -> float:
    """[N, D] -> exp(entropy of the covariance's eigenvalues), from 1 to D; 0 if z is constant."""
    wide = z.double()
    centred = wide - wide.mean(0)
    return float(spectrum(centred.t() @ centred / max(len(z) - 1, 1))[1])


def whitening_of(z: Tensor) -> tuple[Tensor, Tensor]:
    """[N, D] -> mean [D] and matrix [D, D] float64: (z - mean) @ matrix has covariance I.

    The symmetric root of the inverse covariance; directions without variance (below 1e-10 of the
    largest) are set to 0 instead of being enlarged.
    """
    wide = z.double()
    mean = wide.mean(0)
    centred = wide - mean
    values, vectors = torch.linalg.eigh(centred.t() @ centred / max(len(z) - 1, 1))
    keep = values > 1e-10 * values[-1]
    root = torch.where(keep, values.clamp(min=1e-300).rsqrt(), 0.0)
    return mean, vectors * root @ vectors.t()
