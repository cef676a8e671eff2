"""The whole system learns: on two by two rooms, to near the optimum within seconds."""

from __future__ import annotations

import pytest

from lwm.config import load_preset
from lwm.evaluate import evaluate
from lwm.training import Trainer

FAST = {
    "env.size": 2,
    "env.time_limit": 100,
    "loop.total_frames": 8000,
    "loop.warmup_frames": 800,
    "loop.cycles_per_update": 1,
    "loop.log_every_frames": 800,
    "replay.capacity_steps": 8000,
    "replay.batch": 32,
    "replay.burn_in": 2,
    "replay.unroll": 10,
    "dqn.features": 32,
    "dqn.hidden": 32,
    "dqn.head": 32,
    "dqn.learning_rate": 4e-3,
    "dqn.epsilon_base": 0.1,
    "world_model.features": 32,
    "world_model.hidden": 32,
    "world_model.head": 32,
    "world_model.learning_rate": 2e-3,
    "world_model.pretrain_iterations": 50,
    "world_model.pretrain_batch": 16,
    "world_model.pretrain_rows": 30,
}


def test_learning() -> None:
    config = load_preset("debug", FAST)
    trainer = Trainer(config)
    untrained = evaluate(config, trainer.learner, 512)
    events = [event for event in trainer.run() if event.kind == "train"]
    trained = evaluate(config, trainer.learner, 512)

    # A random walk takes 26 steps, the optimum 3.6; here one action in a hundred is random.
    assert untrained.returns.mean() < -20
    assert -6 < trained.returns.mean() < -3.4
    assert trained.solved.mean() > 0.99
    # The actors saw it too: they walked at random at first, and learned within a few episodes.
    returns = [event.data["episode/return"] for event in events]
    assert returns[0] < -15 and returns[-1] > -8
    # Random bits cannot be predicted better than to 1/4; the doors ahead can.
    losses = [
        event.data["world_model/loss"] for event in events if "world_model/loss" in event.data
    ]
    assert losses[0] < 0.25 and losses[-1] < 0.05


@pytest.mark.long
def test_best_learns_3x3_in_a_tenth_of_the_budget() -> None:
    """Minutes: the random walk scores -159, the paper's agent -10.8 after 1M frames."""
    trainer = Trainer(load_preset("best", {"env.size": 3, "loop.total_frames": 120_000}))
    for _ in trainer.run():
        pass
    scores = evaluate(trainer.config, trainer.learner, 512)
    assert scores.returns.mean() > -25
