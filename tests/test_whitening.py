"""Equations 1 to 3: values by hand, the constraint, the invariance, and every way to fail."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lwm import whitening
from lwm.whitening import JITTERS, MAX_CONDITION, spectrum, w_mse, whiten

PAIRS, DIM = 64, 8


def _correlated(rows: int = 2 * PAIRS, dim: int = DIM, seed: int = 0) -> Tensor:
    """[rows, dim] float64 with correlations and a mean."""
    rng = torch.Generator().manual_seed(seed)
    noise = torch.randn(rows, dim, generator=rng, dtype=torch.float64)
    mix = torch.randn(dim, dim, generator=rng, dtype=torch.float64)
    return noise @ mix + 5 * torch.randn(dim, generator=rng, dtype=torch.float64)


def _loss(z: Tensor) -> float:
    out = w_mse(z)
    assert out.paper_loss is not None
    return float(out.paper_loss)


def test_one_dimension_by_hand() -> None:
    """mu = 2, Sigma = (4 + 0 + 1 + 9) / 3 = 14/3; the pairs differ by 1 and 3."""
    out = w_mse(torch.tensor([[0.0], [2.0], [1.0], [5.0]]))
    assert out.paper_loss == pytest.approx((1 + 9) / 2 * 3 / 14, rel=1e-6)
    assert out.loss is not None and out.loss.dtype == torch.float32
    assert (out.condition, out.rank, out.jitter, out.skipped) == (1.0, 1.0, None, False)


def test_two_dimensions_by_hand() -> None:
    """Sigma = diag(6, 2/3), so v has squares 9/6 and 1/(2/3): each pair is 3 apart."""
    out = w_mse(torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
    assert out.paper_loss == pytest.approx(3.0, rel=1e-6)
    assert out.loss is not None and out.loss.item() == pytest.approx(1.5, rel=1e-6)
    assert out.condition == pytest.approx(9.0)
    shares = (0.9, 0.1)
    assert out.rank == pytest.approx(math.exp(-sum(p * math.log(p) for p in shares)))


def test_the_factor_is_lower_triangular_as_in_the_paper() -> None:
    """z = (e1, e1 + e2) of white e: Sigma = [[1, 1], [1, 2]], W = [[1, 0], [-1, 1]], v = e."""
    e = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]], dtype=torch.float64) * math.sqrt(0.75)
    z = torch.stack([e[:, 0], e[:, 0] + e[:, 1]], 1) + torch.tensor([7.0, -3.0])
    v = whiten(z).v
    assert v is not None
    torch.testing.assert_close(v, e, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_whitened_covariance_is_the_identity(dtype: torch.dtype, bound: float) -> None:
    v, _, jitter = whiten(_correlated().to(dtype))
    assert v is not None and v.dtype == dtype and jitter is None
    torch.testing.assert_close(v.mean(0), v.new_zeros(DIM), rtol=0, atol=bound)
    torch.testing.assert_close(v.t().cov(), torch.eye(DIM).to(v), rtol=0, atol=bound)


@pytest.mark.parametrize("seed", range(5))
def test_loss_ignores_invertible_affine_maps(seed: int) -> None:
    """W-MSE depends on z only up to such maps: v turns by a rotation, which keeps distances.

    In float64, where a map of condition 1e3 costs about 1e-16 * 1e6 of relative precision.
    """
    z = _correlated(seed=seed)
    rng = torch.Generator().manual_seed(100 + seed)
    left, right = (
        torch.linalg.qr(torch.randn(DIM, DIM, generator=rng, dtype=torch.float64)).Q
        for _ in range(2)
    )
    a = left @ torch.logspace(-1, 2, DIM, dtype=torch.float64).diag() @ right
    shift = torch.randn(DIM, generator=rng, dtype=torch.float64)
    assert _loss(z @ a + shift) == pytest.approx(_loss(z), rel=1e-9)
    assert _loss(1e-6 * z) == pytest.approx(_loss(z), rel=1e-9)
    # As it runs: z arrives rounded to float32.
    assert _loss((z @ a + shift).float()) == pytest.approx(_loss(z.float()), rel=1e-5)


def test_the_loss_is_the_distance_of_the_right_pairs() -> None:
    """Row i goes with row N + i: equal halves give 0, and swapping the halves changes nothing."""
    half = _correlated(PAIRS)
    assert _loss(torch.cat([half, half])) == 0
    z = _correlated()
    assert _loss(torch.cat([z[PAIRS:], z[:PAIRS]])) == pytest.approx(_loss(z), rel=1e-9)
    # Independent partners are 2 D apart in the mean: each has D squared length on average.
    assert _loss(_correlated(20_000)) == pytest.approx(2 * DIM, rel=0.05)


def test_gradient_through_every_step() -> None:
    z = _correlated(10, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: whiten(z).v, z)
    assert torch.autograd.gradcheck(lambda z: w_mse(z).loss, z)


def test_gradient_through_jitter() -> None:
    """Six embeddings span five of seven dimensions; the other two live on the jitter alone."""
    base = _correlated(6, 7)
    assert whiten(base).jitter == JITTERS[0]

    def loss(z: Tensor) -> Tensor | None:
        return w_mse(z).loss

    found = torch.autograd.functional.jacobian(loss, base)
    # Moving z along itself changes nothing: the jitter grows with the covariance.
    along = (found * (base - base.mean(0))).sum()
    assert abs(along.item()) < 1e-6 * found.norm().item()


def _duplicate() -> Tensor:
    z = _correlated()
    z[:, 5] = z[:, 2]
    return z.float()


def _dead() -> Tensor:
    z = _correlated()
    z[:, 3] = 0.25
    return z.float()


def _dependent() -> Tensor:
    """Integers, so that the last dimension is exactly the sum of the others in float32 too."""
    z = (10 * _correlated()).round()
    z[:, 7] = z[:, :7].sum(1)
    return z.float()


@pytest.mark.parametrize(
    "z",
    [_duplicate(), _dead(), _dependent(), _correlated(6).float(), _correlated(2).float()],
    ids=["duplicate", "dead", "dependent", "fewer than D", "one pair"],
)
def test_rank_deficiency_takes_jitter_and_stays_finite(z: Tensor) -> None:
    z.requires_grad_()
    out = w_mse(z)
    assert out.jitter in JITTERS and out.loss is not None and not out.skipped
    out.loss.backward()
    assert out.loss.isfinite() and z.grad is not None and z.grad.isfinite().all()
    # Eigenvalues that ought to be 0 are rounding.
    assert 1e12 < out.condition <= MAX_CONDITION and 1 <= out.rank < DIM


def test_jitter_is_the_smallest_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """A covariance with an eigenvalue of -5e-6 of its mean diagonal needs 1e-5."""
    values = torch.tensor([1.0, 1.0, 1.0, -3.75e-6], dtype=torch.float64)
    lower, jitter = whitening._factor(values.diag())
    assert lower is not None and jitter == 1e-5
    monkeypatch.setattr(whitening, "JITTERS", (1e-8, 1e-6))
    assert whitening._factor(values.diag()) == (None, None)


def test_jitter_grows_tenfold_to_a_hundredth(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Tensor] = []
    monkeypatch.setattr(whitening, "_cholesky", tried.append)  # none of them can be factored
    covariance = torch.tensor([[1.0, 0.5], [0.5, 3.0]], dtype=torch.float64)  # mean diagonal 2
    assert whitening._factor(covariance) == (None, None)
    assert torch.equal(tried[0], covariance)
    shares = [((m - covariance) / 2).tolist() for m in tried[1:]]
    expected = [10.0**-k for k in range(8, 1, -1)]
    assert [s[0][0] for s in shares] == pytest.approx(expected, rel=1e-6)
    assert [s[1][1] for s in shares] == pytest.approx(expected, rel=1e-6)
    assert all(s[0][1] == s[1][0] == 0 for s in shares)


def test_a_factor_of_rounding_alone_is_no_factor() -> None:
    """Cholesky of this singular matrix succeeds, with a last pivot that is all rounding."""
    a = torch.tensor([[1.0, 1.0], [1.0, 1.0 + 4e-16]], dtype=torch.float64)
    assert torch.linalg.cholesky_ex(a).info == 0
    assert whitening._cholesky(a) is None
    # But small variances are as good as large ones.
    assert whitening._cholesky(torch.tensor([1.0, 1e-30], dtype=torch.float64).diag()) is not None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_skip(bad: float) -> None:
    z = _correlated().float()
    z[3, 1] = bad
    out = w_mse(z.requires_grad_())
    assert out.skipped and out.loss is None and out.paper_loss is None and out.jitter is None
    assert (out.condition, out.rank) == (MAX_CONDITION, 0.0)


def test_constant_embeddings_skip() -> None:
    out = w_mse(torch.full((2 * PAIRS, DIM), 1.25))
    assert out.skipped and (out.condition, out.rank) == (MAX_CONDITION, 0.0)


def test_float32_extremes_are_no_extremes() -> None:
    z = _correlated().float()
    for scale in (1e-30, 1e30):
        assert _loss(z * scale) == pytest.approx(_loss(z), rel=1e-4)


def test_no_pairs_is_an_error() -> None:
    for rows in (0, 3):
        with pytest.raises(ValueError, match="no pairs"):
            w_mse(torch.zeros(rows, DIM))


def test_spectrum_by_hand() -> None:
    even = torch.eye(DIM, dtype=torch.float64)
    assert [float(v) for v in spectrum(even)] == pytest.approx((1.0, DIM))
    one = torch.zeros_like(even)
    one[0, 0] = 4.0
    assert [float(v) for v in spectrum(one)] == pytest.approx((MAX_CONDITION, 1.0))
    two = torch.tensor([3.0, 1.0], dtype=torch.float64).diag()
    rank = math.exp(0.75 * math.log(4 / 3) + 0.25 * math.log(4))
    assert [float(v) for v in spectrum(two)] == pytest.approx((3.0, rank))
    # The scale says nothing: also a spread far below 1 has a shape.
    assert [float(v) for v in spectrum(1e-6 * two)] == pytest.approx((3.0, rank))
    assert MAX_CONDITION == 2.0**52  # where 1 + 1 / x is still told from 1
