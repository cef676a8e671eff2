"""What an agent can see: observation spaces as rows of plain numbers.

Replay and networks know rows only; a ``Sense`` turns the observations of a Gymnasium space into
them and says what kind of layers should look at them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from lwm.vision import SIDE, ConvTrunk, ImageTrunk, VectorTrunk

SUPPORTED = (
    "images (Box of uint8, HxW, HxWxC or CxHxW with 1 to 4 channels, sides from 7), vectors "
    "(Box with one axis), MultiBinary, Discrete, MultiDiscrete, and Dict with one image and "
    "any of the last three beside it"
)
SMALLEST_SIDE = 7
PIXEL_UNIT = 128
"""Pixels enter the networks as x / 128 - 1 (row 22), unless a config says otherwise."""

_LARGEST_ONE_HOT = 4096


@dataclass(frozen=True)
class Sense:
    """How observations of one space are stored and seen."""

    kind: Literal["image", "vector", "bits"]
    """Images and vectors have a Φ; bits are their own embedding."""
    space: spaces.Space[Any]
    shape: tuple[int, ...]
    """Of a stored row."""
    dtype: np.dtype[Any]
    image: tuple[int, int, int] | None = None
    """Channels, height and width, where there is an image."""
    channels_last: bool = False
    beside: int = 0
    """Numbers that follow the image in a row: other entries, one-hot."""
    image_key: str | None = None
    """Which entry of a Dict is the image."""

    @property
    def grey_frames(self) -> bool:
        """84 x 84 grey pixels and nothing beside them: what the paper's CNN takes."""
        return self.image == (1, SIDE, SIDE) and not self.beside

    @property
    def size(self) -> int:
        """Numbers in a row."""
        return int(np.prod(self.shape))

    def __str__(self) -> str:
        if self.image is None:
            return f"{self.size} {'numbers' if self.kind == 'vector' else 'bits'}"
        channels, height, width = self.image
        more = f" and {self.beside} bits" if self.beside else ""
        return f"{height}×{width} image of {channels} channel{'s' * (channels > 1)}{more}"

    def rows(self, obs: Any) -> NDArray[Any]:
        """Observations of the space, batched over any leading axes [...] -> rows [..., *shape].

        ValueError where shape, dtype or values are not the space's.
        """
        if isinstance(self.space, spaces.Dict):
            assert self.image_key is not None
            if not isinstance(obs, Mapping):
                raise ValueError(f"expected a dict of observations, got {type(obs).__name__}")
            wanted = _entries(self.space)
            if not set(wanted) <= set(obs):
                raise ValueError(f"expected the entries {sorted(wanted)}, got {sorted(obs)}")
            pixels = self._pixels(self.space[self.image_key], obs[self.image_key])
            if not self.beside:
                return pixels
            parts = [
                pixels,
                *(_one_hot(self.space[k], obs[k], k) for k in _beside(self.space, self.image_key)),
            ]
            ahead = {p.shape[:-1] for p in parts}
            if len(ahead) > 1:
                raise ValueError(f"expected entries of one batch, got batches {sorted(ahead)}")
            return np.concatenate(parts, -1)
        if self.image is not None:
            return self._pixels(self.space, obs)
        if self.kind == "bits":
            return _one_hot(self.space, obs, "observation")
        given = _batched(self.space, obs, "observation")
        if given.dtype.kind not in "fiub":
            raise ValueError(f"expected numbers, got observations of dtype {given.dtype}")
        with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and told so
            values = given.astype(np.float32)
        if not np.isfinite(values).all():
            raise ValueError("expected finite observations, got NaN or infinity")
        return values

    def _pixels(self, space: spaces.Space[Any], obs: Any) -> NDArray[np.uint8]:
        given = _batched(space, obs, "image")
        if given.dtype != np.uint8:
            raise ValueError(f"expected uint8 images, got dtype {given.dtype}")
        if self.channels_last:
            given = np.moveaxis(given, -1, -3)
        ahead = given.shape[: given.ndim - len(space.shape or ())]
        return np.ascontiguousarray(given).reshape(*ahead, *self._image_shape)

    @property
    def _image_shape(self) -> tuple[int, ...]:
        assert self.image is not None
        return (SIDE, SIDE) if self.grey_frames else (int(np.prod(self.image)),)

    def trunk(
        self, unit: float, width: int, dtype: torch.dtype = torch.float32
    ) -> ConvTrunk | ImageTrunk | VectorTrunk:
        """The layers that see such rows; ``unit``: of a pixel, ``width``: of those for vectors;
        ``dtype``: of the paper's convolutions."""
        if self.grey_frames and unit == PIXEL_UNIT:
            return ConvTrunk(dtype)
        if self.image is not None:
            return ImageTrunk(self.image, self.beside, unit, len(self.shape))
        return VectorTrunk(self.size, width, normalise=self.kind == "vector")

    @property
    def shift(self) -> int:
        """Largest random shift of an image: the paper's 4 pixels of 84, as a share of the side."""
        return 0 if self.image is None else 4 * min(self.image[1:]) // SIDE


def sense_of(space: spaces.Space[Any]) -> Sense:
    """The sense for a space; ValueError with what is supported if there is none."""
    if isinstance(space, spaces.Dict):
        images = [k for k in _entries(space) if _image_of(space[k]) is not None]
        odd = [k for k in _entries(space) if k not in images and not _is_bits(space[k])]
        if len(images) != 1 or odd:
            raise _unsupported(space)
        image, last = _image_of(space[images[0]])  # type: ignore[misc]
        bits = sum(_bits(space[k]) for k in _beside(space, images[0]))
        shape, dtype = _row_shape(image, bits), np.dtype(np.uint8)
        return Sense("image", space, shape, dtype, image, last, bits, images[0])
    found = _image_of(space)
    if found is not None:
        image, last = found
        return Sense("image", space, _row_shape(image, 0), np.dtype(np.uint8), image, last)
    if _is_bits(space):
        return Sense("bits", space, (_bits(space),), np.dtype(np.uint8))
    if isinstance(space, spaces.Box) and len(space.shape) == 1 and space.shape[0] > 0:
        return Sense("vector", space, space.shape, np.dtype(np.float32))
    raise _unsupported(space)


def bits_of(size: int) -> Sense:
    """The sense for observations that are so many bits."""
    return sense_of(spaces.MultiBinary(size))


def grey_frames() -> Sense:
    """The sense for the paper's Atari observations."""
    return sense_of(spaces.Box(0, 255, (SIDE, SIDE), np.uint8))


def _row_shape(image: tuple[int, int, int], beside: int) -> tuple[int, ...]:
    """Grey frames stay two-dimensional; all else is one row of numbers."""
    if image == (1, SIDE, SIDE) and not beside:
        return (SIDE, SIDE)
    return (int(np.prod(image)) + beside,)


def _unsupported(space: spaces.Space[Any]) -> ValueError:
    return ValueError(f"no encoder for the observation space {space}; supported: {SUPPORTED}")


def _image_of(space: spaces.Space[Any]) -> tuple[tuple[int, int, int], bool] | None:
    """((channels, height, width), whether channels come last), if the space is one of images."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8:
        return None
    if len(space.shape) == 2:
        image, last = (1, *space.shape), False
    elif len(space.shape) == 3 and space.shape[2] <= 4:
        image, last = (space.shape[2], *space.shape[:2]), True
    elif len(space.shape) == 3 and space.shape[0] <= 4:
        image, last = space.shape, False
    else:
        return None
    channels, height, width = image
    if not channels or min(height, width) < SMALLEST_SIDE:
        return None
    return (channels, height, width), last


def _is_bits(space: spaces.Space[Any]) -> bool:
    kinds = (spaces.MultiBinary, spaces.Discrete, spaces.MultiDiscrete)
    return isinstance(space, kinds) and 0 < _bits(space) <= _LARGEST_ONE_HOT


def _bits(space: spaces.Space[Any]) -> int:
    if isinstance(space, spaces.MultiBinary):
        return int(np.prod(space.shape))
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    assert isinstance(space, spaces.MultiDiscrete)
    return int(space.nvec.sum())


def _entries(space: spaces.Dict) -> list[str]:
    """The entries that are looked at: all but text (MiniGrid's mission)."""
    return [key for key in space if not _is_text(space[key])]


def _is_text(space: spaces.Space[Any]) -> bool:
    """MiniGrid's missions are of a class of their own, and so are their numbers: strings."""
    if space.dtype is None:
        return isinstance(space, spaces.Text)
    return np.dtype(space.dtype).kind == "U"


def _beside(space: spaces.Dict, image_key: str) -> list[str]:
    return [key for key in _entries(space) if key != image_key]


def _batched(space: spaces.Space[Any], obs: Any, what: str) -> NDArray[Any]:
    given = np.asarray(obs)
    own = tuple(space.shape or ())
    if given.ndim < len(own) or given.shape[given.ndim - len(own) :] != own:
        raise ValueError(
            f"expected {what} of shape [..., {', '.join(map(str, own))}], got {given.shape}"
        )
    return given


def _one_hot(space: spaces.Space[Any], obs: Any, what: str) -> NDArray[np.uint8]:
    """Values of a Discrete, MultiDiscrete or MultiBinary space [...] -> bits [..., n] uint8."""
    given = _batched(space, obs, what)
    if given.dtype.kind not in "iubf":
        raise ValueError(f"expected whole numbers as {what}, got dtype {given.dtype}")
    if given.dtype.kind == "f" and not np.array_equal(given, np.trunc(given)):
        raise ValueError(f"expected whole numbers as {what}, got fractions or NaN")
    if isinstance(space, spaces.MultiBinary):
        if not np.isin(given, (0, 1)).all():
            raise ValueError(f"expected 0 and 1 as {what}, got {given.min()} to {given.max()}")
        ahead = given.shape[: given.ndim - len(space.shape)]
        return given.astype(np.uint8).reshape(*ahead, -1)
    if isinstance(space, spaces.Discrete):
        index, sizes = given[..., None] - space.start, np.array([space.n])
    else:
        assert isinstance(space, spaces.MultiDiscrete)
        ahead = given.shape[: given.ndim - space.nvec.ndim]
        index = (given - space.start).reshape(*ahead, -1)
        sizes = space.nvec.reshape(-1)
    if (index < 0).any() or (index >= sizes).any():
        raise ValueError(f"expected {what} inside {space}, got {given.min()} to {given.max()}")
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    bits = np.zeros((*index.shape[:-1], int(sizes.sum())), np.uint8)
    np.put_along_axis(bits, index.astype(np.int64) + offsets, 1, -1)
    return bits
