"""Where a run touches the disk: the functions of ``lwm.files`` that every write goes through."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lwm import files

_NAMES = ("write", "fsync", "rename")

Touch = Callable[[str, Callable[..., Any], tuple[Any, ...]], Any]
"""In place of a touch: its name, the real function, and what it was called with."""


def watch(touch: Touch) -> None:
    """From here on, in this process, ``touch`` is called in the place of every touch."""
    for name in _NAMES:
        setattr(files, name, _seam(touch, name, getattr(files, name)))


def _seam(touch: Touch, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: touch(name, real, arguments)


def first_half(real: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Only the first half of a write."""
    descriptor, data = arguments
    return real(descriptor, memoryview(data)[: len(data) // 2])


@contextmanager
def watched(touch: Touch) -> Iterator[None]:
    """``watch`` inside the block."""
    before = {name: getattr(files, name) for name in _NAMES}
    watch(touch)
    try:
        yield
    finally:
        for name, real in before.items():
            setattr(files, name, real)


def count(function: Callable[[], Any]) -> tuple[int, float]:
    """How often an undisturbed run touches the disk, and its seconds."""
    names: list[str] = []

    def counted(name: str, real: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        names.append(name)
        return real(*arguments)

    began = time.monotonic()
    with watched(counted):
        function()
    return len(names), time.monotonic() - began
