"""Stable-Baselines3's DQN on a sparse task; the bonus is computed anew for every sample.

python examples/sb3_dqn.py          # three seeds, some minutes
"""

from __future__ import annotations

from typing import Any

from corridor import Corridor, Tally, compare
from stable_baselines3 import DQN
from stable_baselines3.common.vec_env import DummyVecEnv

from lwm.adapters.sb3 import LWMCallback, LWMReplayBuffer

ENVS = 8
STEPS = 60_000


def run(bonus: bool, seed: int, steps: int) -> Tally:
    """Train; nothing differs but the replay buffer."""
    tally = Tally()
    venv = DummyVecEnv([lambda: Corridor(tally=tally)] * ENVS)
    replay: dict[str, Any] = {}
    if bonus:
        settings = {
            "scale": 0.1,
            "burn_in": 8,
            "update_every": 1,
            "update_length": 16,
            "seed": seed,
            "overrides": {"world_model.learning_rate": 2e-3},
        }
        replay = {"replay_buffer_class": LWMReplayBuffer, "replay_buffer_kwargs": settings}
    model = DQN(
        "MlpPolicy",
        venv,
        buffer_size=10_000,
        learning_starts=500,
        batch_size=64,
        train_freq=4,
        gradient_steps=1,
        target_update_interval=500,
        exploration_fraction=0.1,
        exploration_final_eps=0.05,
        learning_rate=1e-3,
        gamma=0.97,
        seed=seed,
        device="cpu",
        **replay,
    )
    model.learn(steps, callback=LWMCallback())
    return tally


if __name__ == "__main__":
    compare(run, STEPS, __doc__)
