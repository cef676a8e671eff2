"""A worker process: steps its slice of the games into shared memory, on orders from a socket.

The parent may hold threads (torch), so a worker is a fresh interpreter and loads only NumPy and
ale-py.  It ends when its parent does, and leaves signals to the parent.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import sys
from typing import Any

from lwm.envs.atari_board import (
    DONE,
    FAILED,
    LOAD,
    REFUSED,
    RESET,
    SAVE,
    Board,
    Line,
    pack,
    unpack,
)
from lwm.envs.atari_game import Game, Rules, load
from lwm.envs.atari_picture import Camera


class Worker:
    """The games from ``first`` on, one per seed, and their places on the board."""

    def __init__(self, board: Board, job: dict[str, Any]) -> None:
        self._board, self._number, self._first = board, int(job["worker"]), int(job["first"])
        self._parent = int(job["parent"])
        rules = Rules(**job["rules"])
        self._games: list[Game] = []
        camera: Camera | None = None
        for seed in job["seeds"]:
            ale = load(job["rom"], seed, rules.sticky)
            camera = camera or Camera(*ale.getScreenDims())
            self._games.append(Game(ale, seed, rules, camera))
            self._finished_one()
            self.check_parent()  # loading many games takes seconds

    @property
    def greeting(self) -> bytes:
        """What the parent wants to know of the game: the names of its actions."""
        return json.dumps(self._games[0].action_names).encode()

    def obey(self, order: bytes, payload: bytes) -> bytes:
        """Do what the parent asks; the answer's payload."""
        if order == SAVE:
            return pack([game.save() for game in self._games])
        if order == LOAD:
            for i, (game, blob) in enumerate(zip(self._games, unpack(payload), strict=True)):
                game.load(blob, self._board.rows[self._first + i].tolist())
                self._finished_one()
            return b""
        if order == RESET:
            for game in self._games:
                game.restart()
        self._step()
        return b""

    def check_parent(self) -> None:
        """EOFError when the parent is gone, even if something else holds its end of the socket."""
        if os.getppid() != self._parent:
            raise EOFError

    def _step(self) -> None:
        board, limit = self._board, int(self._board.limit[0])
        actions = board.actions[self._first : self._first + len(self._games)].tolist()
        resting = board.resting[self._first : self._first + len(self._games)].tolist()
        played = [(i, game) for i, game in enumerate(self._games) if not resting[i]]
        for i, game in played:
            board.rows[self._first + i] = game.advance(actions[i], limit)
            game.ale.getRAM(board.ram[self._first + i])
            self._finished_one()
        for i, game in played:
            game.show(board.obs[self._first + i])

    def _finished_one(self) -> None:
        self._board.progress[self._number] += 1


def serve(line: Line, memory_fd: int) -> None:
    """Take the job, load the games, then obey until the parent hangs up."""
    _, payload = line.get(lambda: None)
    job = json.loads(payload)
    size = Board(None, job["envs"], job["workers"]).size
    board = Board(mmap.mmap(memory_fd, size), job["envs"], job["workers"])
    worker = Worker(board, job)
    line.put(DONE, worker.greeting)
    while True:
        order, payload = line.get(worker.check_parent)
        try:
            answer = worker.obey(order, payload)
        except (SystemError, RuntimeError, ValueError, MemoryError) as error:
            if order != LOAD:
                raise
            # A state that the emulator cannot read is the file's fault, and the worker is well.
            line.put(REFUSED, f"{type(error).__name__}: {error}".encode())
        else:
            line.put(DONE, answer)


def main() -> None:
    """``python -m lwm.envs.atari_worker <socket> <memory>``: both are inherited descriptors."""
    # Whoever stops a run signals the whole group; the parent may still need us for a checkpoint.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    line = Line(socket.socket(fileno=int(sys.argv[1])))
    try:
        serve(line, int(sys.argv[2]))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent is gone: nobody to tell
    except Exception as error:
        line.put(FAILED, f"{type(error).__name__}: {error}".encode())


if __name__ == "__main__":
    main()
