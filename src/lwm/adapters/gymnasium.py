"""The bonus as a Gymnasium vector wrapper."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from numpy.typing import NDArray

from lwm.adapters.stream import Stream
from lwm.bonus import Bonus


class LWMVectorReward(VectorWrapper):
    """Adds ``scale`` times the bonus to the reward of any vector environment, and trains it.

    ``info["reward_ext"]`` and ``info["reward_int"]`` [B] are the two parts.  Works under every
    autoreset mode; where the step only resets, the bonus is 0.  While ``stream.learning`` is False
    the bonus is paid but learns nothing: for evaluation.  ``RecordEpisodeStatistics`` belongs
    inside: outside it would count the bonus.
    """

    def __init__(
        self, env: VectorEnv[Any, Any, Any], bonus: Bonus, scale: float = 1.0, **stream: Any
    ) -> None:
        """``stream``: how the bonus is trained, see ``Stream``."""
        super().__init__(env)
        if bonus.num_envs != env.num_envs:
            raise ValueError(
                f"expected a bonus for {env.num_envs} environments, got one for {bonus.num_envs}"
            )
        self.bonus, self.scale = bonus, scale
        self.stream = Stream(bonus, **stream)
        self.mode = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._obs: Any = None
        self._first = np.ones(env.num_envs, np.bool_)
        self._ended = np.zeros(env.num_envs, np.bool_)

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those of ``options["reset_mask"]``."""
        mask = (options or {}).get("reset_mask")  # environments take it out of the options
        obs, info = self.env.reset(seed=seed, options=options)
        begun = np.ones(self.num_envs, np.bool_) if mask is None else np.asarray(mask, np.bool_)
        self._first, self._ended = self._first | begun, self._ended & ~begun
        self._obs = _copied(obs)
        return obs, info

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """A step of all environments, with the bonus in the reward."""
        if self._obs is None:
            raise gym.error.ResetNeeded("call reset before step")
        obs, reward, terminated, truncated, info = self.env.step(actions)
        ended = np.logical_or(terminated, truncated)
        real = np.ones(self.num_envs, np.bool_)
        reached = obs
        if self.mode == AutoresetMode.NEXT_STEP:
            real = ~self._ended  # the others were reset, whatever their action
        elif self.mode == AutoresetMode.SAME_STEP and ended.any():
            reached = _with_final(obs, _final(info, ended), ended)
        r_in = self.stream.step(self._obs, np.asarray(actions), reached, self._first, real)
        self._first = ended if self.mode == AutoresetMode.SAME_STEP else ~real
        self._ended, self._obs = ended, _copied(obs)
        info = {**info, "reward_ext": np.asarray(reward), "reward_int": r_in}
        return obs, reward + self.scale * r_in, terminated, truncated, info


def _copied(obs: Any) -> Any:
    """Environments may write into the arrays that they returned."""
    if isinstance(obs, dict):
        return {key: _copied(value) for key, value in obs.items()}
    return np.array(obs) if isinstance(obs, np.ndarray) else obs


def _final(info: dict[str, Any], ended: NDArray[np.bool_]) -> Any:
    """The final observations; ValueError if one is missing."""
    final = info.get("final_obs")
    arrays = isinstance(final, dict)  # of a Dict space: an array for each entry
    if final is None or (not arrays and any(final[i] is None for i in np.flatnonzero(ended))):
        raise ValueError(
            "episodes ended: expected their final observations as info['final_obs'] (autoreset "
            f"mode SAME_STEP), got {'None for one' if final is not None else sorted(info)}"
        )
    return final


def _with_final(obs: Any, final: Any, ended: NDArray[np.bool_]) -> Any:
    """Observations [B, ...] with the final ones in place of those of the episodes that ended."""
    if isinstance(obs, dict):
        given = final if isinstance(final, dict) else None
        return {
            key: _with_final(
                value,
                given[key] if given is not None else [f and f[key] for f in final],
                ended,
            )
            for key, value in obs.items()
        }
    if not isinstance(obs, np.ndarray):
        return obs
    merged = np.array(obs)
    for i in np.flatnonzero(ended):
        merged[i] = final[i]
    return merged
