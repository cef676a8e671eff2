"""What `claims` measures on fresh play of trained agents: bonus, memory and representation."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from lwm import devices, probes
from lwm.actor import ladder
from lwm.evaluate import Trained, new_learner
from lwm.experiments import walks
from lwm.experiments.walks import Trace, Walks

ENVS, ROWS = 128, 200
"""Labyrinths that are played at once, and rows of each: about a thousand episodes of 25 steps."""
GAMES, GAME_ROWS = 32, 300

Told = list[tuple[str, str, float | None]]
"""(claim and number, variant, value)."""


def of_memory(trained: Trained) -> Told:
    """Claims b and c of a recurrent agent, on its own walks.

    Untrained networks, the seed's initial ones, are shown the same walks: a random recurrent net
    remembers too.
    """
    played = _labyrinths(trained)
    seen = walks.trace(trained.learner, played)
    zeroed = walks.trace(trained.learner, played, forget=True)
    before = walks.trace(new_learner(trained.config), played)
    sources = {
        "h": seen.h,
        "belief": seen.belief,
        "h untrained": before.h,
        "belief untrained": before.belief,
        "observation and time": _at_hand(played),
    }
    told = [*_novelty("recurrent", seen, played), *_novelty("belief zeroed", zeroed, played)]
    for variant, source in sources.items():
        told.append(("c-rooms", variant, rooms_probe(source, played)))
        told.append(("c-doors", variant, doors_probe(source, played)))
    return told


def of_feed_forward(trained: Trained, recurrent: Trained) -> Told:
    """Claim b of a feed-forward world model: on its own agent's walks, and on those of the
    recurrent one."""
    own, theirs = _labyrinths(trained), _labyrinths(recurrent)
    told = _novelty("feed-forward", walks.trace(trained.learner, own), own)
    same = walks.trace(trained.learner, theirs)
    return [*told, *_novelty("feed-forward, walks of recurrent", same, theirs)]


def _labyrinths(trained: Trained) -> Walks:
    epsilon = np.full(ENVS, trained.config.evaluation.epsilon)
    return walks.play(trained, ENVS, ROWS, epsilon)


def _novelty(variant: str, seen: Trace, played: Walks) -> Told:
    inside, new, moved = walks.first_visits(played)
    bonus = seen.r_in.astype(np.float64)
    return [
        ("b-auc", variant, probes.auc(bonus[inside], new[inside])),
        ("b-auc_moves", variant, probes.auc(bonus[moved], new[moved])),
    ]


def _at_hand(played: Walks) -> NDArray[np.float32]:
    """[T, N, 10] what needs no memory: doors, last action, and how long the episode has lasted."""
    obs = np.stack([step.obs for step in played.steps]).astype(np.float32)
    action = np.eye(4, dtype=np.float32)[np.stack([step.a_tm1 for step in played.steps])]
    action[played.is_first] = 0
    time = np.stack([step.episode_length for step in played.steps])[..., None].astype(np.float32)
    return np.concatenate([obs, action, time, np.sqrt(time)], -1)


def rooms_probe(source: NDArray[np.float32], played: Walks) -> float | None:
    """Which rooms of the map were visited, read off ``source`` [T, N, D]: AUC, mean over rooms."""
    every = np.ones(played.visited.shape[:2], np.bool_)
    return _probe(source, played.visited, every)


def doors_probe(source: NDArray[np.float32], played: Walks) -> float | None:
    """Whether the room behind an open door was visited: AUC, mean over the four directions."""
    doors, known = walks.open_neighbours(played)
    return _mean(_probe(source, known[..., way : way + 1], doors[..., way]) for way in range(4))


def _probe(
    source: NDArray[np.float32], flags: NDArray[np.bool_], rows: NDArray[np.bool_]
) -> float | None:
    """Fitted on every other environment, scored on the rest; ``rows`` [T, N] that count."""
    fit, test = rows[:, ::2], rows[:, 1::2]
    return probes.flag_probe(
        source[:, ::2][fit], flags[:, ::2][fit], source[:, 1::2][test], flags[:, 1::2][test]
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else None


def of_encoder(trained: Trained) -> dict[str, float | None]:
    """Φ's numbers on fresh games, played as the actors play them."""
    c = trained.config.dqn
    epsilon = ladder(c.epsilon_base, c.epsilon_low, c.epsilon_high, GAMES)
    played = walks.play(trained, GAMES, GAME_ROWS, epsilon)
    z = np.stack([devices.fetch(trained.learner.embed(step.obs)) for step in played.steps])
    return encoder_numbers(z, played)


def encoder_numbers(z: NDArray[np.float32], played: Walks) -> dict[str, float | None]:
    """Of embeddings z [T, N, D]: order in time (mean over lives that are long enough), position
    (fitted on every other game, scored on the rest), rank."""
    life = np.cumsum(played.is_first, axis=0)
    lives = [
        z[life[:, game] == number, game]
        for game in range(z.shape[1])
        for number in range(1, life[-1, game] + 1)
    ]
    fit, test = (z[:, first::2].reshape(-1, z.shape[-1]) for first in (0, 1))
    found = {"rank_correlation": _mean(map(probes.rank_correlation, lives))}
    for name, axis in (("probe_x", 1), ("probe_y", 2)):
        place = played.place[..., axis].astype(np.float64)
        goal, goal_test = (place[:, first::2].ravel() for first in (0, 1))
        found[name] = probes.linear_probe(fit, goal, test, goal_test)
    flat = torch.from_numpy(z.reshape(-1, z.shape[-1]))
    return found | {"effective_rank": probes.effective_rank(flat)}
