"""Stable-Baselines3's PPO on a sparse task, with and without the bonus in its reward.

python examples/sb3_ppo.py          # three seeds, some minutes
"""

from __future__ import annotations

from corridor import Corridor, Tally, compare
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv

from lwm.adapters.sb3 import LWMCallback, LWMRewardWrapper

ENVS = 64
STEPS = 150_000
SCALE = 0.005
"""Of the bonus.  PPO normalises advantages, so as long as there is no reward this changes little;
once there is one, the bonus should not outbid it."""


def run(bonus: bool, seed: int, steps: int) -> Tally:
    """Train; nothing differs but the wrapper."""
    tally = Tally()
    venv = DummyVecEnv([lambda: Corridor(tally=tally)] * ENVS)
    if bonus:
        venv = LWMRewardWrapper(
            venv,
            scale=SCALE,
            seed=seed,
            stream={"capacity": 10_000, "every": 32, "warmup": 500, "length": 16},
            overrides={"world_model.learning_rate": 1e-3},
        )
    model = PPO(
        "MlpPolicy",
        venv,
        n_steps=32,
        batch_size=512,
        n_epochs=8,
        learning_rate=3e-4,
        ent_coef=0.01,
        seed=seed,
        device="cpu",
    )
    model.learn(steps, callback=LWMCallback())
    return tally


if __name__ == "__main__":
    compare(run, STEPS, __doc__)
