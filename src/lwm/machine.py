"""What computed a run: the facts on which bit-exact repetition depends.

The same seed gives the same bits on the same build with the same number of threads, and on nothing
else.  So the facts go into every checkpoint, and a resume can say what has changed.
"""

from __future__ import annotations

import platform
import resource
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from lwm import __version__, kernels

FACTS = ("lwm", "python", "torch", "numpy", "threads", "gru", "cpu", "gpu", "platform", "commit")


def machine_facts(threads: int | None = None, gpu: str | None = None) -> dict[str, Any]:
    """Versions, threads, processor and commit of this process; no paths, no host or user names.

    ``threads`` is the number torch computes with and ``gpu`` the name of what it computes on (None:
    on the CPU), as the caller knows: this imports no torch.
    """
    return {
        "lwm": __version__,
        "python": platform.python_version(),
        "torch": _version("torch"),
        "numpy": _version("numpy"),
        "threads": threads,
        "gru": kernels.description(),
        "cpu": _cpu(),
        "gpu": gpu,
        "platform": " ".join((platform.system(), platform.machine(), *platform.libc_ver())).strip(),
        "commit": _commit(),
    }


def mismatches(saved: dict[str, Any], current: dict[str, Any]) -> list[str]:
    """The facts that differ, as text: ``torch 2.12 then, 2.13 now``."""
    return [
        f"{name} {_known(saved.get(name))} then, {_known(current.get(name))} now"
        for name in FACTS
        if saved.get(name) != current.get(name)
    ]


def available_bytes() -> int | None:
    """Memory that this process can have without swapping; None where the system does not say."""
    told = [v for v in (_of_machine(), _of_group(), _address_space()) if v is not None]
    return min(told, default=None)


def _of_machine() -> int | None:
    return _lines(Path("/proc/meminfo"), ":").get("MemAvailable")


def _of_group(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> int | None:
    """What a container or a batch job may still take (control groups, version 2)."""
    try:
        told = own.read_text(encoding="ascii").strip().splitlines()
    except (OSError, ValueError):
        return None
    place = next((line[3:] for line in told if line.startswith("0::")), "/")
    here = root / place.strip("/")
    left = []
    for folder in [here, *here.parents]:
        if folder == root.parent:
            break
        try:
            limit = int((folder / "memory.max").read_text())
            used = int((folder / "memory.current").read_text())
        except (OSError, ValueError):  # there is none, or it is "max"
            continue
        # Pages of files that were read are given back when memory is asked for.
        left.append(limit - used + _lines(folder / "memory.stat").get("inactive_file", 0))
    return min(left, default=None)


def _lines(path: Path, behind: str = "") -> dict[str, int]:
    """``name value`` lines; values with the unit kB in bytes."""
    found = {}
    try:
        for line in path.read_text(encoding="ascii").splitlines():
            name, value, *unit = line.split()
            found[name.removesuffix(behind)] = int(value) << (10 if unit else 0)
    except (OSError, ValueError):
        return {}
    return found


def _address_space() -> int | None:
    """What is left of this process's own limit."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        pages = 0
    return max(0, limit - pages * resource.getpagesize())


def _version(package: str) -> str | None:
    """Version of an installed package, without importing it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _known(value: Any) -> str:
    return "unknown" if value is None else str(value)


def _cpu() -> str | None:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or None


def _commit() -> str | None:
    """Commit of the source tree this module is part of, with ``-dirty`` if it was changed."""
    root = Path(__file__).resolve().parents[2]
    # An installed copy may lie inside somebody else's repository: its commit says nothing of ours.
    if not (root / ".git").exists() or not (root / "src" / "lwm").is_dir():
        return None
    git = ["git", "-C", str(root)]
    # Result rows and documents change while runs go on; what computes does not lie there.
    code = ["--", "src", "pyproject.toml", "constraints.txt"]
    head = _output([*git, "rev-parse", "HEAD"])
    changed = _output([*git, "status", "--porcelain", "--untracked-files=no", *code])
    return f"{head}-dirty" if head and changed else head or None


def _output(command: list[str]) -> str:
    """What a command prints; nothing if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
