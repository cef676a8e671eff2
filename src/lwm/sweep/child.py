"""``lwm`` as somebody's child: the same command, which stops with a checkpoint if it is orphaned.

Its standard input is a pipe whose other end only the parent holds.  The first line that comes is
the claim on the run (``attend.begin``), which this process touches too for as long as it lives.
The end of the pipe is the request to stop: it comes when the parent asks for it, and when the
parent ends, in whatever way.  (Linux could send a signal by itself, but when the starting *thread*
ends.)
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
from pathlib import Path

from lwm import cli
from lwm.sweep import fence

PATIENCE = 60.0
"""Seconds that an orphan has for its checkpoint."""


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
