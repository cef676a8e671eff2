"""Φ: its shape and precision, its training, its state, and every way to fail."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from lwm.encoder import COLLAPSED_RANK, COLLAPSED_UPDATES, Encoder, EncoderLearner
from lwm.sections import EncoderConfig
from lwm.vision import FEATURES, ConvTrunk, random_shift, shift_offsets
from lwm.whitening import w_mse

PAIRS = 24


def _noise(*shape: int, seed: int = 0) -> NDArray[np.uint8]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (*shape, 84, 84), dtype=np.uint8)


def _scenes(count: int, seed: int = 0) -> NDArray[np.uint8]:
    """[count, 84, 84]: three grey rectangles each, somewhere on black; more like a game."""
    rng = np.random.default_rng(seed)
    frames = np.zeros((count, 84, 84), np.uint8)
    for frame in frames:
        for y, x, grey in rng.integers([0, 0, 40], [70, 70, 256], (3, 3)):
            frame[y : y + 14, x : x + 14] = grey
    return frames


def _learner(
    embedding: int = 8, dtype: torch.dtype = torch.float32, seed: int = 0, centre: float = 0.0
) -> EncoderLearner:
    torch.manual_seed(seed)
    config = dataclasses.replace(EncoderConfig(), embedding=embedding, centre=centre)
    return EncoderLearner(Encoder(embedding, dtype), config)


def _offsets(count: int, limit: int = 4, seed: int = 0) -> Tensor:
    return shift_offsets(np.random.default_rng(seed), count, limit)


def _weights(learner: EncoderLearner) -> list[Tensor]:
    return [p.detach().clone() for p in learner.encoder.parameters()]


def _same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_defaults_are_the_papers() -> None:
    """Table "Φ training with W-MSE loss", and rows 13 and 31 for what it leaves open."""
    assert dataclasses.asdict(EncoderConfig()) == {
        "representation": "auto",  # ours, as is the width of what sees vectors
        "hidden": 128,
        "freeze_after_pretraining": False,  # Sec. 3.4
        "embedding": 32,
        "learning_rate": 5e-4,
        "adam_epsilon": 1e-8,
        "pretrain_iterations": 10_000,
        "batch": 256,
        "spatial_shift": 4,
        "wrap_shift": False,
        "temporal_shift": 2,
        "centre": 0.0,  # ours: row 38
    }


def test_the_network_is_the_papers() -> None:
    """Table "CNN architecture", then the projection to 32 linear outputs."""
    shapes = {k: tuple(v.shape) for k, v in Encoder(32).state_dict().items()}
    assert shapes == {
        "trunk.first.weight": (32, 1, 8, 8),
        "trunk.first.bias": (32,),
        "trunk.second.weight": (64, 32, 4, 4),
        "trunk.second.bias": (64,),
        "trunk.third.weight": (64, 64, 3, 3),
        "trunk.third.bias": (64,),
        "projection.weight": (32, FEATURES),
        "projection.bias": (32,),
    }
    assert (FEATURES, ConvTrunk()(torch.zeros(2, 84, 84, dtype=torch.uint8)).shape) == (
        3136,
        (2, 3136),
    )


def test_embed_has_any_leading_shape_and_no_gradient() -> None:
    learner = _learner()
    obs = _noise(2, 150)  # more than one chunk
    z = learner.embed(obs)
    assert z.shape == (2, 150, 8) and z.dtype == torch.float32
    assert not z.requires_grad and not z.is_inference()
    whole = learner.encoder(torch.from_numpy(obs.reshape(-1, 84, 84))).detach()
    torch.testing.assert_close(z.view(300, 8), whole, rtol=1e-5, atol=1e-6)
    assert learner.embed(obs[0, 0]).shape == (8,)
    assert learner.embed(obs[:0]).shape == (0, 150, 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_z_is_float32_under_any_autocast(dtype: torch.dtype) -> None:
    """Row 17; nor does a caller's autocast change a bit of it."""
    learner = _learner(dtype=dtype)
    frames = torch.from_numpy(_scenes(3))
    alone = learner.encoder(frames)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = learner.encoder(frames)
    assert alone.dtype == inside.dtype == torch.float32 and torch.equal(alone, inside)


def test_bfloat16_gradients_point_the_same_way() -> None:
    frames = torch.from_numpy(_scenes(128))
    grads = []
    for dtype in (torch.float32, torch.bfloat16):
        learner = _learner(8, dtype)
        loss = w_mse(learner.encoder(frames)).loss
        assert loss is not None
        parameters = list(learner.encoder.parameters())
        assert all(p.dtype == torch.float32 for p in parameters)
        grads.append(torch.autograd.grad(loss, parameters))
    exact, rounded = (torch.cat([g.flatten() for g in each]) for each in grads)
    assert rounded.dtype == torch.float32
    assert torch.cosine_similarity(exact, rounded, dim=0) > 0.95


def test_one_update_changes_every_weight_and_reports() -> None:
    learner = _learner()
    before = _weights(learner)
    metrics = learner.learn(_scenes(PAIRS), _scenes(PAIRS, seed=1), _offsets(2 * PAIRS))
    assert all(not torch.equal(a, b) for a, b in zip(before, _weights(learner), strict=True))
    assert set(metrics) == {
        f"encoder/{name}"
        for name in (
            "loss",
            "offset",
            "condition",
            "rank",
            "jitter",
            "jittered",
            "skipped",
            "collapsed",
        )
    }
    assert all(math.isfinite(v) for v in metrics.values())
    # Paper scale: unrelated partners are 2 D apart.
    assert metrics["encoder/loss"] == pytest.approx(16, rel=0.3)
    assert 1 < metrics["encoder/rank"] <= 8 and metrics["encoder/condition"] > 1
    assert metrics["encoder/jitter"] == metrics["encoder/skipped"] == 0
    assert learner.counts == {"updates": 1, "jittered": 0, "skipped": 0, "low_rank": 0}


def test_centring_moves_the_mean_of_z_and_nothing_else() -> None:
    """W-MSE does not see where z is: with the whole mean taken out, z is the same about 0."""
    frames, partners, offsets = _scenes(PAIRS), _scenes(PAIRS, seed=1), _offsets(2 * PAIRS)
    both = torch.from_numpy(np.concatenate([frames, partners]))
    free, centred = _learner(), _learner(centre=1.0)
    for learner in (free, centred):
        with torch.no_grad():
            learner.encoder.projection.bias += 7
        seen = learner.encoder.trunk.varied(both, offsets, False)
        before = learner.encoder(seen).detach().mean(0)
        metrics = learner.learn(frames, partners, offsets)
        assert metrics["encoder/offset"] > 7
    *weights, bias = _weights(free)
    *others, moved = _weights(centred)
    assert all(torch.equal(a, b) for a, b in zip(weights, others, strict=True))
    assert torch.allclose(moved, bias - before, atol=1e-5) and before.abs().min() > 6
    assert centred.learn(frames, partners, offsets)["encoder/offset"] < 1


def test_an_update_is_shift_embed_loss_and_adam() -> None:
    """The first step of Adam moves each weight by the rate, against the sign of its gradient."""
    learner = _learner()
    x, y, offsets = _scenes(PAIRS), _scenes(PAIRS, seed=1), _offsets(2 * PAIRS)
    shifted = random_shift(torch.from_numpy(np.concatenate([x, y])), offsets)
    loss = w_mse(learner.encoder(shifted)).loss
    assert loss is not None
    grads = torch.autograd.grad(loss, list(learner.encoder.parameters()))
    before = _weights(learner)
    metrics = learner.learn(x, y, offsets)
    assert metrics["encoder/loss"] == loss.item() * 8
    for old, new, grad in zip(before, _weights(learner), grads, strict=True):
        clear = grad.abs() > 1e-5
        torch.testing.assert_close(
            (new - old)[clear], -5e-4 * grad.sign()[clear], rtol=2e-3, atol=1e-7
        )


def test_wrap_is_a_switch() -> None:
    x, y, offsets = _noise(PAIRS), _noise(PAIRS, seed=1), _offsets(2 * PAIRS)
    losses = []
    for wrap in (False, True):
        torch.manual_seed(0)
        config = dataclasses.replace(EncoderConfig(), embedding=8, wrap_shift=wrap)
        learner = EncoderLearner(Encoder(8), config)
        losses.append(learner.learn(x, y, offsets)["encoder/loss"])
    assert losses[0] != losses[1]


def test_embeddings_of_a_trajectory_are_ordered_in_time() -> None:
    """A bright square crosses the screen; after some updates distance tells the time between.

    Two dimensions: the best they can hold are the two slowest modes of the motion, cos(pi t / T)
    and cos(2 pi t / T), whose distances have a rank correlation of 0.90 with |t - s|.
    """
    steps, pairs = 32, 32
    movie = np.zeros((steps, 84, 84), np.uint8)
    for t in range(steps):
        movie[t, 36:48, 2 * t + 4 : 2 * t + 16] = 255
    learner = _learner(embedding=2)
    rng = np.random.default_rng(0)
    still = torch.zeros(2 * pairs, 2, dtype=torch.int64)
    assert _order(learner.embed(movie)) < 0.5
    losses = []
    for _ in range(60):
        t, k = rng.integers(0, steps - 2, pairs), rng.integers(1, 3, pairs)
        losses.append(learner.learn(movie[t], movie[t + k], still)["encoder/loss"])
    assert np.mean(losses[-10:]) < 0.3 * losses[0]
    z = learner.embed(movie)
    assert _order(z) > 0.7
    distance, apart = _distances(z)
    assert distance[apart == 1].mean() < 0.25 * distance[apart > steps // 2].mean()


def _distances(z: Tensor) -> tuple[Tensor, Tensor]:
    """[T, D] -> distances of all pairs of rows, and how many steps lie between them."""
    i, j = torch.triu_indices(len(z), len(z), 1)
    return (z[i] - z[j]).norm(dim=1), j - i


def _order(z: Tensor) -> float:
    """Spearman's rank correlation of distance and time apart; tied times share their rank."""
    distance, apart = _distances(z)
    ranks = distance.argsort().argsort().double()
    _, group, size = apart.unique(return_inverse=True, return_counts=True)
    tied = (size.cumsum(0) - (size + 1) / 2)[group].double()
    return torch.corrcoef(torch.stack([ranks, tied]))[0, 1].item()


def test_embeddings_that_are_not_finite_change_nothing() -> None:
    learner = _learner()
    x, y, offsets = _scenes(PAIRS), _scenes(PAIRS, seed=1), _offsets(2 * PAIRS)
    learner.learn(x, y, offsets)
    before = _weights(learner)

    def spoil(module: torch.nn.Module, args: object, z: Tensor) -> Tensor:
        return torch.where(torch.arange(len(z))[:, None] == 3, math.nan, z)

    hook = learner.encoder.register_forward_hook(spoil)
    metrics = learner.learn(x, y, offsets)
    hook.remove()
    assert metrics["encoder/skipped"] == 1 and "encoder/loss" not in metrics
    assert all(math.isfinite(v) for v in metrics.values())
    assert _same(before, _weights(learner))
    assert learner.counts == {"updates": 2, "jittered": 0, "skipped": 1, "low_rank": 1}
    assert learner.learn(x, y, offsets)["encoder/skipped"] == 0
    assert learner.counts["low_rank"] == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(bad: float) -> None:
    learner = _learner()
    x, y, offsets = _scenes(PAIRS), _scenes(PAIRS, seed=1), _offsets(2 * PAIRS)
    learner.learn(x, y, offsets)
    before, moments = _weights(learner), learner.state_tree()["optimiser"]["0"]["exp_avg"].copy()
    bias = learner.encoder.projection.bias
    hook = bias.register_hook(lambda grad: grad * bad)
    metrics = learner.learn(x, y, offsets)
    hook.remove()
    assert metrics["encoder/skipped"] == 1 and math.isfinite(metrics["encoder/loss"])
    assert _same(before, _weights(learner))
    np.testing.assert_array_equal(learner.state_tree()["optimiser"]["0"]["exp_avg"], moments)
    assert learner.learn(x, y, offsets)["encoder/skipped"] == 0


def test_the_same_frame_everywhere_skips() -> None:
    learner = _learner()
    frames = np.broadcast_to(_scenes(1), (PAIRS, 84, 84)).copy()
    before = _weights(learner)
    metrics = learner.learn(frames, frames, torch.zeros(2 * PAIRS, 2, dtype=torch.int64))
    assert metrics["encoder/skipped"] == 1 and metrics["encoder/rank"] == 0
    assert _same(before, _weights(learner))


def test_jitter_is_counted_and_the_update_happens() -> None:
    """Eight dimensions from four embeddings."""
    learner = _learner()
    before = _weights(learner)
    metrics = learner.learn(_scenes(2), _scenes(2, seed=1), _offsets(4))
    assert metrics["encoder/jitter"] == 1e-8 and metrics["encoder/jittered"] == 1
    assert metrics["encoder/skipped"] == 0 and learner.counts["jittered"] == 1
    after = _weights(learner)
    assert not _same(before, after) and all(w.isfinite().all() for w in after)


def test_collapse_rings_after_so_many_updates_on_end() -> None:
    learner = _learner()
    x, y, offsets = _scenes(2), _scenes(2, seed=1), _offsets(4)
    with torch.no_grad():  # one output dwarfs the others
        learner.encoder.projection.weight[0] *= 1e3
    learner.counts["low_rank"] = COLLAPSED_UPDATES - 2
    one, two = (learner.learn(x, y, offsets) for _ in range(2))
    assert one["encoder/rank"] < COLLAPSED_RANK and one["encoder/collapsed"] == 0
    assert two["encoder/collapsed"] == 1 and learner.collapsed
    with torch.no_grad():
        learner.encoder.projection.weight[0] /= 1e3
    assert learner.learn(_scenes(PAIRS), _scenes(PAIRS, seed=1), _offsets(2 * PAIRS))[
        "encoder/collapsed"
    ] == 0  # fmt: skip
    assert learner.counts["low_rank"] == 0


def test_few_dimensions_are_no_collapse() -> None:
    """Two dimensions never reach an effective rank of 2."""
    learner = _learner(embedding=2)
    learner.learn(_scenes(PAIRS), _scenes(PAIRS, seed=1), _offsets(2 * PAIRS))
    assert learner.counts["low_rank"] == 0


def _train(learner: EncoderLearner, first: int, last: int) -> list[dict[str, float]]:
    return [
        learner.learn(
            _scenes(PAIRS, seed=2 * i), _scenes(PAIRS, seed=2 * i + 1), _offsets(2 * PAIRS, seed=i)
        )
        for i in range(first, last)
    ]


def test_same_inputs_same_bits() -> None:
    one, two = _learner(), _learner()
    assert _train(one, 0, 3) == _train(two, 0, 3)
    assert _same(_weights(one), _weights(two))


def test_a_restored_learner_goes_on_bit_for_bit() -> None:
    whole = _learner()
    _train(whole, 0, 3)
    saved = _copied(whole.state_tree())
    rest = _train(whole, 3, 6)
    restored = _learner(seed=9)
    restored.load_tree(saved)
    assert _train(restored, 3, 6) == rest
    assert _same(_weights(whole), _weights(restored))
    assert restored.counts == whole.counts and whole.counts["updates"] == 6
    obs = _scenes(5)
    assert torch.equal(whole.embed(obs), restored.embed(obs))


def test_a_learner_that_never_learned_can_be_saved() -> None:
    saved = _copied(_learner().state_tree())
    assert saved["optimiser"] == {}
    restored = _learner(seed=9)
    restored.load_tree(saved)
    assert _same(_weights(restored), _weights(_learner()))


def test_the_tree_holds_plain_values_only() -> None:
    learner = _learner()
    _train(learner, 0, 1)
    tree = learner.state_tree()
    assert set(tree["optimiser"]["0"]) == {"step", "exp_avg", "exp_avg_sq"}
    arrays = [
        *tree["encoder"].values(),
        *(v for s in tree["optimiser"].values() for v in s.values()),
    ]
    assert all(type(a) is np.ndarray and a.flags.c_contiguous for a in arrays)
    assert all(type(n) is int for n in tree["counts"].values())


@pytest.mark.parametrize("fault", ["shape", "missing", "moments"])
def test_a_tree_of_another_network_raises(fault: str) -> None:
    learner = _learner()
    _train(learner, 0, 1)
    tree = _copied(learner.state_tree())
    if fault == "shape":
        tree = _copied(_learner(embedding=4).state_tree())
    elif fault == "missing":
        del tree["encoder"]["projection.bias"]
    else:
        tree["optimiser"]["0"]["exp_avg"] = np.zeros(3, np.float32)
    with pytest.raises((KeyError, RuntimeError, ValueError)):
        learner.load_tree(tree)


def _copied(tree: dict) -> dict:
    """What a checkpoint would keep: nothing shared with the learner."""
    return {
        k: _copied(v) if isinstance(v, dict) else (v.copy() if isinstance(v, np.ndarray) else v)
        for k, v in tree.items()
    }
