"""Where replay keeps observations: as one array, or each frame compressed without loss.

Both stores have the same methods.  A *slot* is a row's place in the ring.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

# Higher levels take twice the time for 5 % less memory; lower ones save little time (Atari frames).
LEVEL = 1


class RawFrames:
    """Observations as an array [rows, envs, ...]."""

    def __init__(self, rows: int, envs: int, shape: tuple[int, ...], dtype: Any) -> None:
        self._obs = np.zeros((rows, envs, *shape), dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the observations take when all rows are filled."""
        return self._obs.nbytes

    def put(self, slot: int, obs: NDArray[Any]) -> None:
        """Replace a slot by the observations ``obs`` [envs, ...] of one row."""
        _check_shape(obs, self._obs[slot].shape)
        self._obs[slot] = obs

    def get(self, slots: NDArray[np.int64], envs: NDArray[np.int64]) -> NDArray[Any]:
        """A copy of the observations at ``slots`` of ``envs``; these broadcast against each other:
        [T, B] with [B] gives [T, B, ...], [N] with [N] gives [N, ...]."""
        return self._obs[slots, envs]

    def check_valid(self, slots: NDArray[np.int64]) -> None:
        """Raise if the observations at ``slots`` [N] are not whole: an array's always are."""

    def get_state(self, used: int) -> NDArray[Any]:
        """The first ``used`` slots [used, envs, ...], not copied."""
        return self._obs[:used]

    def set_state(self, used: int, state: NDArray[Any]) -> None:
        """Restore what ``get_state`` returned."""
        if isinstance(state, dict):
            raise ValueError("the saved observations are compressed, these are not")
        _check_shape(state, self._obs[:used].shape)
        self._obs[:used] = state


class CompressedFrames:
    """Observations as Zstandard blobs, one per frame, so that any frame can be had by itself.

    The blobs of a row stand end to end in one ``bytes`` object: a Python object for each frame
    would add a tenth to the memory.  Not for use by two threads at once.
    """

    def __init__(self, rows: int, envs: int, shape: tuple[int, ...], dtype: Any) -> None:
        self._shape = shape
        self._dtype = np.dtype(dtype)
        self._frame_bytes = int(np.prod(shape)) * self._dtype.itemsize
        self._blobs = [b""] * rows
        # Blob of environment e in its row: from _bounds[slot, e] to _bounds[slot, e + 1].
        self._bounds = np.zeros((rows, envs + 1), np.uint32)
        self._compressor = zstandard.ZstdCompressor(level=LEVEL)
        self._decompressor = zstandard.ZstdDecompressor()

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the observations take at present."""
        return sum(map(sys.getsizeof, self._blobs)) + 8 * len(self._blobs) + self._bounds.nbytes

    def put(self, slot: int, obs: NDArray[Any]) -> None:
        """Replace a slot by the observations ``obs`` [envs, ...] of one row."""
        frames = np.ascontiguousarray(obs, self._dtype)
        _check_shape(frames, (self._bounds.shape[1] - 1, *self._shape))
        blobs = [self._compressor.compress(frame) for frame in frames]
        self._bounds[slot, 1:] = np.cumsum([len(blob) for blob in blobs])
        self._blobs[slot] = b"".join(blobs)

    def get(self, slots: NDArray[np.int64], envs: NDArray[np.int64]) -> NDArray[Any]:
        """The observations at ``slots`` of ``envs``; these broadcast against each other:
        [T, B] with [B] gives [T, B, ...], [N] with [N] gives [N, ...]."""
        slots, envs = np.broadcast_arrays(slots, envs)
        begins, ends = self._bounds[slots, envs], self._bounds[slots, envs + 1]
        out = np.empty((slots.size, self._frame_bytes), np.uint8)
        decompress = self._decompressor.decompress
        places = zip(*(x.ravel().tolist() for x in (slots, begins, ends)), strict=True)
        for i, (slot, begin, end) in enumerate(places):
            out[i] = np.frombuffer(decompress(self._blobs[slot][begin:end]), np.uint8)
        return out.view(self._dtype).reshape(*slots.shape, *self._shape)

    def check_valid(self, slots: NDArray[np.int64]) -> None:
        """Raise if the blobs at ``slots`` [N] do not fill their rows, or are of another size."""
        for slot in slots.tolist():
            bounds, row = self._bounds[slot].tolist(), self._blobs[slot]
            if bounds[0] != 0 or bounds[-1] != len(row):
                raise ValueError(f"the frames in slot {slot} do not fill their row")
            for begin, end in pairwise(bounds):
                if _content_size(row[begin:end]) != self._frame_bytes:
                    raise ValueError(f"a frame in slot {slot} is not of {self._frame_bytes} bytes")

    def get_state(self, used: int) -> dict[str, NDArray[Any]]:
        """The first ``used`` slots: the blobs end to end, and their lengths [used, envs]."""
        return {
            "blobs": np.frombuffer(b"".join(self._blobs[:used]), np.uint8),
            "lengths": np.diff(self._bounds[:used], axis=1),
        }

    def set_state(self, used: int, state: dict[str, NDArray[Any]]) -> None:
        """Restore what ``get_state`` returned."""
        if not isinstance(state, dict):
            raise ValueError("the saved observations are not compressed, these are")
        blobs, lengths = state["blobs"], state["lengths"]
        _check_shape(lengths, (used, self._bounds.shape[1] - 1))
        bounds = np.cumsum(lengths, axis=1, dtype=np.int64)
        ends = np.cumsum(bounds[:, -1])
        if blobs.shape != (int(ends[-1]) if used else 0,) or bounds.max(initial=0) >= 1 << 32:
            raise ValueError(f"{blobs.size} bytes of frames are not as many as their lengths say")
        self._bounds[:used, 1:] = bounds
        for slot, (begin, end) in enumerate(zip(ends - bounds[:, -1], ends, strict=True)):
            self._blobs[slot] = blobs[begin:end].tobytes()
        # A blob that unpacks to more than a frame would be found only when it is sampled.
        self.check_valid(np.arange(used))


Frames = RawFrames | CompressedFrames


def _check_shape(array: NDArray[Any], expected: tuple[int, ...]) -> None:
    if array.shape != expected:
        raise ValueError(f"observations of shape {array.shape}, expected {expected}")


def _content_size(blob: bytes) -> int:
    """Bytes that a blob says it unpacks to; -1 if it is no blob."""
    try:
        return zstandard.frame_content_size(blob)
    except zstandard.ZstdError:
        return -1
