"""Value rescaling and TD targets against numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lwm.returns import (
    disadvantage,
    lambda_targets,
    n_step_targets,
    rescale,
    sequence_priority,
    unrescale,
)

FINITE = st.floats(-1e6, 1e6)


def column(*values: float, dtype: torch.dtype = torch.float64) -> Tensor:
    """[T, 1]: one window."""
    return torch.tensor(values, dtype=dtype)[:, None]


# h(x) = sign(x) (sqrt(|x| + 1) - 1) + x / 1000: perfect squares minus one have short answers.
GOLDEN = [
    (0.0, 0.0),
    (3.0, 1.003),  # sqrt 4 - 1 + 0.003
    (-3.0, -1.003),
    (8.0, 2.008),  # sqrt 9 - 1 + 0.008
    (-99.0, -9.099),  # -(sqrt 100 - 1) - 0.099
    (0.21, 0.10021),  # sqrt 1.21 - 1 + 0.00021
    (-999999.0, -1998.999),  # -(1000 - 1) - 999.999
]


@pytest.mark.parametrize(("x", "h"), GOLDEN)
def test_rescaling_by_hand(x: float, h: float) -> None:
    assert rescale(torch.tensor(x, dtype=torch.float64)).item() == pytest.approx(h, abs=1e-12)
    assert unrescale(torch.tensor(h, dtype=torch.float64)).item() == pytest.approx(x, rel=1e-9)


@settings(deadline=None)
@given(FINITE)
def test_rescaling_and_back_in_double_precision(x: float) -> None:
    there_and_back = unrescale(rescale(torch.tensor(x, dtype=torch.float64))).item()
    assert there_and_back == pytest.approx(x, rel=1e-9, abs=1e-9)


@settings(deadline=None)
@given(st.floats(-2000, 2000, width=32))
def test_rescaling_and_back_in_single_precision(x: float) -> None:
    # One rounding of the root near 1 is 6e-8; divided by 2 * 0.001 and doubled by the square it
    # is 6e-5 of |x| + 1.  Three roundings meet there.
    there_and_back = unrescale(rescale(torch.tensor(x, dtype=torch.float32))).item()
    assert abs(there_and_back - x) <= 2e-4 * (abs(x) + 1)


@settings(deadline=None)
@given(FINITE, FINITE)
def test_rescaling_keeps_order_and_sign(a: float, b: float) -> None:
    low, high = sorted((a, b))
    h = rescale(torch.tensor([low, high, -low], dtype=torch.float64))
    assert h[0] <= h[1]
    assert h[0] == -h[2]
    assert math.copysign(1, h[0].item()) == math.copysign(1, low) or low == 0


# One window of eight rows, gamma 1/2.  Row 3 ends an episode, row 4 begins the next one.
#   row        0   1   2   3   4   5   6   7
#   reward     –   1   2   4   –   8  16  32
#   value     10  20  30  40  50  60  70  80
REWARD = column(0, 1, 2, 4, 0, 8, 16, 32)
VALUE = column(10, 20, 30, 40, 50, 60, 70, 80)
IS_LAST = column(0, 0, 0, 1, 0, 0, 0, 0).bool()
TERMINATED = column(1, 1, 1, 0, 1, 1, 1, 1)
TRUNCATED = torch.ones_like(TERMINATED)
TRAINED = [0, 1, 2, 4, 5, 6]  # row 3 is last: its entry means nothing


def n_step(discount: Tensor, n: int) -> list[float]:
    targets = n_step_targets(REWARD, discount, IS_LAST, VALUE, 0.5, n)
    assert targets.shape == (8 - n, 1)
    return [targets[t, 0].item() for t in TRAINED if t < len(targets)]


def test_one_step_targets_by_hand() -> None:
    #           1 + 20/2, 2 + 30/2, 4 + 0, 8 + 60/2, 16 + 70/2, 32 + 80/2
    assert n_step(TERMINATED, 1) == [11, 17, 4, 38, 51, 72]
    # The time limit leaves the value of the last row standing: 4 + 40/2.
    assert n_step(TRUNCATED, 1) == [11, 17, 24, 38, 51, 72]


def test_three_step_targets_by_hand() -> None:
    # Row 0: 1 + 2/2 + 4/4, then row 3 ends it; row 1 two steps: 2 + 4/2; row 2 one: 4.
    # Row 4: 8 + 16/2 + 32/4 + 80/8.
    assert n_step(TERMINATED, 3) == [3, 4, 4, 34]
    # Truncated, value 40 of row 3 comes on top: 40/8 three steps back, 40/4, 40/2.
    assert n_step(TRUNCATED, 3) == [8, 14, 24, 34]


def traced(discount: Tensor, trace: float, rows: int = 6) -> list[float]:
    parts = (REWARD, discount, IS_LAST, VALUE)
    targets = lambda_targets(*(p[:rows] for p in parts), 0.5, trace)
    assert targets.shape == (rows - 1, 1)
    return [targets[t, 0].item() for t in TRAINED if t < len(targets)]


def test_traced_targets_by_hand() -> None:
    # The first six rows, trace 1/2, from the back:
    #   G4 = 8 + 60/2 = 38;  G2 = 4 (row 3 terminates)
    #   G1 = 2 + (30/2 + 4/2)/2 = 10.5;  G0 = 1 + (20/2 + 10.5/2)/2 = 8.625
    assert traced(TERMINATED, 0.5) == [8.625, 10.5, 4, 38]
    # Truncated: G2 = 4 + 40/2 = 24, G1 = 2 + (30 + 24)/4 = 15.5, G0 = 1 + (20 + 15.5)/4 = 9.875.
    assert traced(TRUNCATED, 0.5) == [9.875, 15.5, 24, 38]


def test_full_trace_is_the_sum_to_the_window_end() -> None:
    # Rows 4 to 7, no end inside: 8 + 16/2 + 32/4 + 80/8; 16 + 32/2 + 80/4; 32 + 80/2.
    # Rows 0 to 2 run into row 3: 4 + 40/2; 2 + 24/2; 1 + 14/2.
    assert traced(TRUNCATED, 1.0, rows=8) == [8, 14, 24, 34, 52, 72]
    assert traced(TERMINATED, 1.0, rows=8) == [3, 4, 4, 34, 52, 72]


@pytest.mark.parametrize("discount", [TERMINATED, TRUNCATED])
def test_no_trace_is_one_step(discount: Tensor) -> None:
    assert traced(discount, 0.0, rows=8) == n_step(discount, 1)
    assert traced(discount, 1e-12, rows=8) == pytest.approx(n_step(discount, 1), abs=1e-9)


def random_windows(seed: int, T: int, B: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Reward, discount, is_last, value [T, B], with many ends of both kinds."""
    rng = torch.Generator().manual_seed(seed)
    is_last = torch.rand(T, B, generator=rng) < 0.2
    is_last[1:] &= ~is_last[:-1]  # a first row follows a last one, and is not last itself
    terminated = is_last & (torch.rand(T, B, generator=rng) < 0.5)
    reward = torch.randn(T, B, generator=rng, dtype=torch.float64)
    value = torch.randn(T, B, generator=rng, dtype=torch.float64)
    return reward, (~terminated).double(), is_last, value


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_n_step_targets_are_the_sum_of_the_spec(n: int) -> None:
    reward, discount, is_last, value = random_windows(n, 30, 4)
    found = n_step_targets(reward, discount, is_last, value, 0.9, n)
    for b in range(4):
        for t in range(30 - n):
            if is_last[t, b]:
                continue
            ahead = [k for k in range(1, n) if is_last[t + k, b]]
            m = ahead[0] if ahead else n
            expected = sum(0.9 ** (k - 1) * reward[t + k, b].item() for k in range(1, m + 1))
            expected += 0.9**m * (discount[t + m, b] * value[t + m, b]).item()
            assert found[t, b].item() == pytest.approx(expected, abs=1e-12)


def test_batched_is_looped() -> None:
    windows = random_windows(11, 25, 6)
    batched_n = n_step_targets(*windows, 0.97, 4)
    batched_trace = lambda_targets(*windows, 0.97, 0.7)
    for b in range(6):
        one = [w[:, b : b + 1] for w in windows]
        assert torch.equal(batched_n[:, b : b + 1], n_step_targets(*one, 0.97, 4))
        assert torch.equal(batched_trace[:, b : b + 1], lambda_targets(*one, 0.97, 0.7))


def test_sequence_priority_by_hand() -> None:
    # Errors 1, -3, 2 with the last row not trained: max 3, mean (1 + 3) / 2 = 2;
    # and a window of which no row is trained.
    delta = torch.tensor([[1.0, 5.0], [-3.0, 6.0], [2.0, -7.0]])
    valid = torch.tensor([[True, False], [True, False], [False, False]])
    assert sequence_priority(delta, valid, 0.9).tolist() == pytest.approx([2.9, 0.0])
    assert sequence_priority(delta, valid, 0.25).tolist() == pytest.approx([2.25, 0.0])
    assert sequence_priority(delta[:1], valid[:1], 0.5).tolist() == [1.0, 0.0]


def test_disadvantage_by_hand() -> None:
    q = torch.tensor([[[-3.0, -1.0, -7.0], [2.0, 2.0, 1.5]]])
    assert disadvantage(q, torch.tensor([[0, 0]])).tolist() == [[-2.0, 0.0]]
    assert disadvantage(q, torch.tensor([[1, 1]])).tolist() == [[0.0, 0.0]]
    assert disadvantage(q, torch.tensor([[2, 2]])).tolist() == [[-6.0, -0.5]]
