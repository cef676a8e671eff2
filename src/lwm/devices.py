"""Where the networks compute, and every way between there and the host.

A GPU works while the host goes on, until the host asks for a number.  All that asks stands here
(``fetch``, ``read``, ``is_true``, ``select``), so that one can see how often it is done.  On a CPU
all of this is free: ``put`` and ``fetch`` share memory, nothing is copied.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from lwm.errors import BadInput

CPU = torch.device("cpu")

Metrics = dict[str, float | Tensor]
"""Numbers by name; those that the device computed stay there until somebody reads them."""


def pick(name: str) -> torch.device:
    """The device that ``name`` (auto, cpu or cuda) means here; ``BadInput`` where there is none."""
    there = name != "cpu" and torch.cuda.is_available()
    if name == "cuda" and not there:
        raise BadInput(
            "device=cuda, but torch finds no CUDA device here; device=cpu works anywhere"
        )
    if not there:
        return CPU
    torch.backends.cudnn.allow_tf32 = False  # float32 shall be float32
    return torch.device("cuda", torch.cuda.current_device())


def described(device: torch.device) -> str | None:
    """Name of the accelerator, for a run's machine facts; None for a CPU, which has its own."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else None


def put(array: NDArray[Any], device: torch.device) -> Tensor:
    """An array as a tensor on ``device``; to a GPU by a copy that nobody waits for."""
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def fetch(tensor: Tensor) -> NDArray[Any]:
    """A tensor as an array on the host, without gradient."""
    return tensor.detach().cpu().numpy()


def is_true(flag: Tensor) -> bool:
    """A flag that decides what is done next."""
    return bool(flag)


def select(values: Tensor, mask: Tensor) -> Tensor:
    """The values [N] where ``mask`` (of the same shape) is set: how many, the host must know."""
    return values[mask]


def read(lists: Mapping[str, Sequence[float | Tensor]]) -> dict[str, list[float]]:
    """Lists of numbers as floats, by one copy from the device for all of them."""
    there = [v for values in lists.values() for v in values if isinstance(v, Tensor)]
    flat = iter(torch.stack([v.double() for v in there]).tolist() if there else [])
    return {
        key: [next(flat) if isinstance(v, Tensor) else v for v in values]
        for key, values in lists.items()
    }


def floats(metrics: Metrics) -> dict[str, float]:
    """Numbers as floats."""
    return {key: value for key, (value,) in read({k: [v] for k, v in metrics.items()}).items()}


def keep_freed_memory() -> None:
    """Let glibc keep freed memory: a learner step else asks the kernel for 700 pages anew.

    Changes no result.  Does nothing where the C library is another one.
    """
    mmap_threshold, trim_threshold, top_pad = -3, -1, -2
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(mmap_threshold, 1 << 25)
        mallopt(trim_threshold, 1 << 30)
        mallopt(top_pad, 1 << 26)
    except (OSError, AttributeError):
        pass
