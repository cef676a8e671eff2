"""One part of Figure 3: a representation trained with one seed, and its numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lwm import probes
from lwm.encoder import Encoder, EncoderLearner
from lwm.experiments import figure3_data
from lwm.experiments.figure3_data import ACTIONS, Episode, Rows
from lwm.pairs import draw_pairs
from lwm.representations import ContrastiveLearner, InverseLearner
from lwm.sections import EncoderConfig
from lwm.streams import generator, torch_seeded
from lwm.vision import shift_offsets

CONFIG = EncoderConfig()
SEQUENCES, LENGTH = 32, 32
"""CPC|Action: sequences in a batch, and their rows."""
ITERATIONS = {"rf": 0, "idf": 20_000, "cpc": 5_000, "wmse": 20_000}
"""Updates at scale 1."""

_PROBE_ROWS = 20_000  # of the training data: what probes and forward models learn from

Check = Callable[[], None]
"""Called between updates; raises if the work is no longer wanted."""


class Trained(NamedTuple):
    """What training gave."""

    encoder: Encoder
    accuracy: float | None
    """IDF: share of held-out actions that are recognised."""


class Number(NamedTuple):
    """One value of the table."""

    metric: str
    value: float | None
    """None: it cannot be measured on these episodes."""
    whitened: bool = False


def iterations(representation: str, scale: float) -> int:
    """Updates at this scale: at least one, but for random features."""
    full = ITERATIONS[representation]
    return max(round(full * scale), 1) if full else 0


def train(
    representation: str,
    rows: Rows,
    episodes: list[Episode],
    scale: float,
    seed: int,
    check: Check,
) -> Trained:
    """Φ trained by one objective.  A seed's initial Φ and batch stream are the same for all."""
    with torch_seeded(seed, "figure3 encoder"):
        encoder = Encoder(CONFIG.embedding)
    rng = generator(seed, "figure3 batches")
    updates = iterations(representation, scale)
    if representation == "wmse":
        _train_wmse(encoder, rows, rng, updates, check)
    elif representation == "idf":
        with torch_seeded(seed, "figure3 head"):
            inverse = InverseLearner(encoder, ACTIONS, CONFIG)
        _train_idf(inverse, rows, rng, updates, check)
        return Trained(encoder, _accuracy(inverse, episodes))
    elif representation == "cpc":
        with torch_seeded(seed, "figure3 head"):
            contrastive = ContrastiveLearner(encoder, ACTIONS, CONFIG)
        _train_cpc(contrastive, rows, rng, updates, check)
    return Trained(encoder, None)


def _train_wmse(
    encoder: Encoder, rows: Rows, rng: np.random.Generator, updates: int, check: Check
) -> None:
    learner = EncoderLearner(encoder, CONFIG)
    for _ in range(updates):
        check()
        t, env, k = _pairs(rows, rng, CONFIG.temporal_shift)
        offsets = shift_offsets(rng, 2 * CONFIG.batch, CONFIG.spatial_shift)
        learner.learn(rows.obs[t, env], rows.obs[t + k, env], offsets)


def _train_idf(
    learner: InverseLearner, rows: Rows, rng: np.random.Generator, updates: int, check: Check
) -> None:
    for _ in range(updates):
        check()
        t, env, _ = _pairs(rows, rng, 1)
        x, y, action = rows.obs[t, env], rows.obs[t + 1, env], rows.a_tm1[t + 1, env]
        learner.learn(*map(torch.from_numpy, (x, y, action)))


def _train_cpc(
    learner: ContrastiveLearner, rows: Rows, rng: np.random.Generator, updates: int, check: Check
) -> None:
    starts = sequence_starts(rows.is_first, LENGTH)
    for _ in range(updates):
        check()
        t, env = starts[rng.integers(len(starts), size=SEQUENCES)].T
        steps = t + np.arange(LENGTH)[:, None]
        frames = torch.from_numpy(rows.obs[steps, env])
        # a_t of a row is the a_tm1 of the next one; the last row's is not read.
        after = np.minimum(steps + 1, len(rows.obs) - 1)
        learner.learn(frames, torch.from_numpy(rows.a_tm1[after, env]))


def _pairs(
    rows: Rows, rng: np.random.Generator, max_shift: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    return draw_pairs(rng, rows.is_first, len(rows.is_first), CONFIG.batch, max_shift)


def sequence_starts(is_first: NDArray[np.bool_], length: int) -> NDArray[np.int64]:
    """[N, 2] every (t, environment) whose rows t ... t + length - 1 are of one episode."""
    episode = np.cumsum(is_first, axis=0)
    last = len(episode) - length + 1
    starts: NDArray[np.int64] = np.argwhere(episode[length - 1 :] == episode[:last])
    return starts


def _accuracy(learner: InverseLearner, episodes: list[Episode]) -> float:
    """Share of actions recognised in held-out random episodes."""
    kept = [e for e in episodes if not e.scripted]
    x = torch.from_numpy(np.concatenate([e.obs[:-1] for e in kept]))
    y = torch.from_numpy(np.concatenate([e.obs[1:] for e in kept]))
    return learner.accuracy(x, y, torch.from_numpy(np.concatenate([e.action for e in kept])))


def embed(encoder: Encoder, obs: NDArray[np.uint8]) -> Tensor:
    """[..., 84, 84] -> z [..., D] float32."""
    return EncoderLearner(encoder, CONFIG).embed(
        np.array(obs)
    )  # a copy: mapped files are read-only


def measure(encoder: Encoder, rows: Rows, episodes: list[Episode], seed: int) -> list[Number]:
    """All metrics of a representation, as it is and whitened.

    Probes and forward models learn from the training data and are scored on held-out episodes; the
    whitening, too, is that of the training data.
    """
    kept = slice(0, max(_PROBE_ROWS // rows.is_first.shape[1], 2))
    part = Rows(rows.obs[kept], rows.a_tm1[kept], rows.is_first[kept], rows.place[kept])
    z = embed(encoder, part.obs)
    held = [embed(encoder, e.obs) for e in episodes]
    mean, matrix = probes.whitening_of(z.flatten(0, 1))

    def white(v: Tensor) -> Tensor:
        return ((v.double() - mean) @ matrix).float()

    found = _numbers(z, part, held, episodes, seed)
    also = _numbers(white(z), part, list(map(white, held)), episodes, seed)
    return [*found, *(number._replace(whitened=True) for number in also)]


def _numbers(
    z: Tensor,
    rows: Rows,
    held: list[Tensor],
    episodes: list[Episode],
    seed: int,
) -> list[Number]:
    """The metrics of embeddings z [T, B, D] of the training data and ``held`` of the episodes."""
    scripted = np.array([e.scripted for e in episodes])
    kinds = {"": scripted | True, "_random": ~scripted, "_scripted": scripted}
    orders = [probes.rank_correlation(v.numpy()) for v in held]
    train = _transitions(z, rows)
    with torch_seeded(seed, "figure3 forward"):
        rng = generator(seed, "figure3 forward")
        model = probes.train_forward_model(train, ACTIONS, rng, probes.UPDATES)
    found = []
    for kind, mask in kinds.items():
        chosen = np.flatnonzero(mask)
        known = [value for i in chosen if (value := orders[i]) is not None]
        found.append(Number(f"rank_correlation{kind}", float(np.mean(known)) if known else None))
        test = _held_transitions([held[i] for i in chosen], [episodes[i] for i in chosen])
        found.append(Number(f"predictability{kind}", probes.predictability(model, test)))
    flat, test_z = z.flatten(0, 1).numpy(), torch.cat(held).numpy()
    room, x, y = rows.place.reshape(-1, 3).T
    test_room, test_x, test_y = np.concatenate([e.place for e in episodes]).T
    for name, a, b in (("probe_x", x, test_x), ("probe_y", y, test_y)):
        value = probes.linear_probe(flat, a.astype(float), test_z, b.astype(float))
        found.append(Number(name, value))
    found.append(Number("probe_room", probes.class_probe(flat, room, test_z, test_room)))
    found.append(Number("effective_rank", probes.effective_rank(torch.cat(held))))
    return found


def _transitions(z: Tensor, rows: Rows) -> probes.Transitions:
    """Steps inside episodes of the training data: z [T, B, D]."""
    inside = torch.from_numpy(~rows.is_first[1:])
    action = torch.from_numpy(np.array(rows.a_tm1[1:]))
    return probes.Transitions(z[:-1][inside], action[inside], z[1:][inside])


def _held_transitions(held: list[Tensor], episodes: list[Episode]) -> probes.Transitions:
    action = torch.from_numpy(np.concatenate([e.action for e in episodes]))
    return probes.Transitions(
        torch.cat([v[:-1] for v in held]), action, torch.cat([v[1:] for v in held])
    )


def run(
    directory: Path, representation: str, scale: float, seed: int, check: Check
) -> tuple[Encoder, list[Number]]:
    """Train and measure one part on the data in ``directory``."""
    rows, episodes = figure3_data.load_rows(directory), figure3_data.load_episodes(directory)
    trained = train(representation, rows, episodes, scale, seed, check)
    numbers = measure(trained.encoder, rows, episodes, seed)
    if trained.accuracy is not None:
        numbers.append(Number("action_accuracy", trained.accuracy))
    return trained.encoder, numbers
