"""Scores: first episodes, seeds that training never uses, nothing disturbed."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from lwm import evaluate as evaluate_module
from lwm import training
from lwm.actor import embed_bits
from lwm.config import Config, fields, load_preset
from lwm.evaluate import Scores, evaluate
from lwm.intrinsic import NoBonus
from lwm.learner import LearnerState
from lwm.streams import environment_seeds, generator
from lwm.training import Trainer
from lwm.types import Step


def config(**overrides: Any) -> Config:
    keys = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_preset("debug", keys)


def learner(c: Config) -> LearnerState:
    return LearnerState(c, 4, 4)


class Scripted:
    """Environments whose first episode is known: environment i takes i + 1 steps and is paid
    10 + i in all; it is solved if i is even.  All later episodes take one step and pay -999."""

    num_actions, obs_shape, obs_dtype = 4, (4,), np.int8

    def __init__(self, seeds: NDArray[np.int64]) -> None:
        self.seeds = seeds
        self.n = self.num_envs = len(seeds)
        self.taken = 0
        self.resting: list[int] = []

    def rest(self, lanes: NDArray[np.int64]) -> None:
        self.resting += lanes.tolist()

    def close(self) -> None:
        self.closed = True

    def reset(self) -> Step:
        return self.row(np.ones(self.n, np.bool_), np.zeros(self.n, np.bool_))

    def send(self, actions: NDArray[np.int64]) -> None:
        assert actions.shape == (self.n,) and (actions >= 0).all() and (actions < 4).all()

    def recv(self) -> Step:
        self.taken += 1
        own = np.arange(self.n)
        after = self.taken - (own + 1)  # rows since the first episode ended
        last = (after == 0) | ((after > 0) & (after % 2 == 0))
        return self.row((after > 0) & (after % 2 == 1), last)

    def row(self, first: NDArray[np.bool_], last: NDArray[np.bool_]) -> Step:
        own = np.arange(self.n)
        initial = self.taken <= own + 1
        n = self.n
        return Step(
            obs=np.zeros((n, 4), np.int8),
            a_tm1=np.zeros(n, np.int64),
            r_t=np.zeros(n, np.float32),
            is_first=first,
            is_last=last,
            discount_t=np.where(last & (own % 2 == 0), 0, 1).astype(np.float32),
            episode_return=np.where(initial, 10 + own, -999).astype(np.float32),
            episode_length=np.where(initial, self.taken, 1),
            episode_end=last,
        )


@pytest.mark.parametrize("agent", ["random", "dqn", "lwm", "lwm-ff", "mbie-eb"])
def test_first_episodes_only(agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Scripted] = []

    def scripted(_: Any, seeds: NDArray[np.int64], coverage: bool) -> Scripted:
        assert not coverage
        made.append(Scripted(seeds))
        return made[-1]

    monkeypatch.setattr(evaluate_module, "make_env", scripted)
    c = config(agent=agent)
    scores = evaluate(c, learner(c), 9)
    assert scores.returns.tolist() == [10 + i for i in range(9)]
    assert scores.lengths.tolist() == [i + 1 for i in range(9)]
    assert scores.solved.tolist() == [i % 2 == 0 for i in range(9)]
    (env,) = made
    assert env.closed
    assert env.taken == 9  # not a step more than the longest first episode
    assert env.resting == list(range(8))  # each when its episode is over, but for the last
    np.testing.assert_array_equal(env.seeds, environment_seeds("test", 9))
    evaluate(c, learner(c), 3, "validation")
    np.testing.assert_array_equal(made[1].seeds, environment_seeds("validation", 3))


def test_seeds_of_training_and_evaluation_are_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    # The blocks as intervals: training runs of many seeds, at most 4096 actors each, and the
    # largest evaluations a config allows.
    largest = dict(fields(Config()))["seed"].metadata["high"]
    blocks = [("train", 4096, seed) for seed in (0, 1, 2, 1000, 2**20, largest)]
    blocks += [("validation", 10**6, 0), ("test", 10**7, 0)]
    intervals = []
    for purpose, count, seed in blocks:
        seeds = environment_seeds(purpose, count, seed)
        assert len(seeds) == count and (np.diff(seeds) == 1).all()
        intervals.append((int(seeds[0]), int(seeds[-1])))
    intervals.sort()
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(intervals))
    # And training does use its own block.
    used = []
    original = training.make_env

    def spy(env: Any, seeds: NDArray[np.int64], *rest: Any) -> Any:
        used.append(seeds)
        return original(env, seeds, *rest)

    monkeypatch.setattr(training, "make_env", spy)
    Trainer(config(seed=5))
    np.testing.assert_array_equal(used[0], environment_seeds("train", 8, 5))


def test_streams_are_apart() -> None:
    def numbers(seed: int, name: str) -> list[int]:
        return generator(seed, name).integers(2**60, size=4).tolist()

    names = ("actor", "replay", "init", "evaluate-test", "evaluate-validation")
    drawn = [numbers(seed, name) for seed in (0, 1, 2) for name in names]
    assert len({tuple(d) for d in drawn}) == len(drawn)
    assert numbers(1, "actor") == numbers(1, "actor")


def test_the_same_twice_and_others_elsewhere() -> None:
    c = config(agent="random", env__size=3, env__time_limit=200)
    first, again = evaluate(c, learner(c), 64), evaluate(c, learner(c), 64)
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(first.returns, evaluate(c, learner(c), 64, "validation").returns)
    # More episodes of the same seeds: other draws of the walk, but the same kind of numbers.
    assert (first.returns == -first.lengths).all()
    assert ((first.lengths == 200) | first.solved).all()
    assert first.lengths.min() >= 8


def bits(tree: Any) -> Any:
    """A state whose arrays are bytes: comparable with ==."""
    if isinstance(tree, dict):
        return {key: bits(value) for key, value in tree.items()}
    if isinstance(tree, np.ndarray):
        return tree.dtype.str, tree.shape, tree.tobytes()
    return tree


@pytest.mark.parametrize("agent", ["lwm", "mbie-eb", "dqn"])
def test_training_is_not_disturbed(agent: str) -> None:
    c = config(agent=agent, loop__total_frames=700, loop__warmup_frames=240, env__time_limit=20)

    def trained(scored: bool) -> tuple[list[Any], Any]:
        trainer = Trainer(c)
        events = []
        for event in trainer.run():
            if scored and (event.kind != "cycle" or trainer.cycles % 40 == 0):
                before = bits(trainer.get_state())
                evaluate(c, trainer.learner, 5)
                evaluate(c, trainer.learner, 5, "validation")
                assert bits(trainer.get_state()) == before
            if event.kind != "cycle":
                events.append(event)
        return events, bits(trainer.get_state())

    assert trained(False) == trained(True)


def test_evaluation_follows_the_policy() -> None:
    # Greedy, an untrained network walks the same way from the same layouts whatever the seed of
    # the exploration; at epsilon 1 it is a random walk.
    c = config(agent="dqn", evaluation__epsilon=0.0)
    d = config(agent="dqn", evaluation__epsilon=0.0, seed=3)
    network = learner(c)
    np.testing.assert_array_equal(
        evaluate(c, network, 40).returns, evaluate(d, network, 40).returns
    )
    e = config(agent="dqn", evaluation__epsilon=1.0, env__time_limit=200)
    walk = evaluate(e, network, 400)
    assert walk.solved.mean() > 0.95
    assert walk.returns.mean() == pytest.approx(-26, abs=4)


class Remembering:
    """A policy whose state is a hash of all it has seen, and whose choice depends on nothing else:
    with the state of another episode it goes another way."""

    sees_images = False
    views = 1

    def __init__(self) -> None:
        self.table = torch.randn(1009, 4, generator=torch.Generator().manual_seed(0))

    def initial(self, batch: int) -> Tensor:
        return torch.zeros(batch, 1)

    def told_reward(self, r_t: Tensor, r_in: Tensor) -> Tensor:
        return r_t + r_in

    def inputs(self, obs: Tensor, *_: Any) -> Tensor:
        return obs.float()

    def step(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        code = x @ torch.tensor([1.0, 2.0, 4.0, 8.0])
        h = (h * 31 + code[:, None] + 7) % 1009
        return self.table[h[:, 0].long()], h


def test_episodes_do_not_depend_on_their_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    c = config(evaluation__epsilon=0.0, env__time_limit=60)
    learner: Any = SimpleNamespace(
        policy=Remembering(), bonus=NoBonus(), embedding=4, embed=embed_bits
    )
    together = evaluate(c, learner, 30)
    assert len(set(together.lengths.tolist())) > 5 and together.solved.mean() > 0.5
    for i in range(30):
        seed = environment_seeds("test", 30)[i : i + 1]
        monkeypatch.setattr(evaluate_module, "environment_seeds", lambda *_, seed=seed: seed)
        alone = evaluate(c, learner, 1)
        assert alone.lengths[0] == together.lengths[i]
        assert alone.solved[0] == together.solved[i]


def test_the_random_walk_on_three_by_three() -> None:
    c = load_preset("paper", {"agent": "random"})
    scores = evaluate(c, learner(c), 4096)
    # Limit: -159 (spec).  The deviation of one episode is about 130, of the mean 2.
    assert scores.returns.mean() == pytest.approx(-159, abs=8)
    assert scores.returns.std() == pytest.approx(130, abs=30)
    assert scores.solved.mean() > 0.98


def scores(returns: list[float], solved: list[bool]) -> Scores:
    return Scores(
        np.array(returns, np.float32), np.array([1] * len(returns)), np.array(solved, np.bool_)
    )


def test_summary_by_hand() -> None:
    # Mean -3, deviation sqrt 2 (n - 1 = 1), standard error 1.
    assert scores([-2.0, -4.0], [True, False]).summary() == {
        "episodes": 2,
        "score": -3.0,
        "median": -3.0,
        "low": pytest.approx(-4.96),
        "high": pytest.approx(-1.04),
        "score128": -3.0,
        "solved": 0.5,
        "success": 0.0,
        "median_solved": -2.0,
    }


def test_summary_of_the_first_128() -> None:
    summary = scores([-1.0] * 128 + [-5.0] * 128, [True] * 200 + [False] * 56).summary()
    assert summary["episodes"] == 256
    assert summary["score"] == -3
    assert summary["score128"] == -1
    assert summary["solved"] == 200 / 256
    assert summary["median_solved"] == -1  # 128 of the 200 solved


def test_summary_of_nothing_solved_and_of_one() -> None:
    summary = scores([-50.0], [False]).summary()
    assert summary["median_solved"] is None
    assert summary["score"] == -50
    assert summary["low"] is None and summary["high"] is None, "one episode has no interval"
    assert summary["solved"] == 0
