"""What the bonus costs in somebody else's agent: Stable-Baselines3's PPO on 128 image environments.

The environments do nothing but hand out frames, so that the agent's own time is all there is to
compare with; real ones only make the bonus's share smaller.  PPO has its CNN policy, whose
convolutions are those of Φ, and the settings that are usual for Atari but for shorter rollouts,
which change no cost per step.  Three PPOs take turns in one run: alone, with the bonus in its
reward, and with the bonus that also trains from the stream.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces

from lwm.bench.common import COLUMNS, METHOD, Work, clock, measure
from lwm.bench.report import OUT, Row, write
from lwm.bonus import Bonus
from lwm.errors import BadInput
from lwm.machine import machine_facts

if TYPE_CHECKING:
    from stable_baselines3 import PPO

AIM = 0.15
"""Of PPO's own time, that ``bonus.step`` may add."""
SECONDS = 120.0
ENVS = 128
_ROLLOUT = 8
_EPOCHS, _BATCH = 4, 256
_EPISODE = 500
_NEVER = 10**12


def run(seconds: float = SECONDS, out: Path = OUT, cores: int = 1) -> str:
    """Measure for about ``seconds``, write ``out``, return the lines for a person."""
    rows, lines = measured(seconds, cores)
    write(out, rows)
    return "\n".join([*lines, "", f"rows: {out}"])


def measured(seconds: float, cores: int = 1, envs: int = ENVS) -> tuple[list[Row], list[str]]:
    """The rows, and what to say about them."""
    if find_spec("stable_baselines3") is None:
        raise BadInput("lwm bench bonus needs Stable-Baselines3: pip install 'lwm[sb3]'")
    torch.set_num_threads(cores)
    quiet = {"warmup": _NEVER, "capacity": envs * 64}
    work: Work = {
        "ppo": (1, _iteration(envs)),
        "ppo + bonus": (1, _iteration(envs, quiet)),
        "ppo + bonus, trained": (1, _iteration(envs, {"warmup": 0, "capacity": envs * 64})),
        "step": (_ROLLOUT, _step(envs)),
    }
    low = measure(work, seconds, clock(cores))
    facts = machine_facts(cores)
    each = {name: t / (1 if name == "step" else _ROLLOUT) for name, t in low.items()}
    rows = []
    for name, t in each.items():
        row = dict.fromkeys(COLUMNS)
        row |= {"workload": "bonus", "stage": name, "cores": cores, "dtype": "float32"}
        row |= {"ms": 1e3 * t, "commit": facts["commit"], "calls": 1.0, "share": t / each["ppo"]}
        if name == "step":
            row["of_theirs"] = each["ppo"] / t
        rows.append(row)
    return rows, _report(each, envs, cores, facts)


def _report(each: dict[str, float], envs: int, cores: int, facts: dict[str, Any]) -> list[str]:
    """The lines for a person; ``each`` has seconds per step of all environments."""
    own = each["ppo"]
    added, trained = (each[f"ppo + bonus{x}"] / own - 1 for x in ("", ", trained"))
    verdict = "met" if max(added, each["step"] / own) <= AIM else "missed"
    return [
        f"{envs} environments of 84×84 grey frames, PPO's CNN and Φ's alike, float32, "
        f"{cores} BLAS thread(s), torch {facts['torch']}, {facts['cpu']}",
        f"{METHOD}; commit {facts['commit']}",
        "",
        f"PPO alone            {1e3 * own:8.2f} ms a step of all environments, act and train",
        f"  with bonus.step    {1e3 * each['ppo + bonus']:8.2f} ms: {added:+.1%} (aim: at most "
        f"{AIM:.0%}; {verdict})",
        f"  bonus.step alone   {1e3 * each['step']:8.2f} ms: {each['step'] / own:.1%} of PPO's",
        f"  and its training   {1e3 * each['ppo + bonus, trained']:8.2f} ms: {trained:+.1%} (one "
        "update per 128 transitions, the wrapper's default)",
    ]


def _iteration(envs: int, stream: dict[str, int] | None = None) -> Callable[[], None]:
    """One rollout and one training phase of a PPO; ``stream`` None: without the bonus."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.logger import Logger

    from lwm.adapters.sb3 import LWMRewardWrapper

    venv = _frames(envs)
    if stream is not None:
        bonus = Bonus(venv.observation_space, venv.action_space, envs, settle=0)
        bonus.updates = 1  # it shall pay
        venv = LWMRewardWrapper(venv, bonus, stream=stream)
        _filled(venv, envs)
    model = PPO(
        "CnnPolicy",
        venv,
        n_steps=_ROLLOUT,
        n_epochs=_EPOCHS,
        batch_size=min(_BATCH, envs * _ROLLOUT),
        seed=0,
        device="cpu",
    )
    model.set_logger(Logger(None, []))
    _, callback = model._setup_learn(_NEVER)
    assert isinstance(callback, BaseCallback)
    return lambda: _one(model, callback)


def _one(model: PPO, callback: Any) -> None:
    assert model.env is not None
    model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
    model.train()


def _filled(venv: Any, envs: int) -> None:
    """As many rows as a window needs: else nothing would be trained."""
    stream = venv.stream
    wanted, stream.warmup = stream.warmup, _NEVER
    venv.reset()
    for _ in range(stream.length + 1):
        venv.step(np.zeros(envs, np.int64))
    stream.warmup = wanted


def _step(envs: int) -> Callable[[], object]:
    """``bonus.step`` by itself."""
    venv = _frames(envs)
    bonus = Bonus(venv.observation_space, venv.action_space, envs)
    obs, first = venv.reset(), np.zeros(envs, np.bool_)
    action = np.zeros(envs, np.int64)
    return lambda: bonus.step(obs, action, obs, first)


def _frames(envs: int) -> Any:
    """A vector environment of frames made beforehand."""
    from stable_baselines3.common.vec_env import VecEnv

    class Frames(VecEnv):
        """Random frames; episodes of ``_EPISODE`` steps that begin at different times."""

        def __init__(self) -> None:
            super().__init__(envs, spaces.Box(0, 255, (84, 84, 1), np.uint8), spaces.Discrete(6))
            rng = np.random.default_rng(0)
            self.pool = rng.integers(0, 256, (4, envs, 84, 84, 1), np.uint8)
            self.at = np.arange(envs) * (_EPISODE // envs + 1)
            self.steps = 0

        def reset(self) -> Any:
            return self.pool[0]

        def step_async(self, actions: Any) -> None:
            self.steps += 1

        def step_wait(self) -> Any:
            obs = self.pool[self.steps % len(self.pool)]
            over = (self.at + self.steps) % _EPISODE == 0
            infos: list[dict[str, Any]] = [
                {"terminal_observation": obs[i]} if ended else {} for i, ended in enumerate(over)
            ]
            return obs, np.zeros(envs, np.float32), over, infos

        def close(self) -> None:
            pass

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            return [None] * envs

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            pass

        def env_method(self, method_name: str, *args: Any, **kwargs: Any) -> list[Any]:
            return [None] * envs

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            return [False] * envs

    return Frames()
