"""One Atari game as rows of the time diagram.

The supplementary's pre-processing: an action is repeated, the last two frames are pooled, a reset
is followed by a random number of no-op frames.  A lost life ends the training episode while the
game goes on; score and time limit are those of the whole game.

Runs in a worker process; needs ale-py.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from ale_py import ALEInterface, ALEState, LoggerMode
from numpy.typing import NDArray

from lwm.envs.atari_board import GO, NEW_GAME, NEW_LIFE, REWARD
from lwm.envs.atari_picture import Camera

NOOP, FIRE = 0, 1

# The picture of a row: that of the row before, the present frame, the last two frames pooled.
SAME, SINGLE, POOLED = range(3)


class Rules(NamedTuple):
    """How games are played: the fields of ``AtariConfig`` that a worker needs, and one more."""

    action_repeat: int
    noop_max: int
    sticky: float
    life_loss_ends: bool
    fire_on_reset: bool
    full_actions: bool
    cut_repeat: bool
    """Where a lost life ends the episode, it also ends the repetition of the action."""


def draw(seed: int, number: int) -> np.random.Generator:
    """The random stream of an environment's game ``number``; 0 is for the emulator's own seed."""
    return np.random.Generator(np.random.PCG64([seed, number]))


def emulator_seed(seed: int) -> int:
    """The emulator's seed (31 bits, positive) of the environment with this seed."""
    return int(draw(seed, 0).integers(1, 2**31))


def load(rom: str | Path, seed: int, sticky: float) -> ALEInterface:
    """An emulator of its own for the environment with this seed; takes about 0.1 s."""
    ALEInterface.setLoggerMode(LoggerMode.Error)
    ale = ALEInterface()
    ale.setInt("random_seed", emulator_seed(seed))
    ale.setFloat("repeat_action_probability", sticky)
    ale.setInt("frame_skip", 1)
    ale.setBool("color_averaging", False)
    ale.setInt("max_num_frames_per_episode", 0)
    ale.loadROM(str(rom))
    return ale


class Game:
    """An emulator and the counters of the game in it."""

    def __init__(self, ale: ALEInterface, seed: int, rules: Rules, camera: Camera) -> None:
        self.ale, self.rules = ale, rules
        legal = ale.getLegalActionSet() if rules.full_actions else ale.getMinimalActionSet()
        self.action_names = [action.name for action in legal]
        self._actions = [action.value for action in legal]
        self._seed, self._camera = seed, camera
        # As the reference wrapper does: FIRE, then the action after it, where FIRE is second.
        has_fire = len(legal) > 2 and self._actions[1] == FIRE
        self._presses = self._actions[1:3] if rules.fire_on_reset and has_fire else []
        self._birth = ale.cloneState(include_rng=True)
        # The last two frames [2, H, W], and the two whose picture was shown last.
        self._screens = np.stack([ale.getScreen()] * 2)
        self._shown, self._drawn = self._screens.copy(), False
        camera.learn(ale, self._screens[1])
        self._number = self._lives = self._limit = self._score = self._length = 0
        self._next, self._view = NEW_GAME, SAME

    def restart(self) -> None:
        """Back to the state after loading: the next step begins game 1 of this seed."""
        self.ale.restoreState(self._birth)
        self._number, self._next = 0, NEW_GAME

    def advance(self, action: int, limit: int) -> tuple[int, ...]:
        """Go to the next row and return its numbers (columns of ``atari_board``).

        On first rows the action (an index) is ignored; ``limit`` is that of a game which begins
        here.
        """
        first = self._next != GO
        reward, terminated = 0, False
        if self._next == NEW_GAME:
            self._begin(limit)
        elif self._next == NEW_LIFE:
            self._press()
        else:
            reward, terminated = self._play(self._actions[action])
        if first:
            self._next = GO
        return (*self._counters(), reward, first, terminated)

    def show(self, out: NDArray[np.uint8]) -> None:
        """Put the row's picture into ``out`` [84, 84], which holds that of the row before.

        Apart from ``advance`` so that a worker can first play all its games, then look at all: to
        take turns costs a tenth of the speed, as each pushes the other out of the cache.
        """
        if self._view == SAME:
            return  # a new life: the picture that ended the old one is shown again
        older, newer = self._screens
        self.ale.getScreen(newer)
        if self._view == SINGLE:
            older[:] = newer
        before = self._shown if self._drawn else None
        if not self._camera.picture(self._screens, before, out):
            self._camera.learn(self.ale, newer)
            self._camera.picture(self._screens, before, out)
        self._screens, self._shown, self._drawn = self._shown, self._screens, True
        self._view = SAME

    def save(self) -> bytes:
        """The emulator, its random generators included."""
        return self.ale.cloneState(include_rng=True).serialize()

    def load(self, blob: bytes, row: list[int]) -> None:
        """Inverse of ``save``, and the numbers of the row at which it was saved."""
        self.ale.restoreState(ALEState(blob))
        self._drawn = False  # the picture is not of screens that were seen here
        self._number, self._next, self._lives, self._limit, self._score, self._length = row[:REWARD]

    def _counters(self) -> tuple[int, ...]:
        return self._number, self._next, self._lives, self._limit, self._score, self._length

    def _begin(self, limit: int) -> None:
        """A new game: reset, 1 to ``noop_max`` raw no-op frames, FIRE where asked for."""
        self._number += 1
        self._limit, self._score, self._length = limit, 0, 0
        self.ale.reset_game()
        most = self.rules.noop_max
        for _ in range(int(draw(self._seed, self._number).integers(1, most + 1)) if most else 0):
            self.ale.act(NOOP)
            if self.ale.game_over():
                self.ale.reset_game()
        self._lives = self.ale.lives()
        self._view = SINGLE
        self._press()

    def _press(self) -> None:
        """Start a life that waits for FIRE; what it pays is score, but no agent's reward.

        A game that ends here is not reset: the next step finds it over.
        """
        for button in self._presses:
            self._score += self._repeat(button)
            self._length += 1
            self._lives = self.ale.lives()

    def _play(self, action: int) -> tuple[int, bool]:
        """One agent step: its reward, and whether the training episode terminated."""
        reward = self._repeat(action)
        self._score += reward
        self._length += 1
        over, lives = self.ale.game_over(), self.ale.lives()
        # Not `lives > 0`: in Frogger, Donkey Kong and others 0 means that the last life is played.
        lost = self.rules.life_loss_ends and lives < self._lives and not over
        self._lives = lives
        if over or self._length >= self._limit:
            self._next = NEW_GAME
        elif lost:
            self._next = NEW_LIFE
        return reward, over or lost

    def _repeat(self, action: int) -> int:
        """Play ``action`` for as many frames as it is repeated; the sum of its rewards."""
        ale, rules = self.ale, self.rules
        cut = rules.life_loss_ends and rules.cut_repeat
        reward = 0
        for left in range(rules.action_repeat - 1, -1, -1):
            reward += ale.act(action)
            if left == 0 or ale.game_over() or (cut and ale.lives() < self._lives):
                break
            if left == 1:
                self._keep_older()
        # A repetition that was cut short never came to the last two frames: show the one there is.
        self._view = POOLED if left == 0 and rules.action_repeat > 1 else SINGLE
        return reward

    def _keep_older(self) -> None:
        """Keep the frame before the last; its colours must be learned while it is shown."""
        older = self._screens[0]
        self.ale.getScreen(older)
        if not self._camera.knows(older):
            self._camera.learn(self.ale, older)
