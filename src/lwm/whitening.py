"""Equations 1 to 3 of the paper: Cholesky whitening and the W-MSE loss, as pure functions.

Embeddings z of N positive pairs are whitened together, v = W (z - mu) with W^T W = Sigma^-1, so
that the constraint cov(v) = I (Eq. 2) holds by construction; the loss is then the distance of the
pairs (Eq. 1 and 3).  Everything up to v is float64: the covariance squares the range of z, and
float32 would lose the very directions that whitening enlarges (spec row 17).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lwm import devices

JITTERS = (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
"""Tried in turn on a singular covariance: shares of its mean diagonal that are added to it."""

MAX_CONDITION = 1 / torch.finfo(torch.float64).eps
"""Condition numbers are reported up to here; beyond it float64 cannot tell them apart."""


class Whitened(NamedTuple):
    """What whitening gave."""

    v: Tensor | None
    """[M, D] zero mean, covariance I; None: the covariance could not be factored."""
    covariance: Tensor
    """[D, D] float64, of z."""
    jitter: float | None
    """Which of ``JITTERS`` it took; None: none."""


class WMSEOutput(NamedTuple):
    """The loss of a batch, and the state of its covariance."""

    loss: Tensor | None
    """Mean over pairs and dimensions: what is differentiated (row 14).  None: skip the update."""
    paper_loss: Tensor | None
    """Eq. 3: the sum over dimensions, mean over pairs; what is logged."""
    jitter: float | None
    """Which of ``JITTERS`` it took; None: none."""
    condition: Tensor
    """Largest by smallest eigenvalue of the covariance of z, at most ``MAX_CONDITION``."""
    rank: Tensor
    """Effective rank of that covariance, in [1, D]; 0 if z is constant or not finite."""

    @property
    def skipped(self) -> bool:
        """There is no loss: the covariance could not be factored."""
        return self.loss is None


def whiten(z: Tensor) -> Whitened:
    """z [M, D] -> v [M, D] in the dtype of z; the gradient flows through every step.

    v = L^-1 (z - mu) with Sigma = L L^T: W = L^-1 is lower triangular and W^T W = Sigma^-1.
    """
    wide = z.double()
    centred = wide - wide.mean(0)
    covariance = centred.t() @ centred / (len(z) - 1)
    lower, jitter = _factor(covariance)
    if lower is None:
        return Whitened(None, covariance, None)
    v = torch.linalg.solve_triangular(lower, centred.t(), upper=False).t()
    return Whitened(v.to(z.dtype), covariance, jitter)


def w_mse(z: Tensor) -> WMSEOutput:
    """Eq. 3 of N pairs: z [2N, D], where row N + i is the positive of row i."""
    pairs, odd = divmod(len(z), 2)
    if odd or not pairs:
        raise ValueError(f"{len(z)} embeddings are no pairs")
    v, covariance, jitter = whiten(z)
    condition, rank = spectrum(covariance.detach())
    if v is None:
        return WMSEOutput(None, None, jitter, condition, rank)
    loss = (v[:pairs] - v[pairs:]).square().mean()
    return WMSEOutput(loss, loss.detach().double() * z.shape[1], jitter, condition, rank)


def spectrum(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """[D, D] -> condition number [], effective rank [].

    The effective rank is exp(entropy) of the eigenvalues divided by their sum: D if all are equal,
    1 if there is only one.
    """
    worst, none = covariance.new_tensor([MAX_CONDITION, 0.0])
    if not devices.is_true(covariance.isfinite().all()):
        return worst, none
    values = torch.linalg.eigvalsh(covariance).clamp(min=0)
    total = values.sum()
    condition = values[-1] / values[0].clamp(min=values[-1] / MAX_CONDITION)
    rank = torch.special.entr(values / total).sum().exp()
    some = total > 0
    return torch.where(some, condition, worst), torch.where(some, rank, none)


def _factor(covariance: Tensor) -> tuple[Tensor | None, float | None]:
    """The Cholesky factor L [D, D] and the jitter that it took; no L if all of them failed."""
    if not devices.is_true(covariance.isfinite().all()):
        return None, None
    lower = _cholesky(covariance)
    if lower is not None:
        return lower, None
    # The jitter follows the scale of z and stays in the graph: the loss keeps ignoring that scale.
    unit = covariance.diagonal().mean() * torch.eye(
        len(covariance), dtype=covariance.dtype, device=covariance.device
    )
    for jitter in JITTERS:
        lower = _cholesky(covariance + jitter * unit)
        if lower is not None:
            return lower, jitter
    return None, None


def _cholesky(matrix: Tensor) -> Tensor | None:
    """L with L L^T = matrix [D, D]; None if it is singular as far as float64 can tell."""
    lower, info = torch.linalg.cholesky_ex(matrix)
    # A squared pivot is what the dimensions before leave unexplained of this one's variance.  The
    # factorisation of a singular matrix may succeed by luck, with pivots made of rounding alone.
    rounding = len(matrix) * torch.finfo(matrix.dtype).eps
    pivots = lower.diagonal().square()
    sound = (pivots > rounding * matrix.diagonal()).all() & lower.isfinite().all()
    return lower if devices.is_true((info == 0) & sound) else None
