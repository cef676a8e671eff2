"""The numbers about a representation, on embeddings whose answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lwm import probes
from lwm.probes import Transitions


def _line(rows: int, speed: float = 1.0) -> np.ndarray:
    """[rows, 3] a straight line, walked at one speed."""
    return (speed * np.outer(np.arange(rows), [1.0, -2.0, 0.5])).astype(np.float32)


def test_ranks_share_ties() -> None:
    assert probes.ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [3.5, 1, 3.5, 2]


def test_a_line_is_in_perfect_order() -> None:
    assert probes.rank_correlation(_line(100)) == pytest.approx(1, abs=1e-3)
    assert probes.rank_correlation(_line(100, 1e-3)) == pytest.approx(1, abs=1e-3)


def test_the_order_by_hand() -> None:
    """Points 0, 1, 0 on a line: lag 1 has distance 1 twice, lag 2 has 0: exactly reversed."""
    z = np.array([[0.0], [1.0], [0.0]], np.float32)
    assert probes.rank_correlation(z, 2) == pytest.approx(-1)
    # 0, 1, 3: distances 1, 2 at lag 1 and 3 at lag 2; ranks 1 2 3 against 1.5 1.5 3.
    z = np.array([[0.0], [1.0], [3.0]], np.float32)
    assert probes.rank_correlation(z, 2) == pytest.approx(1.5 / math.sqrt(2 * 1.5))


def test_noise_has_no_order_and_short_or_constant_episodes_no_value() -> None:
    rng = np.random.default_rng(0)
    noise = probes.rank_correlation(rng.normal(size=(400, 8)).astype(np.float32))
    assert noise is not None and abs(noise) < 0.05
    assert probes.rank_correlation(_line(64)) is None  # lag 64 needs 65 rows
    assert probes.rank_correlation(_line(65)) is not None
    assert probes.rank_correlation(np.zeros((100, 3), np.float32)) is None


def test_probes_recover_a_linear_code_and_nothing_else() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 160, 400)
    code = np.stack([0.01 * x + 3, rng.normal(size=400), -0.02 * x], 1).astype(np.float32)
    code[:, 2] += code[:, 1]
    noise = rng.normal(size=(400, 3)).astype(np.float32)
    half, rest = slice(0, 200), slice(200, 400)
    assert probes.linear_probe(code[half], x[half], code[rest], x[rest]) == pytest.approx(1)
    lost = probes.linear_probe(noise[half], x[half], noise[rest], x[rest])
    assert lost is not None and lost < 0.1
    assert probes.linear_probe(code, x, code, np.full(400, 7.0)) is None


def test_the_room_is_read_off_and_a_single_room_is_no_question() -> None:
    rng = np.random.default_rng(0)
    room = rng.integers(3, size=300)
    z = (np.eye(3)[room] + 0.1 * rng.normal(size=(300, 3))).astype(np.float32)
    assert probes.class_probe(z[:200], room[:200], z[200:], room[200:]) == 1
    assert probes.class_probe(z, np.ones(300, int), z, np.ones(300, int)) is None


def _predictability(train: Transitions, test: Transitions, updates: int = 300) -> float:
    torch.manual_seed(0)
    model = probes.train_forward_model(train, 2, np.random.default_rng(0), updates)
    value = probes.predictability(model, test)
    assert value is not None
    return value


def test_constant_velocity_is_predictable_and_white_noise_is_not() -> None:
    torch.manual_seed(1)
    velocity = torch.tensor([[1.0, 0.0, -0.5], [-1.0, 0.5, 0.0]])  # by action
    z, action = 10 * torch.randn(600, 3), torch.randint(2, (600,))
    moved = Transitions(z, action, z + velocity[action])
    assert _predictability(_rows(moved, 0), _rows(moved, 1)) > 0.99
    noise = Transitions(z, action, torch.randn(600, 3))
    assert _predictability(_rows(noise, 0), _rows(noise, 1), 100) < 0.1


def _rows(all_rows: Transitions, half: int) -> Transitions:
    return Transitions(*(part.chunk(2)[half] for part in all_rows))


def test_predictability_by_hand_ignores_scale_and_place() -> None:
    """A model that stays: errors 1 and 1 about a variance of 4 + 4."""
    z = torch.tensor([[1.0], [5.0]])
    model = probes.ForwardModel(Transitions(z, torch.zeros(2, dtype=torch.int64), z), 2)
    with torch.no_grad():
        for layer in (model.hidden, model.change, model.stay):
            layer.weight.zero_()
            layer.bias.zero_()
        model.stay.weight.copy_(torch.eye(1))
    test = Transitions(torch.tensor([[0.0], [4.0]]), torch.zeros(2, dtype=torch.int64), z)
    assert probes.predictability(model, test) == pytest.approx(1 - 2 / 8)
    flat = test._replace(z_next=torch.ones(2, 1))
    assert probes.predictability(model, flat) is None


def test_effective_rank_by_hand() -> None:
    """Variances 1, 1, 0 -> 2; 3/4 and 1/4 of the sum -> exp(entropy)."""
    square = torch.tensor([[1.0, 1, 0], [1, -1, 0], [-1, 1, 0], [-1, -1, 0]])
    assert probes.effective_rank(square) == pytest.approx(2)
    wide = square * torch.tensor([math.sqrt(3), 1, 1])
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert probes.effective_rank(wide) == pytest.approx(math.exp(entropy))
    assert probes.effective_rank(torch.ones(4, 3)) == 0


def test_whitening_gives_the_identity_and_drops_dead_directions() -> None:
    torch.manual_seed(0)
    z = torch.randn(500, 3) @ torch.tensor([[2.0, 1, 0], [0, 0.1, 0], [0, 0, 0]])
    mean, matrix = probes.whitening_of(z + 7)
    v = ((z + 7).double() - mean) @ matrix
    torch.testing.assert_close(v.t().cov(), torch.diag(torch.tensor([1.0, 1, 0]).double()))


def test_the_area_under_the_curve_by_hand() -> None:
    flag = np.array([True, False, True, False])
    assert probes.auc(np.array([3.0, 1.0, 4.0, 2.0]), flag) == 1
    assert probes.auc(np.array([1.0, 3.0, 2.0, 4.0]), flag) == 0
    # Of four pairs two are won, one is a tie, one is lost.
    assert probes.auc(np.array([2.0, 2.0, 1.5, 1.0]), flag) == 0.625
    assert probes.auc(np.zeros(4), flag) == 0.5
    assert probes.auc(np.zeros(4), np.ones(4, np.bool_)) is None


def test_flags_are_read_off_where_they_can_be() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(4000, 3)).astype(np.float32)
    readable = z @ np.array([1.0, -2.0, 0.5]) > 0.3
    noise = rng.random(4000) < 0.5
    never = np.zeros(4000, np.bool_)

    def probe(*flags: np.ndarray) -> float | None:
        each = np.stack(flags, 1)
        return probes.flag_probe(z[:2000], each[:2000], z[2000:], each[2000:])

    assert probe(readable) > 0.999
    assert probe(noise) == pytest.approx(0.5, abs=0.04)
    assert probe(readable, never) == probe(readable)  # what never varies counts nowhere
    assert probe(never) is None
