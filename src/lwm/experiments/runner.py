"""Many runs, each its own process with one BLAS thread, as many at once as there are cores."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Protocol

from lwm import runs
from lwm.config import Config, from_dict
from lwm.errors import BadInput, LwmError, RunFailed, reason

_storage: ContextVar[Path] = ContextVar("storage", default=Path("runs"))


def storage() -> Path:
    """The directory that all runs are kept in."""
    return _storage.get()


@contextmanager
def stored_in(directory: Path) -> Iterator[None]:
    """Keep runs in ``directory`` inside the block (by default: ``runs``)."""
    token = _storage.set(directory)
    try:
        yield
    finally:
        _storage.reset(token)


@dataclass(frozen=True)
class Job:
    """One training run: an id such as ``table1/4x4-lwm-paper/seed0`` and its ``lwm`` arguments."""

    id: str
    arguments: tuple[str, ...]
    config: Config

    @property
    def directory(self) -> Path:
        """Where the run is kept."""
        return storage() / self.id

    @property
    def command(self) -> str:
        """What a person would type."""
        return " ".join(("lwm", *self.arguments))


class Runner(Protocol):
    """Whoever runs jobs: ``run_all`` here, or a cluster (``lwm.sweep.driver``)."""

    def __call__(
        self, jobs: Sequence[Job], at_once: int | None, on_done: Callable[[Job], None]
    ) -> list[tuple[Job, str]]:
        """Run the jobs, at most ``at_once`` at a time; returns those that failed, and why."""


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def stop(signum: int, frame: FrameType | None) -> None:
    """Asked to end: as by an interrupt, but with the exit code of this signal."""
    raise SystemExit(128 + signum)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the block like an interrupt, so that it can clean up."""
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@ended_by_sigterm()
def run_all(
    jobs: Sequence[Job], at_once: int | None, on_done: Callable[[Job], None]
) -> list[tuple[Job, str]]:
    """Run the jobs in order; ``on_done`` is called as each ends well.  Returns the failed ones.

    A job whose directory holds an interrupted run is resumed, a finished one is only reported.
    Stopping this process stops the runs with a checkpoint each.
    """
    waiting = list(jobs)
    running: dict[subprocess.Popen[bytes], Job] = {}
    failed: list[tuple[Job, str]] = []
    limit = at_once or cores()
    try:
        while waiting or running:
            while waiting and len(running) < limit:
                job = waiting.pop(0)
                try:
                    check_same_settings(job)
                except LwmError as error:
                    failed.append((job, str(error)))
                    print(f"failed   {job.id}: {error}", flush=True)
                    continue
                if finished(job):
                    on_done(job)
                    continue
                print(f"started  {job.id}", flush=True)
                running[start(job)] = job
            for process in [p for p in running if p.poll() is not None]:
                job = running.pop(process)
                if process.returncode == 0 and finished(job):
                    on_done(job)
                else:
                    message = last_words(job, process.returncode)
                    failed.append((job, message))
                    print(f"failed   {job.id}: {message}", flush=True)
            time.sleep(0.2)
    except BaseException:
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            process.wait()
        raise
    return failed


def check_same_settings(job: Job) -> None:
    """A preset may have changed since a run was made: its row would be of something else."""
    if runs.is_run(job.directory) and from_dict(runs.read_config(job.directory)) != job.config:
        raise BadInput(f"{job.directory} holds a run of other settings: move it away")


def finished(job: Job) -> bool:
    """The job's run is there and has been scored."""
    if not runs.is_run(job.directory):
        return False
    return (runs.read_status(job.directory) or {}).get("state") == "finished"


def start(
    job: Job, module: str = "lwm.cli", stdin: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """A process that runs the job from where it stands; what it prints goes to ``<run>.log``.

    ``module``: what is given the arguments of ``lwm train``.
    """
    resumed: tuple[str, ...] = ("train", "--resume", str(job.directory))
    if ":" in job.config.gym.env:  # as the job's own arguments say, not the run's file
        resumed += ("--env", job.config.gym.env)
    arguments = (
        resumed if runs.is_run(job.directory) else (*job.arguments, "--out", str(job.directory))
    )
    threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    environment = {**os.environ, **dict.fromkeys(threads, "1")}
    log = job.directory.with_name(job.directory.name + ".log")
    try:
        job.directory.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as file:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments, "--quiet"],
                stdin=stdin,
                stdout=file,
                stderr=file,
                env=environment,
                start_new_session=True,  # Ctrl-C comes to us; we pass it on
            )
    except OSError as error:
        raise RunFailed(f"cannot start {job.id}: {reason(error)}") from error


def last_words(job: Job, code: int) -> str:
    """The last line that the job's process printed."""
    log = job.directory.with_name(job.directory.name + ".log")
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {code}"
