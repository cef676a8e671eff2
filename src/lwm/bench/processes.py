"""The machine's processes and the processor time they have used, as /proc tells."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    """A process at one moment."""

    pid: int
    parent: int
    seconds: float
    """Of processor time."""
    ended: float
    """The same of its children that have ended."""


def look(pid: int) -> Process | None:
    """The process now; None if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    second = os.sysconf("SC_CLK_TCK")
    used, of_children = (sum(int(n) for n in stat[i : i + 2]) / second for i in (11, 13))
    return Process(pid, int(stat[1]), used, of_children)


def everyone() -> list[Process]:
    """All processes now."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [found for pid in pids if (found := look(pid)) is not None]
