"""Where a sweep is asked for: hands runs to Ray, and decides by the policy what follows."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lwm.errors import BadInput, LwmError
from lwm.experiments import runner
from lwm.experiments.runner import Job
from lwm.sweep import attend
from lwm.sweep.engine import Engine, check_nodes, connected, marked
from lwm.sweep.policy import Ledger, Run
from lwm.sweep.table import Table

_STOP_SECONDS = 75.0
"""How long runs may take to stop with a checkpoint."""

OnDone = Callable[[Job], None]


def runner_on(engine: Engine) -> runner.Runner:
    """A runner for experiments, in the place of ``experiments.runner.run_all``."""
    return partial(run_all, engine)


def run_all(
    engine: Engine, jobs: Sequence[Job], at_once: int | None, on_done: OnDone
) -> list[tuple[Job, str]]:
    """Run the jobs on Ray; ``on_done`` is called as each ends well.  Returns the failed ones.

    Finished runs are only reported, interrupted ones resumed.  Stopping this process stops the
    runs with a checkpoint each.
    """
    storage = Path(engine.storage).absolute()
    engine = replace(engine, storage=storage)
    if len({job.id for job in jobs}) < len(jobs):
        raise BadInput("two runs of the selection would share a directory")
    with runner.stored_in(storage), marked(storage) as marker:
        ledger = Ledger((job.id for job in jobs), engine.retries)
        sweep = _Sweep(engine, marker, {job.id: job for job in jobs}, ledger, on_done)
        sweep.settle_known()
        if ledger.open():
            with connected(engine) as ray:
                if engine.address is not None:
                    check_nodes(ray, storage, marker)
                sweep.run(ray, at_once)
    return [(job, run.message) for job in jobs if (run := ledger.runs[job.id]).state == "failed"]


class _Sweep:
    """One sweep: what is under way, and what is told."""

    def __init__(
        self, engine: Engine, marker: str, jobs: dict[str, Job], ledger: Ledger, on_done: OnDone
    ) -> None:
        self.engine, self.marker, self.jobs, self.ledger = engine, marker, jobs, ledger
        self.on_done = on_done
        self.table = Table(ledger, {name: job.directory for name, job in jobs.items()})

    def settle_known(self) -> None:
        """Report what is finished already, refuse what is of other settings: Ray is not needed."""
        for name, job in self.jobs.items():
            try:
                runner.check_same_settings(job)
                done = runner.finished(job)
            except LwmError as error:
                self._failed(name, str(error))
                continue
            if done:
                self._finished(name)
        self.ledger.skip_settled()

    def run(self, ray: Any, at_once: int | None) -> None:
        """Until every run has finished or failed."""
        # The run's own process computes; the task that attends it only waits.
        task = ray.remote(num_cpus=self.engine.cpus, num_gpus=self.engine.gpus, max_retries=0)(
            attend.attend
        ).options(scheduling_strategy="SPREAD")
        pending: dict[Any, Run] = {}
        before = signal.signal(signal.SIGTERM, runner.stop)
        try:
            while self.ledger.open():
                self._submit(task, pending, at_once)
                ready, _ = ray.wait(list(pending), timeout=0.5) if pending else ([], [])
                for ref in ready:
                    self._settle(pending.pop(ref), _outcome(ray, ref))
                if not pending:
                    time.sleep(0.2)
                self.table.show()
        except BaseException:
            self.table.close()
            _stop(ray, list(pending))
            raise
        finally:
            signal.signal(signal.SIGTERM, before)
            self.table.close()

    def _submit(self, task: Any, pending: dict[Any, Run], at_once: int | None) -> None:
        while at_once is None or len(pending) < at_once:
            run = self.ledger.next(time.monotonic())
            if run is None:
                return
            order = attend.Order(self.jobs[run.id], self.engine.storage, self.marker, run.attempts)
            pending[task.remote(order)] = run

    def _settle(self, run: Run, ended: attend.Ended) -> None:
        if ended.how == "finished":
            self._finished(run.id)
        elif ended.how == "failed":
            self._failed(run.id, ended.message)
        else:
            now = time.monotonic()
            if ended.how == "unfit":
                word, again = "waiting", self.ledger.unfit(run.id, ended.message, now)
            elif ended.how in ("busy", "lost"):
                lost = ended.how == "lost"
                word, again = "waiting", self.ledger.busy(run.id, ended.message, now, lost)
            else:
                word, again = "again", self.ledger.died(run.id, ended.message, now)
            self.table.tell(f"{word if again else 'failed':8} {run.id}: {run.message}")

    def _finished(self, name: str) -> None:
        self.ledger.finished(name)
        self.table.pause()
        self.on_done(self.jobs[name])

    def _failed(self, name: str, message: str) -> None:
        self.ledger.failed(name, message)
        self.table.tell(f"failed   {name}: {message}")


def _outcome(ray: Any, ref: Any) -> attend.Ended:
    """How the attempt ended, also where nobody is left to say it."""
    try:
        ended: attend.Ended = ray.get(ref)
        return ended
    except ray.exceptions.RayTaskError as error:  # the attending code itself: a bug, so no retry
        return attend.Ended("failed", str(error).strip().splitlines()[-1])
    except ray.exceptions.TaskCancelledError:
        return attend.Ended("died", "its task was cancelled")
    except ray.exceptions.NodeDiedError:
        return attend.Ended("died", "its node died")
    except ray.exceptions.OutOfMemoryError:
        return attend.Ended("died", "its node ran out of memory")
    except ray.exceptions.WorkerCrashedError:
        return attend.Ended("died", "its worker or node died")
    except ray.exceptions.RayError as error:
        return attend.Ended("died", f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")


def _stop(ray: Any, pending: list[Any]) -> None:
    """Ask every run to stop with a checkpoint, and wait for them."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # once is enough
    try:
        for ref in pending:
            ray.cancel(ref)
        ray.wait(pending, num_returns=len(pending), timeout=_STOP_SECONDS) if pending else None
    finally:
        signal.signal(signal.SIGINT, before)
