"""The bonus in Stable-Baselines3: a wrapper for any algorithm, a replay buffer for DQN.

>>> venv = LWMRewardWrapper(make_vec_env("CartPole-v1", 8))
>>> model = PPO("MlpPolicy", venv).learn(10_000, callback=LWMCallback())
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, unwrap_vec_wrapper

from lwm.adapters.sb3_replay import LWMDictReplayBuffer, LWMReplayBuffer
from lwm.adapters.stream import Stream
from lwm.bonus import Bonus

__all__ = [
    "LWMCallback", "LWMDictReplayBuffer", "LWMReplayBuffer", "LWMRewardWrapper", "bonus_of",
    "load_bonus", "save",
]  # fmt: skip


class LWMRewardWrapper(VecEnvWrapper):
    """Adds ``scale`` times the bonus to the reward, and trains it from the stream.

    The two parts of the reward are in every info as ``reward_ext`` and ``reward_int``.  While
    ``stream.learning`` is False the bonus is paid but learns nothing: for evaluation.
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


class LWMCallback(BaseCallback):
    """Logs the bonus and its training through the model's own logger, as ``lwm/...``.

    Saves nothing, nor does SB3's ``CheckpointCallback`` save the bonus: call ``save``.
    """

    def __init__(self, fade: tuple[float, float] | None = None, verbose: int = 0) -> None:
        """``fade``: shares of one ``learn`` between which the scale of the bonus falls to 0; when
        it ends the scale is what it was before."""
        super().__init__(verbose)
        if fade is not None and not 0 <= fade[0] < fade[1] <= 1:
            raise ValueError(f"expected fade as two growing shares within 0 and 1, got {fade}")
        self.fade = fade
        self._full, self._begun = 0.0, 0
        """Scale and steps at the beginning of this ``learn``."""

    def _on_training_start(self) -> None:
        source = _source(self.model)
        self._full, self._begun = 0.0 if source is None else source.scale, self.num_timesteps

    def _on_training_end(self) -> None:
        source = _source(self.model)
        if source is not None and self.fade is not None:
            source.scale = self._full

    def _on_step(self) -> bool:
        source = _source(self.model)
        if source is None:
            return True
        if self.fade is not None:
            steps = self.locals["total_timesteps"] - self._begun
            spent = (self.num_timesteps - self._begun) / steps
            source.scale = self._full * float(np.interp(spent, self.fade, (1, 0)))
        self.logger.record("lwm/scale", source.scale)
        if len(source.paid):
            self.logger.record_mean("lwm/reward_int", float(source.paid.mean()))
        self.logger.record("lwm/settled", int(source.bonus.settled))
        trained = source.stream if isinstance(source, LWMRewardWrapper) else source
        for key, value in trained.metrics.items():
            self.logger.record(f"lwm/{key.replace('/', '_')}", value)
        return True


def save(model: BaseAlgorithm, path: str | Path) -> None:
    """``model.save(path)``, and its bonus beside it: beside ``lake.zip`` stands ``lake-bonus``."""
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
    return path.with_name(path.name.removesuffix(".zip") + "-bonus")


def _with_terminal(obs: Any, ended: NDArray[Any], infos: list[dict[str, Any]]) -> Any:
    """Observations [B, ...] with the terminal ones in place of the resets that follow them."""
    lanes = np.flatnonzero(ended)
    if not len(lanes):
        return obs
    merged = _copied(obs)
    for i in lanes:
        final = infos[i].get("terminal_observation")
        if final is None:
            raise ValueError(
                f"environment {i} ended: expected the final observation in its info as "
                f"'terminal_observation', got an info with {sorted(infos[i])}"
            )
        if isinstance(merged, dict):
            for key in merged:
                merged[key][i] = final[key]
        else:
            merged[i] = final
    return merged


def _copied(obs: Any) -> Any:
    """Environments may write into the arrays that they returned."""
    return {k: v.copy() for k, v in obs.items()} if isinstance(obs, dict) else obs.copy()
