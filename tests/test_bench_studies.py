"""The studies beside the stages: growth, start-up, the guard.  Speed itself is not tested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lwm.bench import check, common, growth, instructions, report, startup, sweep
from lwm.bench.report import Row, markdown
from lwm.cli import main
from lwm.config import PRESETS, load_preset
from lwm.errors import BadInput, RunFailed
from lwm.training import Trainer


def rows(dtype: str = "float32", **changes: float | None) -> list[Row]:
    """Three stages that explain 0.95 of the cycle; ``changes``: of the second one."""
    empty: Row = dict.fromkeys(common.COLUMNS)
    empty |= {"workload": "labyrinth", "cores": 1, "dtype": dtype}
    env = {"stage": "env", "share": 0.25, "of_copy": 0.1, "of_theirs": 60.0}
    act = {"stage": "act", "share": 0.69, "of_matmul": 0.5, "of_copy": 0.4, **changes}
    tiny = {"stage": "priorities", "share": 0.01, "of_copy": 0.5}
    cycle = {"stage": "cycle", "share": 1.0, "of_matmul": 0.3, "of_copy": 0.2}
    return [empty | row for row in (env, act, tiny, cycle)]


def test_what_the_guard_compares() -> None:
    assert check.ratios(rows()) == {
        ("env", "of_copy"): 0.1,
        ("env", "of_theirs"): 60.0,
        ("act", "of_matmul"): 0.5,
        ("cycle", "of_matmul"): 0.3,
        ("stages", "explained"): pytest.approx(0.95),
    }


def test_a_loss_is_more_than_fifteen_percent() -> None:
    assert check.losses(rows(), rows()) == {}
    assert check.losses(rows(), rows(of_matmul=0.43)) == {}
    assert check.losses(rows(), rows(of_matmul=0.9, of_copy=0.0)) == {}
    assert check.losses(rows(), rows(of_matmul=0.42)) == {
        ("act", "of_matmul"): "labyrinth act: of_matmul 0.420, was 0.500 (16% lost)"
    }
    assert check.losses(rows(), rows(share=0.5)) == {
        ("stages", "explained"): "labyrinth stages: explained 0.760, was 0.950 (20% lost)"
    }
    assert list(check.losses(rows(), rows()[1:])) == [
        ("env", "of_copy"), ("env", "of_theirs"), ("stages", "explained"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("found", "lost", "times"),
    [
        ([0.5], 0, 1),
        ([0.1, 0.5], 0, 2),
        ([0.1, 0.1, 0.5], 0, 3),
        ([0.1, 0.1, 0.1, 0.5], 1, 3),
    ],
)
def test_what_seems_lost_is_measured_again(found: list[float], lost: int, times: int) -> None:
    measured = iter(found)
    calls = 0

    def measure() -> list[Row]:
        nonlocal calls
        calls += 1
        return rows(of_matmul=next(measured))

    assert len(check.lasting(rows(), measure)) == lost
    assert calls == times


def test_another_loss_each_time_is_noise() -> None:
    measured = iter([rows(of_matmul=0.1), rows(share=0.1)])
    assert check.lasting(rows(), lambda: next(measured)) == []


def test_the_guard_as_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from lwm.bench import labyrinth

    out = tmp_path / "bench.json"
    assert main(["bench", "check", "--out", str(out)]) == 2
    assert "has no rows to compare with" in capsys.readouterr().err
    out.write_text(json.dumps(rows()), encoding="utf-8")
    monkeypatch.setattr(instructions, "run", lambda check: "counted")
    monkeypatch.setattr(labyrinth, "measured", lambda *_: (rows(), []))
    assert main(["bench", "check", "--out", str(out)]) == 0
    assert capsys.readouterr().out == (
        "labyrinth, 1 core(s), float32: 5 ratios, none lost (limit 15%)\ncounted\n"
    )
    monkeypatch.setattr(labyrinth, "measured", lambda *_: (rows(of_matmul=0.3), []))
    assert main(["bench", "check", "--out", str(out)]) == 1
    stdout, stderr = capsys.readouterr()
    assert stdout == "labyrinth act: of_matmul 0.300, was 0.500 (40% lost)\n"
    assert stderr == "lwm: 1 ratios fell by more than 15%\n"


@pytest.mark.parametrize("has", [True, False])
def test_the_guard_measures_each_precision_that_the_processor_has(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    has: bool,
) -> None:
    from lwm.bench import labyrinth

    out = tmp_path / "bench.json"
    out.write_text(json.dumps([*rows(), *rows(dtype="bfloat16")]), encoding="utf-8")
    asked: list[str] = []

    def measured(_seconds: float, _cores: int, precision: str) -> tuple[list[Any], list[str]]:
        asked.append(precision)
        return rows(dtype=precision), []

    monkeypatch.setattr(instructions, "run", lambda check: "counted")
    monkeypatch.setattr(labyrinth, "measured", measured)
    monkeypatch.setattr(check.kernels, "multiplies_bfloat16", lambda: has)
    assert main(["bench", "check", "--out", str(out)]) == 0
    assert asked == ["float32", "bfloat16"][: 1 + has]
    told = capsys.readouterr().out
    assert ("labyrinth, bfloat16: left out" in told) is not has


def test_rows_of_two_precisions_stand_side_by_side(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    report.write(out, rows())
    report.write(out, rows(dtype="bfloat16"))
    report.write(out, rows(of_matmul=0.6))
    found = [(r["dtype"], r["of_matmul"]) for r in report.read(out) if r["stage"] == "act"]
    assert found == [("bfloat16", 0.5), ("float32", 0.6)]


def test_products_that_the_processor_lacks_are_not_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check.kernels, "multiplies_bfloat16", lambda: False)
    assert main(["bench", "labyrinth", "--precision", "bfloat16"]) == 2
    assert "has no such products" in capsys.readouterr().err


def test_counts_are_compared_where_versions_agree() -> None:
    old: dict[str, Any] = {"versions": "Python 1", "counts": {"a": 1000, "b": 10}}
    assert "no committed counts" in instructions.compare(None, old)
    assert "of Python 1" in instructions.compare(old, old | {"versions": "Python 2"})
    assert "2 hot paths, none lost" in instructions.compare(
        old, old | {"counts": {"a": 1050, "b": 1}}
    )
    with pytest.raises(RunFailed, match="1 hot paths"):
        instructions.compare(old, old | {"counts": {"a": 1051, "b": 10}})
    with pytest.raises(RunFailed, match="1 hot paths"):
        instructions.compare(old, old | {"counts": {"a": 1000}})


@pytest.mark.parametrize("name", list(instructions.paths()))
def test_hot_paths_can_be_called(name: str) -> None:
    call = instructions.paths()[name]()
    for _ in range(3):
        call()


def test_instructions_of_a_call_are_a_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counted(name: str, calls: int) -> int:
        return 10**9 + len(name) * calls

    monkeypatch.setattr(instructions, "_instructions", counted)
    monkeypatch.setattr(instructions.shutil, "which", lambda _: "valgrind")
    out = tmp_path / "results" / "instructions.json"
    assert "14 instructions a call" in instructions.run(out)
    assert json.loads(out.read_text())["counts"]["labyrinth step"] == 14
    assert "none lost" in instructions.run(out, check=True)
    monkeypatch.setattr(instructions.shutil, "which", lambda _: None)
    assert instructions.run(out) == "instructions: left out, valgrind is not installed"


@pytest.mark.parametrize("prioritised", [False, True])
def test_replay_is_filled_with_rows_it_has_seen(prioritised: bool) -> None:
    settings: dict[str, Any] = {"replay.prioritised": prioritised}
    trainer = Trainer(load_preset("debug", settings))
    for _ in range(60):
        trainer.cycle()
    before = trainer.replay.get_rows(0, 60)
    growth.fill(trainer, trainer.replay.rows)
    replay = trainer.replay
    assert len(replay) == replay.rows == 125 and replay.count == 60 + 125
    again = replay.get_rows(60, 120)
    for name in ("obs", "a_tm1", "r_t", "is_first", "is_last", "discount_t"):
        assert np.array_equal(before[name], again[name])
    if prioritised:
        assert len(replay.new_windows()) == 0


def test_growth_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "_WINDOWS", (1000, 10_000))
    monkeypatch.setattr(growth, "_ACTORS", (2, 4))
    out = tmp_path / "results" / "growth.json"

    def no_games(*_: Any) -> Any:
        raise BadInput("no games here")

    monkeypatch.setattr(growth, "_atari_replay", no_games)
    text = growth.run(0.0, out, changes={"labyrinth": PRESETS["labyrinth"]["debug"]})
    found = json.loads(out.read_text(encoding="utf-8"))
    assert all(tuple(row) == growth.COLUMNS for row in found)
    studies = [row["study"] for row in found]
    assert studies == [
        *["labyrinth replay"] * 3, *["windows"] * 2,
        *["actors, whole cycle", "actors, act and env"] * 2,
    ]  # fmt: skip
    assert all(row["ms"] > 0 for row in found)
    for word in ("full against young", "left out, no games here", "10 times as many", str(out)):
        assert word in text


def test_growth_of_atari(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    debug = PRESETS["atari"]["debug"]
    young, full = growth._atari_replay(160, {"atari": debug})
    found, verdict = growth._replay(young, full, 0.0)
    assert [row["setting"] for row in found][1:] == ["100% full", "as many rows again"]
    assert verdict.startswith("atari replay: full against young")


def test_waiting_times_of_real_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = (
        *startup._QUICK, "loop.warmup_frames=900", "replay.batch=2", "replay.burn_in=0",
        "replay.unroll=2", "world_model.pretrain_batch=2",
    )  # fmt: skip
    monkeypatch.setattr(startup, "_QUICK", quick)
    monkeypatch.setattr(startup, "_ATARI", (*startup._ATARI[:-1], "debug"))
    games = ["lwm train atari, paper, first frame"] if find_spec("ale_py") else []
    lines = startup.run(times=1, frames=1000).splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "lwm --help", "lwm train labyrinth, first frame", *games, "longest pause (8 checkpoints)",
    ]  # fmt: skip
    assert all("aim: under" in line for line in lines)


def test_the_cost_of_the_bonus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("stable_baselines3", reason="needs the extra lwm[sb3]")
    from lwm.bench import bonus

    monkeypatch.setattr(bonus, "_BATCH", 16)
    found, lines = bonus.measured(0.0, envs=2)
    assert all(tuple(row) == common.COLUMNS for row in found)
    assert [row["stage"] for row in found] == [
        "ppo", "ppo + bonus", "ppo + bonus, trained", "step",
    ]  # fmt: skip
    assert found[0]["share"] == 1 and all(row["ms"] > 0 for row in found)
    assert found[3]["of_theirs"] == pytest.approx(1 / found[3]["share"])
    assert "aim: at most 15%" in "\n".join(lines)
    out = tmp_path / "bench.json"
    monkeypatch.setattr(bonus, "measured", lambda *_: (found, lines))
    assert str(out) in bonus.run(0.0, out)
    assert json.loads(out.read_text(encoding="utf-8")) == found
    assert check.losses(found, found) == {}
    assert ("step", "of_theirs") in check.ratios(found)
    assert "Stable-Baselines3's PPO" in markdown(found)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["startup", "--seconds", "3"], "--seconds means nothing for lwm bench startup"),
        (["labyrinth", "--frames", "9"], "--frames means nothing for lwm bench labyrinth"),
        (["growth", "--cores", "2"], "--cores means nothing for lwm bench growth"),
        (["labyrinth", "--seconds", "nan"], "'nan' is not a number of seconds"),
        (["labyrinth", "--cores", "0"], "'0' is not a whole number"),
    ],
)
def test_flags_that_mean_nothing(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_what_ray_costs_is_told_from_neighbouring_stretches() -> None:
    # By hand: 1 % and 3 % lost; standard error of the mean 1 %.
    lines = sweep.told([(99.0, 100.0), (194.0, 200.0)], 0.03, 2)
    assert (
        lines[0] == "2 runs at once, 2 pairs of 8 s: 146 frames/s with Ray, 150 with Ray held still"
    )
    assert lines[1].startswith("Ray costs 2.0% of frames/s (standard error 1.0%): within")
    assert lines[2].endswith("use 3.0% of a core, 1.5% of those that the runs have")
    assert "OVER the aim of 3%" in sweep.told([(96.0, 100.0)], 0.0, 1)[1]


def test_processor_time_of_a_sweep_is_counted() -> None:
    before = sweep._processor(os.getpid())
    until = time.process_time() + 0.3
    while time.process_time() < until:
        sum(range(1000))
    assert 0.2 < sweep._processor(os.getpid()) - before < 30


def test_a_sweep_is_held_still_but_not_its_runs() -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    with subprocess.Popen(sleep) as other, subprocess.Popen([*sleep, "lwm.sweep.child"]) as a_run:
        try:
            wait_for_command(a_run.pid)
            tree = sweep._tree(os.getpid())
            assert other.pid in tree and a_run.pid not in tree and tree[0] == os.getpid()
        finally:
            other.kill()
            a_run.kill()


def wait_for_command(pid: int) -> None:
    """Until the process is what it was started as: between fork and exec it looks like us."""
    until = time.monotonic() + 30
    while b"lwm.sweep.child" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < until
        time.sleep(0.01)
