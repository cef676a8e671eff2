"""The picture of Figure 3: one trajectory through four trained Φ, flattened by t-SNE."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import safetensors.torch
from numpy.typing import NDArray

from lwm.encoder import Encoder
from lwm.errors import BadInput
from lwm.experiments import figure3_data, figure3_parts, trajectory
from lwm.plots.latent import latent_figure

PERPLEXITY = 15.0


def draw(files: Mapping[str, Path], played: trajectory.Replayed, out: Path) -> None:
    """The paper's figure: ``files`` gives the weights behind each panel by its title."""
    panels = {title: flat(_embedded(file, played.obs)) for title, file in files.items()}
    screen = trajectory.screenshot(figure3_data.GAME)
    path = trajectory.pixels(played.place)
    path[played.place[:, 0] != played.place[0, 0]] = np.nan  # the screenshot is of the first room
    latent_figure(screen, path, panels, out)


def _embedded(file: Path, obs: NDArray[np.uint8]) -> NDArray[np.float32]:
    """[T, 84, 84] -> z [T, D] by the Φ in a file."""
    encoder = Encoder(figure3_parts.CONFIG.embedding)
    try:
        encoder.load_state_dict(safetensors.torch.load(file.read_bytes()))
    except (OSError, RuntimeError, safetensors.SafetensorError):
        raise BadInput(f"{file} is damaged: remove it and run again") from None
    return figure3_parts.embed(encoder, obs).numpy()


def flat(z: NDArray[np.float32]) -> NDArray[np.float64]:
    """[T, D] -> [T, 2] by t-SNE; the same for the same z."""
    from sklearn.manifold import TSNE

    perplexity = min(PERPLEXITY, (len(z) - 1) / 3)
    model = TSNE(2, perplexity=perplexity, init="pca", method="exact", random_state=0)
    return np.asarray(model.fit_transform(z / max(float(z.std()), 1e-12)), np.float64)
