"""Atari games in ale-py's own C++ threads: the optional backend for machines with many cores.

The same rows as ``AtariEnv``, with four differences.  Pictures are made grey before they are pooled
(0.02 to 0.9 % of the pixels are off by more than one grey level, by game); a reset plays 0 to
``noop_max`` - 1 no-ops; the console's memory cannot be seen; and a game cannot be saved, so that a
resumed run begins new ones.

Every game is a vector environment of one, with a thread of its own: a batch of ``AtariVectorEnv``
can only be stepped as a whole, while a game that lost a life must wait for a row (the picture is
shown again, the emulator does not move).  Lives are compared here: neither of the library's
switches will do, as one resets the whole game, and the other tells a lost life from a game's end
only by a count that is 0 during the last life of some games.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lwm.envs.atari import check_actions, rom_of
from lwm.envs.atari_board import GO, NEW_GAME, NEW_LIFE
from lwm.envs.atari_picture import SIZE
from lwm.errors import CheckpointError
from lwm.sections import AtariConfig
from lwm.types import Step

NAME = "ale-vector"
_NEVER = 10**9  # frames: the time limit is kept here, in agent steps


class AleVectorEnv:
    """B environments of one game, each in a thread of ale-py's.

    Args:
        config: the game and its pre-processing.
        seeds: [B] one per environment, not negative.
    """

    obs_shape: tuple[int, ...] = (SIZE, SIZE)
    obs_dtype = np.dtype(np.uint8)

    def __init__(self, config: AtariConfig, seeds: NDArray[np.int64]) -> None:
        rom_of(config.game)
        from ale_py.vector_env import AtariVectorEnv

        from lwm.envs.atari_game import emulator_seed

        self.num_envs = B = len(seeds)
        self.game = config.game
        self._games = [
            AtariVectorEnv(
                config.game,
                num_envs=1,
                num_threads=1,
                max_num_frames_per_episode=_NEVER,
                repeat_action_probability=config.sticky,
                full_action_space=config.full_actions,
                img_height=SIZE,
                img_width=SIZE,
                stack_num=1,
                frameskip=config.action_repeat,
                maxpool=config.action_repeat > 1,
                noop_max=config.noop_max,
                reward_clipping=False,
                use_fire_reset=False,
            )
            for _ in range(B)
        ]
        actions = self._games[0].ale.get_action_set()
        self.action_names: tuple[str, ...] = tuple(action.name for action in actions)
        self.num_actions = len(self.action_names)
        self._seeds = [np.array([emulator_seed(int(seed))]) for seed in seeds]
        self._ends = config.life_loss_ends
        self._limit = config.time_limit
        self._ready = False
        # What the next step of each game does, and whether its emulator is over or was cut.
        self._next = np.full(B, NEW_GAME)
        self._over = np.zeros(B, np.bool_)
        self._lives, self._limits, self._length = np.zeros((3, B), np.int64)
        self._score = np.zeros(B, np.float32)
        self._obs = np.zeros((B, SIZE, SIZE), np.uint8)
        self._actions = np.zeros(B, np.int64)

    @property
    def ram(self) -> NDArray[np.uint8]:
        """Not to be had."""
        raise RuntimeError(f"atari.backend={NAME} does not show the console's memory")

    def reset(self) -> Step:
        """The first row of every environment: game 1 of its seed, however often this is called."""
        for i in range(self.num_envs):
            self._first(i, *self._games[i].reset(seed=self._seeds[i]))
        return self._row(np.ones(self.num_envs, np.bool_))

    def set_time_limit(self, steps: int) -> None:
        """Truncate games that begin with the actions sent from now on after so many agent steps."""
        if steps < 1:
            raise ValueError(f"a time limit is at least 1 step, not {steps}")
        self._limit = int(steps)

    def rest(self, lanes: NDArray[np.int64]) -> None:
        """No game can rest here: all are played on, and nobody looks."""

    def send(self, actions: NDArray[np.int64]) -> None:
        """Start a step: [B] indices of actions; those of games about to begin are ignored."""
        chosen = check_actions(actions, self.num_envs, self.num_actions, self.game)
        self._check_ready()
        self._ready = False
        self._actions[:] = chosen
        for i in np.flatnonzero((self._next == GO) | self._over):
            self._games[i].send(self._actions[i : i + 1])  # a game that is over resets itself

    def recv(self) -> Step:
        """The row that follows the actions sent.  Its arrays are the caller's own."""
        B = self.num_envs
        first = self._next != GO
        reward, terminated = np.zeros(B, np.float32), np.zeros(B, np.bool_)
        for i in range(B):
            if self._next[i] == NEW_LIFE:
                self._next[i] = GO  # the same picture again
            elif self._over[i]:
                obs, _, _, _, info = self._games[i].recv()
                self._first(i, obs, info)
            elif self._next[i] == NEW_GAME:  # cut by the time limit
                self._first(i, *self._games[i].reset())
            else:
                reward[i], terminated[i] = self._played(i)
        return self._row(first, reward, terminated)

    def _first(self, i: int, obs: NDArray[np.uint8], info: dict[str, Any]) -> None:
        """Game ``i`` begins."""
        self._obs[i] = obs[0, 0]
        self._lives[i] = info["lives"][0]
        self._limits[i], self._length[i], self._score[i] = self._limit, 0, 0
        self._next[i], self._over[i] = GO, False

    def _played(self, i: int) -> tuple[float, bool]:
        """One agent step of game ``i``: its reward, and whether the training episode terminated."""
        obs, rewards, terminated, _, info = self._games[i].recv()
        reward, over, lives = float(rewards[0]), bool(terminated[0]), int(info["lives"][0])
        lost = self._ends and lives < self._lives[i] and not over
        self._obs[i], self._lives[i] = obs[0, 0], lives
        self._score[i] += reward
        self._length[i] += 1
        self._over[i] = over
        if over or self._length[i] >= self._limits[i]:
            self._next[i] = NEW_GAME
        elif lost:
            self._next[i] = NEW_LIFE
        return reward, over or bool(lost)

    def _row(
        self,
        first: NDArray[np.bool_],
        reward: NDArray[np.float32] | None = None,
        terminated: NDArray[np.bool_] | None = None,
    ) -> Step:
        self._ready = True
        zero = np.zeros(self.num_envs, np.float32)
        return Step(
            obs=self._obs.copy(),
            a_tm1=self._actions * ~first,
            r_t=zero if reward is None else reward,
            is_first=first,
            is_last=self._next != GO,
            discount_t=zero + 1 if terminated is None else (~terminated).astype(np.float32),
            episode_return=self._score.copy(),
            episode_length=self._length.copy(),
            episode_end=self._next == NEW_GAME,
        )

    def get_state(self) -> dict[str, Any]:
        """Which game it is: how far it has come cannot be saved."""
        self._check_ready()
        return {"backend": NAME, "game": self.game, "time_limit": self._limit}

    def set_state(self, state: dict[str, Any]) -> None:
        """Begin new games, to be joined to the saved rows by ``rejoin``."""
        if (state.get("backend"), state.get("game")) != (NAME, self.game):
            raise CheckpointError(f"cannot go on with {self.game} by atari.backend={NAME}")
        self._limit = int(state["time_limit"])
        self.reset()

    def rejoin(self, step: Step) -> Step:
        """The saved row ``step`` with the new games behind it, as the time law has it.

        An episode under way is cut: its row becomes the last one, without termination.  One that
        was about to begin begins with the new game's picture.
        """
        self._check_ready()
        begun = step.is_first
        self._next[~begun] = NEW_LIFE  # the new game's first row, next
        return step._replace(
            obs=np.where(begun[:, None, None], self._obs, step.obs),
            is_last=~begun,
            episode_return=step.episode_return * ~begun,
            episode_length=step.episode_length * ~begun,
        )

    def _check_ready(self) -> None:
        if not self._ready:
            raise RuntimeError("this needs a whole row: after reset or recv, before send")

    def close(self) -> None:
        """End the threads."""
        for game in self._games:
            game.close()
