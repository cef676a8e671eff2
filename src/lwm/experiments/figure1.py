"""Figure 1: how Φ is trained, on pairs that a random agent met in Montezuma's Revenge.

Frames, pairs, shifts, Φ and loss are those of training; only the agent is random.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lwm.config import Config, load_preset
from lwm.experiments.options import Options, missing_viz
from lwm.pairs import draw_pairs
from lwm.streams import environment_seeds, generator
from lwm.vision import random_shift, shift_offsets
from lwm.whitening import w_mse

GAME = "montezuma_revenge"
ROWS = 320
"""Frames of the random agent."""
SHOWN = 3
"""Pairs drawn in the picture: those of the batch whose two frames differ most."""


class Batch(NamedTuple):
    """Pairs [N, 84, 84] uint8 before and after the shift, and where they come from."""

    x: NDArray[np.uint8]
    y: NDArray[np.uint8]
    x_shifted: NDArray[np.uint8]
    y_shifted: NDArray[np.uint8]
    t: NDArray[np.int64]
    k: NDArray[np.int64]
    offsets: NDArray[np.int64]
    """[2N, 2] down and right, those of x first."""


def settings() -> Config:
    """Preset ``paper``, with one worker: few frames are played."""
    return load_preset("paper", {"atari.game": GAME, "atari.workers": 1}, "atari")


def play(rows: int, config: Config) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Frames [rows, 84, 84] of a random agent, and where episodes begin [rows, 1]."""
    from lwm.envs.atari import AtariEnv

    rng = generator(config.seed, "actor")
    with AtariEnv(config.atari, environment_seeds("train", 1)) as env:
        step = env.reset()
        frames, firsts = [step.obs[0].copy()], [bool(step.is_first[0])]
        while len(frames) < rows:
            env.send(rng.integers(env.num_actions, size=1))
            step = env.recv()
            frames.append(step.obs[0].copy())
            firsts.append(bool(step.is_first[0]))
    return np.stack(frames), np.array(firsts)[:, None]


def batch(frames: NDArray[np.uint8], is_first: NDArray[np.bool_], config: Config) -> Batch:
    """A batch of Φ's training from these frames."""
    c, rng = config.encoder, generator(config.seed, "replay")
    t, _, k = draw_pairs(rng, is_first, len(frames), c.batch, c.temporal_shift)
    x, y = frames[t], frames[t + k]
    offsets = shift_offsets(rng, 2 * len(t), c.spatial_shift)
    both = torch.from_numpy(np.concatenate([x, y]))
    moved = random_shift(both, offsets, c.wrap_shift).numpy()
    return Batch(x, y, moved[: len(t)], moved[len(t) :], t, k, offsets.numpy())


def loss_at_start(drawn: Batch, config: Config) -> float:
    """Eq. 3 of the shifted pairs, for Φ before its first update."""
    from lwm.encoder import Encoder
    from lwm.streams import torch_seeded

    with torch_seeded(config.seed, "init"):
        phi = Encoder(config.encoder.embedding)
    frames = torch.from_numpy(np.concatenate([drawn.x_shifted, drawn.y_shifted]))
    with torch.no_grad():
        value = w_mse(phi(frames)).paper_loss
    return float("nan") if value is None else float(value)


def chosen(drawn: Batch, count: int = SHOWN) -> NDArray[np.int64]:
    """Numbers [count] of the pairs that differ in most pixels, no two from the same row t."""
    changed = (drawn.x != drawn.y).sum(axis=(1, 2))
    found: list[int] = []
    for number in np.argsort(-changed, kind="stable"):
        if all(abs(drawn.t[number] - drawn.t[other]) > 3 for other in found):
            found.append(int(number))
    return np.array(found[:count])


def status() -> str:
    """Whether the picture is there."""
    path = Options().pictures / "figure1.png"
    return str(path) if path.is_file() else "not drawn yet"


def main(options: Options) -> int:
    """Play, draw pairs, shift, and draw the picture."""
    options.allow("figure1", "scale", "out")
    config, rows = settings(), options.share(ROWS, 40)
    drawn = batch(*play(rows, config), config)
    start = loss_at_start(drawn, config)
    from lwm.plots import siamese

    out = options.pictures / "figure1.png"
    try:
        siamese.training_scheme(drawn, chosen(drawn), start, out)
    except ImportError as error:
        raise missing_viz(error) from error
    print(
        f"figure1 at scale {rows / ROWS:.2g} ({rows} of {ROWS} frames of a random agent; the paper "
        f"gives none): {len(drawn.t)} pairs, W-MSE before the first update {start:.1f}"
    )
    print(f"picture: {out}")
    return 0
