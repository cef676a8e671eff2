"""Atari runs: same seed, same bits for any number of workers; killed and resumed; actor and learner
see the same rows; scores of whole games although training episodes end with a life."""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from lwm import blocks, files, recording, runs, session, training, updates
from lwm import learner as learner_module
from lwm.actor import Acted, ActorState, act
from lwm.agent import TDInput, td_errors
from lwm.cli import main
from lwm.config import Config, load_preset, to_dict
from lwm.encoder import EncoderLearner
from lwm.envs.vector import make_env
from lwm.episodes import read_episode, write_episode
from lwm.evaluate import evaluate
from lwm.intrinsic import NoBonus, Window
from lwm.learner import learn
from lwm.replay import Replay
from lwm.streams import environment_seeds, generator
from lwm.training import Trainer
from lwm.types import Event, Step, Unroll
from processes import gone
from trees import same

pytest.importorskip("ale_py", reason="playing Atari games needs the extra: pip install ale-py")

SETTINGS: dict[str, Any] = {
    # Lives are lost after some 30 steps, and half of the games are cut by the time limit.
    "atari.game": "breakout",
    "atari.time_limit": 45,
    "dqn.epsilon_base": 1.0,
    "intrinsic.beta": 1.0,
    "loop.log_every_frames": 25,
    "loop.checkpoint_every_frames": 70,
    "loop.cycles_per_update": 4,
    "evaluation.episodes": 2,
}


def config(**overrides: Any) -> Config:
    """About 130 cycles of two actors: 60 of warm-up, 8 pretraining updates, 18 updates."""
    keys = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_preset("debug", SETTINGS | keys, "atari")


def flags(path: Path, **overrides: Any) -> list[str]:
    """The command that trains ``config(**overrides)`` into ``path``."""
    keys = {key.replace("__", "."): value for key, value in overrides.items()}
    settings = [f"{key}={value}" for key, value in (SETTINGS | keys).items()]
    return ["train", "atari", *settings, "--preset", "debug", "--out", str(path), "--quiet"]


@pytest.fixture(autouse=True)
def without_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "fsync", lambda descriptor: None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of ``config()`` that nobody disturbed, by the command line."""
    path = tmp_path_factory.mktemp("whole") / "run"
    assert main(flags(path)) == 0
    return path


def assert_same_run(path: Path, other: Path) -> None:
    """Metrics, scores, and everything in the last checkpoint: weights, replay, emulators."""
    assert (path / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
    assert runs.read_evaluation(path) == runs.read_evaluation(other)
    mine, theirs = runs.load_checkpoint(path), runs.load_checkpoint(other)
    assert mine.frames == theirs.frames
    assert same(mine.state["learner"], theirs.state["learner"])
    assert same(mine.state, theirs.state)
    assert mine.blocks == theirs.blocks  # the rows of replay: their files have the same sums
    assert runs.read_status(path)["state"] == runs.read_status(other)["state"] == "finished"


def close(a: Any, b: Any) -> None:
    torch.testing.assert_close(
        torch.as_tensor(a), torch.as_tensor(b), atol=1e-4, rtol=1e-4, check_dtype=False
    )


# From the command line.


def test_a_run_from_the_command_line(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runs.read_config(whole) == to_dict(config())
    assert runs.read_status(whole)["state"] == "finished"
    rows = list(runs.read_metrics(whole))
    kinds = [row["kind"] for row in rows]
    assert [kind for i, kind in enumerate(kinds) if i == 0 or kind != kinds[i - 1]] == [
        "warmup", "pretrain", "train", "end",
    ]  # fmt: skip
    # Phi's 4 iterations, then the world model's 4, each told at its end.
    told = [(row["iteration"], "encoder/loss" in row) for row in rows if row["kind"] == "pretrain"]
    assert told == [(4, True), (8, False)]
    assert all(np.isfinite(v) for row in rows for v in row.values() if isinstance(v, float))
    assert 260 <= rows[-1]["frames"] < 262 and rows[-1]["updates"] >= 15
    frames = [row["frames"] for row in rows if row["kind"] in ("warmup", "train")]
    assert [f // 25 for f in frames] == list(range(1, 11))
    assert any("episode/return" in row for row in rows)
    assert not any("episode/solved" in row for row in rows)  # a game ends, it is not solved
    trained = [row for row in rows if "dqn/loss" in row]
    assert trained
    assert all(0 < row["replay/priority"] <= row["replay/priority_max"] for row in trained)
    assert len(list(runs.read_timing(whole))) == len(rows)
    saved = runs.load_checkpoint(whole)
    assert saved.frames == rows[-1]["frames"] and "ranking" in saved.state

    # The same parameters on the same seeds have the same score, and the line says what was scored.
    evaluation = runs.read_evaluation(whole)
    assert evaluation["episodes"] == 2 and evaluation["frames"] == saved.frames
    assert evaluation["epsilon"] == 0.001
    assert "solved" not in evaluation and "positions" not in evaluation  # breakout has no map
    (whole / "evaluation.json").unlink()
    capsys.readouterr()
    assert main(["evaluate", str(whole), "--record", "1"]) == 0
    assert runs.read_evaluation(whole) == evaluation
    said = capsys.readouterr()
    assert said.err == "" and said.out.startswith(f"score {evaluation['score']:.1f} [")
    assert f"over 2 games at {saved.frames} agent steps\n" in said.out
    assert said.out.endswith(f"recorded 1 episode in {whole / 'episodes'}\n")
    episode = read_episode(whole / "episodes" / "episode-000000.safetensors.zst")
    assert episode.meta["environment"] == "atari breakout" and episode.meta["agent"] == "lwm"
    assert episode.meta["frames"] == saved.frames


def test_what_checkpoints_take(whole: Path, tmp_path: Path, capsys: Any) -> None:
    # The ring has 80 rows of 2 actors: of the block of 64 rows that is oldest, a few are left.
    saved = runs.load_checkpoint(whole)
    assert set(saved.state["replay"]) == {"count", "priorities"}
    count = saved.state["replay"]["count"]
    bounds = [(b.first, b.stop) for b in saved.blocks]
    assert bounds == [(0, 64), (64, 128), (128, count)] and count - 80 < 64
    for row in runs.read_metrics(whole):
        assert not any("seconds" in key for key in row)
    timing = list(runs.read_timing(whole))
    assert sum("checkpoint_seconds" in row for row in timing) == 4  # at 70, 140, 210 and the end
    assert sum("block_seconds" in row for row in timing) == 2
    stops = [row[k] for row in timing for k in ("block_seconds", "checkpoint_seconds") if k in row]
    assert all(0 < seconds < 60 for seconds in stops)
    # Finish once more, from the last checkpoint: the line is there though nothing is saved.
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    (path / "status.json").unlink()
    capsys.readouterr()
    assert main(["train", "--resume", str(path), "--quiet"]) == 0
    rows = sum(b.size for b in saved.blocks)
    total = rows + sum(file.stat().st_size for file in saved.path.iterdir())
    assert capsys.readouterr().out.splitlines()[1] == (
        f"checkpoint: {total / 1e6:.1f} MB on disk "
        f"(replay 160 frames, {rows / (2 * count):.0f} bytes a frame)"
    )
    assert_same_run(path, whole)


def test_a_running_run_is_scored_with_its_parameters_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run"
    writer, trainer = session.start(config(loop__actors=4, loop__warmup_frames=240), path)
    asked: list[int] = []

    def counting(config: Any, seeds: Any, coverage: bool = False) -> Any:
        asked.append(len(seeds))
        return make_env(config, seeds, coverage)

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("this needs no replay and no training games")

    with writer, contextlib.closing(trainer):
        for _ in range(3):
            trainer.cycle()
        writer.checkpoint(trainer.frames, trainer.get_state())
        with monkeypatch.context() as patch:
            patch.setattr("lwm.evaluate.make_env", counting)
            patch.setattr("lwm.training.Trainer.__init__", never)
            patch.setattr("lwm.replay.Replay.__init__", never)
            assert main(["evaluate", str(path), "--record", "1"]) == 0
        said = capsys.readouterr()
        assert said.err == "" and f"over 2 games at {trainer.frames} agent steps" in said.out
        assert asked == [1, 2]  # one to ask for its actions, then those to be scored
        assert runs.read_evaluation(path) == session.score(trainer)  # the very same parameters
        trainer.cycle()  # it goes on
        assert runs.read_status(path)["state"] == "running"


def test_validations_of_games_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes: dict[str, Any] = {
        "loop__total_frames": 130,
        "loop__evaluate_every_frames": 125,
        "loop__validation_episodes": 2,
        "encoder__pretrain_iterations": 0,
        "world_model__pretrain_iterations": 0,
    }
    path = tmp_path / "run"
    shown = [word for word in flags(path, **changes) if word != "--quiet"]
    assert main(shown) == 0
    (told,) = (row for row in runs.read_metrics(path) if row["kind"] == "validation")
    assert told["episodes"] == 2 and "solved" not in told
    said = capsys.readouterr().err
    assert f"score {told['score']:.2f} over 2 validation episodes\n" in said
    assert "return=" in said and "solved" not in said


def test_a_run_that_is_finished_is_not_resumed(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--resume", str(whole)]) == 2
    assert capsys.readouterr().err == f"lwm: {whole} is finished: nothing to resume\n"


@pytest.mark.parametrize("workers", [1, 2])
def test_same_seed_same_run(workers: int, tmp_path: Path, whole: Path) -> None:
    torch.manual_seed(workers)  # nobody uses the global generators
    np.random.seed(workers)
    path = tmp_path / "run"
    assert main(flags(path, atari__workers=workers)) == 0
    assert_same_run(path, whole)


def test_another_seed_another_run(whole: Path) -> None:
    trainer = Trainer(config(seed=1))
    try:
        state = runs.load_checkpoint(whole).state
        weights = trainer.learner.dqn.features.projection.weight.detach().numpy()
        assert not np.array_equal(weights, state["learner"]["dqn"]["features.projection.weight"])
        while trainer.replay.count < 30:
            trainer.cycle()
        rows = trainer.replay.get_rows(0, 30)
    finally:
        trainer.close()
    other = Trainer(config())
    try:
        while other.replay.count < 30:
            other.cycle()
        assert not np.array_equal(rows["obs"], other.replay.get_rows(0, 30)["obs"])
    finally:
        other.close()


def test_the_last_actor_has_a_number_of_its_own() -> None:
    trainer = Trainer(config())
    try:
        ends = np.array([True, True])
        returns = np.array([3.0, 7.0], np.float32)
        over = trainer.step._replace(episode_end=ends, episode_return=returns)
        for end, value in (((True, False), 1.0), ((True, True), 7.0), ((False, True), 9.0)):
            own = np.array([3.0, value], np.float32)
            trainer.step = over._replace(episode_end=np.array(end), episode_return=own)
            trainer._note_episodes()
        trainer.frames = trainer._next_log
        told = trainer._report().data
        assert told["episode/return"] == np.mean([3, 3, 7, 9])
        assert told["episode/return_last_actor"] == np.mean([7, 9])  # whole games of actor 1 alone
        trainer.step = over._replace(episode_end=np.array([True, False]))
        trainer._note_episodes()
        trainer.frames = trainer._next_log
        assert "episode/return_last_actor" not in trainer._report().data
    finally:
        trainer.close()


# Stopped, killed and resumed.


class Asking:
    """A consumer that asks the run to stop when it sees its n-th event of a kind."""

    def __init__(self, kind: str, n: int, signum: int) -> None:
        self.kind, self.left, self.signum = kind, n, signum

    def __call__(self, event: Event, seconds: float) -> None:
        if event.kind == self.kind:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), self.signum)


@pytest.mark.parametrize(
    ("kind", "n", "signum"),
    [
        ("pretrain", 1, signal.SIGTERM),  # between Phi and the world model
        ("pretrain", 2, signal.SIGINT),  # before the first row that is acted on
    ],
)
def test_asked_to_stop_and_resumed(
    kind: str, n: int, signum: int, tmp_path: Path, whole: Path
) -> None:
    path = tmp_path / "run"
    with pytest.raises(session.Interrupted) as caught:
        session.run(*session.start(config(), path), (Asking(kind, n, signum),))
    assert caught.value.exit_code == 128 + signum
    assert runs.read_status(path)["state"] == "stopped"
    last = list(runs.read_metrics(path))[-1]
    assert last["kind"] == kind and last["frames"] == runs.load_checkpoint(path).frames
    assert main(["train", "--resume", str(path), "--quiet"]) == 0
    assert_same_run(path, whole)


def test_a_collapsed_phi_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(EncoderLearner, "collapsed", property(lambda self: True))
    session.run(*session.start(config(), tmp_path / "run"))
    err = capsys.readouterr().err
    assert err.count("Φ has collapsed") == err.count("lwm: warning") == 1


def test_the_baseline_is_resumed_too(tmp_path: Path) -> None:
    # It carries no embedding and no belief: arrays of width 0 in the checkpoint.
    undisturbed, path = tmp_path / "undisturbed", tmp_path / "run"
    c = config(agent="dqn", atari__workers=2)
    session.run(*session.start(c, undisturbed))
    with pytest.raises(session.Interrupted):
        session.run(*session.start(c, path), (Asking("train", 4, signal.SIGTERM),))
    session.run(*session.reopen(path))
    assert_same_run(path, undisturbed)


def command(*arguments: Any) -> subprocess.Popen[str]:
    """``lwm`` in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "lwm.cli", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
    )


def wait_for(process: subprocess.Popen[str], path: Path, rows: int) -> None:
    """Until the log has so many rows."""
    deadline = time.monotonic() + 300
    while (
        not (path / "metrics.jsonl").exists()
        or (path / "metrics.jsonl").read_bytes().count(b"\n") < rows
    ):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_killed_and_resumed(tmp_path: Path, whole: Path) -> None:
    path = tmp_path / "run"
    # SIGTERM to all of the group, as a batch system sends it: the workers leave it to their parent.
    process = command(*flags(path, atari__workers=2))
    try:
        wait_for(process, path, 7)
        os.killpg(process.pid, signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 143
    assert (stdout, stderr) == (
        "", f"lwm: stopped; continue with: lwm train --resume {path}\n",
    )  # fmt: skip
    stopped = runs.load_checkpoint(path).frames
    assert runs.read_status(path)["state"] == "stopped" and 120 <= stopped < 260

    # SIGKILL to the parent alone: what was logged after its last checkpoint is told again, and no
    # worker survives it for long.
    logged = len(list(runs.read_metrics(path)))
    process = command("train", "--resume", path, "--quiet")
    try:
        wait_for(process, path, logged + 2)
        workers = children(process.pid)
        process.send_signal(signal.SIGKILL)
        assert process.communicate(timeout=300) == ("", "")
    finally:
        process.kill()
    assert process.returncode == -9 and len(workers) == 2
    assert runs.read_status(path)["state"] == "running"  # nobody was left to say otherwise
    deadline = time.monotonic() + 60
    while not all(gone(pid) for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert runs.load_checkpoint(path).frames < 260

    assert main(["train", "--resume", str(path), "--quiet"]) == 0
    assert_same_run(path, whole)


class Killed(BaseException):
    """As sudden as a kill: no one gets to save anything."""


def test_killed_between_blocks_and_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "ROWS", 16)
    undisturbed, path = tmp_path / "undisturbed", tmp_path / "run"
    session.run(*session.start(config(), undisturbed))
    began, left = session.start(config(), path), 0
    write = blocks.write

    def dying(directory: Path, first: int, rows: blocks.Rows) -> blocks.Block:
        nonlocal left
        block = write(directory, first, rows)
        left -= block.rows == 16
        if left == 0:
            raise Killed
        return block

    # Die after 1 block, before there is a checkpoint; then after 3, 5, ... further ones.
    kills = 0
    for n in (1, 3, 5, 7, 9):
        left = n
        monkeypatch.setattr(blocks, "write", dying)
        try:
            session.run(*began)
        except Killed:
            kills += 1
        else:
            break
        monkeypatch.setattr(blocks, "write", write)
        began = session.reopen(path)
        # What was in memory when the checkpoint was written is there again.
        began[1].replay.check_valid()
    assert kills >= 3
    assert_same_run(path, undisturbed)
    assert len(runs.load_checkpoint(path).blocks) == 6  # of the last 80 rows, the oldest in part


# What is trained, and what is not.


class Watched(NamedTuple):
    """A run of 130 cycles: its state at the start, after pretraining and at the end."""

    config: Config
    start: dict[str, Any]
    pretrained: dict[str, Any]
    end: dict[str, Any]
    events: list[Event]
    windows: list[tuple[Unroll, TDInput]]
    """What each update learned from."""
    targets: list[float]
    """Largest departures of the target network from its EMA, one an update."""


def watch(agent: str) -> Watched:
    c = config(agent=agent)
    trainer = Trainer(c)
    found = Watched(c, copy.deepcopy(trainer.get_state()), {}, {}, [], [], [])
    patch = pytest.MonkeyPatch()
    rewarded: list[TDInput] = []

    def on_learn(state: Any, unroll: Unroll, *rest: Any) -> Any:
        before = [p.clone() for p in state.target.parameters()]
        result = learn(state, unroll, *rest)
        found.windows.append((unroll, rewarded.pop()))
        expected = [
            slow + c.dqn.tau * (fast.detach() - slow)
            for slow, fast in zip(before, state.dqn.parameters(), strict=True)
        ]
        found.targets.append(
            max(
                (slow - value).abs().max().item()
                for slow, value in zip(state.target.parameters(), expected, strict=True)
            )
        )
        return result

    def on_td(online: Any, target: Any, window: TDInput, *rest: Any) -> Any:
        if torch.is_grad_enabled():  # not the ranking of new windows
            rewarded.append(window)
        return td_errors(online, target, window, *rest)

    patch.setattr(updates, "learn", on_learn)
    patch.setattr(learner_module, "td_errors", on_td)
    try:
        for event in trainer.run():
            found.events.append(event)
            if not found.pretrained and trainer.acted == 1:
                found.pretrained.update(copy.deepcopy(trainer.get_state()))
        found.end.update(copy.deepcopy(trainer.get_state()))
    finally:
        patch.undo()
        trainer.close()
    return found


@pytest.fixture(scope="module")
def lwm() -> Watched:
    return watch("lwm")


@pytest.fixture(scope="module")
def dqn() -> Watched:
    return watch("dqn")


def moved(before: dict[str, Any], after: dict[str, Any]) -> set[bool]:
    """Whether each parameter changed."""
    assert before.keys() == after.keys()
    return {not np.array_equal(before[key], after[key]) for key in before}


def test_lwm_trains_all_three(lwm: Watched) -> None:
    start, middle, end = (s["learner"] for s in (lwm.start, lwm.pretrained, lwm.end))
    assert end["updates"] >= 15
    # Pretraining moves Phi and the world model; then every update moves all of them.
    for before, after, dqn in ((start, middle, False), (middle, end, True)):
        assert moved(before["encoder"]["encoder"], after["encoder"]["encoder"]) == {True}
        assert moved(before["world_model"], after["world_model"]) == {True}
        assert moved(before["dqn"], after["dqn"]) == {dqn}
        assert moved(before["target"], after["target"]) == {dqn}
    counts = end["encoder"]["counts"]
    assert counts["updates"] == lwm.config.encoder.pretrain_iterations + end["updates"]
    assert counts["skipped"] == 0
    # Row 9: one step of the moments per batch of the world model, pretraining included.
    assert end["bonus"]["updates"] == lwm.config.world_model.pretrain_iterations + end["updates"]
    assert end["bonus"]["std"] > 0


def test_the_target_follows_by_ema(lwm: Watched, dqn: Watched) -> None:
    for run in (lwm, dqn):
        assert len(run.targets) == run.end["learner"]["updates"]
        assert max(run.targets) < 1e-7
        assert same(run.start["learner"]["dqn"], run.start["learner"]["target"])
        assert not same(run.end["learner"]["dqn"], run.end["learner"]["target"])


def test_the_baseline_trains_neither_encoder_nor_world_model(dqn: Watched, lwm: Watched) -> None:
    for state in (dqn.start, dqn.end):
        assert not {"encoder", "world_model", "world_model_optimiser"} & set(state["learner"])
        assert state["learner"]["bonus"] == {}
    assert moved(dqn.start["learner"]["dqn"], dqn.end["learner"]["dqn"]) == {True}
    assert dqn.end["counters"]["pretrained"] == 0
    assert not any(event.kind == "pretrain" for event in dqn.events)
    keys = {key for event in dqn.events for key in event.data}
    assert "dqn/loss" in keys
    assert not [key for key in keys if key.startswith(("encoder/", "world_model/", "bonus/"))]
    # Otherwise it is the same agent: the same network, from the same weights.
    assert same(dqn.start["learner"]["dqn"], lwm.start["learner"]["dqn"])


def test_the_baseline_gets_no_bonus(dqn: Watched, lwm: Watched) -> None:
    assert (dqn.end["replay"]["r_in"] == 0).all() and (lwm.end["replay"]["r_in"] != 0).any()
    for run in (dqn, lwm):
        bonus = 0.0
        for unroll, window in run.windows:
            r_in = window.reward.numpy() - unroll.r_t
            bonus = max(bonus, np.abs(r_in).max())
            # The target pays what the network sees, but for a first row, where it sees nothing.
            seen = window.x.rest[..., -1].numpy()
            np.testing.assert_array_equal(seen, window.reward.numpy() * ~unroll.is_first)
            assert (r_in[0] == 0).all() and (r_in[unroll.is_first] == 0).all()
        assert (bonus > 0.1) == (run is lwm)


def test_warm_up_stores_no_state_and_no_bonus(lwm: Watched) -> None:
    rows = lwm.pretrained["replay"]
    warm = lwm.pretrained["replay"]["count"] - 1
    assert warm >= 60 and (rows["r_in"][:warm] == 0).all() and (rows["h"] == 0).all()


# The time diagram on images: actor and learner see the same rows.

ROWS = 110
ENVS = 2


class Played(NamedTuple):
    """What the actors of a running trainer saw and did, by row number since the run began."""

    trainer: Trainer
    began: int
    """The first row that was acted on."""
    states: list[ActorState]
    """Before each row."""
    steps: list[Step]
    acted: list[Acted]
    z: list[Tensor]
    """[ENVS, D] as the actor embedded the row."""

    def column(self, name: str) -> NDArray[Any]:
        return np.stack([getattr(step, name) for step in self.steps])

    def first_rows(self, env: int) -> list[int]:
        """Where episodes begin, counted from ``began``."""
        return np.flatnonzero(self.column("is_first")[:, env]).tolist()


@pytest.fixture(scope="module")
def played() -> Iterator[Played]:
    """Parameters and moments are frozen but for the pretraining of Phi and world model."""
    c = config(
        precision="float32",
        dqn__learning_rate=0.0,
        intrinsic__momentum=1.0,
        replay__capacity_steps=1000,
        loop__total_frames=1000,
        loop__cycles_per_update=1000,
    )
    trainer = Trainer(c)
    patch = pytest.MonkeyPatch()
    found = Played(trainer, 0, [], [], [], [])

    def on_act(policy: Any, bonus: Any, state: ActorState, step: Step, *rest: Any) -> Any:
        acted, following = act(policy, bonus, state, step, *rest)
        found.states.append(state)
        found.steps.append(step)
        found.acted.append(acted)
        found.z.append(following.z_tm1)
        return acted, following

    patch.setattr(training, "act", on_act)
    try:
        for _ in trainer.run():
            if trainer.acted == ROWS:
                break
        freeze(trainer)
        yield found._replace(began=trainer.replay.count - ROWS)
    finally:
        patch.undo()
        trainer.close()


def freeze(trainer: Trainer) -> None:
    """The world model learned in the pretraining; from here on it does not."""
    for group in trainer.learner.bonus.optimiser.param_groups:
        group["lr"] = 0.0


def window(played: Played, first: int, env: int, length: int) -> Unroll:
    """Rows of the play that begin an episode, as the learner gets them."""
    u = played.trainer.replay.windows(
        np.array([played.began + first]), np.array([env]), length, states=False
    )
    assert u.is_first[0].all()
    return u._replace(h=np.zeros((1, played.trainer.config.dqn.hidden), np.float32))


def test_the_play_has_all_kinds_of_rows(played: Played) -> None:
    first, last = played.column("is_first"), played.column("is_last")
    discount, over = played.column("discount_t"), played.column("episode_end")
    lost_life, truncated = last & ~over, last & (discount == 1)
    assert lost_life.sum() >= 3 and truncated.sum() >= 3
    assert (discount[lost_life] == 0).all() and over[truncated].all()
    assert (played.column("episode_length")[truncated] == 45).all()
    assert (last[:-1] == first[1:]).all()
    # A lost life: the same picture again as a first row, no time passes, the game goes on.
    obs, length = played.column("obs"), played.column("episode_length")
    for row, env in np.argwhere(lost_life[:-1]).tolist():
        np.testing.assert_array_equal(obs[row + 1, env], obs[row, env])
        assert length[row + 1, env] == length[row, env] > 0
    ended = np.argwhere(over[:-1])
    assert all(length[row + 1, env] == 0 for row, env in ended.tolist())
    assert (played.column("r_t")[first] == 0).all() and (played.column("a_tm1")[first] == 0).all()
    played.trainer.replay.check_valid()


@pytest.mark.parametrize("env", range(ENVS))
def test_learner_and_actor_agree(env: int, played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    # All rows from the first beginning on, as one window: several episodes, all kinds of ends.
    trainer = played.trainer
    start = played.first_rows(env)[0]
    rows = slice(start, ROWS)
    u = window(played, start, env, ROWS - start)
    assert u.is_last.sum() >= 3 and len(u.obs) > 60
    seen: list[TDInput] = []

    def spy(online: Any, target: Any, td: TDInput, *rest: Any) -> Any:
        seen.append(td)
        return td_errors(online, target, td, *rest)

    monkeypatch.setattr(learner_module, "td_errors", spy)
    before = copy.deepcopy(trainer.learner.state_tree()["dqn"])
    learn(trainer.learner, u, 0.0)
    assert same(before, trainer.learner.state_tree()["dqn"])  # frozen indeed
    (td,) = seen

    # Embeddings of the whole window at once, and of a row of all actors at a time.
    close(trainer.learner.embed(u.obs)[:, 0], torch.stack(played.z)[rows, env])
    # Bonuses: what the learner adds to the target and feeds to the network is what the actor saw.
    r_in = np.stack([acted.r_in for acted in played.acted])[rows, env]
    assert np.abs(r_in).max() > 0.5 and len(np.unique(r_in)) > 40
    assert (r_in[u.is_first[:, 0]] == 0).all()
    close(td.reward[:, 0], played.column("r_t")[rows, env] + r_in)
    # Inputs by hand: the frames as they are, previous action one-hot, previous reward and bonus.
    assert td.x.frames.dtype == torch.uint8
    np.testing.assert_array_equal(td.x.frames[:, 0].numpy(), played.column("obs")[rows, env])
    rest = np.zeros((len(u.obs), trainer.env.num_actions + 1), np.float32)
    for t, step in enumerate(played.steps[rows]):
        if not step.is_first[env]:
            rest[t, step.a_tm1[env]] = 1
            rest[t, -1] = step.r_t[env] + r_in[t]
    close(td.x.rest[:, 0], rest)
    # Q-values and states: the same numbers from one unroll as from step after step.
    q = torch.stack([acted.q for acted in played.acted])[rows, env]
    assert (q.std(0) > 1e-3).all()
    with torch.no_grad():
        states = trainer.learner.dqn.states(td.x, td.is_first, td.h)
        close(trainer.learner.dqn.head(states)[:, 0], q)
    h = np.stack([acted.h for acted in played.acted])[rows, env]
    close((states[:-1, 0] * ~td.is_first[1:, 0, None]), h[1:])
    assert (h[u.is_first[:, 0]] == 0).all() and np.abs(h).max() > 0.1


def test_windows_may_begin_on_any_first_row(played: Played) -> None:
    bonus, r_in = played.trainer.learner.bonus, np.stack([acted.r_in for acted in played.acted])
    checked = 0
    for env in range(ENVS):
        for first in played.first_rows(env):
            length = min(12, ROWS - first)
            if length < 2:
                continue
            u = window(played, first, env, length)
            rows = [torch.from_numpy(v) for v in (u.a_tm1, u.is_first, u.is_last)]
            found = bonus.recompute(Window(played.trainer.learner.embed(u.obs), *rows))
            close(found[:, 0], r_in[first : first + length, env])
            checked += 1
    assert checked >= 8


def test_states_are_stored_where_a_window_begins(played: Played) -> None:
    # In the middle of an episode, the stored state alone gives the actor's Q-values (row 5).
    trainer = played.trainer
    c, dqn = trainer.config, trainer.learner.dqn
    every = c.replay.unroll
    q = torch.stack([acted.q for acted in played.acted])
    inside = 0
    for k in range(-(-played.began // every), (played.began + ROWS - 9) // every):
        first = k * every
        u = trainer.replay.windows(np.full(ENVS, first), np.arange(ENVS), 9)
        is_first = torch.from_numpy(u.is_first)
        reward = torch.from_numpy(u.r_t + u.r_in)
        x = dqn.inputs(torch.from_numpy(u.obs), torch.from_numpy(u.a_tm1), reward, is_first)
        with torch.no_grad():
            found = dqn.head(dqn.states(x, is_first, torch.from_numpy(u.h)))
        at = first - played.began
        close(found, q[at : at + 9])
        inside += int((~u.is_first[0] & (np.abs(u.h).max(1) > 0.01)).sum())
    assert inside >= 10


def test_the_first_row_after_the_warm_up_has_a_sane_bonus(played: Played) -> None:
    # Phi has changed since the row before was seen: it must be embedded as Phi sees it now.
    trainer = played.trainer
    learner, state, step = trainer.learner, played.states[0], played.steps[0]
    before = trainer.replay.get_rows(played.began - 1, played.began)
    assert not step.is_first.all()
    close(state.z_tm1, learner.embed(before["obs"][0]))
    assert (state.h == 0).all() and (state.belief == 0).all()
    with torch.no_grad():
        prediction, _ = learner.bonus.model.step(
            learner.embed(before["obs"][0]), torch.from_numpy(step.a_tm1), state.belief
        )
    error = (prediction - learner.embed(step.obs)).square().mean(-1).numpy()
    moments = learner.bonus.moments
    r_in = np.clip((error - float(moments.mean)) / float(moments.std), -10, 10) * ~step.is_first
    close(played.acted[0].r_in, r_in)
    # Of the size of the bonuses that follow; with an embedding of zero it would be another one.
    usual = np.abs(np.stack([acted.r_in for acted in played.acted[1:]])).max()
    assert 0 < np.abs(r_in).max() < 2 * usual and usual < 10
    nothing = learner.bonus.step(
        state.belief,
        torch.zeros_like(state.z_tm1),
        torch.from_numpy(step.a_tm1),
        learner.embed(step.obs),
        None,
    )[0]
    assert (np.abs(nothing.detach().numpy() - r_in)[~step.is_first] > 0.01).all()


class Nothing:
    """A network whose every Q-value is 0."""

    def states(self, x: Tensor, is_first: Tensor, h: Tensor) -> Tensor:
        return torch.zeros(*x.shape[:2], 1)

    def head(self, states: Tensor) -> Tensor:
        return torch.zeros(*states.shape[:2], 4)


def test_targets_at_a_windows_end_by_index_payload() -> None:
    # The paper's windows: 40 burn-in + 80 trained + 5 rows for the targets.  Row k of the run pays
    # k (environment 0) or -k (environment 1), so a target tells which rows it was summed over; the
    # ring goes round.
    c = load_preset("paper", workload="atari")
    B, last_rows = 2, {331: 0.0, 402: 1.0}
    replay = Replay(300, B, (1,), np.uint8, 1, state_every=c.replay.unroll, window=c.window)
    for k in range(530):
        sign = np.array([1, -1], np.float32)
        is_last = np.full(B, k in last_rows)
        first = np.full(B, k == 0 or k - 1 in last_rows)
        flat = np.zeros(B, np.float32)
        replay.append(
            Step(
                obs=np.full((B, 1), k % 256, np.uint8),
                a_tm1=np.full(B, k % 4),
                r_t=k * sign * ~first,
                is_first=first,
                is_last=is_last,
                discount_t=np.full(B, last_rows.get(k, 1.0), np.float32),
                episode_return=flat,
                episode_length=np.zeros(B, np.int64),
                episode_end=is_last,
            ),
            h=np.full((B, 1), k, np.float32),
            r_in=flat,
        )
    missing = replay.new_windows()
    assert missing.tolist() == [[k, b] for k in (240, 320, 400) for b in range(B)]
    replay.set_priorities(missing, np.ones(len(missing)))
    u, weight = replay.sample_prioritised(np.random.default_rng(0), 64)
    assert (weight == 1).all() and {tuple(o) for o in u.origin.tolist()} == {
        tuple(o) for o in missing.tolist()
    }
    T = c.window
    assert u.obs.shape == (T, 64, 1) and (u.h[:, 0] == u.origin[:, 0]).all()
    td = td_errors(
        Nothing(),  # type: ignore[arg-type]
        Nothing(),  # type: ignore[arg-type]
        TDInput(
            torch.from_numpy(u.obs.astype(np.float32)),
            torch.from_numpy(u.a_tm1),
            torch.from_numpy(u.r_t),
            torch.from_numpy(u.is_first),
            torch.from_numpy(u.is_last),
            torch.from_numpy(u.discount_t),
            torch.from_numpy(u.h),
        ),
        c.replay.burn_in,
        c.dqn,
    )
    assert td.delta.shape == (80, 64)
    for i, (first, env) in enumerate(u.origin.tolist()):
        sign = 1 - 2 * env
        for j in range(80):
            row = first + 40 + j
            assert td.a_t[j, i] == (row + 1) % 4  # what was done in this row led to the next
            assert bool(td.valid[j, i]) == (row not in last_rows)
            if row in last_rows:
                assert td.delta[j, i] == 0
                continue
            total = 0.0
            for ahead in range(1, 6):
                paid = row + ahead if row + ahead - 1 not in last_rows else 0
                total += 0.99 ** (ahead - 1) * paid
                if row + ahead in last_rows:
                    break
            h = np.sqrt(total + 1) - 1 + 0.001 * total
            assert td.delta[j, i].item() == pytest.approx(sign * h, rel=1e-5)


# Scores are of whole games.


def test_returns_are_logged_at_the_end_of_a_game() -> None:
    # Asterix: a life lasts about 70 steps of chance, three make a game; some are cut at 300.
    c = config(
        agent="random",
        atari__game="asterix",
        atari__time_limit=300,
        loop__total_frames=10_000,
        loop__log_every_frames=100,
    )
    trainer = Trainer(c)
    paid, since = np.zeros(2), np.zeros(2)
    length = np.zeros(2, np.int64)
    games: list[tuple[float, int]] = []
    ends: set[bool] = set()
    paid_lives = 0
    logged: list[tuple[float, float, float]] = []
    try:
        for event in trainer.run():
            step, data = trainer.step, event.data
            paid += step.r_t
            since += step.r_t
            length += ~step.is_first
            np.testing.assert_array_equal(paid, step.episode_return)
            np.testing.assert_array_equal(length, step.episode_length)
            paid_lives += int((since[step.is_last & ~step.episode_end] > 0).sum())
            since[step.is_last] = 0
            for env in np.flatnonzero(step.episode_end):
                games.append((paid[env], int(length[env])))
                ends.add(bool(step.discount_t[env] == 0))
                paid[env] = length[env] = 0
            if n := data.get("episodes"):
                logged.append((n, n * data["episode/return"], n * data["episode/length"]))
            else:
                assert not any(key.startswith("episode/") for key in data)
            if data and len(games) >= 4 and len(ends) == 2 and paid_lives >= 3:
                break
    finally:
        trainer.close()
    assert ends == {True, False}  # game over and time limit
    assert trainer.frames < 10_000
    count, score, steps = np.sum(logged, axis=0)
    assert count == len(games)
    assert score == pytest.approx(sum(game[0] for game in games))
    assert steps == pytest.approx(sum(game[1] for game in games))


def test_an_evaluation_scores_the_first_whole_game() -> None:
    # The random agent's evaluation again, by hand.
    c = config(agent="random", atari__game="asterix", atari__time_limit=300)
    trainer = Trainer(c)
    try:
        scores = evaluate(c, trainer.learner, 2)
        env = training.make_env(c, environment_seeds("test", 2))
        rng = generator(c.seed, "evaluate-test")
        env.reset()
        paid, length = np.zeros(2), np.zeros(2, np.int64)
        playing = np.ones(2, np.bool_)
        lives = 0
        try:
            while playing.any():
                rng.random(2)
                env.send(rng.integers(env.num_actions, size=2))
                step = env.recv()
                paid += step.r_t * playing
                length += ~step.is_first & playing
                lives += int((playing & step.is_last & ~step.episode_end).sum())
                playing &= ~step.episode_end
        finally:
            env.close()
    finally:
        trainer.close()
    assert lives >= 2 and paid.min() > 0
    np.testing.assert_array_equal(scores.returns, paid)
    np.testing.assert_array_equal(scores.lengths, length)


# Recording.


@pytest.mark.parametrize("agent", ["lwm", "dqn"])
def test_a_recorded_episode_is_a_whole_game(agent: str, tmp_path: Path) -> None:
    c = config(agent=agent, evaluation__epsilon=1.0, atari__time_limit=70, precision="float32")
    trainer = Trainer(c)
    try:
        episode = recording.play(trainer, 1)
        path = tmp_path / "episode-000001.safetensors.zst"
        write_episode(path, episode)
        again = read_episode(path)
        assert same(again.fields, episode.fields) and same(again.meta, episode.meta)

        fields = episode.fields
        seeds = environment_seeds("test", 2)[1:]
        assert episode.meta["environment"] == "atari breakout"
        assert (episode.meta["agent"], episode.meta["seed"]) == (agent, int(seeds[0]))
        assert episode.meta["score"] == fields["r_t"].sum()
        # The actions that were recorded play the same game again, lost lives included.
        env = training.make_env(c, seeds)
        try:
            step = env.reset()
            firsts = 0
            for t in range(episode.rows):
                np.testing.assert_array_equal(fields["obs"][t], step.obs[0])
                assert fields["r_t"][t] == step.r_t[0]
                assert fields["is_last"][t] == step.is_last[0]
                firsts += int(step.is_first[0])
                if t + 1 < episode.rows:
                    assert not step.episode_end[0]
                    env.send(np.array([fields["a_tm1"][t + 1]]))
                    step = env.recv()
            assert step.episode_end[0] and fields["is_last"].sum() == firsts >= 2
            assert step.episode_return[0] == episode.meta["score"]
        finally:
            env.close()
        # Rows of what the agent made of it.
        bonus = trainer.learner.bonus
        assert fields["q"].shape == (episode.rows, 4)
        close(fields["z"], trainer.learner.embed(fields["obs"]))
        begins = np.concatenate([[True], fields["is_last"][:-1]])
        assert (fields["r_in"][begins] == 0).all()
        if isinstance(bonus, NoBonus):
            assert fields["z"].shape == (episode.rows, 0) and "prediction" not in fields
            assert (fields["r_in"] == 0).all()
        else:
            error = np.square(fields["prediction"] - fields["z"]).mean(-1)
            paid = (error - float(bonus.moments.mean)) / float(bonus.moments.std)
            close(fields["r_in"], np.clip(paid, -10, 10) * ~begins)
    finally:
        trainer.close()


# Bad input: one line, exit code 2, nothing left behind.

REFUSED = [
    (
        ["atari", "--game", "montezuma"],
        "unknown game 'montezuma'; did you mean 'montezuma_revenge'?",
    ),
    (["atari", "--game", "Pong"], "unknown game 'Pong'; did you mean 'pong'?"),
    (["atari", "atari.game=zzzzzz"], "unknown game 'zzzzzz'"),
    (
        ["atari", "--game", "pong", "atari.coverage=on"],
        "coverage needs the game's RAM map; pong has none (known: montezuma_revenge)",
    ),
    (
        ["atari", "atari.coverage=maybe"],
        "atari.coverage='maybe' is not one of 'auto', 'on', 'off'",
    ),
    (["labyrinth", "encoder.batch=3"], "encoder.batch means nothing for labyrinth"),
    (["labyrinth", "--game", "pong"], "atari.game means nothing for labyrinth"),
    (["labyrinth", "atari.workers=2"], "atari.workers means nothing for labyrinth"),
    (["atari", "env.size=3"], "env.size means nothing for atari"),
    (["atari", "--size", "3"], "env.size means nothing for atari"),
    (
        ["atari", "--preset", "best"],
        "unknown preset 'best' of atari; choose from paper, official, laptop, single-gpu, debug",
    ),
    (["atari", "--preset", "laptp"], "unknown preset 'laptp' of atari; did you mean 'laptop'?"),
    (["labyrinth", "--preset", "laptop"], "unknown preset 'laptop' of labyrinth"),
    (["atari", "encoder.bach=3"], "unknown setting 'encoder.bach'; did you mean 'encoder.batch'?"),
    (["atari", "encoder.batch=1"], "encoder.batch=1 is outside [2, 1000000]"),
    (["atari", "atari.sticky=2"], "atari.sticky=2.0 is outside [0, 1]"),
    (["atary"], "unknown workload 'atary'; choose from labyrinth, atari, gym; did you mean"),
]


@pytest.mark.parametrize(("words", "line"), REFUSED, ids=lambda v: " ".join(v))
def test_refused_in_one_line(
    words: list[str],
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    preset = [] if "--preset" in words else ["--preset", "debug"]
    assert main(["train", *words, *preset, "--quiet"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith(f"lwm: {line}")
    assert said.err.count("\n") == 1 and said.err.endswith("\n")
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    monkeypatch.chdir(tmp_path)
    assert main(["train", "atari", "--preset", "debug", "--quiet"]) == 2
    assert capsys.readouterr().err == (
        "lwm: Atari games need the extra: pip install 'lwm[atari]'\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "setting",
    [
        "intrinsic.start_belief=stored",
        "replay.symmetry_share=0.5",
        "replay.align_starts=0.5",
        "replay.prioritised=false",
        "dqn.auxiliary=0.5",
        "world_model.loss=bce",
        "agent=mbie-eb",
        "workload=labyrinth",
    ],
)
def test_settings_that_atari_cannot_use_are_refused(
    setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "atari", setting, "--preset", "debug", "--out", str(tmp_path / "run")]
    assert main([*words, "--quiet"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_coverage_counts_where_games_begin() -> None:
    changes = {"atari.game": "montezuma_revenge", "agent": "random"}
    trainer = Trainer(load_preset("debug", changes, "atari"))
    room, x, y = trainer.env.ram[:, [3, 42, 43]].T
    trainer.close()
    assert trainer.coverage is not None and trainer.coverage.seen[room, x // 8, y // 8].all()


def test_the_last_row_of_the_warm_up_is_told_as_such() -> None:
    trainer = Trainer(load_preset("debug", {"loop.log_every_frames": 40}, "atari"))
    kinds = [e.kind for e in trainer.run() if e.kind != "cycle" and e.frames <= 120]
    trainer.close()
    assert kinds == ["warmup"] * 3 + ["pretrain"] * 2


def test_refused_before_the_trial(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "atari", "--game", "pong", "atari.coverage=on", "--preset", "debug"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().out == ""
