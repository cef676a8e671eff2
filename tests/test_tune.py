"""Search: the file of a space, its points, and a real search on Ray Tune."""

from __future__ import annotations

import csv
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lwm import cli, commands, runs
from lwm.errors import BadInput, RunInUse
from lwm.sweep import space

TOP = Path(__file__).resolve().parents[1]

SMALL = """
preset = "debug"
samples = 3
[asha]
first_frames = 600
reduction = 2
[settings]
"loop.total_frames" = 1800
"loop.evaluate_every_frames" = 600
"loop.validation_episodes" = 16
[space]
"intrinsic.beta" = { log_uniform = [0.01, 10.0] }
"dqn.gamma" = { uniform = [0.9, 0.99] }
"dqn.n_step" = { choice = [1, 3] }
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_points_are_of_the_space_and_of_the_seed(tmp_path: Path) -> None:
    path = write(tmp_path, SMALL)
    found, more = space.read(path), space.read(path, 40)
    assert found.points() == more.points()[:3] and len(more.points()) == 40
    for point in more.points():
        assert 0.01 <= point["intrinsic.beta"] <= 10 and 0.9 <= point["dqn.gamma"] <= 0.99
        assert point["dqn.n_step"] in (1, 3)
    below = sum(point["intrinsic.beta"] < 0.3162 for point in more.points())
    assert 10 <= below <= 30  # half of them, on a scale of factors


def test_points_of_a_narrow_range_differ_and_stay_inside(tmp_path: Path) -> None:
    text = SMALL.replace("[0.9, 0.99]", "[0.99991, 0.99999]").replace("[0.01, 10.0]", "[3.0, 3.01]")
    points = space.read(write(tmp_path, text), 30).points()
    for key, low, high in (("dqn.gamma", 0.99991, 0.99999), ("intrinsic.beta", 3.0, 3.01)):
        drawn = [point[key] for point in points]
        assert low <= min(drawn) < max(drawn) <= high and len(set(drawn)) > 20


def test_a_point_is_a_command_that_gives_its_config(tmp_path: Path) -> None:
    found = space.read(write(tmp_path, SMALL))
    for number, point in enumerate(found.points()):
        job = found.job(number, point)
        assert commands._chosen(cli._parse(job.arguments)) == job.config
        assert job.id == f"tune/small/trial{number:04d}"
        assert job.config.intrinsic.beta == point["intrinsic.beta"]


def test_the_shipped_example_is_a_space() -> None:
    found = space.read(TOP / "examples" / "labyrinth.toml")
    assert found.workload == "labyrinth" and len(found.points()) == found.samples


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('preset = "debug"', "preset = [", "is not TOML"),
        ('preset = "debug"', "preset = 5", "preset=5 is not a name"),
        ('preset = "debug"', 'preset = ["debug"]', "preset=['debug'] is not a name"),
        ("samples = 3", "sampels = 3", "unknown key 'sampels'"),
        ("samples = 3", "samples = 0", "samples=0 is not a whole number"),
        ("reduction = 2", "reduction = 1", "reduction=1 is not a whole number from 2"),
        ("[asha]", 'workload = "chess"\n[asha]', "unknown workload 'chess'"),
        ('"dqn.gamma"', '"dqn.gama"', "unknown setting 'dqn.gama'"),
        ("[0.9, 0.99]", "[0.99, 0.9]", "uniform needs two numbers, the smaller first"),
        ("[0.01, 10.0]", "[0, 10.0]", "log_uniform needs two numbers"),
        ("choice = [1, 3]", "one_of = [1, 3]", "is searched by one of choice, uniform"),
        ("choice = [1, 3]", "choice = [-1]", "dqn.n_step"),
        ('evaluate_every_frames" = 600', 'evaluate_every_frames" = 0', "no score to decide by"),
        ("first_frames = 600", "first_frames = 6000", "beyond loop.total_frames"),
    ],
)
def test_a_bad_space_is_one_line(
    old: str, new: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert old in SMALL
    assert cli.main(["tune", str(write(tmp_path, SMALL.replace(old, new)))]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1, err


def test_no_space(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot read"):
        space.read(tmp_path / "none.toml")
    with pytest.raises(BadInput, match="nothing to search"):
        space.read(write(tmp_path, 'preset = "debug"'))


def test_a_point_waits_for_what_is_left_of_a_dead_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its orphan holds the lock until it has stopped; a run stopped from outside is tried again."""
    pytest.importorskip("ray", reason="needs the extra lwm[sweep]")
    from lwm.sweep import attend, fence, policy, trial

    monkeypatch.setattr(policy, "BUSY_DELAY", 0.01)
    monkeypatch.setattr(fence, "BEAT", 0.01)
    monkeypatch.setattr(attend, "node_name", lambda: "n1")
    tries = iter([RunInUse("in use"), RunInUse("in use"), fence.Claim(tmp_path / "run", "t")])

    def take(*_: object) -> fence.Claim:
        found = next(tries)
        if isinstance(found, RunInUse):
            raise found
        return found

    class Process:
        def poll(self) -> int:
            return 128 + signal.SIGTERM

    monkeypatch.setattr(fence, "take", take)
    monkeypatch.setattr(fence.Claim, "beat", lambda self: True)
    monkeypatch.setattr(attend, "begin", lambda job, claim: Process())
    job = space.read(write(tmp_path, SMALL)).job(0, {"intrinsic.beta": 1.0})
    point = trial.Trial.__new__(trial.Trial)
    point.setup({"trial": 0}, [job], tmp_path)
    with pytest.raises(RuntimeError, match="stopped from outside"):
        point.step()
    assert next(tries, None) is None


@pytest.mark.long
def test_a_search_leaves_runs_and_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs the extra lwm[sweep]")
    path = write(tmp_path, SMALL)
    command = [sys.executable, "-m", "lwm.cli", "tune", str(path)]

    def call() -> list[dict[str, str]]:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        with open(tmp_path / "runs/tune/small/points.csv", newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    found = call()
    assert len(found) == 3 and found[0]["state"] == "finished"
    directories = runs.find_runs(tmp_path / "runs")
    assert len(directories) == 3
    for directory in directories:
        status = runs.read_status(directory)
        assert status is not None and status["state"] in ("finished", "stopped")
    kept = {d: (d / "metrics.jsonl").read_bytes() for d in directories}
    again = call()
    assert again[0]["state"] == "finished"
    for directory, before in kept.items():
        assert (directory / "metrics.jsonl").read_bytes().startswith(before)
    page = tmp_path / "report.html"
    assert cli.main(["report", str(tmp_path / "runs"), "--out", str(page)]) == 0
    assert "trial0000" in page.read_text(encoding="utf-8")
