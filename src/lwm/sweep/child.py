"""``lwm`` as somebody's child: the same command, which stops with a checkpoint if it is orphaned.

Its standard input is a pipe whose other end only the parent holds: it ends when the parent does, in
whatever way.  (Linux could send a signal by itself, but when the starting *thread* ends.)
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from lwm import cli

PATIENCE = 60.0
"""Seconds that an orphan has for its checkpoint."""


def _watch() -> None:
    while True:
        try:
            if not os.read(0, 1):
                break
        except OSError:
            break
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_watch, daemon=True).start()
    sys.exit(cli.main())
