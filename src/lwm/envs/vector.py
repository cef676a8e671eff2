"""The environments that a config asks for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lwm.config import Config
from lwm.envs.gymnasium import GymEnv
from lwm.envs.labyrinth_vector import LabyrinthVectorEnv
from lwm.envs.rows import Env, RowEnv
from lwm.envs.television import ImageTelevision, LabyrinthTelevision, TelevisionLabyrinth
from lwm.senses import Sense

__all__ = ["Env", "RowEnv", "make_env"]


def sense_in(env: Env) -> Sense | None:
    """How the observations of an environment that anyone may have written are seen."""
    return env.sense if isinstance(env, GymEnv) else None


def make_env(
    config: Config, seeds: NDArray[np.int64], coverage: bool = False, pictures: bool = False
) -> Env:
    """The environments of a run: one per seed.

    ``coverage``: their RAM will be asked for; ``pictures``: Gymnasium's will be asked to draw.
    """
    if config.workload == "atari":
        games = _make_games(config, seeds, coverage)
        return ImageTelevision(games, seeds) if config.atari.tv else games
    if config.workload == "gym":
        return GymEnv(config.gym, seeds, pictures)
    c = config.env
    options = (len(seeds), c.size, c.time_limit, c.carve_start)
    if c.tv:
        return LabyrinthTelevision(TelevisionLabyrinth(*options), seeds)
    return RowEnv(LabyrinthVectorEnv(*options), seeds)


def _make_games(config: Config, seeds: NDArray[np.int64], coverage: bool) -> Env:
    # These need the extra: the labyrinth works without it.
    if config.atari.backend == "ale-vector":
        from lwm.envs.atari_vector import AleVectorEnv

        return AleVectorEnv(config.atari, seeds)
    from lwm.envs.atari import AtariEnv

    return AtariEnv(config.atari, seeds, ram=coverage)
