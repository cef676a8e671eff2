"""Rounds that a person plays: each is a process of its own (``lwm.playing``), asked line by line.

The only thing that the viewer writes is here: trajectories, below DIR/trajectories.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from lwm.errors import BadInput, RunFailed, reason
from lwm.files import write_json_atomic

MOST = 3
"""Rounds at a time: each holds a run's networks."""
IDLE_SECONDS = 900
START_SECONDS, STEP_SECONDS = 180, 60
FOLDER = "trajectories"
_MAX_LINE = 1 << 20


class Round:
    """One process and its pipes."""

    def __init__(self, run: Path, game: str) -> None:
        # -P: nothing is imported by chance from the directory that the viewer was started in.
        command = [sys.executable, "-P", "-m", "lwm.playing", str(run), *([game] if game else [])]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.used = time.monotonic()
        self._rest = b""
        self._lock = threading.Lock()

    def hear(self, seconds: float) -> dict[str, Any]:
        """The next line; ``BadInput`` with what the process says is wrong."""
        assert self.process.stdout is not None
        descriptor, until = self.process.stdout.fileno(), time.monotonic() + seconds
        while b"\n" not in self._rest:
            left = until - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise RunFailed("the game does not answer")
            data = os.read(descriptor, 1 << 16)
            if not data or len(self._rest) > _MAX_LINE:
                raise RunFailed("the game has ended")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        told: dict[str, Any] = json.loads(line)
        if "error" in told:
            raise BadInput(str(told["error"]))
        return told

    def ask(self, document: dict[str, Any]) -> dict[str, Any]:
        """Say one line and hear one."""
        with self._lock:
            self.used = time.monotonic()
            assert self.process.stdin is not None
            try:
                self.process.stdin.write(json.dumps(document).encode() + b"\n")
                self.process.stdin.flush()
            except OSError:
                raise RunFailed("the game has ended") from None
            return self.hear(STEP_SECONDS)

    def close(self) -> None:
        """End the process, and wait until it has."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        try:
            self.process.wait(3)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Rounds:
    """All rounds of a server."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._open: dict[str, tuple[Round, str]] = {}
        self._lock = threading.Lock()

    def start(self, run: Path, game: Any) -> dict[str, Any]:
        """Begin one; what it says first, and the name under which it is asked."""
        if not isinstance(game, str) or len(game) > 64 or not game.replace("_", "a").isalnum():
            if game:
                raise BadInput("there is no such game")
            game = ""
        with self._lock:
            for name, (old, _) in list(self._open.items()):
                if time.monotonic() - old.used > IDLE_SECONDS or old.process.poll() is not None:
                    self._open.pop(name)[0].close()
            if len(self._open) >= MOST:
                raise BadInput(f"{MOST} games are played already: leave one first")
            made, name = Round(run, game), secrets.token_urlsafe(12)
            self._open[name] = (made, "")
        try:
            hello = made.hear(START_SECONDS)
        except BaseException:
            self.leave(name)
            raise
        self._open[name] = (made, str(hello.get("game") or "labyrinth"))
        return {"session": name, **hello}

    def step(self, session: Any, action: Any) -> dict[str, Any]:
        """Take a step."""
        if type(action) is not int:
            raise BadInput("there is no such action")
        return self._find(session)[0].ask({"action": action})

    def save(self, session: Any) -> dict[str, Any]:
        """Write the trajectory so far to a new file below DIR/trajectories."""
        played, game = self._find(session)
        document = played.ask({"save": True})
        folder = self.root / FOLDER
        if folder.is_symlink():
            raise BadInput(f"{FOLDER} is a link: nothing is written through it")
        try:
            folder.mkdir(exist_ok=True)
            with self._lock:
                number = 0
                while (path := folder / f"{game}-{number:04d}.json").exists():
                    number += 1
                write_json_atomic(path, document)
        except OSError as error:
            raise RunFailed(f"cannot write to {FOLDER}: {reason(error)}") from error
        steps = sum(count for _, count in document["actions"])
        fits = document.get("end") is not None
        return {"file": f"{FOLDER}/{path.name}", "steps": steps, "figure3": fits}

    def leave(self, session: Any) -> dict[str, Any]:
        """End a round."""
        with self._lock:
            found = self._open.pop(session, None) if isinstance(session, str) else None
        if found is not None:
            found[0].close()
        return {}

    def close(self) -> None:
        """End them all."""
        for name in list(self._open):
            self.leave(name)

    def _find(self, session: Any) -> tuple[Round, str]:
        found = self._open.get(session) if isinstance(session, str) else None
        if found is None:
            raise BadInput("this game is over: start it again")
        return found
