"""The parent's side of the Atari workers: start them, give orders, notice if one dies or hangs."""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from lwm.envs.atari_board import FAILED, JOB, REFUSED, SLICE, Board, Line
from lwm.errors import RunFailed

# Until its first sign of life a worker starts an interpreter and loads libraries, maybe from a
# slow disk; later, every game it loads or steps is one.
START_PATIENCE = 60.0


class Refused(Exception):
    """A worker could not do what it was asked, and is well."""


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    line: Line


class Pool:
    """Worker processes, each with its slice of the environments, and the memory they share.

    Args:
        job: what every worker must know: ``rom`` and ``rules``.
        seeds: one per environment; worker w gets the w-th slice.
        workers: how many processes, at least 1.
        patience: seconds without progress after which a worker counts as hung.
    """

    def __init__(
        self, job: dict[str, Any], seeds: NDArray[np.int64], workers: int, patience: float
    ) -> None:
        self._patience = patience
        self._workers: list[_Worker] = []
        self._pending: list[int] = []  # workers that owe an answer
        self._answers: dict[int, tuple[bytes, bytes]] = {}
        self.end = weakref.finalize(self, _end, self._workers, os.getpid())
        memory_fd, self.board = _share(len(seeds), workers)
        first = 0
        try:
            for w, part in enumerate(np.array_split(seeds, workers)):
                own = {"worker": w, "first": first, "seeds": part.tolist(), "parent": os.getpid()}
                self._start(memory_fd, {**job, **own, "envs": len(seeds), "workers": workers})
                first += len(part)
            greetings = self._gather(START_PATIENCE)
        except BaseException:
            self.end()
            raise
        finally:
            os.close(memory_fd)
        self.greeting: Any = json.loads(greetings[0])

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.process.pid for worker in self._workers]

    def order(self, kind: bytes, payloads: list[bytes] | None = None) -> None:
        """Tell all workers what to do, each with its own payload; does not wait for them."""
        if not self.end.alive:
            raise RunFailed("the Atari workers have ended")
        if self._pending or self._answers:
            raise RuntimeError("the answers to the last order were not received")
        for w, worker in enumerate(self._workers):
            self._pending.append(w)
            try:
                worker.line.put(kind, payloads[w] if payloads else b"", self._patience)
            except TimeoutError:
                self._hung(w, self._patience)
            except OSError:
                self._died(w)

    def gather(self) -> list[bytes]:
        """Wait for the answers to the last order; ``Refused`` if a worker could not obey."""
        if not self.end.alive:
            raise RunFailed("the Atari workers have ended")
        return self._gather(self._patience)

    def _gather(self, patience: float) -> list[bytes]:
        # State is kept between calls: an interrupt (Ctrl-C) loses no answer.
        while self._pending:
            w = self._pending[0]
            self._answers[w] = self._answer(w, patience)
            self._pending.pop(0)
        answers, self._answers = self._answers, {}
        for kind, payload in answers.values():
            if kind == REFUSED:
                raise Refused(payload.decode(errors="replace"))
        return [answers[w][1] for w in sorted(answers)]

    def _answer(self, w: int, patience: float) -> tuple[bytes, bytes]:
        progress, waited = int(self.board.progress[w]), 0.0

        def waiting() -> None:
            # Counts slices, not the clock: a parent that was stopped itself blames nobody.
            nonlocal progress, waited
            now = int(self.board.progress[w])
            waited = 0.0 if now != progress else waited + SLICE
            progress = now
            if waited >= patience:
                self._hung(w, patience)

        try:
            kind, payload = self._workers[w].line.get(waiting)
        except EOFError:
            self._died(w)
        if kind == FAILED:
            self._fail(w, f"failed: {payload.decode(errors='replace')}")
        return kind, payload

    def _start(self, memory_fd: int, job: dict[str, Any]) -> None:
        ours, theirs = socket.socketpair()
        one_thread = dict.fromkeys(
            ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
        )
        # The worker finds the same packages as we do, and none by chance in the directory it is in.
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        fds = (theirs.fileno(), memory_fd)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "lwm.envs.atari_worker", *map(str, fds)],
                pass_fds=fds,
                env={**os.environ, **one_thread, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # the terminal's Ctrl-C is for the parent alone
            )
        self._workers.append(_Worker(process, Line(ours)))
        self._pending.append(len(self._workers) - 1)
        try:
            self._workers[-1].line.put(JOB, json.dumps(job).encode(), START_PATIENCE)
        except OSError:
            self._died(len(self._workers) - 1)

    def _died(self, w: int) -> NoReturn:
        try:
            code = self._workers[w].process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            self._fail(w, "closed its socket")
        killed = signal.Signals(-code).name if code < 0 else ""
        self._fail(w, f"was killed by {killed}" if killed else f"ended with exit code {code}")

    def _hung(self, w: int, patience: float) -> NoReturn:
        self._workers[w].process.kill()  # it would not hear a polite request
        self._fail(w, f"made no progress for {patience:g} s")

    def _fail(self, w: int, what: str) -> NoReturn:
        self.end()
        raise RunFailed(f"Atari worker {w + 1} of {len(self._workers)} {what}")


def _share(envs: int, workers: int) -> tuple[int, Board]:
    """A file without a name, which ends with the last process that has it, and its arrays."""
    size = Board(None, envs, workers).size
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("lwm-atari")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd, Board(mmap.mmap(fd, size), envs, workers)


def _end(workers: list[_Worker], owner: int, grace: float = 1.0) -> None:
    """Hang up on the workers, which makes them end; kill those that do not."""
    if os.getpid() != owner:
        return  # a fork of the parent leaves: the workers are not its own
    for worker in workers:
        worker.line.close()
    deadline = time.monotonic() + grace
    for worker in workers:
        try:
            worker.process.wait(max(deadline - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()
