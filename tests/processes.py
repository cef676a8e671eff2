"""What several tests need of processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def in_child(function: Callable[[], None]) -> int:
    """Exit code of a forked process that calls ``function``: 0 if it returns, 1 if it raises."""
    child = os.fork()
    if child == 0:
        try:
            function()
            os._exit(0)
        finally:
            os._exit(1)  # or the child would go on as a second test session
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def gone(pid: int) -> bool:
    """Whether a process has ended, be it waited for or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
