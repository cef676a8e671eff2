"""Errors meant for the user: one clear line each, and the exit code that goes with it.

The command line prints ``lwm: <message>`` to stderr and exits with ``exit_code``; any other
exception is a bug and keeps its traceback.
"""

from __future__ import annotations


class LwmError(Exception):
    """An error whose text is one line for the user."""

    exit_code: int = 1
    """2 for bad input, 1 for a failure at run time."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class BadInput(LwmError):
    """A flag, config, path or file that cannot be used as given."""

    exit_code = 2


class BadSetting(BadInput, ValueError):
    """The same, given to the library: what Python raises for an argument that cannot be used."""


class RunFailed(LwmError):
    """The run could not go on: disk full, read-only file system, numbers out of range."""

    exit_code = 1


class CheckpointError(LwmError):
    """A checkpoint that is damaged, foreign, or cannot be represented."""

    exit_code = 2


class RunInUse(LwmError):
    """Another process is writing to this run directory."""

    exit_code = 2


def one_line(text: str) -> str:
    """``text`` on one line; control characters (file names may hold them) are escaped."""
    flat = " ".join(str(text).split())
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in flat
    )


def reason(error: OSError) -> str:
    """Why the operating system refused, in its own words: ``No space left on device``."""
    return error.strerror or str(error) or type(error).__name__
