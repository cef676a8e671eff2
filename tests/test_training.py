"""Runs: same seed, same bits; half a run, a checkpoint and the other half are a whole run."""

from __future__ import annotations

import copy
import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import lwm
from lwm import files, runs, saving, session
from lwm.cli import main
from lwm.config import Config, load_preset, to_dict
from lwm.envs.rows import RowEnv
from lwm.errors import CheckpointError, RunFailed, RunInUse
from lwm.training import Trainer
from lwm.types import Event
from lwm.writing import RunWriter
from trees import same


def config(**overrides: Any) -> Config:
    """A run of about a hundred cycles: 240 warm-up frames, 5 pretraining updates, 16 updates."""
    keys = {key.replace("__", "."): value for key, value in overrides.items()}
    small = {
        "loop.total_frames": 800,
        "loop.warmup_frames": 240,
        "loop.log_every_frames": 100,
        "loop.checkpoint_every_frames": 300,
        "env.time_limit": 20,
        "evaluation.episodes": 8,
    }
    return load_preset("debug", small | keys)


def finish(trainer: Trainer) -> tuple[list[Event], dict[str, Any]]:
    """The events still to come, and the state at the end."""
    events = [event for event in trainer.run() if event.kind != "cycle"]
    return events, copy.deepcopy(trainer.get_state())


# In memory.


@pytest.mark.parametrize("agent", ["lwm", "mbie-eb", "random"])
def test_same_seed_same_run(agent: str) -> None:
    torch.manual_seed(1)
    first = finish(Trainer(config(agent=agent)))
    torch.manual_seed(2)  # nobody uses the global generators
    np.random.seed(3)
    assert same(first, finish(Trainer(config(agent=agent))))


def test_averaging_weights_leaves_training_alone() -> None:
    small = {"env__size": 2, "evaluation__episodes": 64, "evaluation__epsilon": 0.5}
    plain, averaged = Trainer(config(**small)), Trainer(config(**small, dqn__average=0.9))
    (events, state), (others, beside) = finish(plain), finish(averaged)
    assert same(events, others)
    average = beside["learner"].pop("average")
    assert same(state, beside)
    assert not same(average, state["learner"]["dqn"])
    result, both = session.score(plain), session.score(averaged)
    last = both["last_weights"]
    assert "last_weights" not in result
    assert last == {key: result[key] for key in last}
    assert last["score"] != both["score"]


def test_another_seed_another_run() -> None:
    events, state = finish(Trainer(config()))
    other_events, other_state = finish(Trainer(config(seed=1)))
    assert events[0].data != other_events[0].data
    for name in ("features.weight", "core.cell.weight_hh"):
        assert not same(state["learner"]["dqn"][name], other_state["learner"]["dqn"][name])
    assert not same(state["env"], other_state["env"])
    assert state["streams"] != other_state["streams"]


def test_a_run_leaves_the_global_generators_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    finish(Trainer(config()))
    assert torch.equal(torch.rand(3), expected)


def test_events_of_a_run() -> None:
    events, _ = finish(Trainer(config()))
    kinds = [event.kind for event in events]
    assert [k for i, k in enumerate(kinds) if i == 0 or k != kinds[i - 1]] == [
        "warmup", "pretrain", "train", "end",
    ]  # fmt: skip
    frames = [event.frames for event in events]
    assert frames == sorted(frames)
    assert 800 <= frames[-1] < 808  # the budget, and at most a cycle of eight actors more
    pretrain = events[kinds.index("pretrain")]
    assert pretrain.data["iteration"] == 5 and 240 <= pretrain.frames < 248
    for event in events:
        assert all(np.isfinite(v) for v in event.data.values())
    # Rows are logged at the first cycle past each multiple of 100.
    logged = [e.frames for e in events if e.kind in ("warmup", "train")]
    assert [f // 100 for f in logged] == list(range(1, 9))
    assert sum(e.data["episodes"] for e in events if "episodes" in e.data) > 30


def test_labyrinths_grow() -> None:
    """Even parts for the smaller sizes: 2×2 until 200 frames, 3×3 until 400, then 4×4."""
    growing = config(env__size=4, env__first_size=2, env__grow_share=0.5, env__time_limit=4)
    trainer = Trainer(growing)
    assert isinstance(trainer.env, RowEnv)
    sizes: dict[int, set[int]] = {2: set(), 3: set(), 4: set()}
    while trainer.frames < 800:
        before = trainer.frames
        trainer.cycle()
        rooms = trainer.env.env.doors.any(axis=2).sum(axis=1)
        for lane in np.flatnonzero(trainer.step.is_first):
            sizes[int(np.sqrt(rooms[lane]))].add(before)
    assert max(sizes[2]) < 200 <= min(sizes[3]) and max(sizes[3]) < 400 <= min(sizes[4])
    assert [growing.env.time_limit_at(p) for p in (0.0, 0.6)] == [4, 4]
    early = config(env__size=4, env__first_size=2, env__early_steps_per_room=1).env
    assert [early.time_limit_at(p) for p in (0.0, 0.3, 0.49, 0.5)] == [4, 9, 9, 20]
    for unchanged in ({}, {"env__first_size": 4}):
        assert {config(env__size=4, **unchanged).env.size_at(p) for p in (0.0, 0.3, 1.0)} == {4}


def test_train_is_the_loop_without_its_cycles() -> None:
    events, _ = finish(Trainer(config()))
    assert list(lwm.train(config())) == events


AGENTS = {
    "lwm": {},
    "dqn": {"agent": "dqn"},
    "lwm-ff": {"agent": "lwm-ff"},
    "mbie-eb": {"agent": "mbie-eb"},
    "random": {"agent": "random"},
    "leak": {"agent": "dqn", "intrinsic__leak_to_baseline": True},
    "everything": {
        "dqn__average": 0.9,
        "dqn__auxiliary": 0.5,
        "dqn__trace": 0.8,
        "dqn__n_step": 3,
        "dqn__final_learning_rate": 1e-4,
        "dqn__reset_state": False,
        "dqn__epsilon_base": 0.4,
        "dqn__epsilon_high": 8.0,
        "replay__align_starts": 0.5,
        "replay__capacity_steps": 240,  # the ring goes round
        "replay__start_state": "zero",
        "intrinsic__boundary": "reset",
        "intrinsic__start_belief": "stored",
        "intrinsic__final_beta": 0.0,
        "env__early_steps_per_room": 2,
        "env__size": 4,
        "env__first_size": 2,
        "world_model__loss": "bce",
    },
}


@pytest.mark.parametrize("name", AGENTS)
def test_half_a_run_and_the_other_half(name: str) -> None:
    c = config(**AGENTS[name])
    whole = Trainer(c)
    saved: dict[str, tuple[int, dict[str, Any]]] = {}
    told: list[Event] = []
    for event in whole.run():
        if event.kind != "cycle":
            told.append(event)
        # Once each: in the warm-up, in the pretraining, while training.
        for stage, reached in {
            "warm-up": whole.cycles == 13,
            "pretraining": whole.pretrained == 2,
            "training": whole.cycles == 71,
        }.items():
            if reached and stage not in saved:
                saved[stage] = len(told), copy.deepcopy(whole.get_state())
    expected = told, copy.deepcopy(whole.get_state())
    assert set(saved) >= {"warm-up", "training"}
    assert ("pretraining" in saved) == c.bonus.startswith("lwm")
    assert (whole.learner.updates > 10) == (c.agent != "random")
    for count, state in saved.values():
        trainer = Trainer(c)
        trainer.set_state(state)
        rest, end = finish(trainer)
        assert same((told[:count] + rest, end), expected)


@pytest.mark.parametrize(
    "other",
    [
        {"env__size": 3},
        {"loop__actors": 4},
        {"dqn__hidden": 32},
        {"agent": "dqn"},
        {"agent": "lwm-ff"},
        {"agent": "mbie-eb"},
        {"replay__capacity_steps": 250},
    ],
)
def test_state_of_another_config_is_refused(other: dict[str, Any]) -> None:
    trainer = Trainer(config())
    while trainer.cycles < 40:
        trainer.cycle()
    with pytest.raises(CheckpointError, match="does not fit this config"):
        Trainer(config(**other)).set_state(trainer.get_state())


def test_a_state_that_is_none_is_refused() -> None:
    with pytest.raises(CheckpointError, match="does not fit this config"):
        Trainer(config()).set_state({})


def test_the_early_limit_ends_with_its_share() -> None:
    c = config(agent="random", env__early_steps_per_room=2, env__early_share=0.5)
    trainer = Trainer(c)
    early, late = [], []
    while trainer.frames < 800:
        trainer.cycle()
        ended = trainer.step.episode_length[trainer.step.episode_end].tolist()
        (early if trainer.frames < 400 else late).extend(ended)
    assert max(early) == 8  # two steps for each of 2×2 rooms
    assert max(late) == 20


# On disk.


@pytest.fixture
def without_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "fsync", lambda descriptor: None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of ``config()`` that nobody disturbed."""
    path = tmp_path_factory.mktemp("whole") / "run"
    session.run(*session.start(config(), path))
    return path


def final_state(path: Path) -> dict[str, Any]:
    """The newest checkpoint without what depends on the machine and the clock."""
    saved = runs.load_checkpoint(path)
    return {"frames": saved.frames, **saved.state}


def assert_same_run(path: Path, other: Path) -> None:
    assert (path / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
    assert runs.read_evaluation(path) == runs.read_evaluation(other)
    assert same(final_state(path), final_state(other))
    assert runs.read_status(path)["state"] == runs.read_status(other)["state"] == "finished"


def test_a_whole_run_on_disk(whole: Path) -> None:
    rows = list(runs.read_metrics(whole))
    events, state = finish(Trainer(config()))
    assert rows == [{"kind": e.kind, "frames": e.frames, **e.data} for e in events]
    assert same({"frames": events[-1].frames, **state}, final_state(whole))
    assert runs.read_status(whole)["state"] == "finished"
    evaluation = runs.read_evaluation(whole)
    assert evaluation["episodes"] == 8 and evaluation["frames"] == events[-1].frames
    assert len(list(runs.read_timing(whole))) == len(rows)
    assert runs.read_config(whole) == to_dict(config())
    # Its rows are small: all of them are in every checkpoint, and in no blocks.
    assert runs.load_checkpoint(whole).blocks == () and "obs" in state["replay"]
    assert not (whole / "checkpoints" / "rows").exists()


def test_a_long_checkpoint_is_a_long_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that moves by 1 s with every look at it and by 50 s with every checkpoint."""
    now = 0.0

    def monotonic() -> float:
        nonlocal now
        now += 1
        return now

    def slow(self: RunWriter, *_: Any) -> None:
        nonlocal now
        now += 50

    for module in (session, saving):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=monotonic))
    monkeypatch.setattr(RunWriter, "checkpoint", slow)
    session.run(*session.start(config(), tmp_path / "run"))
    pauses = {row["frames"]: row["longest_pause"] for row in runs.read_timing(tmp_path / "run")}
    # Checkpoints at the first cycles past 300 and 600 frames, and before the row of the end.
    long = [frames // 100 for frames, pause in pauses.items() if pause > 50]
    assert long == [4, 7, 8]
    assert all(pause == 53 for frames, pause in pauses.items() if frames // 100 in long)
    assert all(pause == 1 for frames, pause in pauses.items() if frames // 100 not in long)


class Asking:
    """A consumer that asks the run to stop when it sees its n-th event of a kind."""

    def __init__(self, kind: str, n: int, signum: int) -> None:
        self.kind, self.left, self.signum = kind, n, signum

    def __call__(self, event: Event, seconds: float) -> None:
        if event.kind == self.kind:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), self.signum)


@pytest.mark.usefixtures("without_waiting_for_the_disk")
@pytest.mark.parametrize(
    ("kind", "n", "signum"),
    [
        ("warmup", 1, signal.SIGINT),
        ("pretrain", 1, signal.SIGTERM),
        ("train", 3, signal.SIGINT),
        ("end", 1, signal.SIGTERM),
    ],
)
def test_asked_to_stop_and_resumed(
    kind: str, n: int, signum: int, tmp_path: Path, whole: Path
) -> None:
    path = tmp_path / "run"
    before = signal.getsignal(signum)
    with pytest.raises(session.Interrupted) as caught:
        session.run(*session.start(config(), path), (Asking(kind, n, signum),))
    assert caught.value.exit_code == 128 + signum
    assert str(caught.value) == f"stopped; continue with: lwm train --resume {path}"
    assert signal.getsignal(signum) is before
    assert runs.read_status(path)["state"] == "stopped"
    last = list(runs.read_metrics(path))[-1]
    assert last["kind"] == kind and last["frames"] == runs.load_checkpoint(path).frames
    session.run(*session.reopen(path))
    assert_same_run(path, whole)


@pytest.mark.usefixtures("without_waiting_for_the_disk")
def test_stopped_in_its_last_cycle_and_resumed(tmp_path: Path, whole: Path) -> None:
    # The budget is spent but the end not yet told: resuming tells it.
    rows = sum(row["kind"] == "train" for row in runs.read_metrics(whole))
    path = tmp_path / "run"
    with pytest.raises(session.Interrupted):
        session.run(*session.start(config(), path), (Asking("train", rows, signal.SIGTERM),))
    session.run(*session.reopen(path))
    assert_same_run(path, whole)


@pytest.mark.usefixtures("without_waiting_for_the_disk")
@pytest.mark.parametrize(
    "settings",
    [
        {"loop__checkpoint_every_frames": 300},  # a checkpoint at the end event
        {"loop__checkpoint_every_frames": 400},  # the last one due in the last cycle, as in paper
        {
            "loop__evaluate_every_frames": 300,
            "loop__validation_episodes": 4,
            "loop__stop_at_score": -21.0,
        },
    ],
)
def test_killed_while_scored_and_resumed(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed, path = tmp_path / "undisturbed", tmp_path / "run"
    session.run(*session.start(config(**settings), undisturbed))

    def killed(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(session, "score", killed)
        with pytest.raises(KeyboardInterrupt):
            session.run(*session.start(config(**settings), path))
    session.run(*session.reopen(path))
    assert_same_run(path, undisturbed)


@pytest.mark.usefixtures("without_waiting_for_the_disk")
@pytest.mark.parametrize("before", [signal.default_int_handler, signal.SIG_IGN])
def test_a_second_signal_stops_at_once(before: Any, tmp_path: Path, whole: Path) -> None:
    path = tmp_path / "run"

    def twice(event: Event, seconds: float) -> None:
        if event.kind == "train":
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            raise AssertionError("went on")

    usual = signal.signal(signal.SIGINT, before)
    try:
        with pytest.raises(KeyboardInterrupt):
            session.run(*session.start(config(), path), (twice,))
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        signal.signal(signal.SIGINT, usual)
    assert runs.read_status(path)["state"] == "stopped"
    session.run(*session.reopen(path))
    assert_same_run(path, whole)


@pytest.mark.usefixtures("without_waiting_for_the_disk")
def test_asked_to_stop_while_scored(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A score can take many minutes: nobody waits for it, all is saved.
    path = tmp_path / "run"

    def asking(*arguments: Any, **more: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("went on scoring")

    with monkeypatch.context() as patch:
        patch.setattr(session, "evaluate", asking)
        with pytest.raises(session.Interrupted) as caught:
            session.run(*session.start(config(), path))
    assert caught.value.exit_code == 143
    assert runs.read_status(path)["state"] == "stopped" and runs.read_evaluation(path) is None
    session.run(*session.reopen(path))
    assert_same_run(path, whole)


@pytest.mark.usefixtures("without_waiting_for_the_disk")
def test_validation_does_not_disturb_the_run(tmp_path: Path, whole: Path) -> None:
    path = tmp_path / "run"
    c = config(loop__evaluate_every_frames=250, loop__validation_episodes=4)
    session.run(*session.start(c, path))
    rows = list(runs.read_metrics(path))
    validations = [row for row in rows if row["kind"] == "validation"]
    assert [row["frames"] // 250 for row in validations] == [1, 2, 3]
    assert all(row["episodes"] == 4 and row["score"] >= -20 for row in validations)
    assert [r for r in rows if r["kind"] != "validation"] == list(runs.read_metrics(whole))
    assert same(final_state(path), final_state(whole))


@pytest.mark.usefixtures("without_waiting_for_the_disk")
def test_a_run_stops_at_its_score(tmp_path: Path) -> None:
    # Episodes are cut after 20 steps, so the first validation reaches -21 whatever the agent does.
    path = tmp_path / "run"
    c = config(
        loop__evaluate_every_frames=300,
        loop__validation_episodes=4,
        loop__stop_at_score=-21.0,
    )
    session.run(*session.start(c, path))
    assert 300 <= runs.read_evaluation(path)["frames"] < 308
    assert 300 <= runs.load_checkpoint(path).frames < 308
    assert runs.read_status(path)["state"] == "finished"


def command(*arguments: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "lwm.cli", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def rows_logged(path: Path) -> int:
    try:
        return (path / "metrics.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def written_by(path: Path) -> int | None:
    """The process that wrote the run's status last; a new directory has none yet."""
    status = path / "status.json"
    return json.loads(status.read_text())["pid"] if status.exists() else None


def disturb(process: subprocess.Popen[str], path: Path, rows: int, signum: int) -> tuple[int, str]:
    """Send the signal some time after the run goes on and its log has ``rows`` rows; exit code and
    stderr.  A process before this one may have come further than it was to."""
    deadline = time.monotonic() + 120

    def wait(until: Callable[[], bool]) -> None:
        while not until():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)

    wait(lambda: written_by(path) == process.pid)
    before = rows_logged(path)
    wait(lambda: rows_logged(path) >= max(rows, before + 1))
    time.sleep(random.Random(rows).uniform(0, 0.15))
    process.send_signal(signum)
    _, stderr = process.communicate(timeout=120)
    return process.returncode, stderr


def test_killed_and_resumed(tmp_path: Path) -> None:
    settings = {
        "loop.total_frames": 3600,
        "loop.log_every_frames": 100,
        "loop.checkpoint_every_frames": 430,
        "loop.evaluate_every_frames": 1300,
        "loop.validation_episodes": 4,
        "evaluation.episodes": 8,
    }
    undisturbed, path = tmp_path / "undisturbed", tmp_path / "run"
    session.run(*session.start(load_preset("debug", settings), undisturbed))

    flags = [f"{key}={value}" for key, value in settings.items()]
    begin = ("train", "labyrinth", *flags, "--preset", "debug", "--out", path, "--quiet")
    go_on = ("train", "--resume", path, "--quiet")
    asked = f"lwm: stopped; continue with: lwm train --resume {path}\n"

    # The first signal comes in the warm-up or shortly after it.
    assert disturb(command(*begin), path, 2, signal.SIGTERM) == (143, asked)
    assert runs.read_status(path)["state"] == "stopped"
    assert disturb(command(*go_on), path, 10, signal.SIGKILL) == (-9, "")
    assert runs.read_status(path)["state"] == "running"  # nobody was left to say otherwise
    assert disturb(command(*go_on), path, 18, signal.SIGINT) == (130, asked)
    assert runs.read_status(path)["state"] == "stopped"
    last = command(*go_on)
    stdout, stderr = last.communicate(timeout=120)
    assert (last.returncode, stderr) == (0, "")
    assert stdout.startswith("score ") and stdout.endswith(f"run: {path}\n")
    assert_same_run(path, undisturbed)


@pytest.mark.usefixtures("without_waiting_for_the_disk")
@pytest.mark.parametrize("part", ["dqn", "world model"])
def test_numbers_that_are_not_finite_end_the_run(part: str, tmp_path: Path) -> None:
    path = tmp_path / "run"
    writer, trainer = session.start(config(), path)
    learner = trainer.learner
    network = learner.dqn if part == "dqn" else learner.bonus.model

    def poison(event: Event, seconds: float) -> None:
        if event.frames >= 700:  # after the checkpoint at 600
            with torch.no_grad():
                next(network.parameters()).fill_(float("nan"))

    words = {
        "dqn": r"^a loss is not finite after \d+ updates$",
        "world model": "world model's loss",
    }
    with pytest.raises(RunFailed, match=words[part]) as caught:
        session.run(writer, trainer, (poison,))
    status = runs.read_status(path)
    assert status["state"] == "failed"
    assert status["message"] == str(caught.value)
    good = session.load(path)
    assert 600 <= good.frames < 608
    for module in (good.learner.dqn, good.learner.target, good.learner.bonus.model):
        assert all(torch.isfinite(p).all() for p in module.parameters())
    assert runs.read_evaluation(path) is None


@pytest.mark.parametrize("seam", ["write", "fsync"])
@pytest.mark.parametrize("call", [1, 3])
def test_full_disk(
    seam: str,
    call: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # The second checkpoint, near frame 600, finds no room from some call on.
    path = tmp_path / "run"
    original, calls = getattr(files, seam), 0

    def failing(descriptor: int, *rest: Any) -> Any:
        nonlocal calls
        if "/step-00000060" in os.readlink(f"/proc/self/fd/{descriptor}"):
            calls += 1
            if calls >= call:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(descriptor, *rest)

    settings = ["loop.total_frames=800", "loop.checkpoint_every_frames=300"]
    flags = ["--preset", "debug", "--out", str(path), "--quiet"]
    with monkeypatch.context() as patch:
        patch.setattr(files, seam, failing)
        assert main(["train", "labyrinth", *settings, *flags]) == 1
    assert calls == call
    stderr = capsys.readouterr().err
    assert stderr.startswith(f"lwm: cannot write checkpoint {path}/checkpoints/step-00000060")
    assert stderr.endswith(": No space left on device\n") and stderr.count("\n") == 1
    assert runs.read_status(path)["state"] == "failed"
    # The first checkpoint is whole and alone, and the run goes on from it.
    (kept,) = (path / "checkpoints").iterdir()
    assert kept.name.startswith("step-00000030")
    assert 300 <= session.load(path).frames < 308
    assert main(["train", "--resume", str(path), "--quiet"]) == 0
    assert runs.read_status(path)["state"] == "finished"


@pytest.mark.usefixtures("without_waiting_for_the_disk")
def test_a_run_in_use_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run"
    writer, trainer = session.start(config(), path)
    with writer:
        with pytest.raises(RunInUse, match="in use by process"):
            session.reopen(path)
        assert main(["train", "--resume", str(path)]) == 2
        assert capsys.readouterr().err == f"lwm: {path} is in use by process {os.getpid()}\n"
        assert runs.read_status(path)["state"] == "running"
        writer.checkpoint(0, trainer.get_state())
        assert session.load(path).frames == 0  # readers are welcome
    assert runs.read_status(path)["state"] == "stopped"
    session.reopen(path)[0].close()


@pytest.mark.usefixtures("without_waiting_for_the_disk")
def test_an_error_while_starting_frees_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(config: Config) -> Trainer:
        raise RuntimeError("broken")

    path = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(session, "Trainer", broken)
        with pytest.raises(RuntimeError, match="broken"):
            session.start(config(), path)
    # If anything is there by now, it is a run that failed and goes on from its start.
    begun = runs.is_run(path)
    assert not begun or runs.read_status(path)["state"] == "failed"
    writer, trainer = session.reopen(path) if begun else session.start(config(), path)
    assert trainer.frames == 0
    writer.close()


def test_metrics_hold_nothing_of_the_clock(whole: Path) -> None:
    for line in (whole / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        assert not any("second" in key or "time" in key for key in row)
