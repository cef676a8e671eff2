"""The studies that are runs: was time foretold, who arrives sooner.  Speed is not tested."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lwm import plan
from lwm.bench import projection, sooner
from lwm.cli import main
from lwm.config import PRESETS, load_preset

QUICK = {
    "env.time_limit": 20,
    "loop.total_frames": 500,
    "loop.warmup_frames": 240,
    "loop.actors": 4,
    "replay.batch": 2,
    "world_model.pretrain_iterations": 2,
    "world_model.pretrain_rows": 20,
}


def test_calls_of_a_run_by_hand() -> None:
    paper = load_preset("paper", {}, "atari")
    assert plan.calls(paper) == {
        "warmup": 400_000 / 128,
        "encoder": 10_000,
        "world_model": 5_000,
        "cycle": 12_500_000 / 128 - 400_000 / 128,
    }
    plain = plan.calls(load_preset("paper", {"agent": "dqn"}, "atari"))
    assert plain["encoder"] == plain["world_model"] == 0


def test_a_shortened_run_has_all_phases() -> None:
    paper = load_preset("paper", {}, "atari")
    each = {"warmup": 0.05, "encoder": 0.1, "world_model": 0.2, "cycle": 1.0}
    short = projection.shortened(paper, each, 1000.0)
    assert short.encoder.pretrain_iterations == 1500  # 15 % of the time, 0.1 s each
    assert short.world_model.pretrain_iterations == 750
    assert short.loop.warmup_frames == int(150 / 0.05 / 3125 * 400_000)
    assert short.loop.total_frames == paper.loop.total_frames
    whole = projection.shortened(paper, each, 1e9)
    assert plan.calls(whole) == plan.calls(paper)
    least = projection.shortened(paper, each, 1e-3)
    assert least.loop.warmup_frames == (max(paper.window, 100) + 2) * 128
    assert least.encoder.pretrain_iterations == least.world_model.pretrain_iterations == 1


def test_the_whole_run_is_a_sum_of_calls() -> None:
    rows = [
        {"phase": "warmup", "calls": 10, "projected_ms": 1e6, "real_ms": 1e6, "measured": 3},
        {"phase": "cycle", "calls": 26, "projected_ms": 1e6, "real_ms": 1.1e6, "measured": 5},
    ]
    assert projection.lines(rows)[-1] == (
        "the whole run: 10.00 hours foretold, 10.72 at the real run's pace: -6.7% "
        "(aim: within 10%; met)"
    )
    rows[1]["real_ms"] = 2e6
    assert projection.lines(rows)[-1].endswith("-41.9% (aim: within 10%; missed)")


def test_a_real_run_is_compared_with_what_was_foretold(tmp_path: Path) -> None:
    pytest.importorskip("ale_py", reason="needs the extra lwm[atari]")
    out = tmp_path / "deep" / "rows.json"
    small = {**PRESETS["atari"]["debug"], "loop.total_frames": 10**6}
    told = projection.run(0.1, out, changes=small)
    rows = json.loads(out.read_text(encoding="utf-8"))
    phases = [row["phase"] for row in rows]
    assert phases == ["warmup", "encoder", "world_model", "cycle", "priorities"]
    assert all(row["real_ms"] > 0 and row["measured"] > 0 for row in rows)
    assert all(row["projected_ms"] > 0 for row in rows[:-1])
    assert "hours foretold" in told and "aim: within 10%" in told


@pytest.mark.parametrize(
    ("scores", "at"),
    [
        ([], None),
        ([-10.0], None),
        ([-30.0, -20.0, -30.0, -23.5, -23.4, -50.0], 3),
        ([-20.0, -30.0, -20.0], None),
        ([-20.0, -20.0], 0),
    ],
)
def test_two_successive_scores_are_an_arrival(scores: list[float], at: int | None) -> None:
    assert sooner.arrival([(1000 * i, score) for i, score in enumerate(scores)], -23.5) == at


def test_who_arrives_sooner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sooner, "_EVERY", 100)
    monkeypatch.setattr(sooner, "EPISODES", 4)
    out = tmp_path / "rows.json"
    told = sooner.run(2, out, QUICK, goal=-1000.0)
    best, paper = json.loads(out.read_text(encoding="utf-8"))
    assert (best["preset"], paper["preset"]) == ("best", "paper")
    for row in (best, paper):  # any score will do: it is there at once, and the run ends early
        assert row["arrived"] and len(row["scores"]) == 2
        assert row["frames"] == row["scores"][0][0] and 100 <= row["frames"] < 200
    assert "times sooner" in told and "at least" not in told

    told = sooner.run(2, out, QUICK, goal=0.0)
    rows = json.loads(out.read_text(encoding="utf-8"))
    assert [row["preset"] for row in rows] == ["best", "paper"]  # in the place of the first ones
    for row in rows:  # no score will do: the whole run counts
        assert not row["arrived"] and row["frames"] == row["scores"][-1][0] >= 500
        assert len(row["scores"]) == 5
    assert told.splitlines()[-3] == "best did not arrive: there is no ratio"


def test_a_preset_that_does_not_arrive_gives_a_bound() -> None:
    best = {"size": 4, "preset": "best", "frames": 300_000, "seconds": 120.0, "arrived": True}
    paper = {"size": 4, "preset": "paper", "frames": 10**6, "seconds": 900.0, "arrived": False}
    assert sooner.lines([best, paper], -23.5)[-1] == "at least 7.5 times sooner (aim: 5 times; met)"
    paper |= {"seconds": 480.0, "arrived": True}
    assert sooner.lines([best, paper], -23.5)[-1] == "4.0 times sooner (aim: 5 times; missed)"


def test_a_size_without_a_score(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "sooner", "--size", "7"]) == 2
    assert "the paper has scores for 3, 4 and 5" in capsys.readouterr().err
