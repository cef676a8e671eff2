"""Observation spaces as rows of numbers: what is a row, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from lwm.encoder import Encoder, EncoderLearner
from lwm.sections import EncoderConfig
from lwm.senses import sense_of
from lwm.vision import ConvTrunk, ImageTrunk, VectorTrunk


def pixels(*shape: int) -> spaces.Box:
    """A space of images."""
    return spaces.Box(0, 255, shape, np.uint8)


def numbers(*shape: int) -> spaces.Box:
    """A space of vectors, if the shape has one axis."""
    return spaces.Box(-np.inf, np.inf, shape, np.float32)


GRID = spaces.Dict(
    {"direction": spaces.Discrete(4), "image": pixels(7, 7, 3), "mission": spaces.Text(9)}
)

SUPPORTED: list[tuple[spaces.Space[Any], str, tuple[int, ...], str]] = [
    (pixels(84, 84), "image", (84, 84), "84×84 image of 1 channel"),
    (pixels(84, 84, 1), "image", (84, 84), "84×84 image of 1 channel"),
    (pixels(1, 84, 84), "image", (84, 84), "84×84 image of 1 channel"),
    (pixels(3, 64, 48), "image", (3 * 64 * 48,), "64×48 image of 3 channels"),
    (pixels(64, 48, 3), "image", (3 * 64 * 48,), "64×48 image of 3 channels"),
    (pixels(7, 7, 3), "image", (147,), "7×7 image of 3 channels"),
    (numbers(5), "vector", (5,), "5 numbers"),
    (spaces.Box(-9, 9, (2,), np.int64), "vector", (2,), "2 numbers"),
    (spaces.MultiBinary(4), "bits", (4,), "4 bits"),
    (spaces.MultiBinary([2, 3]), "bits", (6,), "6 bits"),
    (spaces.Discrete(5, start=2), "bits", (5,), "5 bits"),
    (spaces.MultiDiscrete([3, 2]), "bits", (5,), "5 bits"),
    (GRID, "image", (151,), "7×7 image of 3 channels and 4 bits"),
    (spaces.Dict({"image": pixels(84, 84)}), "image", (84, 84), "84×84 image of 1 channel"),
]


@pytest.mark.parametrize(("space", "kind", "shape", "text"), SUPPORTED, ids=lambda v: str(v)[:30])
def test_what_a_row_is(
    space: spaces.Space[Any], kind: str, shape: tuple[int, ...], text: str
) -> None:
    sense = sense_of(space)
    assert (sense.kind, sense.shape, str(sense)) == (kind, shape, text)
    space.seed(0)
    samples = [space.sample() for _ in range(6)]
    one_by_one = np.stack([sense.rows(s) for s in samples])
    assert one_by_one.shape == (6, *shape) and one_by_one.dtype == sense.dtype
    # Any number of axes may stand before an observation's own.
    if isinstance(space, spaces.Dict):
        together: Any = {
            k: np.stack([s[k] for s in samples]).reshape(2, 3, *space[k].shape or ())
            for k in space
            if k != "mission"
        }
    else:
        together = np.stack(samples).reshape(2, 3, *space.shape or ())
    assert np.array_equal(sense.rows(together), one_by_one.reshape(2, 3, *shape))


@pytest.mark.parametrize(("space", "kind", "shape", "text"), SUPPORTED, ids=lambda v: str(v)[:30])
@pytest.mark.parametrize("unit", [128.0, 5.0])
def test_its_layers_take_the_rows(
    space: spaces.Space[Any], kind: str, shape: tuple[int, ...], text: str, unit: float
) -> None:
    sense = sense_of(space)
    trunk = sense.trunk(unit, 16)
    learner = EncoderLearner(Encoder(4, trunk=trunk), EncoderConfig(embedding=4))
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 2, (3, 2, *shape)).astype(sense.dtype)
    assert learner.embed(rows).shape == (3, 2, 4)
    many = rng.integers(0, 2, (32, *shape)).astype(sense.dtype)
    offsets = torch.from_numpy(rng.integers(-sense.shift, sense.shift + 1, (64, 2)))
    assert np.isfinite(float(learner.learn(many, many[::-1].copy(), offsets)["encoder/loss"]))
    if kind != "image":
        assert isinstance(trunk, VectorTrunk)
    elif shape == (84, 84) and unit == 128:
        assert isinstance(trunk, ConvTrunk)
    else:
        assert isinstance(trunk, ImageTrunk)


def test_where_each_number_goes() -> None:
    image = np.arange(7 * 7 * 3, dtype=np.uint8).reshape(7, 7, 3)
    row = sense_of(GRID).rows({"image": image, "direction": 2, "mission": "?"})
    assert np.array_equal(row[:147].reshape(3, 7, 7), np.moveaxis(image, -1, 0))
    assert row[147:].tolist() == [0, 0, 1, 0]
    assert sense_of(spaces.Discrete(3, start=5)).rows([5, 7]).tolist() == [[1, 0, 0], [0, 0, 1]]
    both = spaces.MultiDiscrete([2, 3], start=[0, 1])
    assert sense_of(both).rows([1, 1]).tolist() == [0, 1, 1, 0, 0]
    assert sense_of(numbers(2)).rows(np.array([1, 2])).dtype == np.float32


@pytest.mark.parametrize("space", [numbers(5), spaces.MultiBinary(4), spaces.Discrete(5)])
def test_no_shift_without_an_image(space: spaces.Space[Any]) -> None:
    assert sense_of(space).shift == 0


def test_the_shift_is_a_share_of_the_side() -> None:
    assert [sense_of(pixels(n, n)).shift for n in (84, 64, 42, 7)] == [4, 3, 2, 0]


@pytest.mark.parametrize(
    "space",
    [
        numbers(3, 3),
        numbers(),
        pixels(6, 6),
        pixels(84, 84, 9),
        spaces.Text(5),
        spaces.Tuple([spaces.Discrete(2)]),
        spaces.Discrete(10**6),
        spaces.Dict({"a": numbers(3), "b": pixels(9, 9)}),
        spaces.Dict({"a": pixels(9, 9), "b": pixels(9, 9)}),
        spaces.Dict({"a": spaces.Discrete(3)}),
    ],
    ids=str,
)
def test_what_has_no_encoder(space: spaces.Space[Any]) -> None:
    with pytest.raises(ValueError, match=r"no encoder for the observation space .*supported: "):
        sense_of(space)


@pytest.mark.parametrize(
    ("space", "obs", "message"),
    [
        (pixels(9, 9), np.zeros((9, 9)), "expected uint8 images, got dtype float64"),
        (pixels(9, 9), np.zeros((9, 8), np.uint8), r"shape \[\.\.\., 9, 9\], got \(9, 8\)"),
        (pixels(9, 9), np.zeros(9, np.uint8), r"shape \[\.\.\., 9, 9\], got \(9,\)"),
        (numbers(2), [1.0, np.nan], "expected finite observations, got NaN or infinity"),
        (numbers(2), [1.0, np.inf], "expected finite observations, got NaN or infinity"),
        (numbers(2), [1.0, 1e300], "expected finite observations, got NaN or infinity"),
        (numbers(2), ["a", "b"], "expected numbers, got observations of dtype <U1"),
        (numbers(2), [1.0], r"shape \[\.\.\., 2\], got \(1,\)"),
        (spaces.Discrete(3), [3], r"inside Discrete\(3\), got 3 to 3"),
        (spaces.Discrete(3), [-1], r"inside Discrete\(3\), got -1 to -1"),
        (spaces.Discrete(3), [0.5], "expected whole numbers as observation, got fractions"),
        (spaces.Discrete(3), [np.nan], "expected whole numbers as observation, got fractions"),
        (spaces.Discrete(3), ["a"], "expected whole numbers as observation, got dtype <U1"),
        (spaces.MultiDiscrete([2, 3]), [1, 3], "inside MultiDiscrete.*, got 1 to 3"),
        (spaces.MultiBinary(2), [0, 2], "expected 0 and 1 as observation, got 0 to 2"),
        (GRID, np.zeros(3), "expected a dict of observations, got ndarray"),
        (
            GRID,
            {"image": np.zeros((7, 7, 3), np.uint8)},
            r"expected the entries \['direction', 'image'\], got \['image'\]",
        ),
        (
            GRID,
            {"image": np.zeros((2, 7, 7, 3), np.uint8), "direction": [1]},
            r"expected entries of one batch, got batches \[\(1,\), \(2,\)\]",
        ),
    ],
    ids=lambda v: str(v)[:24].replace("\n", " "),
)
def test_bad_observations(space: spaces.Space[Any], obs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sense_of(space).rows(obs)


def test_rows_of_a_real_grid_world() -> None:
    minigrid = pytest.importorskip("minigrid", reason="needs the extra lwm[minigrid]")
    gymnasium = pytest.importorskip("gymnasium")
    assert minigrid is not None
    env = gymnasium.make("MiniGrid-Empty-5x5-v0")
    sense = sense_of(env.observation_space)
    assert str(sense) == "7×7 image of 3 channels and 4 bits"
    obs, _ = env.reset(seed=0)
    assert sense.rows(obs).shape == (151,)
    env.close()
