"""Many Atari games at once as rows of the time diagram, stepped by worker processes.

The same interface as ``RowEnv``: ``reset`` -> row, ``send`` actions, ``recv`` -> row, ``get_state``
/ ``set_state``.  The pre-processing is the supplementary's (``atari_game``, ``atari_picture``).  An
environment depends on its own seed alone, so the number of workers changes no bit of any row.
ale-py is optional and loaded only when a game is asked for.
"""

from __future__ import annotations

import os
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lwm.envs.atari_board import (
    FIRST,
    LENGTH,
    LOAD,
    NEW_GAME,
    NEXT,
    RESET,
    REWARD,
    SAVE,
    SCORE,
    STEP,
    TERMINATED,
    pack,
    unpack,
)
from lwm.envs.atari_picture import SIZE
from lwm.envs.atari_pool import Pool, Refused
from lwm.errors import BadInput, CheckpointError
from lwm.sections import AtariConfig
from lwm.settings import hint
from lwm.types import Step

PATIENCE = 4.0  # with time to spare, a hung worker is reported within 5 s


def games() -> list[str]:
    """Names of the games that can be played here, as ale-py spells them."""
    return sorted(_roms())


def _roms() -> dict[str, Path]:
    """The file of each game; ale-py also ships a few that only its multi-player fork can run."""
    try:
        from ale_py import ALEInterface, LoggerMode, roms
    except ImportError:
        raise BadInput("Atari games need the extra: pip install 'lwm[atari]'") from None
    ALEInterface.setLoggerMode(LoggerMode.Error)
    folder = Path(os.environ.get("ALE_ROMS_DIR") or Path(roms.__file__).parent)
    files = {name: folder / f"{name}.bin" for name in roms.get_all_rom_ids()}
    return {
        name: file
        for name, file in files.items()
        if file.is_file() and ALEInterface.isSupportedROM(file) is not None
    }


def rom_of(game: str) -> str:
    """Path of a game's file; ``BadInput`` for a name that is not there."""
    found = _roms()
    if game not in found:
        snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", game).lower()  # others write MsPacman
        raise BadInput(f"unknown game {game!r}{hint(snake, sorted(found))}")
    return str(found[game])


def check_actions(
    actions: NDArray[np.int64], envs: int, num_actions: int, game: str
) -> NDArray[np.integer]:
    """[B] indices of actions; ``BadInput`` for what is none."""
    chosen = np.asarray(actions)
    if chosen.shape != (envs,) or chosen.dtype.kind not in "iu":
        raise BadInput(
            f"actions must be {envs} integers, not {chosen.dtype} of shape {chosen.shape}"
        )
    wrong = np.flatnonzero((chosen < 0) | (chosen >= num_actions))
    if wrong.size:
        raise BadInput(
            f"action {chosen[wrong[0]]} of environment {wrong[0]} is not one of the "
            f"{num_actions} of {game}: 0 to {num_actions - 1}"
        )
    return chosen


class AtariEnv:
    """B environments of one game.

    Args:
        config: the game and its pre-processing; ``workers`` processes step the games.
        seeds: [B] one per environment, not negative.
        ram: whether ``ram`` may be asked for.
        cut_repeat: a lost life that ends the training episode also ends the repetition of the
            action, as in Gymnasium's wrapper.  The released code plays all the frames.
        patience: seconds without progress after which a worker counts as hung.
    """

    obs_shape: tuple[int, ...] = (SIZE, SIZE)
    obs_dtype = np.dtype(np.uint8)

    def __init__(
        self,
        config: AtariConfig,
        seeds: NDArray[np.int64],
        ram: bool = False,
        *,
        cut_repeat: bool = False,
        patience: float = PATIENCE,
    ) -> None:
        if len(seeds) == 0 or np.min(seeds) < 0:
            raise ValueError(f"one seed per environment, none negative: not {seeds}")
        self.num_envs = len(seeds)
        self.game = config.game
        rules = {
            "action_repeat": config.action_repeat,
            "noop_max": config.noop_max,
            "sticky": config.sticky,
            "life_loss_ends": config.life_loss_ends,
            "fire_on_reset": config.fire_on_reset,
            "full_actions": config.full_actions,
            "cut_repeat": cut_repeat,
        }
        workers = min(config.workers or len(os.sched_getaffinity(0)), self.num_envs)
        self._with_ram = ram
        self._limit = config.time_limit
        self._ready = False  # a row was received, no actions are under way
        job = {"rom": rom_of(config.game), "rules": rules}
        self._pool = Pool(job, np.asarray(seeds, np.int64), workers, patience)
        self._board = self._pool.board
        self.action_names: tuple[str, ...] = tuple(self._pool.greeting)
        self.num_actions = len(self.action_names)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return self._pool.pids

    @property
    def ram(self) -> NDArray[np.uint8]:
        """[B, 128] memory of the console at the latest row."""
        if not self._with_ram:
            raise RuntimeError("AtariEnv was made without ram=True")
        self._check_ready()
        return self._board.ram.copy()

    def reset(self) -> Step:
        """The first row of every environment: game 1 of its seed, however often this is called."""
        self._ready = False
        self._board.limit[0] = self._limit
        self._board.actions[:] = 0
        self._board.resting[:] = 0
        self._pool.order(RESET)
        return self.recv()

    def set_time_limit(self, steps: int) -> None:
        """Truncate games that begin with the actions sent from now on after so many agent steps."""
        if steps < 1:
            raise ValueError(f"a time limit is at least 1 step, not {steps}")
        self._limit = int(steps)

    def rest(self, lanes: NDArray[np.int64]) -> None:
        """Play these games no further, until ``reset``: their rows stay as they are."""
        self._check_ready()
        self._board.resting[lanes] = 1

    def send(self, actions: NDArray[np.int64]) -> None:
        """Start a step: [B] indices of actions; those of environments about to reset are ignored.

        Returns at once; the workers step while the caller does something else.
        """
        chosen = check_actions(actions, self.num_envs, self.num_actions, self.game)
        self._check_ready()
        self._ready = False
        self._board.limit[0] = self._limit
        self._board.actions[:] = chosen
        self._pool.order(STEP)

    def recv(self) -> Step:
        """The row that follows the actions sent.  Its arrays are the caller's own."""
        self._pool.gather()
        self._ready = True
        row = self._board.rows
        first = row[:, FIRST] > 0
        return Step(
            obs=self._board.obs.copy(),
            a_tm1=self._board.actions * ~first,
            r_t=row[:, REWARD].astype(np.float32),
            is_first=first,
            is_last=row[:, NEXT] > 0,
            discount_t=(row[:, TERMINATED] == 0).astype(np.float32),
            episode_return=row[:, SCORE].astype(np.float32),
            episode_length=row[:, LENGTH].copy(),
            episode_end=row[:, NEXT] == NEW_GAME,
        )

    def get_state(self) -> dict[str, Any]:
        """Emulators, counters and the latest pictures between ``recv`` and ``send``."""
        self._check_ready()
        self._pool.order(SAVE)
        blobs = [blob for part in self._pool.gather() for blob in unpack(part)]
        return {
            "game": self.game,
            "time_limit": self._limit,
            "emulators": np.frombuffer(b"".join(blobs), np.uint8).copy(),
            "lengths": np.array([len(blob) for blob in blobs], np.int64),
            "checksums": np.array([zlib.crc32(blob) for blob in blobs], np.int64),
            "rows": self._board.rows.copy(),
            "obs": self._board.obs.copy(),
            "ram": self._board.ram.copy(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Inverse of ``get_state``, for the same game and number of environments."""
        blobs = self._checked(state)
        for name in ("rows", "obs", "ram"):
            getattr(self._board, name)[:] = state[name]
        parts = np.array_split(np.arange(self.num_envs), len(self._pool.pids))
        self._ready = False
        self._pool.order(LOAD, [pack([blobs[i] for i in part]) for part in parts])
        try:
            self._pool.gather()
        except Refused as error:
            raise CheckpointError(f"ale-py cannot read the saved Atari games: {error}") from None
        self._limit = int(state["time_limit"])
        self._ready = True

    def rejoin(self, step: Step) -> Step:
        """The saved row ``step``: these games go on from it."""
        return step

    def _checked(self, state: dict[str, Any]) -> list[bytes]:
        """The saved emulators, whole and of this game; ``CheckpointError`` otherwise."""
        try:
            if state["game"] != self.game:
                raise ValueError(f"they are of {state['game']!r}, not of {self.game!r}")
            for name in ("rows", "obs", "ram"):
                mine, theirs = getattr(self._board, name), state[name]
                if (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype):
                    raise ValueError(f"{name} is {theirs.dtype} {theirs.shape}, not {mine.shape}")
            if int(state["time_limit"]) < 1:
                raise ValueError("the time limit is below 1")
            whole, lengths = state["emulators"].tobytes(), state["lengths"].tolist()
            if len(lengths) != self.num_envs or min(lengths) < 0 or sum(lengths) != len(whole):
                raise ValueError("their lengths do not fit")
            ends = np.cumsum(lengths).tolist()
            blobs = [whole[end - size : end] for end, size in zip(ends, lengths, strict=True)]
            if [zlib.crc32(blob) for blob in blobs] != state["checksums"].tolist():
                raise ValueError("they are damaged")
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else error
            raise CheckpointError(f"cannot restore the Atari games: {what}") from None
        return blobs

    def _check_ready(self) -> None:
        if not self._ready:
            raise RuntimeError("this needs a whole row: after reset or recv, before send")

    def close(self) -> None:
        """End the workers; also happens when the environment is dropped or the process ends."""
        self._pool.end()

    def __enter__(self) -> AtariEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
