"""The optional backend: the same rows as ours, and what it cannot do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ale_py", reason="Atari needs the extra lwm[atari]")

from lwm import files, runs, session
from lwm.cli import main
from lwm.config import load_preset
from lwm.envs.atari import AtariEnv
from lwm.envs.atari_vector import AleVectorEnv
from lwm.errors import BadInput, CheckpointError
from lwm.sections import AtariConfig
from lwm.training import Trainer
from lwm.types import Step

# Theirs are made grey before they are pooled, and show an old frame where a game ended within an
# action.  Measured here: 0.0001, 0.0009 and 0.0031 grey levels in the mean; 0.000, 0.015 and
# 0.049 % of pixels off by over 1 (breakout, montezuma_revenge, frostbite).
MEAN_BOUND, SHARE_BOUND = 0.01, 0.001


def settings(game: str, **changes: Any) -> AtariConfig:
    return AtariConfig(game=game, workers=1, **{"noop_max": 0, **changes})


def both(env: Any, actions: np.ndarray) -> Iterator[Step]:
    """The first row, then one per row of actions [T, B]."""
    yield env.reset()
    for row in actions:
        env.send(row)
        yield env.recv()


@pytest.mark.parametrize(
    ("game", "steps", "limit"),
    [("breakout", 240, 150), ("montezuma_revenge", 260, 110), ("frostbite", 220, 150)],
)
def test_rows_are_those_of_our_own_games(game: str, steps: int, limit: int) -> None:
    """Over lives, games and the time limit; two games, so that one plays on as the other waits."""
    seeds = np.arange(2, dtype=np.int64)
    config = settings(game, time_limit=limit)
    ours, theirs = AtariEnv(config, seeds), AleVectorEnv(config, seeds)
    mean, share, lives, games, apart = [], [], 0, 0, False
    try:
        assert theirs.action_names == ours.action_names
        actions = np.random.default_rng(len(game)).integers(ours.num_actions, size=(steps, 2))
        before: Step | None = None
        for a, b in zip(both(ours, actions), both(theirs, actions), strict=True):
            for name in Step._fields:
                if name != "obs":
                    mine, other = getattr(a, name), getattr(b, name)
                    assert mine.dtype == other.dtype, name
                    np.testing.assert_array_equal(mine, other, err_msg=name)
            if before is not None:
                again = b.is_first & ~before.episode_end
                assert np.array_equal(b.obs[again], before.obs[again])  # the life's last picture
            apart |= bool(b.is_first[0] != b.is_first[1])
            off = np.abs(a.obs.astype(int) - b.obs)[~a.is_last]
            mean.append(off.mean() if off.size else 0.0)
            share.append((off > 1).mean() if off.size else 0.0)
            lives += np.count_nonzero(b.is_last & ~b.episode_end)
            games += np.count_nonzero(b.episode_end)
            before = b
        again = theirs.reset()
        assert np.array_equal(again.obs, next(both(theirs, actions[:0])).obs)
    finally:
        ours.close()
        theirs.close()
    assert np.mean(mean) < MEAN_BOUND and np.mean(share) < SHARE_BOUND
    assert lives >= 2 and games >= 1 and (apart or game == "frostbite")


def test_wrong_actions_are_refused_before_they_hang_it() -> None:
    env = AleVectorEnv(settings("freeway"), np.arange(2, dtype=np.int64))
    try:
        with pytest.raises(RuntimeError, match="after reset"):
            env.send(np.zeros(2, np.int64))
        env.reset()
        for actions in (np.array([0, 3]), np.array([-1, 0]), np.zeros(3, np.int64), np.zeros(2)):
            with pytest.raises(BadInput):
                env.send(actions)
        env.send(np.array([2, 1]))
        with pytest.raises(RuntimeError, match="before send"):
            env.get_state()
        assert env.recv().a_tm1.tolist() == [2, 1]
        with pytest.raises(RuntimeError, match="memory"):
            _ = env.ram
        with pytest.raises(ValueError, match="at least 1"):
            env.set_time_limit(0)
        with pytest.raises(CheckpointError, match="cannot go on"):
            env.set_state({"backend": "ale-vector", "game": "pong", "time_limit": 5})
    finally:
        env.close()


@pytest.mark.parametrize("setting", ["atari.coverage=on", "atari.fire_on_reset=true"])
def test_what_it_cannot_do_is_one_line(setting: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "atari", "--preset", "debug", "--game", "montezuma_revenge"]
    assert main([*words, "atari.backend=ale-vector", setting]) == 2
    said = capsys.readouterr().err
    assert said.startswith("lwm: atari.backend=ale-vector cannot have atari.")
    assert said.count("\n") == 1


def test_no_positions_are_counted_where_there_is_no_ram() -> None:
    changes = {"atari.backend": "ale-vector", "atari.game": "montezuma_revenge"}
    trainer = Trainer(load_preset("debug", changes, "atari"))
    try:
        assert trainer.coverage is None and isinstance(trainer.env, AleVectorEnv)
    finally:
        trainer.close()


def test_a_resumed_run_begins_new_games_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(files, "fsync", lambda descriptor: None)
    path = tmp_path / "run"
    changes = {"atari.backend": "ale-vector", "atari.game": "breakout", "atari.time_limit": 45}
    changes |= {"loop.total_frames": 150, "evaluation.episodes": 2}
    writer, trainer = session.start(load_preset("debug", changes, "atari"), path)
    with writer:
        for _ in range(40):
            trainer.cycle()
        writer.checkpoint(trainer.frames, trainer.get_state())
        was = trainer.step
        trainer.close()
    writer, trainer = session.reopen(path)
    assert capsys.readouterr().err == (
        "lwm: warning: atari.backend=ale-vector cannot restore games: all begin anew\n"
    )
    # The rows go on by the time law: what was under way is cut, not terminated.
    assert np.array_equal(trainer.step.is_last, ~was.is_first)
    assert np.array_equal(trainer.step.discount_t, was.discount_t)
    trainer.cycle()
    assert np.array_equal(trainer.step.is_first, ~was.is_first)
    session.run(writer, trainer)
    trainer.replay.check_valid()
    assert runs.read_evaluation(path)["episodes"] == 2
