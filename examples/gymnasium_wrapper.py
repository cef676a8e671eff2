"""The bonus under an agent of one's own: Q-learning in a table, on Gymnasium's vector environments.

python examples/gymnasium_wrapper.py          # three seeds, a few minutes
"""

from __future__ import annotations

import numpy as np
from corridor import ACTIONS, LENGTH, Corridor, Tally, compare
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import lwm
from lwm.adapters.gymnasium import LWMVectorReward

ENVS = 16
STEPS = 60_000
GAMMA, RATE, EPSILON = 0.97, 0.02, 0.1


def run(bonus: bool, seed: int, steps: int) -> Tally:
    """Learn; nothing differs but the wrapper."""
    tally = Tally()
    envs = SyncVectorEnv(
        [lambda: Corridor(tally=tally)] * ENVS, autoreset_mode=AutoresetMode.SAME_STEP
    )
    if bonus:
        own = lwm.Bonus(
            envs.single_observation_space,
            envs.single_action_space,
            ENVS,
            seed=seed,
            overrides={"world_model.learning_rate": 2e-3},
            # What is known is paid -10 for long, which makes a table of zeros try what it has not
            # tried.  With a bonus of mean 0 such a table does not get far.
            settle=0,
        )
        stream = {"capacity": 10_000, "every": 32, "warmup": 500, "length": 16}
        envs = LWMVectorReward(envs, own, scale=0.1, **stream)
    rng = np.random.default_rng(seed)
    # Small random values: ties, of which there are many without a reward, are broken by chance.
    q = 1e-6 * rng.standard_normal((LENGTH + 1, ACTIONS))
    obs, _ = envs.reset(seed=seed)
    for _ in range(steps // ENVS):
        greedy = q[obs].argmax(1)
        action = np.where(rng.random(ENVS) < EPSILON, rng.integers(ACTIONS, size=ENVS), greedy)
        after, reward, terminated, truncated, info = envs.step(action)
        reached = after.copy()
        for i in np.flatnonzero(terminated | truncated):
            reached[i] = info["final_obs"][i]
        target = reward + GAMMA * ~terminated * q[reached].max(1)
        np.add.at(q, (obs, action), RATE * (target - q[obs, action]))
        obs = after
    envs.close()
    return tally


if __name__ == "__main__":
    compare(run, STEPS, __doc__)
