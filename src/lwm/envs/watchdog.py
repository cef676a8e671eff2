"""Somebody else's code: a hang becomes an error, and its processes leave Ctrl-C to us."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Hung(Exception):
    """The code took longer than it may."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise ``Hung`` in the block after ``seconds``.

    By a timer signal, so a thread or child that never answers is left as well as a loop in Python.
    Nothing interrupts code in C that neither returns nor waits for the system; and only the main
    thread has signals, and a program that uses this one itself keeps it.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:
        yield
        return

    def on_alarm(_: int, __: FrameType | None) -> None:
        raise Hung(f"no answer for {seconds:g} s")

    signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


@contextmanager
def deaf_children() -> Iterator[None]:
    """Processes started in the block ignore SIGINT: a terminal sends it to all of the group, and
    the run still needs them to come to a checkpoint."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, old)
