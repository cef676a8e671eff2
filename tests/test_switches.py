"""The switches behind `lwm reproduce claims` and table 3: each does what it says, and only that."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lwm import learner as learner_module
from lwm import training, updates
from lwm.actor import act
from lwm.agent import ImageInputs, RecurrentDQN, TDInput, td_errors
from lwm.bench.cost import costs
from lwm.config import Config, load_preset
from lwm.errors import BadInput
from lwm.learner import learn
from lwm.sections import DQNConfig
from lwm.training import Trainer
from lwm.types import Unroll
from lwm.vision import shift_offsets
from trees import same


def config(workload: str = "labyrinth", **overrides: Any) -> Config:
    """A run of seconds; the labyrinth's ends in the middle of long episodes."""
    keys = {key.replace("__", "."): value for key, value in overrides.items()}
    small = {"loop.total_frames": 800, "env.time_limit": 20} if workload == "labyrinth" else {}
    return load_preset("debug", small | keys, workload)


class Watched:
    """A whole run: what the actors computed in each row, and what each update learned from."""

    def __init__(self, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
        self.acted: dict[int, NDArray[np.float32]] = {}
        """Row number -> the bonus [B] that the actors computed."""
        self.windows: list[tuple[Unroll, TDInput]] = []
        trainer = Trainer(config)
        rewarded: list[TDInput] = []

        def on_act(*args: Any) -> Any:
            result = act(*args)
            self.acted[trainer.replay.count] = result[0].r_in.copy()
            return result

        def on_td(online: Any, target: Any, window: TDInput, *rest: Any) -> Any:
            if torch.is_grad_enabled():  # not the ranking of new windows
                rewarded.append(window)
            return td_errors(online, target, window, *rest)

        def on_learn(state: Any, unroll: Unroll, *rest: Any) -> Any:
            result = learn(state, unroll, *rest)
            self.windows.append((unroll, rewarded.pop()))
            return result

        monkeypatch.setattr(training, "act", on_act)
        monkeypatch.setattr(learner_module, "td_errors", on_td)
        monkeypatch.setattr(updates, "learn", on_learn)
        self.start = copy.deepcopy(trainer.learner.state_tree())
        self.pretrained: dict[str, Any] = {}
        try:
            for _ in trainer.run():
                if not self.pretrained and trainer.acted == 1:
                    self.pretrained = copy.deepcopy(trainer.learner.state_tree())
        finally:
            trainer.close()
            monkeypatch.undo()
        self.end = trainer.learner.state_tree()

    def as_acted(self, unroll: Unroll) -> NDArray[np.float32]:
        """The bonus [T, B] of a window as the actors computed it; 0 in the warm-up."""
        found = np.zeros_like(unroll.r_t)
        for b, (first, env) in enumerate(unroll.origin):
            for t in range(len(found)):
                if first + t in self.acted:
                    found[t, b] = self.acted[first + t][env]
        return found


def reward_input(window: TDInput) -> torch.Tensor:
    """The last of the network's inputs [T, B]."""
    return (window.x.rest if isinstance(window.x, ImageInputs) else window.x)[..., -1]


@pytest.mark.parametrize("workload", ["labyrinth", "atari"])
@pytest.mark.parametrize("stored", [True, False])
def test_a_stored_bonus_is_what_the_actor_computed(
    workload: str, stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Watched(config(workload, intrinsic__stored_bonus=stored), monkeypatch)
    assert len(run.windows) > 5
    equal, bonus = [], 0.0
    for unroll, window in run.windows:
        expected = unroll.r_t + run.as_acted(unroll)
        told = np.where(unroll.is_first, 0, expected)
        equal.append(
            np.array_equal(window.reward.numpy(), expected)
            and np.array_equal(reward_input(window).numpy(), told)
        )
        bonus += np.abs(run.as_acted(unroll)).sum()
    assert bonus > 0
    assert all(equal) if stored else not any(equal)
    # The world model learns either way.
    assert not same(run.pretrained["world_model"], run.end["world_model"])


def test_the_error_as_an_input_by_hand() -> None:
    r_t, r_in = torch.tensor([-1.0, 0.0]), torch.tensor([0.5, 2.0])
    on, off = (RecurrentDQN(4, 4, DQNConfig(error_input=v)) for v in (True, False))
    assert on.told_reward(r_t, r_in).tolist() == [-0.5, 2.0]
    assert off.told_reward(r_t, r_in).tolist() == [-1.0, 0.0]


@pytest.mark.parametrize("workload", ["labyrinth", "atari"])
def test_without_the_error_input_the_bonus_is_in_the_target_alone(
    workload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Beta 1 on both: what Freeway's 0.01 leaves of a bonus could be lost in a comparison.
    run = Watched(config(workload, dqn__error_input=False, intrinsic__beta=1.0), monkeypatch)
    paid = 0.0
    for unroll, window in run.windows:
        assert np.array_equal(reward_input(window).numpy(), unroll.r_t)
        paid += float((window.reward - torch.from_numpy(unroll.r_t)).abs().sum())
    assert paid > 0
    assert any(np.abs(r_in).sum() > 0 for r_in in run.acted.values())


def test_without_the_error_input_actors_do_not_see_it() -> None:
    from lwm.actor import initial_state

    for seen in (True, False):
        trainer = Trainer(config(dqn__error_input=seen))
        learner, B = trainer.learner, trainer.config.loop.actors
        none = np.zeros(B, np.bool_)
        step = trainer.step._replace(is_first=none)
        values = []
        for mean in (0.0, 5.0):  # another mean of the error, another bonus
            learner.bonus.moments.set(mean, 1.0, 1)
            state = initial_state(learner.dqn, learner.bonus, B, learner.embedding)
            acted, _ = act(learner.dqn, learner.bonus, state, step, none, np.zeros(B, np.int64))
            values.append((acted.q, acted.r_in))
        assert not np.array_equal(values[0][1], values[1][1])
        assert torch.equal(values[0][0], values[1][0]) != seen


def test_a_frozen_encoder_learns_in_pretraining_only(monkeypatch: pytest.MonkeyPatch) -> None:
    c = config("atari", encoder__freeze_after_pretraining=True)
    run = Watched(c, monkeypatch)
    start, middle, end = (s["encoder"] for s in (run.start, run.pretrained, run.end))
    assert not same(start["encoder"], middle["encoder"])
    assert same(middle, end)
    assert end["counts"]["updates"] == c.encoder.pretrain_iterations > 0
    assert not same(run.pretrained["world_model"], run.end["world_model"])
    assert not same(run.pretrained["dqn"], run.end["dqn"])


def test_random_features_never_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    c = config("atari", agent="lwm-rf")
    run = Watched(c, monkeypatch)
    assert same(run.start["encoder"], run.end["encoder"])
    assert run.end["encoder"]["optimiser"] == {}
    # The rest is lwm: a recurrent model, pretrained and trained, from the same weights.
    assert not same(run.start["world_model"], run.pretrained["world_model"])
    assert not same(run.pretrained["world_model"], run.end["world_model"])
    pretraining = c.world_model.pretrain_iterations
    assert run.end["bonus"]["updates"] == pretraining + run.end["updates"]
    other = Trainer(config("atari"))
    try:
        tree = other.learner.state_tree()
        del run.start["encoder"]["counts"], tree["encoder"]["counts"]  # of updates: lwm-rf has none
        assert same(run.start, tree)
    finally:
        other.close()


def test_random_features_are_for_images() -> None:
    assert config("atari", agent="lwm-rf").bonus == "lwm"
    with pytest.raises(BadInput, match="lwm-rf"):
        config(agent="lwm-rf")


def test_what_is_not_trained_costs_nothing() -> None:
    usual, frozen = (
        costs(config("atari", encoder__freeze_after_pretraining=v), 4) for v in (False, True)
    )
    assert "encoder" in usual and "encoder" not in frozen
    assert frozen["act"] == usual["act"]  # actors still look through it
    assert frozen["sample"].bytes < usual["sample"].bytes


def test_no_shift_moves_nothing() -> None:
    rng = np.random.default_rng(0)
    assert not shift_offsets(rng, 64, 0).any()
    assert shift_offsets(rng, 64, 4).abs().max() == 4


@pytest.mark.parametrize("workload", ["labyrinth", "atari"])
def test_with_beta_zero_nobody_sees_a_bonus(workload: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Watched(config(workload, intrinsic__beta=0.0), monkeypatch)
    assert all((r_in == 0).all() for r_in in run.acted.values())
    for unroll, window in run.windows:
        assert np.array_equal(window.reward.numpy(), unroll.r_t)
        assert np.array_equal(reward_input(window).numpy(), unroll.r_t)
    assert not same(run.pretrained["world_model"], run.end["world_model"])
