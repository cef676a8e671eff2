"""The convolutions and the random shift against slow references."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from lwm.vision import ConvTrunk, random_shift, scaled_blocks, shift_offsets


def _noise(*shape: int, seed: int = 0) -> NDArray[np.uint8]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (*shape, 84, 84), dtype=np.uint8)


def _offsets(count: int, limit: int = 4, seed: int = 0) -> Tensor:
    return shift_offsets(np.random.default_rng(seed), count, limit)


def _plain_trunk(trunk: ConvTrunk, frames: Tensor) -> Tensor:
    """The table's three layers as anyone would write them, flattened (row, column, channel)."""
    x = (frames.double() / 128 - 1)[:, None]
    for layer, stride in ((trunk.first, 4), (trunk.second, 2), (trunk.third, 1)):
        assert layer.bias is not None
        x = F.relu(F.conv2d(x, layer.weight.double(), layer.bias.double(), stride))
    return x.permute(0, 2, 3, 1).flatten(1)


def test_trunk_is_its_plain_composition() -> None:
    torch.manual_seed(0)
    trunk = ConvTrunk()
    frames = torch.from_numpy(_noise(5))
    fast, plain = trunk(frames), _plain_trunk(trunk, frames)
    torch.testing.assert_close(fast.double(), plain, rtol=1e-4, atol=1e-5)
    weight = torch.randn(plain.shape)
    ours = torch.autograd.grad((fast * weight).sum(), list(trunk.parameters()))
    theirs = torch.autograd.grad((plain * weight).sum(), list(trunk.parameters()))
    for one, other in zip(ours, theirs, strict=True):
        assert (one - other).norm() < 1e-4 * other.norm()


def test_trunk_takes_frames_that_are_not_contiguous() -> None:
    frames = torch.from_numpy(_noise(4, 3))
    trunk = ConvTrunk()
    with torch.no_grad():
        assert torch.equal(trunk(frames[:, 1]), trunk(frames[:, 1].clone()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_input_scaling_is_exact(dtype: torch.dtype) -> None:
    """Row 22, for every grey value; channel 4 y + x of a block is its pixel (y, x)."""
    frames = torch.arange(84 * 84).remainder(256).to(torch.uint8).view(1, 84, 84)
    x = scaled_blocks(frames, dtype)
    assert x.dtype == dtype and x.shape == (1, 16, 21, 21)
    assert x.is_contiguous(memory_format=torch.channels_last)
    for channel, row, column in ((0, 0, 0), (7, 3, 20), (15, 20, 5)):
        pixel = frames[0, 4 * row + channel // 4, 4 * column + channel % 4].item()
        assert x[0, channel, row, column].item() == pixel / 128 - 1


def test_trunk_refuses_other_dtypes() -> None:
    with pytest.raises(ValueError, match="float32 or bfloat16"):
        ConvTrunk(torch.float16)


def test_shift_by_hand() -> None:
    """A 4 x 4 image whose pixel (y, x) is 10 y + x, moved down 1 and left 2."""
    image = (10 * torch.arange(4)[:, None] + torch.arange(4)).to(torch.uint8)[None]
    offsets = torch.tensor([[1, -2]])
    edge = [[2, 3, 3, 3], [2, 3, 3, 3], [12, 13, 13, 13], [22, 23, 23, 23]]
    assert random_shift(image, offsets)[0].tolist() == edge
    wrapped = [[32, 33, 30, 31], [2, 3, 0, 1], [12, 13, 10, 11], [22, 23, 20, 21]]
    assert random_shift(image, offsets, wrap=True)[0].tolist() == wrapped


@pytest.mark.parametrize("wrap", [False, True])
def test_every_frame_moves_by_its_own_offset(wrap: bool) -> None:
    """All 81 shifts at once against NumPy's padding, one frame at a time."""
    offsets = np.stack(np.meshgrid(np.arange(-4, 5), np.arange(-4, 5)), -1).reshape(-1, 2)
    frames = _noise(81)
    moved = random_shift(torch.from_numpy(frames), torch.from_numpy(offsets), wrap)
    assert moved.dtype == torch.uint8
    for frame, (y, x), found in zip(frames, offsets, moved.numpy(), strict=True):
        padded = np.pad(frame, 4, mode="wrap" if wrap else "edge")
        np.testing.assert_array_equal(found, padded[4 - y : 88 - y, 4 - x : 88 - x])


def test_no_offset_moves_nothing() -> None:
    frames = torch.from_numpy(_noise(3))
    assert torch.equal(random_shift(frames, torch.zeros(3, 2, dtype=torch.int64)), frames)


def test_offsets_cover_their_range_evenly() -> None:
    offsets = _offsets(9000)
    assert offsets.shape == (9000, 2) and offsets.dtype == torch.int64
    for axis in offsets.T:
        counts = (axis + 4).bincount(minlength=9)
        assert len(counts) == 9 and (counts - 1000).abs().max() < 150
    assert abs(torch.corrcoef(offsets.T.double())[0, 1].item()) < 0.05
    assert torch.equal(offsets, _offsets(9000))
    assert (_offsets(5, limit=0) == 0).all()
