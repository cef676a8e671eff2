"""The MiniGrid table: its plan, its rows, its summary."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from lwm import runs, session
from lwm.config import load_preset
from lwm.experiments import minigrid, rows
from lwm.experiments.options import Options
from lwm.plots import dynamics


def test_the_plan_is_the_issues() -> None:
    plan = minigrid.plan()
    jobs = [s.job(seed) for s, seed in plan]
    assert len({j.id for j in jobs}) == len({j.command for j in jobs}) == len(jobs)
    agents: dict[str, set[str]] = {}
    for setting, seed in plan:
        agents.setdefault(setting.env, set()).add(setting.agent)
        assert seed in range(3)
    assert agents.pop(minigrid.MAIN) == {"lwm", "dqn", "rnd", "lwm-rf"}
    assert len(agents) == 3 and all(a == {"lwm", "dqn"} for a in agents.values())
    assert jobs[0].command == (
        "lwm train gym --env MiniGrid-MultiRoom-N4-S5-v1 --agent lwm --preset minigrid --seed 0"
    )
    assert jobs[0].config.gym.pixel_unit == 5
    half = minigrid.plan(0.5)[0][0].job(0)
    assert half.config.loop.total_frames == jobs[0].config.loop.total_frames // 2


def test_a_finished_run_becomes_a_row_and_the_row_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("minigrid", reason="the extra minigrid is not installed")
    monkeypatch.chdir(tmp_path)
    setting = minigrid.Setting("MiniGrid-DoorKey-5x5-v0", "rnd")
    job = setting.job(1)
    changes = {"gym.env": setting.env, "agent": "rnd", "seed": 1, "gym.pixel_unit": 5}
    changes["gym.time_limit"] = 20
    small = load_preset("debug", changes, "gym")
    result = session.run(*session.start(small, job.directory))
    (row,) = setting.rows(1)
    assert row["frames"] == 260 and row["success"] == result["success"] and row["seed"] == 1
    rows.append_all(minigrid.PATH, minigrid.COLUMNS, [row, {**row, "success": 1.0, "seed": 2}])
    assert minigrid.main(dataclasses.replace(Options(), show=True)) == 0
    assert not minigrid.CURVES.exists(), "what is shown is not read from runs"
    minigrid.keep_curve(job)
    minigrid.keep_curve(job)  # of one that is there, nothing more
    told = [r for r in runs.read_metrics(job.directory) if "episode/success" in r]
    found = rows.read(minigrid.CURVES, minigrid.CURVE_COLUMNS)
    assert [int(r["frames"]) for r in found] == [r["frames"] for r in told] and told
    assert {r["command"] for r in found} == {job.command}
    assert minigrid.main(dataclasses.replace(Options(), show=True)) == 0
    assert minigrid.PICTURE.read_bytes().startswith(b"\x89PNG")
    assert minigrid.campaign_of(Options()).keep is minigrid.keep_curve
    half = {**found[-1], "command": f"{job.command} loop.total_frames=130"}
    rows.append_all(minigrid.CURVES, minigrid.CURVE_COLUMNS, [half])
    drawn: list[Any] = []
    monkeypatch.setattr(dynamics, "bands", lambda groups, *_: drawn.extend(groups))
    minigrid._draw()
    labels = sorted(agent for _, agent, _ in drawn)
    assert labels == ["rnd", "rnd, 130 steps"], "scales do not mix"
    mean = (1 + result["success"]) / 2
    assert f"| MiniGrid-DoorKey-5x5-v0 | rnd | 0 | {mean:.3f} |" in capsys.readouterr().out
