"""The observations behind Figure 3: a random agent's, and episodes that no training has seen."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lwm.coverage import RAM
from lwm.envs.atari_picture import SIZE
from lwm.errors import BadInput, RunFailed, reason
from lwm.experiments import trajectory
from lwm.probes import MAX_LAG
from lwm.sections import AtariConfig
from lwm.streams import environment_seeds, generator

GAME = "montezuma_revenge"
ACTIONS = 18
"""Of the game: chance recognises one action in so many, 6 %."""
ENVS = 8
RANDOM_GAMES, RANDOM_EPISODES = 128, 32
"""Held-out games, and how many of their first lives are kept at most: those long enough."""
SCRIPTED_EPISODES = 16
MAX_ROWS = 400
"""Rows of a held-out episode at most."""

_SEED = 0  # of the data: training seeds share it
_TRAIN = ("obs", "a_tm1", "is_first", "place")
_HELD = ("held_obs", "held_action", "held_place", "held_episode", "held_scripted")


class Rows(NamedTuple):
    """What a random agent saw in T rows of B games (the time diagram is in ``lwm.types``)."""

    obs: NDArray[np.uint8]
    """[T, B, 84, 84], read from the disk as needed."""
    a_tm1: NDArray[np.int64]
    """[T, B] the action that led here."""
    is_first: NDArray[np.bool_]
    """[T, B]."""
    place: NDArray[np.int64]
    """[T, B, 3] room, x, y."""


class Episode(NamedTuple):
    """A held-out episode of T actions."""

    obs: NDArray[np.uint8]
    """[T+1, 84, 84]."""
    action: NDArray[np.int64]
    """[T]."""
    place: NDArray[np.int64]
    """[T+1, 3] room, x, y."""
    scripted: bool
    """It begins with the committed script, or with a part of it."""


def prepare(directory: Path, observations: int) -> None:
    """Collect everything into ``directory``, whole or not at all; nothing if it is there."""
    if directory.exists():
        return
    temporary = directory.with_name(f".{directory.name}.tmp-{os.getpid()}")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        _collect_random(temporary, max(observations // ENVS, 1))
        episodes = [*_random_episodes(), *_scripted_episodes()]
        for name, array in zip(_HELD, _packed(episodes), strict=True):
            np.save(temporary / f"{name}.npy", array, allow_pickle=False)
        temporary.rename(directory)
    except OSError as error:
        raise RunFailed(f"cannot write {directory}: {reason(error)}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load_rows(directory: Path) -> Rows:
    """What the random agent saw."""
    return Rows(*(_load(directory / f"{name}.npy", mapped=name == "obs") for name in _TRAIN))


def load_episodes(directory: Path) -> list[Episode]:
    """The held-out episodes."""
    obs, action, place, episode, scripted = (_load(directory / f"{n}.npy") for n in _HELD)
    found = []
    for number in range(len(scripted)):
        rows = np.flatnonzero(episode == number)
        found.append(Episode(obs[rows], action[rows][:-1], place[rows], bool(scripted[number])))
    return found


def _load(path: Path, mapped: bool = False) -> NDArray[Any]:
    try:
        return np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        raise BadInput(f"{path} is damaged: remove its directory and run again") from None


def _collect_random(directory: Path, rows: int) -> None:
    """T rows of ``ENVS`` games of an agent that acts at random."""
    from lwm.envs.atari import AtariEnv

    shapes = {
        "obs": (np.uint8, (SIZE, SIZE)),
        "a_tm1": (np.int64, ()),
        "is_first": (np.bool_, ()),
        "place": (np.int64, (3,)),
    }
    arrays = {
        name: np.lib.format.open_memmap(
            directory / f"{name}.npy", mode="w+", dtype=dtype, shape=(rows, ENVS, *shape)
        )
        for name, (dtype, shape) in shapes.items()
    }
    rng = generator(_SEED, "figure3 actions")
    seeds = environment_seeds("train", ENVS, _SEED)
    with AtariEnv(AtariConfig(game=GAME), seeds, ram=True) as env:
        step = env.reset()
        for t in range(rows):
            arrays["obs"][t], arrays["a_tm1"][t] = step.obs, step.a_tm1
            arrays["is_first"][t] = step.is_first
            arrays["place"][t] = env.ram[:, list(RAM[GAME])]
            env.send(rng.integers(ACTIONS, size=ENVS))
            step = env.recv()
    for array in arrays.values():
        array.flush()


def _random_episodes() -> list[Episode]:
    """First lives of games that training never played, where they are long enough for all lags.

    Most are not: a random agent falls to its death within 20 steps.
    """
    from lwm.envs.atari import AtariEnv

    rng = generator(_SEED, "figure3 held-out actions")
    seeds = environment_seeds("test", RANDOM_GAMES)
    with AtariEnv(AtariConfig(game=GAME), seeds, ram=True) as env:
        drawn = rng.integers(ACTIONS, size=(MAX_ROWS - 1, RANDOM_GAMES))
        found = _lives(env, drawn, np.full(RANDOM_GAMES, MAX_ROWS), scripted=False)
    return [e for e in found if len(e.obs) > MAX_LAG][:RANDOM_EPISODES]


def _scripted_episodes() -> list[Episode]:
    """The committed script; then ever shorter beginnings of it, each followed at random."""
    script = trajectory.read(trajectory.COMMITTED)
    rng = generator(_SEED, "figure3 scripted actions")
    with trajectory.script_env(script, SCRIPTED_EPISODES) as env:
        actions = trajectory.indices(script, env.action_names)
        chosen = rng.integers(ACTIONS, size=(MAX_ROWS - 1, SCRIPTED_EPISODES))
        kept = np.linspace(len(actions), 0, SCRIPTED_EPISODES, endpoint=False).astype(int)
        for e, count in enumerate(kept):
            chosen[:count, e] = actions[:count]
        limits = np.full(SCRIPTED_EPISODES, MAX_ROWS)
        limits[0] = len(actions) + 1
        return _lives(env, chosen, limits, scripted=True)


def _lives(
    env: Any,
    actions: NDArray[np.int64],
    limits: NDArray[np.int64],
    scripted: bool,
) -> list[Episode]:
    """The first life of each of B games under ``actions`` [T, B], at most ``limits`` [B] rows."""
    step = env.reset()
    obs, place = [step.obs], [env.ram[:, list(RAM[env.game])]]
    length = limits.copy()
    for t, row in enumerate(actions):
        env.send(row)
        step = env.recv()
        obs.append(step.obs)
        place.append(env.ram[:, list(RAM[env.game])])
        ended = step.is_last & (length == limits) & (t + 2 <= limits)
        length[ended] = t + 2
        if (length <= t + 2).all():
            break
    all_obs, all_place = np.stack(obs, 1), np.stack(place, 1).astype(np.int64)
    return [
        Episode(all_obs[e, :n], actions[: n - 1, e], all_place[e, :n], scripted)
        for e, n in enumerate(length)
    ]


def _packed(episodes: list[Episode]) -> tuple[NDArray[Any], ...]:
    """The episodes end to end, in the order of ``_HELD``; the action of a last row is -1."""
    return (
        np.concatenate([e.obs for e in episodes]),
        np.concatenate([np.append(e.action, -1) for e in episodes]),
        np.concatenate([e.place for e in episodes]),
        np.repeat(np.arange(len(episodes)), [len(e.obs) for e in episodes]),
        np.array([e.scripted for e in episodes]),
    )
