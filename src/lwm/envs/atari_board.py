"""What the Atari workers and their parent share: the layout of the memory, the form of a message.

Imports neither ale-py nor anything of the method: both sides load it first.
"""

from __future__ import annotations

import mmap
import socket
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lwm.envs.atari_picture import SIZE

RAM = 128

# What the next step of a game does: play on, show the same picture again as a first row, reset.
GO, NEW_LIFE, NEW_GAME = range(3)

# Columns of a game's row of numbers; the first six, with the emulator, are its whole state.
NUMBER, NEXT, LIVES, LIMIT, SCORE, LENGTH, REWARD, FIRST, TERMINATED, COLUMNS = range(10)

SLICE = 0.25  # seconds between looks at whether the other side still lives

# Orders; and answers: as asked, not possible, and the worker's last words.
JOB, RESET, STEP, SAVE, LOAD, DONE, REFUSED, FAILED = (bytes([i]) for i in range(8))
_HEADER = struct.Struct("<cI")


class Board:
    """The shared memory as arrays; B environments, W workers.

    ``rows`` [B, COLUMNS], ``obs`` [B, 84, 84], ``ram`` [B, 128]: the latest row, written by the
    workers; ``actions`` [B] indices, ``limit`` [1] and ``resting`` [B], 1 where a game is not to be
    played on, written by the parent; ``progress`` [W] counts what a worker has finished.
    """

    def __init__(self, memory: mmap.mmap | None, envs: int, workers: int) -> None:
        layout: list[tuple[str, Any, tuple[int, ...]]] = [
            ("rows", np.int64, (envs, COLUMNS)),
            ("actions", np.int64, (envs,)),
            ("limit", np.int64, (1,)),
            ("progress", np.int64, (workers,)),
            ("resting", np.int64, (envs,)),
            ("obs", np.uint8, (envs, SIZE, SIZE)),
            ("ram", np.uint8, (envs, RAM)),
        ]
        arrays, offset = {}, 0
        for name, kind, shape in layout:
            size = int(np.prod(shape)) * np.dtype(kind).itemsize
            if memory is not None:
                arrays[name] = np.frombuffer(memory, np.uint8, size, offset).view(kind)
                arrays[name].shape = shape
            offset += size
        self.size = offset
        if memory is not None:
            self.rows: NDArray[np.int64] = arrays["rows"]
            self.actions: NDArray[np.int64] = arrays["actions"]
            self.limit: NDArray[np.int64] = arrays["limit"]
            self.progress: NDArray[np.int64] = arrays["progress"]
            self.resting: NDArray[np.int64] = arrays["resting"]
            self.obs: NDArray[np.uint8] = arrays["obs"]
            self.ram: NDArray[np.uint8] = arrays["ram"]


class Line:
    """Whole messages over one end of a socket pair."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._inbox = bytearray()  # survives an interrupted ``get``

    def put(self, kind: bytes, payload: bytes = b"", patience: float = 60.0) -> None:
        """Send; blocks only while a long payload is not being read."""
        self._socket.settimeout(patience)
        self._socket.sendall(_HEADER.pack(kind, len(payload)) + payload)

    def get(self, waiting: Callable[[], None]) -> tuple[bytes, bytes]:
        """The next message; EOFError if the other side is gone.

        ``waiting`` is called after every ``SLICE`` seconds of silence and may raise.
        """
        kind, length = _HEADER.unpack(self._first(_HEADER.size, waiting))
        whole = self._first(_HEADER.size + length, waiting)
        del self._inbox[: len(whole)]
        return kind, whole[_HEADER.size :]

    def close(self) -> None:
        """Hang up: the other side reads an end of file."""
        self._socket.close()

    def _first(self, size: int, waiting: Callable[[], None]) -> bytes:
        self._socket.settimeout(SLICE)
        while len(self._inbox) < size:
            try:
                part = self._socket.recv(1 << 20)
            except TimeoutError:
                waiting()
                continue
            except ConnectionError:
                part = b""
            if not part:
                raise EOFError
            self._inbox += part
        return bytes(self._inbox[:size])


def pack(blobs: list[bytes]) -> bytes:
    """Byte strings in one: their number, their lengths, themselves."""
    return np.array([len(blobs), *map(len, blobs)], "<i8").tobytes() + b"".join(blobs)


def unpack(payload: bytes) -> list[bytes]:
    """Inverse of ``pack``."""
    count = int(np.frombuffer(payload, "<i8", 1)[0])
    start, blobs = 8 * (count + 1), []
    for length in np.frombuffer(payload, "<i8", count, 8).tolist():
        blobs.append(payload[start : start + length])
        start += length
    return blobs
