"""One seed, named random streams: no part of a run can disturb another part's numbers."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lwm.errors import CheckpointError

# Environment seeds come in disjoint blocks of 2**40, so that no evaluation ever sees an episode
# stream that training (or the choice of when to stop) has used.
_BLOCK = 2**40
_PURPOSES = ("train", "validation", "test")


def generator(seed: int, name: str) -> np.random.Generator:
    """The stream ``name`` of a run."""
    return np.random.Generator(np.random.PCG64([seed, zlib.crc32(name.encode())]))


def environment_seeds(purpose: str, count: int, run_seed: int = 0) -> NDArray[np.int64]:
    """[count] seeds for environments; purposes never share one, nor do training runs."""
    start = _PURPOSES.index(purpose) * _BLOCK + run_seed * 4096
    return np.arange(start, start + count, dtype=np.int64)


@contextmanager
def torch_seeded(seed: int, name: str) -> Iterator[None]:
    """PyTorch's global generator seeded for the block and put back after it (initialisation)."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(generator(seed, name).integers(2**63)))
        yield


def generator_state(rng: np.random.Generator) -> dict[str, Any]:
    """The generator's state as plain values."""
    return dict(rng.bit_generator.state)


def restore_generator(rng: np.random.Generator, state: dict[str, Any]) -> None:
    """Inverse of ``generator_state``."""
    try:
        rng.bit_generator.state = state
    except (ValueError, TypeError, KeyError):
        raise CheckpointError("a random stream in the checkpoint is malformed") from None
