"""Sweeps that are only planned: makespans known by hand, deaths by the rules of real sweeps."""

from __future__ import annotations

import re

import pytest

from lwm import cli, plan
from lwm.config import load_preset
from lwm.sweep.forecast import simulate


def test_without_deaths_the_makespan_is_that_of_full_rounds() -> None:
    for runs, places, hours, end in ((60, 8, 7.5, 60.0), (5, 8, 2.0, 2.0), (7, 2, 1.0, 4.0)):
        found = simulate(runs, places, hours, 0.0, 0.3, sweeps=2)
        assert found.hours == pytest.approx(end) and found.retries == found.lost_hours == 0


def test_deaths_come_at_their_rate_and_cost_half_a_checkpoint() -> None:
    """400 runs of an hour, 0.2 deaths an hour: 80 of them, each loses 0.05 of 0.1 on average."""
    found = simulate(400, 400, 1.0, 0.2, 0.1, retries=50, sweeps=50)
    assert found.retries == pytest.approx(80, rel=0.06) and found.given_up == 0
    assert found.lost_hours / found.retries == pytest.approx(0.05, rel=0.1)


def test_no_run_is_tried_more_often_than_it_may() -> None:
    """Who dies a hundred times an hour never gets to a checkpoint: all are given up."""
    found = simulate(10, 2, 5.0, 100.0, 1.0, retries=2, sweeps=5)
    assert found.given_up == 10 and found.retries == 20


def test_the_command_says_what_was_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "device_bytes", lambda config: 3 << 29)
    assert cli.main(["plan", "table2", "--gpus", "8", "--failure-rate", "0.01"]) == 0
    told = capsys.readouterr().out
    assert "60 runs of 50,000,000 frames on 8 GPUs" in told and "450 GPU hours" in told
    assert "makespan 60.0 hours" in told and "not measured by us" in told
    assert "no GPU was measured" in told and re.search(r"VRAM +1.5 GiB", told)
    assert cli.main(["plan", "suite", "--gpus", "32", "--hours-per-run", "4"]) == 0
    told = capsys.readouterr().out
    assert "285 runs" in told and "makespan 36.0 hours" in told and "as given" in told
    assert cli.main(["plan", "table2", "--cores", "60"]) == 0
    assert "measured on one core" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["table2", "--gpus", "8", "--cores", "4"],
        ["table2", "--game", "freeway"],
        ["atari", "--gpus", "8"],
        ["table2", "dqn.gamma=1"],
        ["table2", "--gpus", "0"],
    ],
)
def test_flags_that_mean_nothing_are_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_memory_of_an_update_is_counted() -> None:
    """Twice the batch keeps about twice as much for backpropagation; the networks stay."""
    small = {"device": "cpu", "replay.batch": 4}
    once = plan.device_bytes(load_preset("debug", small, "atari"))
    twice = plan.device_bytes(load_preset("debug", small | {"replay.batch": 8}, "atari"))
    thrice = plan.device_bytes(load_preset("debug", small | {"replay.batch": 12}, "atari"))
    assert 0 < once < twice < thrice
    assert thrice - twice == pytest.approx(twice - once, rel=0.05)
