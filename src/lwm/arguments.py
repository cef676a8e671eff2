"""What callers give to a bonus, checked: observations, actions and flags, as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from lwm.senses import Sense
from lwm.transitions import Sequences


def sequences(
    seq: Sequences, burn_in: int, sense: Sense, space: spaces.Discrete
) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.bool_]]:
    """Rows [T+1, B, ...], actions [T, B] counted from 0 and first ones [T+1, B] of sequences."""
    action = np.asarray(seq.action)
    if action.ndim != 2 or action.shape[0] < 1:
        raise ValueError(
            "expected sequences of at least two observations and actions [T, B], got actions "
            f"of shape {action.shape}"
        )
    T, B = action.shape
    if not isinstance(burn_in, int | np.integer) or not 0 <= burn_in < T:
        raise ValueError(f"expected a burn_in of 0 to {T - 1}, got {burn_in!r}")
    seen = rows(seq.obs, (T + 1, B), sense, "obs")
    first = flags(seq.is_first, (T + 1, B), "is_first")
    return seen, actions(action, (T, B), space), first


def rows(obs: Any, ahead: tuple[int, ...], sense: Sense, what: str) -> NDArray[Any]:
    """Observations as rows of numbers [*ahead, ...]; ``what``: their name."""
    try:
        found = sense.rows(obs)
    except ValueError as e:
        raise ValueError(f"{what}: {e}") from None
    got = found.shape[: found.ndim - len(sense.shape)]
    if got != ahead:
        raise ValueError(f"{what}: expected a batch of {list(ahead)}, got {list(got)}")
    return found


def flags(given: Any, shape: tuple[int, ...], what: str) -> NDArray[np.bool_]:
    """Flags of this shape; ``what``: their name."""
    found = np.asarray(given)
    if found.shape != shape or found.dtype.kind not in "bui":
        raise ValueError(
            f"{what}: expected bool {list(shape)}, got {found.dtype} {list(found.shape)}"
        )
    return found.astype(np.bool_)


def actions(given: Any, shape: tuple[int, ...], space: spaces.Discrete) -> NDArray[np.int64]:
    """Actions of the space, in this shape, counted from 0."""
    found = np.asarray(given)
    if found.shape != shape or found.dtype.kind not in "iu":
        raise ValueError(
            f"action: expected integers {list(shape)}, got {found.dtype} {list(found.shape)}"
        )
    index = found.astype(np.int64) - int(space.start)
    if (index < 0).any() or (index >= int(space.n)).any():
        raise ValueError(f"action: expected values of {space}, got {found.min()} to {found.max()}")
    return index
