"""What Φ and the DQN share: the layers that see observations, and the random shift of images.

A trunk takes stored observations [B, ...] and says how many features it makes of them (``width``),
and of how many axes an observation is (``axes``).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lwm.devices import CPU

SIDE = 84
"""Observations are SIDE x SIDE grey pixels."""

FEATURES = 64 * 7 * 7
"""Width of the trunk's output."""

_BLOCK = 4
"""Stride of the first layer."""


def working_dtype(precision: str, device: torch.device = CPU) -> torch.dtype:
    """What ``precision`` (auto, float32 or bfloat16) means on this device."""
    if precision == "auto":
        if device.type == "cuda":
            native = torch.cuda.is_bf16_supported(including_emulation=False)
        else:
            native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        return torch.bfloat16 if native else torch.float32
    return torch.bfloat16 if precision == "bfloat16" else torch.float32


class ConvTrunk(nn.Module):
    """The paper's CNN (Tab. "CNN architecture"): channels 1-32-64-64, kernels 8-4-3, strides 4-2-1.

    ReLU after each layer.  ``dtype`` is that of the arithmetic: float32 is exact, bfloat16 pays on
    processors that have it.  The parameters and their gradients are float32 either way.
    """

    width = FEATURES
    axes = 2

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        if dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(f"the trunk computes in float32 or bfloat16, not {dtype}")
        self.dtype = dtype
        self.first = nn.Conv2d(1, 32, 8, stride=_BLOCK)
        self.second = nn.Conv2d(32, 64, 4, stride=2)
        self.third = nn.Conv2d(64, 64, 3)

    def forward(self, frames: Tensor) -> Tensor:
        """[B, 84, 84] uint8 -> features [B, 3136] in ``dtype``, ordered (row, column, channel)."""
        # Casts are explicit and the caller's autocast is off: ``dtype`` alone decides.
        with torch.autocast(frames.device.type, enabled=False):
            x = scaled_blocks(frames, self.dtype)
            x = self._layer(x, _block_weight(self.first.weight), self.first.bias, 1)
            x = self._layer(x, self.second.weight, self.second.bias, 2)
            x = self._layer(x, self.third.weight, self.third.bias, 1)
            # Channels are last in memory: in this order flattening costs no copy.
            return x.permute(0, 2, 3, 1).flatten(1)

    def varied(self, frames: Tensor, offsets: Tensor, wrap: bool) -> Tensor:
        """The frames [N, 84, 84] moved by ``offsets`` [N, 2]."""
        return random_shift(frames, offsets, wrap)

    def _layer(self, x: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> Tensor:
        bias = None if bias is None else bias.to(self.dtype)
        return F.relu(F.conv2d(x, weight.to(self.dtype), bias, stride), inplace=True)


class ImageTrunk(nn.Module):
    """Three convolutions for images of any size and 1 to 4 channels, and numbers beside them.

    Sides of 36 and more: the paper's kernels and strides.  Smaller ones, such as the 7 x 7 cells
    of a grid world: kernels of 3, half the channels, and strides of 2 only where there is room.
    """

    def __init__(
        self,
        image: tuple[int, int, int],
        beside: int,
        unit: float,
        axes: int = 1,
        offset: float = 1.0,
    ) -> None:
        """``image``: channels, height, width; ``beside``: numbers that follow the image; pixels
        enter as x / unit - offset; ``axes``: 2 if rows come as pictures."""
        super().__init__()
        self.axes, self.offset = axes, offset
        self.image, self.beside, self.unit = image, beside, unit
        side = min(image[1:])
        if side >= 36:
            channels, kernels, strides, pad = (32, 64, 64), (8, 4, 3), (4, 2, 1), 0
        else:
            strides = (2 if side >= 16 else 1, 2 if side >= 24 else 1, 1)
            channels, kernels, pad = (16, 32, 32), (3, 3, 3), 1
        sizes = zip((image[0], *channels[:2]), channels, kernels, strides, strict=True)
        layers = [nn.Conv2d(i, o, k, stride=s) for i, o, k, s in sizes]
        layers[0].padding = (pad, pad)
        self.layers = nn.ModuleList(layers)
        with torch.no_grad():
            blank = torch.zeros(1, *image, device=CPU)
            self.width = self._convolved(blank).shape[1] + beside

    def forward(self, rows: Tensor) -> Tensor:
        """[B, C * H * W + beside] uint8, or [B, H, W] -> features [B, width]."""
        rows = rows.flatten(1)
        pixels = rows.shape[1] - self.beside
        x = rows[:, :pixels].view(-1, *self.image).float() / self.unit - self.offset
        y = self._convolved(x)
        return torch.cat([y, rows[:, pixels:].float()], 1) if self.beside else y

    def varied(self, rows: Tensor, offsets: Tensor, wrap: bool) -> Tensor:
        """The rows [N, ...] with their images moved by ``offsets`` [N, 2]; one axis each."""
        rows = rows.flatten(1)
        pixels = rows.shape[1] - self.beside
        channels, height, width = self.image
        frames = rows[:, :pixels].reshape(-1, height, width)
        moved = random_shift(frames, offsets.repeat_interleave(channels, 0), wrap)
        return torch.cat([moved.view(len(rows), pixels), rows[:, pixels:]], 1)

    def _convolved(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.relu(layer(x))
        return x.flatten(1)


class Normaliser(nn.Module):
    """Inputs to mean 0 and variance 1, over all that was observed, and clipped."""

    mean: Tensor
    square: Tensor
    count: Tensor

    def __init__(self, size: int, clip: float = 10.0) -> None:
        super().__init__()
        self.clip = clip
        for name, shape, start in (
            ("mean", (size,), 0.0),
            ("square", (size,), 1.0),
            ("count", (), 0.0),
        ):
            value = torch.full(shape, start, dtype=torch.float64, device=CPU)
            self.register_buffer(name, value)

    @torch.no_grad()
    def observe(self, x: Tensor) -> None:
        """Count the rows of x [N, size] in."""
        seen = x.double()
        total = self.count + len(x)
        off = seen.mean(0) - self.mean
        spread = seen.var(0, correction=0) * len(x) + off.square() * self.count * len(x) / total
        self.square.copy_((self.square * self.count + spread) / total)
        self.mean.add_(off * len(x) / total)
        self.count.copy_(total)

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] -> the same, of mean 0 and variance 1; an input that never varied is 0."""
        spread = self.square.sqrt()
        scale = torch.where(spread > 0, 1 / spread.clamp(min=1e-6), 0)
        return ((x - self.mean.float()) * scale.float()).clamp(-self.clip, self.clip)


class VectorTrunk(nn.Module):
    """Inputs normalised, then two fully connected layers: for observations that are vectors."""

    axes = 1

    def __init__(self, size: int, width: int, normalise: bool = True) -> None:
        """``width`` 0: no layers, the features are the inputs; ``normalise`` False: somebody else
        does it."""
        super().__init__()
        self.width = width or size
        self.normaliser = Normaliser(size) if normalise else None
        self.layers = nn.Sequential()
        if width:
            layers = (nn.Linear(size, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
            self.layers.extend(layers)

    def forward(self, x: Tensor) -> Tensor:
        """[B, size], of any dtype -> features [B, width]."""
        return self.layers(x.float() if self.normaliser is None else self.normaliser(x))

    def varied(self, rows: Tensor, offsets: Tensor, wrap: bool) -> Tensor:
        """The rows as Φ is trained on them: as they are, and counted by the normaliser."""
        self.observe(rows)
        return rows

    def observe(self, rows: Tensor) -> None:
        """Count rows [N, size] in, if the inputs are normalised here."""
        if self.normaliser is not None:
            self.normaliser.observe(rows)


Trunk = ConvTrunk | ImageTrunk | VectorTrunk


def scaled_blocks(frames: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, 84, 84] uint8 -> obs/128 - 1 (row 22) as blocks of 4 x 4 pixels [B, 16, 21, 21].

    A kernel of 8 with stride 4 sees 2 x 2 such blocks, so the first layer becomes a convolution
    with kernel 2, stride 1 and 16 channels: the same sums in less than half the time, since one
    channel leaves most of a vector register empty.  Channels are last in memory; no rounding
    happens in either dtype.
    """
    batch, grid = len(frames), SIDE // _BLOCK
    # Four neighbouring bytes move as one word.
    words = frames.contiguous().view(torch.int32).view(batch, grid, _BLOCK, grid)
    turned = words.transpose(2, 3).clone(memory_format=torch.contiguous_format)
    x = turned.view(torch.uint8).view(batch, grid, grid, _BLOCK**2).to(dtype)
    return x.mul_(1 / 128).sub_(1).permute(0, 3, 1, 2)


def _block_weight(weight: Tensor) -> Tensor:
    """The first layer's [32, 1, 8, 8] as it acts on ``scaled_blocks``: [32, 16, 2, 2]."""
    split = weight.view(len(weight), 2, _BLOCK, 2, _BLOCK)
    return split.permute(0, 2, 4, 1, 3).reshape(len(weight), _BLOCK**2, 2, 2)


def random_shift(frames: Tensor, offsets: Tensor, wrap: bool = False) -> Tensor:
    """Frames [N, height, width] moved down and right by offsets [N, 2] int64, each by its own.

    Row 13.  What enters at an edge repeats that edge, or with ``wrap`` comes from the opposite one.
    """
    batch, height, width = frames.shape
    rows = _sources(offsets[:, 0], height, wrap)
    columns = _sources(offsets[:, 1], width, wrap)
    # Whole rows first, by one copy each; only the columns are picked pixel by pixel.
    rows = rows + height * torch.arange(batch, device=rows.device)[:, None]
    moved = frames.reshape(batch * height, width).index_select(0, rows.flatten())
    return moved.view_as(frames).gather(2, columns[:, None].expand(batch, height, width))


def _sources(offset: Tensor, size: int, wrap: bool) -> Tensor:
    """[N] -> [N, size]: where each row (or column) of the result comes from."""
    source = torch.arange(size, device=offset.device) - offset[:, None]
    return source.remainder(size) if wrap else source.clamp(0, size - 1)


def shift_offsets(rng: np.random.Generator, count: int, limit: int) -> Tensor:
    """[count, 2] int64 uniform in [-limit, limit], from a named stream: what a shift takes."""
    return torch.from_numpy(rng.integers(-limit, limit, (count, 2), endpoint=True))
