"""Inverse dynamics and CPC|Action: their losses by hand, and that training lowers them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from lwm.encoder import Encoder
from lwm.representations import ContrastiveLearner, InverseLearner, info_nce
from lwm.sections import EncoderConfig
from lwm.vision import SIDE

CONFIG = EncoderConfig(embedding=4)


def _frames(*shape: int) -> Tensor:
    rng = np.random.default_rng(0)
    return torch.from_numpy(rng.integers(0, 256, (*shape, SIDE, SIDE), dtype=np.uint8))


def test_info_nce_by_hand() -> None:
    """Scores [[ln 3, 0], [0, 0]]: the first is right with 3/4, the second with 1/2."""
    prediction = torch.tensor([[math.log(3), 0.0], [0.0, 0.0]])
    target = torch.tensor([[1.0, 5.0], [0.0, 1.0]])
    loss, accuracy = info_nce(prediction, target)
    assert loss.item() == pytest.approx((math.log(4 / 3) + math.log(2)) / 2)
    assert accuracy == 0.5  # a tie goes to the first, which is the second's wrong one
    perfect, hits = info_nce(100 * torch.eye(3), torch.eye(3))
    assert perfect.item() == pytest.approx(0, abs=1e-6) and hits == 1


def test_info_nce_trains_predictions_and_targets() -> None:
    prediction = torch.randn(5, 4, requires_grad=True)
    target = torch.randn(5, 4, requires_grad=True)
    info_nce(prediction, target)[0].backward()
    assert prediction.grad is not None and target.grad is not None
    assert prediction.grad.abs().sum() > 0 and target.grad.abs().sum() > 0


def test_the_inverse_loss_by_hand() -> None:
    """A head whose bias alone speaks: probabilities 1/2, 1/4, 1/4 whatever the frames."""
    torch.manual_seed(0)
    learner = InverseLearner(Encoder(4), 3, CONFIG)
    last = learner.head[-1]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(torch.tensor([0.5, 0.25, 0.25]).log())
    x, y, action = _frames(4), _frames(4), torch.tensor([0, 1, 2, 0])
    metrics = learner.learn(x, y, action)
    assert metrics["loss"] == pytest.approx((2 * math.log(2) + 2 * math.log(4)) / 4)
    assert metrics["accuracy"] == 0.5


def test_the_inverse_model_sees_the_order_of_its_frames() -> None:
    torch.manual_seed(0)
    learner = InverseLearner(Encoder(4), 3, CONFIG)
    x, y = _frames(3), _frames(6)[3:]
    logits = learner.logits(x, y)
    z = torch.cat([learner.encoder(x), learner.encoder(y)], 1)
    torch.testing.assert_close(logits, learner.head(z))
    assert not torch.allclose(logits, learner.logits(y, x))


def test_both_learn_a_batch_by_heart_through_the_encoder() -> None:
    torch.manual_seed(0)
    x, y, action = _frames(6), _frames(12)[6:], torch.arange(6) % 3
    inverse = InverseLearner(Encoder(4), 3, CONFIG)
    before = inverse.encoder.trunk.first.weight.detach().clone()
    first = inverse.learn(x, y, action)["loss"]
    for _ in range(25):
        last = inverse.learn(x, y, action)["loss"]
    assert last < first / 3 and inverse.accuracy(x, y, action) == 1
    assert not torch.equal(inverse.encoder.trunk.first.weight, before)
    contrastive = ContrastiveLearner(Encoder(4), 3, CONFIG)
    frames, actions = _frames(4, 3), torch.arange(12).view(4, 3) % 3
    first = contrastive.learn(frames, actions)["loss"]
    for _ in range(60):
        last = contrastive.learn(frames, actions)["loss"]
    assert last < first / 2


def test_a_prediction_depends_on_its_past_and_action_and_on_nothing_later() -> None:
    torch.manual_seed(0)
    learner = ContrastiveLearner(Encoder(4), 3, CONFIG)
    z, action = torch.randn(5, 2, 4), torch.zeros(5, 2, dtype=torch.int64)
    base = learner.predict(z, action)
    later = z.clone()
    later[3] += 1
    changed = learner.predict(later, action)
    assert torch.allclose(changed[:3], base[:3]) and not torch.allclose(changed[3], base[3])
    other = action.clone()
    other[2] = 1
    changed = learner.predict(z, other)
    assert torch.allclose(changed[:2], base[:2]) and not torch.allclose(changed[2], base[2])
