"""The bonus in Stable-Baselines3: a wrapper for any algorithm, a replay buffer for DQN.

>>> venv = LWMRewardWrapper(make_vec_env("CartPole-v1", 8))
>>> model = PPO("MlpPolicy", venv).learn(10_000, callback=LWMCallback())
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize, unwrap_vec_wrapper

from lwm.adapters.stream import Stream
from lwm.bonus import Bonus
from lwm.streams import generator
from lwm.transitions import Sequences


class LWMRewardWrapper(VecEnvWrapper):
    """Adds ``scale`` times the bonus to the reward, and trains it from the stream.

    The two parts of the reward are in every info as ``reward_ext`` and ``reward_int``.
    """

    def __init__(
        self,
        venv: VecEnv,
        bonus: Bonus | None = None,
        scale: float = 1.0,
        stream: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        """``settings``: what ``Bonus`` takes (preset, kind, seed ...), if none is given;
        ``stream``: how it is trained, see ``Stream``."""
        super().__init__(venv)
        if bonus is None:
            bonus = Bonus(venv.observation_space, venv.action_space, venv.num_envs, **settings)
        elif settings:
            raise ValueError(f"expected a bonus or its settings, got both: {sorted(settings)}")
        if bonus.num_envs != venv.num_envs:
            raise ValueError(
                f"expected a bonus for {venv.num_envs} environments, got one for {bonus.num_envs}"
            )
        self.bonus, self.scale = bonus, scale
        self.stream = Stream(bonus, **(stream or {}))
        self.paid = np.zeros(self.num_envs, np.float32)
        """[B] the latest bonus."""
        self._obs: Any = None
        self._actions = np.zeros(self.num_envs, np.int64)
        self._first = np.ones(self.num_envs, np.bool_)

    def reset(self) -> Any:
        """Reset all environments."""
        obs = self.venv.reset()
        self._obs, self._first = _copied(obs), np.ones(self.num_envs, np.bool_)
        return obs

    def step_async(self, actions: NDArray[Any]) -> None:
        """Start a step."""
        self._actions = np.asarray(actions)
        self.venv.step_async(actions)

    def step_wait(self) -> tuple[Any, NDArray[Any], NDArray[Any], list[dict[str, Any]]]:
        """Finish it, with the bonus in the reward."""
        obs, reward, ended, infos = self.venv.step_wait()
        reached = _with_terminal(obs, ended, infos)
        self.paid = self.stream.step(self._obs, self._actions, reached, self._first)
        self._obs, self._first = _copied(obs), np.asarray(ended, np.bool_)
        infos = [
            {**info, "reward_ext": float(ext), "reward_int": float(own)}
            for info, ext, own in zip(infos, reward, self.paid, strict=True)
        ]
        return obs, reward + self.scale * self.paid, ended, infos


class LWMReplayBuffer(ReplayBuffer):
    """For SB3's DQN: every sample's bonus is computed anew, by the model of this moment.

    ``burn_in`` rows before the sampled transition warm the belief up.  Stored rewards stay the
    environment's own.  Trains the bonus itself, once per ``update_every`` samples.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: Any,
        action_space: Any,
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        scale: float = 1.0,
        burn_in: int = 16,
        update_every: int = 4,
        update_batch: int = 16,
        update_length: int = 32,
        **settings: Any,
    ) -> None:
        """``settings``: what ``Bonus`` takes (preset, kind, seed ...)."""
        if isinstance(observation_space, spaces.Dict):
            raise ValueError(
                f"expected an observation space that is no Dict, got {observation_space}; "
                "LWMRewardWrapper takes them"
            )
        if optimize_memory_usage:
            raise ValueError(
                "expected optimize_memory_usage=False, got True: final observations would be lost"
            )
        for name, least, value in (
            ("burn_in", 0, burn_in), ("update_every", 1, update_every),
            ("update_batch", 1, update_batch), ("update_length", 2, update_length),
        ):  # fmt: skip
            if value < least:
                raise ValueError(f"expected {name} of at least {least}, got {value}")
        super().__init__(
            buffer_size,
            observation_space,
            action_space,
            device,
            n_envs,
            handle_timeout_termination=handle_timeout_termination,
        )
        self.bonus = Bonus(observation_space, action_space, n_envs, **settings)
        self.scale, self.burn_in = scale, burn_in
        self.update_every, self.update_batch = update_every, update_batch
        self.update_length = update_length
        self.metrics: dict[str, float] = {}
        """Of the latest update."""
        self._samples = 0
        self._rng = generator(self.bonus.config.seed, "replay")

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> ReplayBufferSamples:
        """Transitions with reward + bonus; now and then the bonus learns first."""
        self._samples += 1
        if self._samples % self.update_every == 0:
            self.update()
        return super().sample(batch_size, env)

    def update(self) -> None:
        """One update of the bonus on windows of the buffer."""
        length = min(self.update_length, self.size())
        if length < 2:
            return
        t = self._rng.integers(length - 1, self.size(), self.update_batch) + self._oldest()
        lane = self._rng.integers(self.n_envs, size=self.update_batch)
        self.metrics = self.bonus.update(self._sequences(t, lane, length - 1))

    def bonuses(self, batch_inds: NDArray[np.int64], env_inds: NDArray[np.int64]) -> NDArray[Any]:
        """The bonus [n] of stored transitions, as of now."""
        seq = self._sequences(batch_inds, env_inds, self.burn_in)
        return self.bonus.compute(*seq)[-1]

    def _get_samples(
        self, batch_inds: NDArray[np.int64], env: VecNormalize | None = None
    ) -> ReplayBufferSamples:
        lane = np.random.randint(self.n_envs, size=len(batch_inds))  # as SB3 draws: by its seed
        ext = self._normalize_reward(self.rewards[batch_inds, lane].reshape(-1, 1), env)
        r_in = self.bonuses(batch_inds, lane).reshape(-1, 1)
        ended = self.dones[batch_inds, lane] * (1 - self.timeouts[batch_inds, lane])
        data = (
            self._normalize_obs(self.observations[batch_inds, lane], env),
            self.actions[batch_inds, lane],
            self._normalize_obs(self.next_observations[batch_inds, lane], env),
            ended.reshape(-1, 1),
            (ext + self.scale * r_in).astype(np.float32),
        )
        return ReplayBufferSamples(*map(self.to_torch, data))

    def _oldest(self) -> int:
        return self.pos if self.full else 0

    def _sequences(self, t: NDArray[np.int64], lane: NDArray[np.int64], before: int) -> Sequences:
        """Transition t [n] of each lane [n] as the last of a sequence of ``before`` + 1.

        The final observation of an episode gets a row of its own, after which the next episode
        begins; so each end costs a transition at the sequence's start.
        """
        back = np.arange(-before, 1)[:, None]
        age = (t - self._oldest()) % self.buffer_size + back  # of the row, from the oldest one
        at = (np.maximum(age, 0) + self._oldest()) % self.buffer_size
        ended = self.dones[at, lane].astype(np.bool_) & (age >= 0)
        # A row begins an episode if the one before it ended; nothing is older than the oldest.
        first = np.concatenate([np.ones_like(ended[:1]), ended[:-1]]) | (age <= 0)
        # Candidates are the transitions' two ends, in turn; the last before + 2 rows are taken.
        both = np.repeat(at, 2, 0)
        second = np.zeros(both.shape, np.bool_)
        second[1::2] = True
        keep = ~second
        keep[1::2] = ended
        keep[-1] = True
        rows = np.argsort(~keep, 0, kind="stable")
        rows = np.take_along_axis(
            rows, keep.sum(0) - (before + 2) + np.arange(before + 2)[:, None], 0
        )
        both, second = (np.take_along_axis(v, rows, 0) for v in (both, second))
        begins = np.take_along_axis(np.repeat(first, 2, 0), rows, 0) & ~second
        pick = second.reshape(*second.shape, *(1,) * (self.observations.ndim - 2))
        obs = np.where(pick, self.next_observations[both, lane], self.observations[both, lane])
        if isinstance(self.observation_space, spaces.Discrete):
            obs = obs[..., 0]  # SB3 stores them as [1]
        action = self.actions[both[:-1], lane][..., 0].astype(np.int64)
        return Sequences(obs, action, begins)


class LWMCallback(BaseCallback):
    """Logs the bonus and its training through the model's own logger, as ``lwm/...``."""

    def _on_step(self) -> bool:
        source = _source(self.model)
        if source is None:
            return True
        if isinstance(source, LWMRewardWrapper):
            self.logger.record_mean("lwm/reward_int", float(source.paid.mean()))
            metrics = source.stream.metrics
        else:
            metrics = source.metrics
        for key, value in metrics.items():
            self.logger.record(f"lwm/{key.replace('/', '_')}", value)
        return True


def save(model: BaseAlgorithm, path: str | Path) -> None:
    """``model.save(path)``, and its bonus beside it."""
    model.save(path)
    bonus_of(model).save(_beside(path))


def load_bonus(model: BaseAlgorithm, path: str | Path) -> None:
    """Give a loaded model the bonus that ``save`` wrote beside it."""
    bonus_of(model).load(_beside(path))


def bonus_of(model: BaseAlgorithm) -> Bonus:
    """The bonus of a model's environment or replay buffer; ValueError if it has none."""
    source = _source(model)
    if source is None:
        raise ValueError("the model has neither a LWMRewardWrapper nor a LWMReplayBuffer")
    return source.bonus


def _source(model: BaseAlgorithm) -> LWMRewardWrapper | LWMReplayBuffer | None:
    buffer = getattr(model, "replay_buffer", None)
    if isinstance(buffer, LWMReplayBuffer):
        return buffer
    env = model.get_env()
    return None if env is None else unwrap_vec_wrapper(env, LWMRewardWrapper)


def _beside(path: str | Path) -> Path:
    path = Path(path)
    return path.with_name(path.name.removesuffix(".zip").replace(".", "_") + "-bonus")


def _with_terminal(obs: Any, ended: NDArray[Any], infos: list[dict[str, Any]]) -> Any:
    """Observations [B, ...] with the terminal ones in place of the resets that follow them."""
    lanes = np.flatnonzero(ended)
    if not len(lanes):
        return obs
    merged = _copied(obs)
    for i in lanes:
        final = infos[i]["terminal_observation"]
        if isinstance(merged, dict):
            for key in merged:
                merged[key][i] = final[key]
        else:
            merged[i] = final
    return merged


def _copied(obs: Any) -> Any:
    """Environments may write into the arrays that they returned."""
    return {k: v.copy() for k, v in obs.items()} if isinstance(obs, dict) else obs.copy()
