"""``lwm`` as somebody's child: the same command, which stops with a checkpoint if it is orphaned.

Its standard input is a pipe whose other end only the parent holds.  The first line that comes is
the claim on the run (``begin``), which this process touches too for as long as it lives.  The end
of the pipe is the request to stop: it comes when the parent asks for it, and when the parent ends,
in whatever way.  (Linux could send a signal by itself, but when the starting *thread* ends.)
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from lwm import cli
from lwm.experiments import runner
from lwm.experiments.runner import Job
from lwm.sweep import fence

PATIENCE = 60.0
"""Seconds that an orphan has for its checkpoint."""


def begin(job: Job, claim: fence.Claim) -> subprocess.Popen[bytes]:
    """Start a job as a child that holds the claim with us."""
    process = runner.start(job, __name__, subprocess.PIPE)
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


def _watch() -> None:
    """Touch the claim until the pipe ends, then stop; killed if the claim is another's."""
    with open(0, "rb", buffering=0, closefd=False) as pipe:
        first = pipe.readline()
        claim = _claim(first)
        while first and (not select.select([pipe], [], [], fence.BEAT)[0] or pipe.read(1)):
            _beat(claim)
    os.kill(os.getpid(), signal.SIGTERM)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        _beat(claim)
        time.sleep(fence.BEAT)
    os.kill(os.getpid(), signal.SIGKILL)


def _claim(line: bytes) -> fence.Claim | None:
    if not line:
        return None
    told = json.loads(line)
    return fence.Claim(Path(told["run"]), told["token"])


def _beat(claim: fence.Claim | None) -> None:
    if claim is not None and not claim.beat():
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_watch, daemon=True).start()
    sys.exit(cli.main())
