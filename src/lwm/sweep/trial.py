"""One point of a search as Ray Tune sees it: a run, of which each validation score is a step."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

from ray import tune

from lwm import runs
from lwm.errors import LwmError, RunInUse
from lwm.experiments import runner
from lwm.experiments.runner import Job
from lwm.sweep import attend, fence, policy

WORST = -1e30
"""The score of a run that failed by its own error: others go on."""


class Trial(tune.Trainable):
    """Attends one run.  Scores that are on disk already are told again before it goes on."""

    def setup(  # type: ignore[override]
        self, config: dict[str, Any], jobs: list[Job], storage: Path
    ) -> None:
        """Called by Tune on the node."""
        self._job = jobs[config["trial"]]
        self._kept_in = storage
        self._last: dict[str, Any] = {"score": WORST, "frames": 0}
        self._process: subprocess.Popen[bytes] | None = None
        self._claim: fence.Claim | None = None
        self._busy_since: float | None = None

    def step(self) -> dict[str, Any]:
        """The next validation score: ``score``, ``frames``, ``done``."""
        with runner.stored_in(self._kept_in):
            try:
                while (row := self._new_row()) is None:
                    ended = self._wait()
                    if ended is not None:
                        return ended
                return row
            except LwmError as error:
                return {**self._last, "score": WORST, "error": str(error), "done": True}

    def cleanup(self) -> None:
        """Tune is through with the run: it stops with a checkpoint."""
        if self._process is not None:
            attend.end(self._process)
        if self._claim is not None:
            self._claim.release()

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing: the run keeps its own checkpoints."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Nothing: the run resumes from its own."""

    def _new_row(self) -> dict[str, Any] | None:
        if not runs.is_run(self._job.directory):
            return None
        for row in runs.read_metrics(self._job.directory):
            if row["kind"] == "validation" and row["frames"] > self._last["frames"]:
                self._last = {"score": row["score"], "frames": row["frames"]}
                return dict(self._last)
        return None

    def _wait(self) -> dict[str, Any] | None:
        """A moment of the run's process; what to tell if it has ended."""
        if runner.finished(self._job):
            row = self._new_row()  # told between the last look and the end
            return row or {**self._last, "done": True}
        if self._process is None:
            runner.check_same_settings(self._job)
            try:
                self._claim = fence.take(self._job.directory, attend.node_name(), 1)
            except RunInUse:  # what was left of a worker that died is still stopping
                self._busy_since = self._busy_since or time.monotonic()
                if time.monotonic() - self._busy_since > policy.BUSY_LIMIT:
                    raise
                time.sleep(policy.BUSY_DELAY)
                return None
            self._process = attend.begin(self._job, self._claim)
        time.sleep(fence.BEAT / 2)
        if self._claim is not None and not self._claim.beat():
            self._process.kill()
            raise RuntimeError(f"{self._job.directory} was taken over by another node")
        code = self._process.poll()
        if code is None or runner.finished(self._job):
            return None
        if code < 0 or code in attend.ASKED:  # Tune tries again
            raise RuntimeError(f"the run was stopped from outside (exit code {code})")
        message = runner.last_words(self._job, code)
        return {**self._last, "score": WORST, "error": message, "done": True}
