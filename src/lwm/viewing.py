"""What a noisy TV paid: sums over the steps of a run, of which any stretch is a difference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lwm.envs.television import Television


class Viewing:
    """Sums since the actors began to be paid."""

    def __init__(self) -> None:
        self.totals: dict[str, float] = {
            "tv/steps": 0,
            "tv/changed": 0,
            "tv/watched": 0,
            "tv/bonus_changed": 0.0,
            "tv/bonus_all": 0.0,
        }
        """Steps, those that changed the screen, those spent with the TV; bonuses of the two."""

    def note(self, tv: Television, real: NDArray[np.bool_], r_in: NDArray[np.float32]) -> None:
        """Add a row of B environments: which arrived by a step [B], their bonuses [B]."""
        changed = tv.changed & real
        found = (
            int(real.sum()),
            int(changed.sum()),
            int((tv.watched & real).sum()),
            float(r_in[changed].sum(dtype=np.float64)),
            float(r_in[real].sum(dtype=np.float64)),
        )
        for key, value in zip(self.totals, found, strict=True):
            self.totals[key] += value


class Numbers(NamedTuple):
    """A stretch of a run."""

    bonus_tv: float | None
    """Mean bonus of the steps that changed the screen; None: there were none."""
    bonus_elsewhere: float | None
    """Mean bonus of all other steps."""
    time_share: float
    """Share of the steps spent with the TV."""


def between(before: Mapping[str, float], after: Mapping[str, float]) -> Numbers:
    """The numbers of the steps between two times at which the totals were told."""
    steps, changed, watched, paid, whole = (after[k] - before[k] for k in Viewing().totals)
    return Numbers(
        paid / changed if changed else None,
        (whole - paid) / (steps - changed) if steps > changed else None,
        watched / steps if steps else 0.0,
    )
