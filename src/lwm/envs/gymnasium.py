"""Any Gymnasium environment with discrete actions, many at once, as rows of the time diagram."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from lwm.envs.labyrinth_vector import LabyrinthVectorEnv
from lwm.envs.watchdog import deaf_children, limited
from lwm.errors import BadInput, CheckpointError, LwmError, RunFailed, one_line
from lwm.sections import GymConfig
from lwm.senses import Sense, sense_of
from lwm.types import Step

Result = TypeVar("Result")

_NOT_THE_USERS = [Path(__file__).parents[1]] + [
    Path(module.__file__).parent for module in (os, gym, np) if module.__file__
]
PATIENCE = 300.0
"""Seconds that one call of an environment may take: some build large worlds in a reset."""


class GymEnv:
    """B environments of one id.  They cannot be saved: a resumed run begins new episodes.

    Where environments reset within the step that ends an episode (SAME_STEP), or do not reset
    by themselves (DISABLED), all of them must step together, so the terminal row has its place
    and the first action of the next episode is drawn at random: its first row is the one after.
    """

    def __init__(self, config: GymConfig, seeds: NDArray[np.int64], pictures: bool = False) -> None:
        """``pictures``: ``picture`` will be asked for."""
        self.id = config.env
        self.env = _make(config, len(seeds), pictures)
        self.sense = _sense(self.env, self.id)
        action_space = self.env.single_action_space
        assert isinstance(action_space, spaces.Discrete)
        self.num_envs = len(seeds)
        self.num_actions = int(action_space.n)
        self.obs_shape, self.obs_dtype = self.sense.shape, self.sense.dtype
        self.mode = self.env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._start = int(action_space.start)
        self._seeds = [_short(int(s)) for s in seeds]
        self._random = np.random.default_rng([int(s) for s in seeds])
        self._actions = np.zeros(self.num_envs, np.int64)
        self._failed = False
        self._blank()

    def _blank(self) -> None:
        self._ended = np.zeros(self.num_envs, np.bool_)
        self._cut = False
        self._return = np.zeros(self.num_envs, np.float32)
        self._length = np.zeros(self.num_envs, np.int64)

    def reset(self) -> Step:
        """The first row of every environment, from its own seed."""
        obs = self._begin(self._seeds)
        self._blank()
        return self._first_row(obs)

    def _begin(self, seeds: list[int]) -> Any:
        """Reset all environments, each with its own seed; the vector environments that somebody
        wrote for one id often know only one seed for all."""
        own: Any = seeds
        written = isinstance(self.env, SyncVectorEnv | AsyncVectorEnv | LabyrinthVectorEnv)
        seed = own if written else seeds[0]
        return self._call("reset", lambda: self.env.reset(seed=seed))[0]

    def _first_row(self, obs: Any) -> Step:
        B = self.num_envs
        off, zero = np.zeros(B, np.bool_), np.zeros(B, np.float32)
        length = np.zeros(B, np.int64)
        return Step(
            self._rows(obs), length, zero, ~off, off, zero + 1, zero.copy(), length.copy(), off
        )

    def send(self, actions: NDArray[np.int64]) -> None:
        """Start a step: [B] actions; those of environments about to reset are ignored."""
        self._actions = np.array(actions)
        if self._cut:
            return
        taken = self._actions
        if self.mode != AutoresetMode.NEXT_STEP and self._ended.any():
            drawn = self._random.integers(self.num_actions, size=self.num_envs)
            taken = np.where(self._ended, drawn, taken)
        if self.mode == AutoresetMode.DISABLED and self._ended.any():
            options = {"reset_mask": self._ended.copy()}
            self._call("reset", lambda: self.env.reset(options=options))
        taken = taken + self._start
        step_async = getattr(self.env, "step_async", None)
        self._waits = step_async is not None
        if step_async is not None:
            self._call("step", lambda: step_async(taken))
        else:
            self._taken = taken

    def recv(self) -> Step:
        """The row that follows the actions sent."""
        if self._cut:
            # After a resume: all environments begin anew.
            obs, _ = self._call("reset", lambda: self.env.reset())
            self._blank()
            return self._first_row(obs)
        given = self._call(
            "step",
            lambda: self.env.step_wait() if self._waits else self.env.step(self._taken),  # type: ignore[attr-defined]
        )
        obs, reward, terminated, truncated, info = given
        terminated, truncated = np.asarray(terminated, bool), np.asarray(truncated, bool)
        ended, first = terminated | truncated, self._ended
        rows = self._rows(obs)
        if self.mode == AutoresetMode.SAME_STEP and ended.any():
            self._keep_final(rows, info, ended & ~first)
        elif self.mode == AutoresetMode.DISABLED and (first & ended).any():
            again = {"reset_mask": first & ended}
            begun, _ = self._call("reset", lambda: self.env.reset(options=again))
            rows = np.where(_like(first & ended, rows), self._rows(begun), rows)
        keep = ~first
        r_t = np.where(keep, self._call("step", lambda: _rewards(reward)), np.float32(0))
        self._return = self._return * keep + r_t
        self._length = (self._length + 1) * keep
        # A first row is no last one: what ended within it has begun once more.
        self._ended = ended & keep
        return Step(
            obs=rows,
            a_tm1=self._actions * keep,
            r_t=r_t,
            is_first=first,
            is_last=self._ended,
            discount_t=(~(terminated & keep)).astype(np.float32),
            episode_return=self._return,
            episode_length=self._length,
            episode_end=self._ended,
        )

    def _rows(self, obs: Any) -> NDArray[Any]:
        return np.array(self._call("observe", lambda: self.sense.rows(obs)))

    def _keep_final(
        self, rows: NDArray[Any], info: dict[str, Any], lanes: NDArray[np.bool_]
    ) -> None:
        """Put the final observations of ``lanes`` into their rows."""
        final = info.get("final_obs")
        if final is None and lanes.any():
            raise RunFailed(f"environment {self.id} resets within a step and gives no final_obs")
        for i in np.flatnonzero(lanes):
            assert final is not None
            one = {k: v[i] for k, v in final.items()} if isinstance(final, dict) else final[i]
            rows[i] = self.sense.rows(one)

    def _call(self, what: str, function: Callable[[], Result]) -> Result:
        try:
            with named(self.id, what), limited(PATIENCE):
                return function()
        except BaseException:
            self._failed = True
            raise

    def set_time_limit(self, steps: int) -> None:
        """The limit of such environments is set when they are made."""

    def rest(self, lanes: NDArray[np.int64]) -> None:
        """All environments step together: there is nothing to save."""

    @property
    def ram(self) -> NDArray[np.uint8]:
        """There is none."""
        raise RuntimeError(f"environment {self.id} has no RAM")

    def picture(self) -> NDArray[np.uint8] | None:
        """[H, W, 3] how the first environment draws itself, no side over 160; None if it cannot."""
        if self.env.render_mode != "rgb_array":
            return None
        frames: Any = self._call("render", self.env.render)
        frame: NDArray[Any] = np.asarray(None if frames is None else frames[0])
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
            return None
        return _shrunk(frame)

    def close(self) -> None:
        """Close the environments; after a failure without asking them."""
        if not self._failed:
            self._call("close", self.env.close)
            return
        # A process that hangs or is gone does not answer, and whoever waits for it hangs too.
        processes = getattr(self.env, "processes", ())
        for process in processes:
            process.kill()
            process.join()
        if not processes:
            with suppress(Exception, SystemExit), limited(PATIENCE):
                self.env.close()
        self.env.closed = True

    def get_state(self) -> dict[str, Any]:
        """Which environment it is: how far it has come cannot be saved."""
        return {"gym": self.id, "random": dict(self._random.bit_generator.state)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Begin anew, to be joined to the saved rows by ``rejoin``.

        The new episodes are those of other seeds than the first ones.
        """
        if state.get("gym") != self.id:
            raise CheckpointError(f"cannot go on with environment {self.id}")
        self._random.bit_generator.state = state["random"]
        fresh = [int(s) for s in self._random.integers(2**31, size=self.num_envs)]
        self._begin(fresh)
        self._blank()

    def rejoin(self, step: Step) -> Step:
        """The saved row ``step``, with every episode cut there: the next row begins new ones."""
        self._cut = True
        off = np.zeros(self.num_envs, np.bool_)
        # An episode that has only begun is cut too: its one row is first and last, against the time
        # law, and is never learned from.
        return step._replace(is_last=~off, episode_end=off)


def _short(seed: int) -> int:
    """31 bits, which environments commonly take, of one of our seeds: its upper bits say what it is
    for, so they may not just be cut off."""
    return int(np.random.default_rng([seed, 0]).integers(2**31))


def _sense(env: VectorEnv[Any, Any, Any], name: str) -> Sense:
    """How its observations are seen; BadInput if it cannot be trained on."""
    if not isinstance(env.single_action_space, spaces.Discrete):
        raise BadInput(
            f"{name} has the action space {env.single_action_space}; supported: Discrete"
        )
    try:
        return sense_of(env.single_observation_space)
    except ValueError as e:
        raise BadInput(f"{name}: {e}") from None


def _make(config: GymConfig, count: int, pictures: bool = False) -> VectorEnv[Any, Any, Any]:
    if not config.env:
        raise BadInput("no environment; give --env ID, for example --env CartPole-v1")
    options: dict[str, Any] = {"vectorization_mode": config.vectorization}
    if config.time_limit:
        options["max_episode_steps"] = config.time_limit
    with named(config.env, "make", BadInput), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        if config.env.rpartition(":")[2].startswith(("MiniGrid-", "BabyAI-")):
            _need("minigrid", config.env)
        if pictures and _draws(config.env):
            options["render_mode"] = "rgb_array"
        with deaf_children():
            return gym.make_vec(config.env, count, **options)


def _draws(name: str) -> bool:
    """Whether an environment says that it can be asked for pictures."""
    env = gym.make(name)
    try:
        return "rgb_array" in env.metadata.get("render_modes", [])
    finally:
        env.close()


def _shrunk(frame: NDArray[np.uint8], side: int = 160) -> NDArray[np.uint8]:
    """Means of blocks of k x k pixels, with the least k that makes it small enough."""
    height, width, _ = frame.shape
    k = -(-max(height, width) // side)
    blocks = frame[: height // k * k, : width // k * k].reshape(height // k, k, width // k, k, 3)
    return np.rint(blocks.mean((1, 3))).astype(np.uint8)


def _need(extra: str, name: str) -> None:
    try:
        __import__(extra)
    except ImportError:
        raise BadInput(f"{name} needs the extra {extra}: pip install 'lwm[{extra}]'") from None


@contextmanager
def named(name: str, what: str, kind: type[Exception] = RunFailed) -> Iterator[None]:
    """Errors that a user's environment raises, as one line with its name."""
    try:
        yield
    except LwmError:  # a signal may come here, and says itself what it is
        raise
    except (Exception, SystemExit) as e:  # one that leaves would end the run without a word
        why = f"{type(e).__name__}: {one_line(str(e))}{_place(e)}"
        top = name.partition(":")[0].partition(".")[0]
        if ":" in name and str(e).startswith(f"No module named {top!r}"):
            why += f" (if {top} is in this folder: PYTHONPATH=. lwm ...)"
        raise kind(f"environment {name}, {what}: {why}") from e


def _place(error: BaseException) -> str:
    """Where in the user's code an error was raised; empty if it was in none of it."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        homes = (home for home in _NOT_THE_USERS if home in path.parents)
        others = any("site-packages" not in path.relative_to(home).parts for home in homes)
        if path.suffix == ".py" and not others:
            return f" ({path.name}, line {frame.lineno}, in {frame.name})"
    return ""


def _rewards(given: Any) -> NDArray[np.float32]:
    """Rewards [B]; ValueError if one is no number of float32."""
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and told so
        rewards = np.asarray(given, np.float32)
    if not np.isfinite(rewards).all():
        raise ValueError("expected finite rewards, got NaN or infinity")
    return rewards


def _like(mask: NDArray[np.bool_], rows: NDArray[Any]) -> NDArray[np.bool_]:
    return mask.reshape(-1, *[1] * (rows.ndim - 1))
