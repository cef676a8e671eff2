"""The compiled part: a GRU unrolled on one core (``gru.cpp``), where there is a C++ compiler.

The source is compiled on first use for the processor at hand (about a second) and kept in the
user's cache; without a compiler, or with ``LWM_KERNELS=0``, torch does the work, slower and with
other rounding.  Plain C calls through ctypes: no build step, no headers, no second build of torch.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

_SOURCE = Path(__file__).with_name("gru.cpp")
_FLAGS = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC")
_POINTER, _LONG = ctypes.c_void_p, ctypes.c_long


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled functions; None where they cannot be had."""
    if os.environ.get("LWM_KERNELS", "1") == "0":
        return None
    try:
        return _declared(ctypes.CDLL(str(_built())))
    except (OSError, subprocess.SubprocessError, AttributeError):
        return None


def description() -> str:
    """What unrolls the GRUs, for a run's machine facts: ``compiled`` with the code's hash."""
    made = library()
    return "torch" if made is None else f"compiled {_digest()[:12]}"


def _built() -> Path:
    """Path of the library, compiled now unless an earlier process did."""
    path = _cache() / f"gru-{_digest()}.so"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=path.parent, suffix=".so")
    os.close(handle)
    try:
        command = [_compiler(), *_FLAGS, str(_SOURCE), "-o", draft]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        os.replace(draft, path)  # whole or not at all, however many processes compile at once
    finally:
        Path(draft).unlink(missing_ok=True)
    return path


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "lwm"


def _compiler() -> str:
    found = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")
    if found is None:
        raise OSError("no C++ compiler")
    return found


@functools.cache
def _digest() -> str:
    """Of all that the machine code depends on: source, flags, compiler, processor."""
    version = subprocess.run(
        [_compiler(), "--version"], check=True, capture_output=True, timeout=30
    ).stdout
    parts = (_SOURCE.read_bytes(), " ".join(_FLAGS).encode(), version, _processor().encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _processor() -> str:
    """What -march=native reads: a home directory may be shared by unlike machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))


def _declared(made: ctypes.CDLL) -> ctypes.CDLL:
    made.gru_forward.argtypes = [_LONG] * 4 + [_POINTER] * 9
    made.gru_backward.argtypes = [_LONG] * 3 + [_POINTER] * 8
    return made
