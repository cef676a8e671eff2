"""The quick start: trains once, resumes what was interrupted, and tells only what was measured."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from lwm import quickstart, runs, session
from lwm.config import Config, load_preset
from lwm.errors import BadInput
from lwm.training import Trainer
from lwm.writing import RunWriter, write_evaluation


def tiny(**changes: Any) -> Config:
    """The quick start's run, shrunk to a second."""
    small = {
        "env.size": 3,
        "loop.total_frames": 600,
        "loop.log_every_frames": 100,
        "evaluation.episodes": 16,
    }
    return load_preset("debug", small | changes)


class Driver:
    """Runs without a progress bar and counts how often and from where."""

    def __init__(self) -> None:
        self.starts: list[int] = []

    def __call__(self, writer: RunWriter, trainer: Trainer, quiet: bool) -> dict[str, Any]:
        assert not quiet
        self.starts.append(trainer.frames)
        return session.run(writer, trainer)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    monkeypatch.setattr(quickstart, "settings", tiny)
    return Driver()


def test_settings_end_at_the_papers_score() -> None:
    config = quickstart.settings()
    assert (config.agent, config.preset, config.env.size) == ("lwm", "best", 3)
    assert config.loop.stop_at_score == quickstart.PAPER_SCORE == -10.8
    assert config.loop.total_frames == 1_000_000
    assert config.loop.evaluate_every_frames > 0
    assert config.loop.validation_episodes == 1024
    assert config.evaluation.episodes == 4096


def test_a_new_run_is_trained_and_shown(driver: Driver, tmp_path: Path) -> None:
    out = tmp_path / "new" / "run"
    text = quickstart.quickstart(out, driver)
    assert driver.starts == [0]
    for name, head in (("learning-curve.png", b"\x89PNG"), ("episode.gif", b"GIF89a")):
        assert str(out / name) in text
        assert (out / name).read_bytes().startswith(head)
    result = runs.read_evaluation(out)
    assert result is not None
    assert f"{result['score']:.2f}" in text
    assert f"{result['frames']:,}" in text
    assert "-10.63 exact" in text


def test_a_finished_run_is_shown_again_without_training(driver: Driver, tmp_path: Path) -> None:
    quickstart.quickstart(tmp_path / "run", driver)
    (tmp_path / "run" / "episode.gif").unlink()
    changed = (runs.read_evaluation(tmp_path / "run") or {}) | {"score": -12.34}
    write_evaluation(tmp_path / "run", changed)
    text = quickstart.quickstart(tmp_path / "run", driver)
    assert driver.starts == [0]
    assert "nothing was trained" in text
    assert "-12.34" in text, "the table says what evaluation.json says"
    assert (tmp_path / "run" / "episode.gif").exists()


def test_an_interrupted_run_is_resumed(driver: Driver, tmp_path: Path) -> None:
    writer, trainer = session.start(tiny(), tmp_path / "run")
    with writer:
        while trainer.frames < 300:
            trainer.cycle()
        writer.checkpoint(trainer.frames, trainer.get_state())
    text = quickstart.quickstart(tmp_path / "run", driver)
    assert driver.starts == [trainer.frames]
    assert f"at {trainer.frames:,} frames" in text
    assert (runs.read_status(tmp_path / "run") or {})["state"] == "finished"


def test_another_run_is_left_alone(driver: Driver, tmp_path: Path) -> None:
    session.start(tiny(agent="dqn"), tmp_path / "run")[0].close()
    with pytest.raises(BadInput, match="another run"):
        quickstart.quickstart(tmp_path / "run", driver)
    assert driver.starts == []


@pytest.mark.parametrize(
    ("modules", "package", "drawn"),
    [
        (["matplotlib.figure"], "matplotlib", {"episode.gif"}),
        (["PIL", "matplotlib.figure"], "pillow", set()),  # matplotlib itself needs Pillow
    ],
)
def test_without_a_drawing_library_the_rest_goes_on(
    modules: list[str],
    package: str,
    drawn: set[str],
    driver: Driver,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    text = quickstart.quickstart(tmp_path / "run", driver)
    last = text.splitlines()[-1]
    assert package in last
    assert "lwm[viz]" in last
    assert "ours" in text
    assert {p.name for p in (tmp_path / "run").iterdir() if p.suffix in (".png", ".gif")} == drawn


def test_table_by_hand() -> None:
    result = {
        "frames": 120_000, "epsilon": 0.01, "episodes": 4096, "score": -10.78, "low": -10.83,
        "high": -10.73, "score128": -10.9, "solved": 0.9995, "median_solved": 10.0,
    }  # fmt: skip
    limit = {"exact": -10.6319, "played": -10.7412}
    text = quickstart.table(quickstart.settings(), result, limit, 61.4)
    lines = {re.split(r"\s{2,}", line)[0]: line for line in text.splitlines()}
    assert re.split(r"\s{2,}", lines["score"]) == [
        "score", "-10.78", "[-10.83, -10.73]", "-10.8", "-10.63 exact; -10.74 at ε = 0.01",
    ]  # fmt: skip
    assert "99.95%" in lines["solved"]
    assert "120,000" in lines["training frames"]
    assert "61" in lines["training seconds"]
    assert "0.02 above the paper's score and 0.04 below the limit" in text


def test_seconds_of_all_processes_that_worked_on_a_run(tmp_path: Path) -> None:
    session.start(tiny(), tmp_path / "run")[0].close()
    log = [
        {"frames": 100, "seconds": 2.0, "frames_per_second": 50.0},
        {"frames": 200, "seconds": 4.0, "frames_per_second": 50.0},
        {"frames": 300, "seconds": 7.0, "frames_per_second": 100 / 7},
        {"frames": 400, "seconds": 8.0, "frames_per_second": 25.0},
    ]
    text = "".join(json.dumps(row) + "\n" for row in log)
    (tmp_path / "run" / "timing.jsonl").write_text(text, encoding="utf-8")
    assert quickstart.seconds(tmp_path / "run") == pytest.approx(4 + 8)
