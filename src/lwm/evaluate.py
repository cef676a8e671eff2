"""Scores: fixed parameters, the first full episode of each of N fresh environments."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lwm import devices
from lwm.actor import act, initial_state, narrowed
from lwm.agent import RecurrentDQN
from lwm.config import Config
from lwm.coverage import Coverage
from lwm.envs.vector import Env, make_env, sense_in
from lwm.learner import LearnerState
from lwm.novelty import fitted
from lwm.streams import environment_seeds, generator
from lwm.types import Step


class Trained(Protocol):
    """What can play: a trainer, or as much of one as was read from disk."""

    @property
    def config(self) -> Config:
        """Of the run."""

    @property
    def learner(self) -> LearnerState:
        """Its parameters."""

    @property
    def frames(self) -> int:
        """Transitions that they were trained on."""


class Scores(NamedTuple):
    """One entry per episode, in the order of their seeds."""

    returns: NDArray[np.float32]
    """[N] cumulative extrinsic reward."""
    lengths: NDArray[np.int64]
    """[N] agent steps."""
    solved: NDArray[np.bool_]
    """[N] the environment terminated (was not cut by the time limit)."""

    def summary(self) -> dict[str, Any]:
        """Mean with a 95 % interval (one episode has none), the paper's first 128, solved share,
        median of the solved."""
        n = len(self.returns)
        mean = float(self.returns.mean())
        half = 1.96 * float(self.returns.std(ddof=1) / np.sqrt(n)) if n > 1 else None
        solved = self.returns[self.solved]
        return {
            "episodes": n,
            "score": mean,
            "median": float(np.median(self.returns)),
            "low": None if half is None else mean - half,
            "high": None if half is None else mean + half,
            "score128": float(self.returns[:128].mean()),
            "solved": float(self.solved.mean()),
            "success": float((self.returns > 0).mean()),
            "median_solved": float(np.median(solved)) if len(solved) else None,
        }


def evaluate(
    config: Config,
    learner: LearnerState,
    episodes: int | None = None,
    purpose: str = "test",
    coverage: Coverage | None = None,
    policy: RecurrentDQN | None = None,
) -> Scores:
    """Play ``episodes`` first episodes with the final parameters and frozen moments.

    The seeds of ``purpose`` (``test`` or ``validation``) are the same for every run, so that runs
    are compared on the same environments, and training never uses them.  ``coverage`` notes the
    positions of the games that count; ``policy`` plays instead of the learner's own.
    """
    n = episodes or config.evaluation.episodes
    env = make_env(config, environment_seeds(purpose, n), coverage is not None)
    try:
        return _play(config, learner, policy or learner.policy, env, purpose, coverage)
    finally:
        env.close()


def _play(
    config: Config,
    learner: LearnerState,
    policy: RecurrentDQN,
    env: Env,
    purpose: str,
    coverage: Coverage | None,
) -> Scores:
    n = env.num_envs
    rng = generator(config.seed, f"evaluate-{purpose}")
    bonus = learner.bonus
    state = initial_state(policy, bonus, n, learner.embedding)
    returns = np.zeros(n, np.float32)
    lengths = np.zeros(n, np.int64)
    solved = np.zeros(n, np.bool_)
    playing = np.arange(n)
    step = env.reset()
    if coverage is not None:
        coverage.add(env.ram)
    actions = np.zeros(n, np.int64)
    while True:
        explore = rng.random(n) < config.evaluation.epsilon
        random_action = rng.integers(env.num_actions, size=n)
        if config.acts_at_random:
            actions = random_action
        else:
            acted, state = act(
                policy,
                bonus,
                state,
                _take(step, playing),
                explore[playing],
                random_action[playing],
                config.dqn.reset_state,
                learner.embed,
            )
            actions[playing] = acted.action
        env.send(actions)
        step = env.recv()
        if coverage is not None:
            coverage.add(env.ram[playing])
        over = step.episode_end[playing]
        if over.any():
            done = playing[over]
            returns[done] = step.episode_return[done]
            lengths[done] = step.episode_length[done]
            solved[done] = step.discount_t[done] == 0
            playing = playing[~over]
            if len(playing) == 0:
                return Scores(returns, lengths, solved)
            # Only the environments still in their first episode are worth computing for.
            env.rest(done)
            state = narrowed(state, devices.put(~over, state.h.device))


def _take(step: Step, lanes: NDArray[np.int64]) -> Step:
    return Step._make(v[lanes] for v in step)


def new_learner(config: Config) -> LearnerState:
    """A learner for the environments of ``config``, to put saved parameters into."""
    env = make_env(config, environment_seeds("test", 1))
    try:
        inputs, sense = int(np.prod(env.obs_shape)), sense_in(env)
        own = config if sense is None else fitted(config, sense)
        return LearnerState(own, inputs, env.num_actions, sense)
    finally:
        env.close()
