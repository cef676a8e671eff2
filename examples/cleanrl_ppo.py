"""PPO in one file, in the manner of CleanRL; what the bonus adds is marked with BONUS.

    python examples/cleanrl_ppo.py          # three seeds, some minutes

The two rewards have a value function each, so that the bonus may go on when an episode ends.
"""

from __future__ import annotations

import numpy as np
import torch
from corridor import ACTIONS, LENGTH, Corridor, Tally, compare
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F

import lwm

ENVS, ROLLOUT = 16, 32
STEPS = 60_000
RATE, EPOCHS, MINIBATCHES = 1e-3, 4, 4
GAMMA, LAMBDA, CLIP, ENTROPY = 0.99, 0.95, 0.2, 0.02
SCALE = 0.1
"""Of the bonus in the advantage."""


class Agent(nn.Module):
    """Policy and two values of a one-hot place."""

    def __init__(self, places: int, actions: int) -> None:
        super().__init__()
        self.places = places
        self.policy = nn.Sequential(nn.Linear(places, 64), nn.Tanh(), nn.Linear(64, actions))
        self.values = nn.Sequential(nn.Linear(places, 64), nn.Tanh(), nn.Linear(64, 2))

    def forward(self, obs: torch.Tensor) -> tuple[Categorical, torch.Tensor]:
        """[...] -> what to do, and the values [..., 2] of reward and bonus."""
        x = F.one_hot(obs, self.places).float()
        return Categorical(logits=self.policy(x)), self.values(x)


def advantages(
    reward: np.ndarray, value: np.ndarray, after: np.ndarray, goes_on: np.ndarray, over: np.ndarray
) -> np.ndarray:
    """Generalised advantages [T, B] from rewards [T, B], values of each observation and of the one
    it led to [T, B]; ``goes_on``: that value counts; ``over``: nothing is carried back."""
    gae, found = np.zeros(reward.shape[1]), np.zeros_like(reward)
    for t in reversed(range(len(reward))):
        delta = reward[t] + GAMMA * goes_on[t] * after[t] - value[t]
        gae = delta + GAMMA * LAMBDA * ~over[t] * gae
        found[t] = gae
    return found


def run(with_bonus: bool, seed: int, steps: int) -> Tally:
    """Train; nothing differs but the lines marked with BONUS."""
    tally = Tally()
    envs = SyncVectorEnv(
        [lambda: Corridor(tally=tally)] * ENVS, autoreset_mode=AutoresetMode.SAME_STEP
    )
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    agent = Agent(LENGTH + 1, ACTIONS)
    optimiser = torch.optim.Adam(agent.parameters(), lr=RATE, eps=1e-5)
    bonus = lwm.Bonus(  # BONUS
        envs.single_observation_space,
        envs.single_action_space,
        ENVS,
        seed=seed,
        overrides={"world_model.learning_rate": 2e-3},
    )
    stream = lwm.Stream(bonus, capacity=10_000, every=32, warmup=500, length=16)  # BONUS
    obs, _ = envs.reset(seed=seed)
    is_first = np.ones(ENVS, np.bool_)
    for _ in range(max(steps // (ENVS * ROLLOUT), 1)):
        shape = (ROLLOUT, ENVS)
        seen, reached = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        acted, logp = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        rewards, r_in = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        over, terminal = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
        for t in range(ROLLOUT):
            with torch.no_grad():
                policy, _ = agent(torch.from_numpy(obs))
                action = policy.sample()
            seen[t], acted[t] = obs, action.numpy()
            logp[t] = policy.log_prob(action).numpy()
            after, rewards[t], terminated, truncated, info = envs.step(acted[t])
            terminal[t], over[t] = terminated, terminated | truncated
            reached[t] = after
            for i in np.flatnonzero(over[t]):
                reached[t, i] = info["final_obs"][i]
            if with_bonus:  # BONUS: the true next observation, not the reset; it trains itself
                r_in[t] = stream.step(obs, acted[t], reached[t], is_first)
            obs, is_first = after, over[t]
        with torch.no_grad():
            value = agent(torch.from_numpy(seen))[1].numpy()
            ahead = agent(torch.from_numpy(reached))[1].numpy()
        ext = advantages(rewards, value[..., 0], ahead[..., 0], ~terminal, over)
        own = advantages(r_in, value[..., 1], ahead[..., 1], np.ones_like(over), over)  # BONUS
        total = ext + SCALE * own if with_bonus else ext  # BONUS
        goals = np.stack([ext + value[..., 0], own + value[..., 1]], -1)
        batch = [
            torch.from_numpy(v.reshape(-1, *v.shape[2:]))
            for v in (seen, acted, logp, total.astype(np.float32), goals)
        ]
        for _ in range(EPOCHS):
            for part in np.split(rng.permutation(ROLLOUT * ENVS), MINIBATCHES):
                learn(agent, optimiser, *(v[part] for v in batch))
    envs.close()
    return tally


def learn(
    agent: Agent,
    optimiser: torch.optim.Optimizer,
    obs: torch.Tensor,
    action: torch.Tensor,
    logp: torch.Tensor,
    advantage: torch.Tensor,
    goals: torch.Tensor,
) -> None:
    """One step on a minibatch [N]."""
    policy, values = agent(obs)
    ratio = (policy.log_prob(action) - logp).exp()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
    loss = (
        -gain.mean()
        + 0.5 * (values - goals.float()).square().mean()
        - ENTROPY * policy.entropy().mean()
    )
    optimiser.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
    optimiser.step()


if __name__ == "__main__":
    compare(run, STEPS, __doc__)
