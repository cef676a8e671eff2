"""What a run of Atari will cost, told before it starts; one that does not fit is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from lwm import cli, machine, plan, session
from lwm.config import load_preset

GIB = 1 << 30


def test_memory_of_a_replay_by_hand() -> None:
    rows = {"replay.capacity_steps": 1000, "replay.unroll": 10, "dqn.hidden": 16}
    small = load_preset("debug", {**rows, "replay.compress": False}, "atari")
    # A frame, action, reward, bonus, discount and two flags; a state of 16 floats every ten rows.
    assert plan.replay_bytes(small) == 1000 * (84 * 84 + 8 + 3 * 4 + 2) + 100 * 4 * 16
    packed = load_preset("debug", {**rows, "replay.compress": True}, "atari")
    assert plan.replay_bytes(packed) < plan.replay_bytes(small) / 4
    noisy = load_preset("debug", {**rows, "replay.compress": True, "atari.tv": True}, "atari")
    assert plan.replay_bytes(noisy) == plan.replay_bytes(packed) + 1000 * 28 * 28


def test_the_papers_replay_fits_where_the_issue_wants_it() -> None:
    paper = load_preset("paper", {"atari.game": "montezuma_revenge"}, "atari")
    assert plan.replay_bytes(paper) < 1.2 * GIB
    assert plan.memory_bytes(paper) > plan.replay_bytes(paper) + plan._PROCESS


def test_more_replay_than_memory_is_refused_with_the_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plan, "available_bytes", lambda: 2 * GIB)
    out = tmp_path / "run"
    command = ["train", "atari", "--game", "freeway", "--preset", "paper", "--out", str(out)]
    assert cli.main([*command, "replay.capacity_steps=10000000", "replay.compress=false"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "2.0 GiB are available" in err, err
    assert "for replay.capacity_steps=10000000" in err and not out.exists()
    plan.check_memory(load_preset("paper", {}))  # the labyrinth is small whatever there is


def test_a_run_that_no_longer_fits_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ale_py", reason="needs the extra lwm[atari]")
    writer, trainer = session.start(load_preset("debug", {}, "atari"), tmp_path / "run")
    with writer:
        trainer.close()
    monkeypatch.setattr(plan, "available_bytes", lambda: 100 << 20)
    assert cli.main(["train", "--resume", str(tmp_path / "run")]) == 2
    assert "are available" in capsys.readouterr().err


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    own, inner = tmp_path / "own", tmp_path / "root" / "job" / "step"
    own.write_text("0::/job/step\n")
    inner.mkdir(parents=True)
    assert machine._of_group(tmp_path / "root", own) is None
    (inner / "memory.max").write_text("max\n")
    (inner / "memory.current").write_text("5\n")
    for name, text in (
        ("max", "1000\n"), ("current", "700\n"), ("stat", "anon 600\ninactive_file 50\n")
    ):  # fmt: skip
        (inner.parent / f"memory.{name}").write_text(text)
    assert machine._of_group(tmp_path / "root", own) == 1000 - 700 + 50
    assert machine._of_group(tmp_path / "root", tmp_path / "none") is None


def test_the_projection_is_one_line() -> None:
    pytest.importorskip("ale_py", reason="needs the extra lwm[atari]")
    told = plan.describe(load_preset("debug", {}, "atari"))
    assert told.startswith("1,040 emulator frames (260 agent steps): about ")
    assert told.endswith("of memory") and "\n" not in told
