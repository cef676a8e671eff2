"""No two workers write one run: a claim beside the run directory, with a heartbeat.

The writer's lock (``files.lock``) is an flock.  On one machine, and on file systems that carry it
between machines (NFSv4, CephFS, GPFS, Lustre with ``flock``), it alone is enough.  Some mounts keep
it on each machine for itself; and a node that is cut off from the cluster, but not from the
storage, is dead for Ray and still writes.  Hence ``<run>.claim``: whoever attends a run touches it
every second.  A newcomer watches it first, and stays away while it is touched; so no clocks are
compared.  The run's own process does the same (``child``): one that has lost who attended it goes
on touching until it has ended.  Who finds another's claim in its place has been declared dead: the
run is killed.
"""

from __future__ import annotations

import os
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lwm import files
from lwm.errors import LwmError, RunFailed, RunInUse, reason

BEAT = 1.0
"""Seconds between two touches."""
SILENCE = 4.0
"""Seconds without a touch after which a claim is taken over."""
_LIMIT = 1 << 12


def path_of(run: Path) -> Path:
    """The claim on a run directory."""
    return run.with_name(run.name + ".claim")


def read(run: Path) -> dict[str, Any]:
    """Who attends the run: ``node``, ``attempt``, ``pid``, ``token``; empty if nobody does."""
    with suppress(LwmError):
        return files.read_json(path_of(run), _LIMIT) or {}
    return {}


@dataclass(frozen=True)
class Claim:
    """The right to write a run, as long as ``beat`` says so."""

    run: Path
    token: str

    def beat(self) -> bool:
        """Touch it; False if it is another's by now."""
        try:
            found = files.read_json(path_of(self.run), _LIMIT)
        except LwmError:
            return True  # the storage is away for a moment: the run will notice if it stays away
        if (found or {}).get("token") != self.token:
            return False
        with suppress(OSError):
            os.utime(path_of(self.run))
        return True

    def release(self) -> None:
        """Give it back, if it is still ours."""
        if read(self.run).get("token") == self.token:
            with suppress(OSError):
                path_of(self.run).unlink()


def take(run: Path, node: str, attempt: int) -> Claim:
    """Claim a run; raises RunInUse if somebody attends it or holds its lock."""
    path = path_of(run)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFailed(f"cannot write to {path.parent}: {reason(error)}") from error
    if _touched(path):
        raise RunInUse(f"{run} is in use on node {read(run).get('node', 'unknown')}")
    probe_lock(run)
    claim = Claim(run, secrets.token_hex(8))
    told = {"token": claim.token, "node": node, "attempt": attempt, "pid": os.getpid()}
    files.write_json_atomic(path, told)
    return claim


def probe_lock(run: Path) -> None:
    """Raise RunInUse if a writer holds the lock of the run."""
    if (run / "lock").exists():
        try:
            files.unlock(files.lock(run / "lock", run))
        except OSError as error:
            raise RunFailed(f"cannot write to {run}: {reason(error)}") from error


def _touched(path: Path) -> bool:
    """There is a claim, and it is touched while we look."""
    first = _stamp(path)
    until = time.monotonic() + SILENCE
    while first is not None and time.monotonic() < until:
        time.sleep(BEAT / 4)
        now = _stamp(path)
        if now is None:
            return False
        if now != first:
            return True
    return False


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        # Opening a file makes NFS ask the server; a bare stat may answer from its cache.
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunFailed(f"cannot read {path}: {reason(error)}") from error
    return found.st_mtime_ns, found.st_ino
