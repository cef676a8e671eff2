"""What several tests need of states: trees of dicts, lists, arrays and plain values."""

from __future__ import annotations

from typing import Any

import numpy as np


def same(a: Any, b: Any) -> bool:
    """Equal trees, arrays bit for bit."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, np.ndarray):
        return (
            isinstance(b, np.ndarray)
            and (a.dtype, a.shape) == (b.dtype, b.shape)
            and a.tobytes() == b.tobytes()
        )
    return type(a) is type(b) and a == b
