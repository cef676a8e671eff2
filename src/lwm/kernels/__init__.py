"""The compiled part: a GRU unrolled on one core (``gru.cpp``), where there is a C++ compiler; the
same, and a linear layer, with products of bfloat16 (``*_bf16.cpp``), where the processor has them.

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

_HERE = Path(__file__).parent
_SOURCES = tuple(_HERE / f"{name}.cpp" for name in ("gru", "gru_bf16", "linear_bf16"))
_HEADERS = tuple(_HERE / f"{name}.h" for name in ("pairs", "vectors"))
_FLAGS = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-pthread")
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


@functools.cache
def multiplies_bfloat16() -> bool:
    """Whether the compiled functions with products of bfloat16 are there."""
    made = library()
    return made is not None and bool(made.has_bf16())


def description() -> str:
    """What unrolls the GRUs, for a run's machine facts: ``compiled`` with the code's hash, and
    whether products of bfloat16 can be had."""
    if library() is None:
        return "torch"
    return f"compiled {_digest()[:12]}" + ", bfloat16" * multiplies_bfloat16()


def _built() -> Path:
    """Path of the library, compiled now unless an earlier process did."""
    path = _cache() / f"gru-{_digest()}.so"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=path.parent, suffix=".so")
    os.close(handle)
    try:
        command = [_compiler(), *_FLAGS, *map(str, _SOURCES), "-o", draft]
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
    code = (path.read_bytes() for path in (*_SOURCES, *_HEADERS))
    parts = (*code, " ".join(_FLAGS).encode(), version, _processor().encode())
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
    if made.has_bf16():
        made.gru_bf16_forward.argtypes = [_LONG] * 5 + [_POINTER] * 9
        made.gru_bf16_backward.argtypes = [_LONG] * 5 + [_POINTER] * 12
        made.linear_bf16_forward.argtypes = [_LONG] * 4 + [_POINTER] * 4
        made.linear_bf16_backward.argtypes = [_LONG] * 4 + [_POINTER] * 6
    return made
