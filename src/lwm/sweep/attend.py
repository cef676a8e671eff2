"""On a node: watch over one run, which is a process of its own, and say how it ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lwm import __version__
from lwm.errors import LwmError, RunInUse, reason
from lwm.experiments import runner
from lwm.experiments.runner import Job
from lwm.sweep import fence

_POLL = 0.2
_STOP_PATIENCE = 45.0
"""Seconds that a run has for its checkpoint when it is asked to stop."""
ASKED = {128 + signal.SIGINT, 128 + signal.SIGTERM}


@dataclass(frozen=True)
class Ended:
    """How an attempt ended.

    ``how`` is finished, failed (own error), died, busy (another writes the run), lost (another
    took it over), unfit (the node cannot run anything) or stopped.
    """

    how: str
    message: str = ""


@dataclass(frozen=True)
class Order:
    """What a node has to do."""

    job: Job
    storage: Path
    marker: str
    """Name of a file that the driver has put into the storage."""
    attempt: int
    version: str = __version__


def check_node(storage: Path, marker: str, version: str) -> str:
    """What is wrong with this node, in one line; empty if nothing is."""
    if version != __version__:
        return f"node {node_name()} has lwm {__version__}, the driver {version}"
    try:
        (storage / marker).stat()
    except FileNotFoundError:
        return f"node {node_name()} does not see the storage {storage}: it must be shared"
    except OSError as error:
        return f"node {node_name()} cannot read the storage {storage}: {reason(error)}"
    if not os.access(storage, os.W_OK | os.X_OK):
        return f"node {node_name()} may not write to the storage {storage}"
    return ""


def attend(order: Order) -> Ended:
    """Run or resume a job to its end.  An interrupt (Ray's cancel) stops it with a checkpoint."""
    try:
        wrong = check_node(order.storage, order.marker, order.version)
        if wrong:
            return Ended("unfit", wrong)
        with runner.stored_in(order.storage):
            return _attend(order.job, order.attempt)
    except RunInUse as error:
        return Ended("busy", str(error))
    except LwmError as error:
        return Ended("failed", str(error))
    except KeyboardInterrupt:
        return Ended("stopped")


def _attend(job: Job, attempt: int) -> Ended:
    runner.check_same_settings(job)
    if runner.finished(job):
        return Ended("finished")
    claim = fence.take(job.directory, node_name(), attempt)
    try:
        return _watch(job, claim)
    finally:
        claim.release()


def _watch(job: Job, claim: fence.Claim) -> Ended:
    process = begin(job, claim)
    try:
        beaten = time.monotonic()
        while process.poll() is None:
            time.sleep(_POLL)
            if time.monotonic() - beaten >= fence.BEAT:
                beaten = time.monotonic()
                if not claim.beat():
                    process.kill()
                    return Ended("lost", f"{job.directory} was taken over by another node")
        return _told(job, process.returncode)
    finally:
        end(process)


def _told(job: Job, code: int) -> Ended:
    if code == 0 and runner.finished(job):
        return Ended("finished")
    if code < 0:
        return Ended("died", f"its process was killed by {signal.Signals(-code).name}")
    if code in ASKED:
        return Ended("died", f"its process was asked to stop (exit code {code})")
    fence.probe_lock(job.directory)  # raises RunInUse: another writer was faster
    return Ended("failed", runner.last_words(job, code))


def begin(job: Job, claim: fence.Claim) -> subprocess.Popen[bytes]:
    """Start a job as a child that holds the claim with us."""
    process = runner.start(job, "lwm.sweep.child", subprocess.PIPE)
    assert process.stdin is not None
    told = json.dumps({"run": str(claim.run.absolute()), "token": claim.token})
    with suppress(OSError):  # it is dead already: its exit code will tell
        process.stdin.write(told.encode() + b"\n")
        process.stdin.flush()
    return process


def ask_to_stop(process: subprocess.Popen[bytes]) -> None:
    """Let a child stop with a checkpoint; to ask twice, or to die after asking, is asking once."""
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()


def end(process: subprocess.Popen[bytes]) -> None:
    """Stop a run with a checkpoint, if it still runs; kill it if that takes too long."""
    deadline = time.monotonic() + _STOP_PATIENCE
    asked = False
    while process.poll() is None:
        try:
            if not asked:
                ask_to_stop(process)
                asked = True
            elif time.monotonic() > deadline:
                process.kill()
            time.sleep(_POLL / 4)
        except KeyboardInterrupt:
            continue  # we are stopping already
    ask_to_stop(process)  # closes our end of the pipe, whoever has ended it


def node_name() -> str:
    """What this node is called in the table."""
    import ray

    context = ray.get_runtime_context()
    return f"{ray.util.get_node_ip_address()}/{context.get_node_id()[:4]}"
