"""Replay buffers for Stable-Baselines3's DQN that compute the bonus of every sample anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

from lwm.bonus import Bonus
from lwm.streams import generator
from lwm.transitions import Sequences


class LWMReplayBuffer(ReplayBuffer):
    """For SB3's DQN: every sample's bonus is computed anew, by the model of this moment.

    ``burn_in`` rows before the sampled transition warm the belief up.  Stored rewards stay the
    environment's own.  Trains the bonus itself, once per ``update_every`` samples; with the first
    sample after ``warmup`` transitions until it has settled, all at once: from there on it pays.

    ``learn`` resets the environments without an end of their episodes; ``cuts`` remembers where an
    observation is not the one that the transition before it led to.
    """

    kind_of_samples: ClassVar[Any] = ReplayBufferSamples

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
        warmup: int = 1_000,
        update_every: int = 4,
        update_batch: int = 16,
        update_length: int = 32,
        bonus_device: str = "cpu",
        **settings: Any,
    ) -> None:
        """``settings``: what ``Bonus`` takes (preset, kind, seed ...); ``bonus_device``: where its
        networks compute (``device`` is where samples go)."""
        if isinstance(observation_space, spaces.Dict) != isinstance(self, DictReplayBuffer):
            raise ValueError(
                "expected an observation space that is a Dict for LWMDictReplayBuffer and none for "
                f"LWMReplayBuffer, got {observation_space} for {type(self).__name__}"
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
        self.bonus = Bonus(observation_space, action_space, n_envs, device=bonus_device, **settings)
        self.cuts = np.zeros(self.dones.shape, np.bool_)
        """[rows, lanes] nothing goes on from here, although no episode ended."""
        self.scale, self.burn_in, self.warmup = scale, burn_in, warmup
        self.paid = np.zeros(0, np.float32)
        """[n] the bonus of the latest sample."""
        self.update_every, self.update_batch = update_every, update_batch
        self.update_length = update_length
        self.metrics: dict[str, float] = {}
        """Of the latest update."""
        self._samples = 0
        self._rng = generator(self.bonus.config.seed, "replay")

    def add(
        self,
        obs: Any,
        next_obs: Any,
        action: NDArray[Any],
        reward: NDArray[Any],
        done: NDArray[Any],
        infos: list[dict[str, Any]],
    ) -> None:
        """A transition of each lane."""
        at, before = self.pos, (self.pos - 1) % self.buffer_size
        follows = (self.full or self.pos > 0) and before != at
        super().add(obs, next_obs, action, reward, done, infos)
        self.cuts[at] = False
        if follows:
            moved = _each(
                lambda seen, reached: (seen[at] != reached[before]).reshape(self.n_envs, -1).any(1),
                self.observations,
                self.next_observations,
            )
            moved = np.any([*moved.values()], 0) if isinstance(moved, dict) else moved
            self.cuts[before] = moved & (self.dones[before] == 0)

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """Transitions with reward + bonus; now and then the bonus learns first."""
        self._samples += 1
        if self._samples % self.update_every == 0:
            self.update()
        if self.full or self.size() * self.n_envs >= self.warmup:
            while self.bonus.settle and not self.bonus.settled and self.update():
                pass
        return super().sample(batch_size, env)

    def update(self) -> bool:
        """One update of the bonus on windows of the buffer; -> whether it holds enough for one."""
        length = min(self.update_length, self.size())
        if length < 2:
            return False
        t = self._rng.integers(length - 1, self.size(), self.update_batch) + self._oldest()
        lane = self._rng.integers(self.n_envs, size=self.update_batch)
        self.metrics = self.bonus.update(self._sequences(t, lane, length - 1))
        return True

    def bonuses(self, batch_inds: NDArray[np.int64], env_inds: NDArray[np.int64]) -> NDArray[Any]:
        """The bonus [n] of stored transitions, as of now."""
        seq = self._sequences(batch_inds, env_inds, self.burn_in)
        return self.bonus.compute(*seq)[-1]

    def _get_samples(self, batch_inds: NDArray[np.int64], env: VecNormalize | None = None) -> Any:
        lane = np.random.randint(self.n_envs, size=len(batch_inds))  # as SB3 draws: by its seed
        ext = self._normalize_reward(self.rewards[batch_inds, lane].reshape(-1, 1), env)
        self.paid = self.bonuses(batch_inds, lane)
        r_in = self.paid.reshape(-1, 1)
        ended = self.dones[batch_inds, lane] * (1 - self.timeouts[batch_inds, lane])
        seen, reached = (
            _each(self.to_torch, self._normalize_obs(_each(lambda v: v[batch_inds, lane], o), env))
            for o in (self.observations, self.next_observations)
        )
        rest = (
            self.actions[batch_inds, lane],
            ended.reshape(-1, 1),
            (ext + self.scale * r_in).astype(np.float32),
        )
        action, over, reward = map(self.to_torch, rest)
        return self.kind_of_samples(seen, action, reached, over, reward)

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
        ended = (self.dones[at, lane].astype(np.bool_) | self.cuts[at, lane]) & (age >= 0)
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

        def rows_of(seen: NDArray[Any], reached: NDArray[Any]) -> NDArray[Any]:
            pick = second.reshape(*second.shape, *(1,) * (seen.ndim - 2))
            return np.where(pick, reached[both, lane], seen[both, lane])

        obs = _each(rows_of, self.observations, self.next_observations)
        if isinstance(self.observation_space, spaces.Dict):
            obs = {k: _unboxed(self.observation_space[k], v) for k, v in obs.items()}
        else:
            obs = _unboxed(self.observation_space, obs)
        action = self.actions[both[:-1], lane][..., 0].astype(np.int64)
        return Sequences(obs, action, begins)


class LWMDictReplayBuffer(LWMReplayBuffer, DictReplayBuffer):
    """The same for Dict observations (``MultiInputPolicy``)."""

    kind_of_samples = DictReplayBufferSamples


def _each(function: Callable[..., Any], *observations: Any) -> Any:
    """A function of arrays, applied to them or to each entry of dicts of them."""
    if not isinstance(observations[0], dict):
        return function(*observations)
    return {key: function(*(o[key] for o in observations)) for key in observations[0]}


def _unboxed(space: spaces.Space[Any], stored: NDArray[Any]) -> NDArray[Any]:
    """SB3 stores numbered places as [..., 1]."""
    return stored[..., 0] if isinstance(space, spaces.Discrete) else stored
