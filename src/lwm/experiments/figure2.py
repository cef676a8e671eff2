"""Figure 2: what W-MSE does to a trajectory, from real training steps in two dimensions.

The "encoder" is a table of free points, one for each moment of a toy trajectory: whatever the
points do is done by the loss alone.  Pairs, whitening and loss are those of Φ's training.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lwm.experiments.options import Options, missing_viz
from lwm.pairs import draw_pairs
from lwm.whitening import w_mse, whiten

Points = NDArray[np.float64]

MOMENTS = 36
"""Rows of the toy trajectory."""
STEPS = 700
PAIRS = 128
MAX_SHIFT = 2
RATE = 0.03
SEED = 0
PANELS = ("initial", "whitened", "pulled", "intermediate", "final")
INTERMEDIATE = 0.06
"""The fourth panel's share of all steps."""


class History(NamedTuple):
    """Training, step by step."""

    z: Points
    """[MOMENTS, 2] before the first step, as they are."""
    v: Points
    """[steps + 1, MOMENTS, 2] whitened, before each step and after the last."""
    pull: Points
    """[MOMENTS, 2] in which direction the loss pulls each whitened point before step 0."""
    loss: Points
    """[steps] Eq. 3 of each step's batch."""


def train(steps: int, seed: int = SEED) -> History:
    """Adam on W-MSE of drawn pairs (t, t + k), k = 1 or 2."""
    rng = np.random.default_rng(seed)
    # Without structure, off centre and stretched: whitening has something to do.
    start = rng.uniform(-1.7, 1.7, (MOMENTS, 2)) @ np.array([[1.6, 0.9], [0.0, 0.5]]) + [2.0, 1.0]
    z = torch.tensor(start, requires_grad=True)
    adam = torch.optim.Adam([z], lr=RATE)
    is_first = (np.arange(MOMENTS) == 0)[:, None]
    shown, losses = [_white(z)], []
    pull = _pull(shown[0])
    for _ in range(steps):
        t, _, k = draw_pairs(rng, is_first, MOMENTS, PAIRS, MAX_SHIFT)
        out = w_mse(z[np.concatenate([t, t + k])])
        if out.loss is None or out.paper_loss is None:
            raise RuntimeError("the toy points lie on a line")
        adam.zero_grad()
        out.loss.backward()
        adam.step()
        shown.append(_white(z))
        losses.append(out.paper_loss)
    return History(start, np.stack(shown), pull, np.array(losses))


def _white(z: torch.Tensor) -> Points:
    v = whiten(z.detach()).v
    if v is None:
        raise RuntimeError("the toy points lie on a line")
    return np.asarray(v.numpy(), np.float64)


def _pull(v: Points) -> Points:
    """Minus the gradient of Eq. 1 by each point, over all pairs: [MOMENTS, 2]."""
    force = np.zeros_like(v)
    for k in range(1, MAX_SHIFT + 1):
        apart = v[k:] - v[:-k]
        force[:-k] += apart
        force[k:] -= apart
    return force


def ordered(v: Points) -> float:
    """Share of points [M, 2] whose nearest other point is a neighbour in time."""
    distance = np.linalg.norm(v[:, None] - v[None], axis=-1)
    np.fill_diagonal(distance, np.inf)
    return float(np.mean(np.abs(distance.argmin(1) - np.arange(len(v))) == 1))


def panels(history: History) -> dict[str, Points]:
    """What each panel shows: [MOMENTS, 2] by name."""
    v, last = history.v, len(history.v) - 1
    middle = v[max(1, round(last * INTERMEDIATE))]
    shown = (history.z, v[0], v[0], middle, v[-1])
    return dict(zip(PANELS, shown, strict=True))


def status() -> str:
    """Whether the pictures are there."""
    out = Options().pictures
    names = [out / "figure2.png", out / "figure2.gif"]
    return ", ".join(f"{path}" for path in names if path.is_file()) or "not drawn yet"


def main(options: Options) -> int:
    """Train, draw the five panels and the animation."""
    options.allow("figure2", "scale", "out")
    steps = options.share(STEPS, 2)
    history = train(steps)
    from lwm.plots import scheme

    still, moving = options.pictures / "figure2.png", options.pictures / "figure2.gif"
    try:
        scheme.five_panels(panels(history), history.pull, still)
        scheme.animation(history.z, history.v, history.pull, moving)
    except ImportError as error:
        raise missing_viz(error) from error
    head, tail = history.loss[:10].mean(), history.loss[-10:].mean()
    print(
        f"figure2 at scale {steps / STEPS:.2g} ({steps} of {STEPS} steps on toy data): W-MSE "
        f"{head:.2f} -> {tail:.2f}; nearest point is a neighbour in time: "
        f"{ordered(history.v[0]):.0%} -> {ordered(history.v[-1]):.0%}"
    )
    print(f"pictures: {still}, {moving}")
    return 0
