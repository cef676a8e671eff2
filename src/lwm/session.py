"""A training run on disk: the consumers of the loop's events, and how a run ends or goes on.

Logs, checkpoints, validation, the progress bar and signals live here; the loop knows none of them.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch

from lwm import devices, runs
from lwm.config import Config, from_dict, replace, to_dict
from lwm.coverage import coverage_in
from lwm.errors import BadInput, LwmError, one_line
from lwm.evaluate import Scores, Trained, evaluate, new_learner
from lwm.learner import LearnerState
from lwm.machine import available_bytes, machine_facts, mismatches
from lwm.plan import check_memory, check_replay
from lwm.saving import RowBlocks, Stops
from lwm.training import Trainer
from lwm.types import Event
from lwm.writing import RunWriter


class Interrupted(LwmError):
    """The run was asked to stop, and did, with a checkpoint."""

    def __init__(self, signum: int, command: str) -> None:
        super().__init__(f"stopped; continue with: {command}")
        self.exit_code = 128 + signum


class Consumer(Protocol):
    """Anything that wants to see the events of a run (a progress bar, TensorBoard)."""

    def __call__(self, event: Event, seconds: float) -> None:
        """An event (also those of kind ``cycle``), and the wall time since this process began."""


def warn(message: str) -> None:
    """One line on stderr."""
    print(f"lwm: warning: {one_line(message)}", file=sys.stderr)


def start(config: Config, path: Path) -> tuple[RunWriter, Trainer]:
    """A new run in ``path``."""
    check_memory(config)
    trainer = _trainer(config)  # first: a config that does not fit into memory leaves no directory
    machine = _machine(config)
    return RunWriter.create(path, to_dict(config), machine), trainer


def _machine(config: Config) -> dict[str, Any]:
    return machine_facts(config.threads, devices.described(devices.pick(config.device)))


def _trainer(config: Config) -> Trainer:
    have = available_bytes()
    try:
        trainer = Trainer(config)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
            raise
        raise BadInput(
            "this config needs more memory than there is (try less than "
            f"replay.capacity_steps={config.replay.capacity_steps})"
        ) from None
    if config.workload == "gym":  # how large its observations are is only known now
        try:
            check_replay(config, trainer.replay.nbytes, have)
        except BadInput:
            trainer.close()
            raise
    return trainer


def check_trusted(path: Path, config: Config, env: str | None) -> None:
    """Refuse the run in ``path`` if its environment is not ``env``, where that is given or a module
    would be imported: that is the user's word to say, not a file's."""
    name = config.gym.env if config.workload == "gym" else ""
    if env is not None and env != name:
        raise BadInput(f"{path} is of {name or config.workload}, not of --env {env}")
    if env is None and ":" in name:
        module = name.partition(":")[0]
        raise BadInput(f"{path} would import {module}: if you trust it, add --env {name}")


def resume_command(path: Path, config: Config) -> str:
    """What goes on with a run."""
    trusted = f" --env {config.gym.env}" if ":" in config.gym.env else ""
    return f"lwm train --resume {path}{trusted}"


def reopen(path: Path, env: str | None = None) -> tuple[RunWriter, Trainer]:
    """The run in ``path`` as its newest good checkpoint left it.

    ``env``: its environment, which must be named where that imports a module (``check_trusted``).
    """
    config = from_dict(runs.read_config(path))
    check_trusted(path, config, env)
    if (runs.read_status(path) or {}).get("state") == "finished":
        raise BadInput(f"{path} is finished: nothing to resume")
    check_memory(config)
    machine = _machine(config)
    writer, saved = RunWriter.reopen(path, machine, warn=warn)
    with _closed_on_error(writer):
        trainer = _trainer(config)
        if saved is not None:
            for text in mismatches(saved.machine, machine):
                warn(f"bit-exactness is not promised, the build differs: {text}")
            trainer.set_state(saved.state, saved.rows())
            if config.workload == "atari" and config.atari.backend == "ale-vector":
                warn("atari.backend=ale-vector cannot restore games: all begin anew")
        return writer, trainer


@dataclass(frozen=True)
class Loaded:
    """The parameters of a run on disk: all that playing needs."""

    config: Config
    learner: LearnerState
    frames: int


def load(path: Path, device: str | None = None, env: str | None = None) -> Loaded:
    """The newest good parameters of the run in ``path``: takes no lock, writes nothing.

    ``device``: where to put them, if not where the run has them; ``env``: as in ``reopen``.

    Neither its replay nor its environments are made: a run is scored in little memory, also while
    it goes on.
    """
    config = from_dict(runs.read_config(path))
    check_trusted(path, config, env)
    if device is not None:
        config = replace(config, {"device": device})
    saved = runs.load_checkpoint(path, warn, part="learner")
    torch.set_num_threads(config.threads)
    devices.keep_freed_memory()
    learner = new_learner(config)
    learner.load_tree(saved.state.get("learner", {}))
    learner.look(config.progress(saved.frames))
    return Loaded(config, learner, saved.frames)


def run(
    writer: RunWriter, trainer: Trainer, consumers: tuple[Consumer, ...] = ()
) -> dict[str, Any]:
    """Train to the end, then score on test seeds; returns the evaluation (also written).

    SIGINT and SIGTERM stop at the next cycle with a checkpoint (``Interrupted``); a second one
    stops at once.
    """
    config = trainer.config
    again = resume_command(writer.path, config)
    began, frames = time.monotonic(), trainer.frames
    saved, alarmed = frames, False
    rows = RowBlocks(writer, trainer.replay) if config.replay.compress else None
    stops = Stops()

    def checkpoint() -> None:
        nonlocal saved
        with stops.timed("checkpoint_seconds"):
            blocks = () if rows is None else rows.write_all(stops)
            writer.checkpoint(trainer.frames, trainer.get_state(rows is None), blocks)
            writer.set_status("running", trainer.frames)
        saved = trainer.frames

    def tell(event: Event) -> None:
        nonlocal alarmed
        if event.data.get("encoder/collapsed", 0) > 0 and not alarmed:
            alarmed = True
            warn(f"at {event.frames:,} frames Φ has collapsed: it tells observations hardly apart")
        seconds = stops.mark() - began
        writer.log({"kind": event.kind, "frames": event.frames, **event.data})
        done = event.frames - first
        timing = {"frames": event.frames, "seconds": seconds, "frames_per_second": done / seconds}
        writer.log_timing({**timing, **stops.take()})
        for consumer in consumers:
            consumer(event, seconds)

    first = frames
    with writer, _signals() as asked, closing(trainer):
        # A run killed between its last checkpoint and its evaluation has only that left to do.
        events = () if _stopped_at_score(writer.path, config, frames) else trainer.run()
        for event in events:
            stops.mark()
            if rows is not None:
                rows.write_complete(stops)
            if event.kind == "end" and trainer.frames > saved:
                checkpoint()  # before its row: a resumed run tells its end again
            if event.kind == "cycle":
                for consumer in consumers:
                    consumer(event, time.monotonic() - began)
            else:
                tell(event)
            if _crossed(config.loop.evaluate_every_frames, frames, event.frames):
                games = config.loop.validation_episodes
                result = _summary(evaluate(config, trainer.learner, games, "validation"), config)
                tell(Event("validation", event.frames, result))
                if config.loop.stop_at_score < 0 and result["score"] >= config.loop.stop_at_score:
                    checkpoint()
                    break
            if asked():
                if event.kind != "end":
                    checkpoint()
                writer.set_status("stopped", trainer.frames, "asked to stop")
                raise Interrupted(asked(), again)
            due = _crossed(config.loop.checkpoint_every_frames, frames, event.frames)
            if due and trainer.frames > saved:
                checkpoint()
            frames = event.frames
        try:
            with asked.at_once(again):  # all is saved: nothing is worth waiting for
                result = score(trainer)
        except Interrupted:
            writer.set_status("stopped", trainer.frames, "asked to stop")
            raise
        writer.write_evaluation(result)
        writer.set_status("finished", trainer.frames)
    return result


def score(trained: Trained, episodes: int | None = None) -> dict[str, Any]:
    """The present parameters on test seeds, with what is needed to read the number.

    Where averaged weights are scored, ``last_weights`` has what the online ones give on the same
    episodes: averaging leaves training as it is, so that is the score without it.
    """
    config, learner = trained.config, trained.learner
    seen = coverage_in(config)
    result = _summary(evaluate(config, learner, episodes, coverage=seen), config)
    if seen is not None:
        result |= {"rooms": seen.rooms, "positions": seen.positions}
    if learner.average is not None:
        last = evaluate(config, learner, episodes, policy=learner.dqn)
        result["last_weights"] = _summary(last, config)
    return {"frames": trained.frames, "epsilon": config.evaluation.epsilon, **result}


def _summary(scores: Scores, config: Config) -> dict[str, Any]:
    result = scores.summary()
    if config.workload != "labyrinth":
        del result["solved"], result["median_solved"]  # a game is not solved, it ends
    if config.workload != "gym":
        del result["success"]
    return result


def _stopped_at_score(path: Path, config: Config, frames: int) -> bool:
    """The run had reached its score when it was saved: only its evaluation is left."""
    return config.loop.stop_at_score < 0 and any(
        row.get("kind") == "validation"
        and row.get("frames") == frames
        and isinstance(row.get("score"), int | float)
        and row["score"] >= config.loop.stop_at_score
        for row in runs.read_metrics(path)
    )


def _crossed(every: int, before: int, now: int) -> bool:
    """A multiple of ``every`` lies in (before, now]."""
    return every > 0 and before // every < now // every


@contextmanager
def _closed_on_error(writer: RunWriter) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        writer.__exit__(type(error), error, error.__traceback__)
        raise


class _Asked:
    """Which signal came (0: none)."""

    def __init__(self) -> None:
        self.signum = 0
        self._command: str | None = None

    def __call__(self) -> int:
        return self.signum

    def note(self, signum: int) -> None:
        """One came."""
        self.signum = signum
        if self._command is not None:
            raise Interrupted(signum, self._command)

    @contextmanager
    def at_once(self, command: str) -> Iterator[None]:
        """In the block a signal is ``Interrupted`` where it comes."""
        self._command = command
        try:
            if self.signum:
                raise Interrupted(self.signum, command)
            yield
        finally:
            self._command = None


@contextmanager
def _signals() -> Iterator[_Asked]:
    """Ask instead of die.

    Handlers can be set in the main thread only; elsewhere signals stay with whoever owns them.
    """
    asked = _Asked()
    old: dict[int, Any] = {}

    def on_signal(signum: int, frame: FrameType | None) -> None:
        # The handlers stay until the end: to change one while its signal may come is a race, of
        # which Python prints a traceback.
        if asked():
            _stop_at_once(signum, frame, old[signum])
        asked.note(signum)

    try:
        for signum in (signal.SIGINT, signal.SIGTERM):
            old[signum] = signal.signal(signum, on_signal)
    except ValueError:
        old.clear()
    try:
        yield asked
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _stop_at_once(signum: int, frame: FrameType | None, handler: Any) -> None:
    """What a second signal does: as if nobody had asked to be asked."""
    if callable(handler):
        handler(signum, frame)
    elif signum == signal.SIGINT:  # ignored before us (nohup, a shell's background)
        raise KeyboardInterrupt
    else:
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)
