"""What a file may not decide: which code is imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest

from lwm import playing, session
from lwm.cli import main
from lwm.config import load_preset, to_dict
from lwm.errors import BadInput
from lwm.experiments import runner
from lwm.viewer import rounds
from lwm.writing import RunWriter

WORLD = """
import gymnasium
import pathlib
pathlib.Path(__file__).with_suffix(".imported").touch()
gymnasium.register("World-v0", "gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=20)
"""
ENV = "planted_world:World-v0"
SETTINGS = {"gym.env": ENV, "loop.total_frames": 300, "evaluation.episodes": 2}


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module that could be imported; what is returned exists once it was."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "planted_world.py").write_text(WORLD)
    monkeypatch.syspath_prepend(folder)
    paths = [folder, *(entry for entry in sys.path if entry)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, paths)))
    yield folder / "planted_world.imported"
    forget()


def stopped(path: Path) -> Path:
    """A run of that module that was stopped after its first checkpoint, by nobody here."""
    writer, trainer = session.start(load_preset("debug", SETTINGS, "gym"), path)
    with writer:
        for event in trainer.run():
            if event.frames > 250:
                break
        writer.checkpoint(trainer.frames, trainer.get_state())
    trainer.close()
    return path


def forget() -> None:
    """As if the module had never been imported."""
    sys.modules.pop("planted_world", None)
    gymnasium.registry.pop("World-v0", None)


def test_a_run_does_not_decide_what_is_imported(
    tmp_path: Path, planted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    with RunWriter.create(run, to_dict(load_preset("debug", SETTINGS, "gym")), {}):
        pass
    said = f"lwm: {run} would import planted_world: if you trust it, add --env {ENV}\n"
    for command in (["train", "--resume", str(run)], ["evaluate", str(run)]):
        assert main(command) == 2
        assert capsys.readouterr().err == said
        assert main([*command, "--env", "planted_world:Other-v0"]) == 2
        said_so = f"lwm: {run} is of {ENV}, not of --env planted_world:Other-v0\n"
        assert capsys.readouterr().err == said_so
    with pytest.raises(BadInput, match="only the labyrinth and Atari games can be played here"):
        playing.start(run)
    assert not planted.exists() and "planted_world" not in sys.modules


def test_another_workload_has_no_environment_to_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RunWriter.create(tmp_path, to_dict(load_preset("debug")), {}).close()
    assert main(["train", "--resume", str(tmp_path), "--env", "json:X-v0"]) == 2
    assert "is of labyrinth, not of --env json:X-v0" in capsys.readouterr().err


def test_named_again_it_is_resumed_and_scored(
    tmp_path: Path, planted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = stopped(tmp_path / "run")
    forget()
    planted.unlink()
    assert main(["train", "--resume", str(run), "--env", ENV, "--quiet"]) == 0
    assert planted.exists()
    assert main(["evaluate", str(run), "--env", ENV, "--episodes", "2"]) == 0
    config = load_preset("debug", SETTINGS, "gym")
    assert session.resume_command(run, config) == f"lwm train --resume {run} --env {ENV}"


def test_a_job_resumes_its_own_environment(
    tmp_path: Path, planted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = [f"{key}={value}" for key, value in SETTINGS.items() if key != "gym.env"]
    arguments = ("train", "gym", "--env", ENV, "--preset", "debug", *flags)
    job = runner.Job("t/gym", arguments, load_preset("debug", SETTINGS, "gym"))
    stopped(job.directory)
    done: list[str] = []
    assert runner.run_all([job], 1, lambda job: done.append(job.id)) == []
    assert done == ["t/gym"]


@pytest.fixture
def hostile_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with modules that only chance would import; returns their mark."""
    place, mark = tmp_path / "place", tmp_path / "code-ran"
    place.mkdir()
    for name in ("numpy", "json", "argparse", "torch", "lwm"):
        (place / f"{name}.py").write_text(f"import os\nos.mkdir({str(mark)!r})\n")
    monkeypatch.chdir(place)
    return mark


def test_a_round_imports_nothing_from_where_the_viewer_is(hostile_place: Path) -> None:
    made = rounds.Round(Path("no-run"), "")
    try:
        with pytest.raises(BadInput, match="no-run does not exist"):
            made.hear(rounds.START_SECONDS)
    finally:
        made.close()
    assert not hostile_place.exists()


def test_a_job_imports_nothing_from_where_it_is_started(hostile_place: Path) -> None:
    job = runner.Job("t/bad", ("train", "labyrinth", "dqn.gama=1"), load_preset("debug"))
    ((_, message),) = runner.run_all([job], 1, lambda job: None)
    assert "unknown setting 'dqn.gama'" in message and not hostile_place.exists()
