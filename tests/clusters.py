"""A real Ray cluster on one machine: every node is a raylet with processes of its own."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PATIENCE = 120.0


def wait_for(what: str, condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"no {what} within {seconds:.0f} s"
        time.sleep(0.05)


def descendants(pid: int) -> list[int]:
    """Processes below ``pid``, by /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError, ValueError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, ahead = [], [pid]
    while ahead:
        below = children.get(ahead.pop(), [])
        found += below
        ahead += below
    return found


def kill_tree(pid: int) -> None:
    """What a power cut does: every process of a node at once."""
    for process in [pid, *descendants(pid)]:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


class Cluster:
    """A head that runs nothing, and nodes of one core each."""

    def __init__(self, nodes: int, folder: Path) -> None:
        self._folder = folder
        self._started: list[subprocess.Popen[bytes]] = []
        # The cluster's own password, made here and known to nobody else.
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self.environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", **token}
        port = _free_port()
        self.address = f"127.0.0.1:{port}"
        try:
            head = ("--head", f"--port={port}", "--num-cpus=0", "--include-dashboard=false")
            self._start(*head)
            for _ in range(nodes):
                self.add_node()
        except BaseException:
            self.close()
            raise

    def add_node(self) -> subprocess.Popen[bytes]:
        """One more node; killing its tree is a power cut."""
        return self._start(f"--address={self.address}", "--num-cpus=1")

    @property
    def nodes(self) -> list[subprocess.Popen[bytes]]:
        """All nodes but the head."""
        return self._started[1:]

    def _start(self, *flags: str) -> subprocess.Popen[bytes]:
        log = self._folder / f"node{len(self._started)}.log"
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
        with open(log, "wb") as file:
            process = subprocess.Popen(
                [*ray, *flags, "--disable-usage-stats", "--object-store-memory=80000000"],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._started.append(process)
        wait_for(f"node (see {log})", lambda: b"Ray runtime started" in log.read_bytes())
        return process

    def close(self) -> None:
        """End every process that was started."""
        for process in reversed(self._started):
            kill_tree(process.pid)
            process.wait()


@contextmanager
def cluster(nodes: int, folder: Path) -> Iterator[Cluster]:
    """A cluster of so many nodes besides its head, inside the block."""
    made = Cluster(nodes, folder)
    try:
        yield made
    finally:
        made.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
