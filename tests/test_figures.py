"""The paper's figures: what they show must come out of the real code, and be right."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lwm.cli import main
from lwm.config import load_preset, to_dict
from lwm.errors import BadInput, RunFailed
from lwm.experiments import campaign, figure1, figure2, figure4, figure5
from lwm.experiments.options import Options
from lwm.writing import RunWriter


def test_w_mse_lays_the_trajectory_out_in_time() -> None:
    history = figure2.train(400)
    assert figure2.ordered(history.v[0]) < 0.3
    assert figure2.ordered(history.v[-1]) > 0.9
    # The minimum is known: the slowest two modes of a path, about 2 (1 - cos(pi j / M)) of k = 1
    # and k = 2 each; so the loss ends far below the 4 of unrelated points in two dimensions.
    assert history.loss[:5].mean() > 2 and history.loss[-20:].mean() < 0.4
    for v in history.v[:: len(history.v) // 4]:
        np.testing.assert_allclose(v.mean(0), 0, atol=1e-9)
        np.testing.assert_allclose(np.cov(v.T), np.eye(2), atol=1e-9)


def test_the_pull_is_minus_the_gradient() -> None:
    v = np.random.default_rng(1).normal(size=(figure2.MOMENTS, 2))

    def energy(points: Any) -> float:
        return sum(float(((points[k:] - points[:-k]) ** 2).sum()) / 2 for k in (1, 2))

    step = np.zeros_like(v)
    step[7, 1] = 1e-5
    slope = (energy(v + step) - energy(v - step)) / 2e-5
    assert figure2._pull(v)[7, 1] == pytest.approx(-slope, rel=1e-6)


def test_order_by_hand() -> None:
    line = np.array([[0.0, 0], [1, 0], [2, 0], [3, 0]])
    assert figure2.ordered(line) == 1.0
    # In time: 0, 2.1, 1, 3.3.  Only the second is nearest to a neighbour in time, the third.
    mixed = np.array([[0.0, 0], [2.1, 0], [1, 0], [3.3, 0]])
    assert figure2.ordered(mixed) == 0.25
    assert figure2.ordered(line[[0, 2, 0, 2]] + [[0, 0], [0, 0], [0.1, 0], [0.1, 0]]) == 0.0


def test_figure2_writes_small_pictures_and_says_its_scale(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "figure2", "--scale", "0.01", "--out", str(tmp_path)]) == 0
    assert "scale 0.01 (7 of 700 steps" in capsys.readouterr().out
    with Image.open(tmp_path / "figure2.gif") as moving:
        assert moving.n_frames >= 6, "three stages, steps, the end"
        assert moving.convert("RGB").getpixel((2, 2)) == (255, 255, 255)
    assert (tmp_path / "figure2.gif").stat().st_size < 1_000_000
    with Image.open(tmp_path / "figure2.png") as still:
        assert still.format == "PNG" and still.width > 800


def test_the_labyrinth_of_figure_4_is_walked() -> None:
    found = figure4.walk()
    assert figure4.check(found), "the single environment sees the same"
    first, second, third = found.rooms
    assert (second, third) == (first - 1, first - 1 - figure4.SIZE)
    assert found.doors[first][figure4.LEFT] and found.doors[second][figure4.UP]
    for room, seen in zip(found.rooms, found.observations, strict=True):
        assert found.doors[room].tolist() == seen.astype(bool).tolist()


def test_figure4_is_drawn(tmp_path: Path) -> None:
    assert figure4.main(Options(out=tmp_path)) == 0
    with Image.open(tmp_path / "figure4.png") as picture:
        assert picture.width > 800


def moving_square(rows: int = 40) -> np.ndarray:
    """Frames in which a white square of 10 pixels moves right by one a row."""
    frames = np.zeros((rows, 84, 84), np.uint8)
    for t in range(rows):
        frames[t, 30:40, 20 + t : 30 + t] = 255
    return frames


def test_pairs_of_figure_1_are_close_in_time_and_shifted_as_told(tmp_path: Path) -> None:
    frames, config = moving_square(), figure1.settings()
    begins = np.zeros((40, 1), np.bool_)
    begins[[0, 20]] = True
    drawn = figure1.batch(frames, begins, config)
    assert set(drawn.k) == {1, 2} and len(drawn.t) == 256
    assert not np.any((drawn.t < 20) & (drawn.t + drawn.k >= 20)), "no pair across a reset"
    moved = np.concatenate([drawn.x_shifted, drawn.y_shifted])
    plain = np.concatenate([drawn.x, drawn.y])
    for number in (0, 100, 300, 511):
        down, right = drawn.offsets[number]
        rolled = np.roll(plain[number], (down, right), (0, 1))  # nothing white is near an edge
        np.testing.assert_array_equal(moved[number], rolled)
    shown = figure1.chosen(drawn)
    assert set(drawn.k[shown]) == {2}, "two steps change more pixels than one"
    from lwm.plots import siamese

    siamese.training_scheme(drawn, shown, 1.0, tmp_path / "figure1.png")
    with Image.open(tmp_path / "figure1.png") as picture:
        assert picture.width > 1000


def test_figure1_without_the_extra_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "ale_py", None)
    assert main(["reproduce", "figure1", "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "lwm[atari]" in error


@pytest.mark.skipif(importlib.util.find_spec("ale_py") is None, reason="needs the extra atari")
def test_figure1_plays_real_frames() -> None:
    frames, begins = figure1.play(12, figure1.settings())
    assert frames.shape == (12, 84, 84) and begins[0, 0] and not begins[1:].any()
    assert len({frame.tobytes() for frame in frames}) > 3


def atari_run(
    path: Path,
    seed: int,
    rows: list[dict[str, Any]],
    game: str = "freeway",
    changes: dict[str, Any] | None = None,
) -> Path:
    config = load_preset("debug", {"atari.game": game, "seed": seed, **(changes or {})}, "atari")
    with RunWriter.create(path, to_dict(config), {}) as writer:
        for row in rows:
            writer.log({"kind": "train", **row})
    return path


def test_figure5_draws_the_last_actor_where_it_is_told(tmp_path: Path) -> None:
    rows = [
        {"frames": f, "episode/return": 1.0, "episode/return_last_actor": f / 10} for f in (10, 20)
    ]
    told = figure5.read(atari_run(tmp_path / "a", 0, rows))
    assert told is not None and told.key == "episode/return_last_actor"
    assert told.frames.tolist() == [40, 80] and told.returns.tolist() == [1.0, 2.0]
    assert told.agent == "lwm, debug", "runs of other presets are another line"
    other = figure5.read(atari_run(tmp_path / "b", 1, [{"frames": 10, "episode/return": 5.0}]))
    assert other is not None and other.key == "episode/return"
    assert figure5.read(atari_run(tmp_path / "c", 2, [{"frames": 10}])) is None
    cut = figure5.read(tmp_path / "a", limit=50)
    assert cut is not None and cut.frames.tolist() == [40]


def test_seeds_of_other_settings_are_another_line(tmp_path: Path) -> None:
    told = [{"frames": 10, "episode/return": 1.0}]
    runs = [
        atari_run(tmp_path / "a", 0, told),
        atari_run(tmp_path / "b", 1, told),
        atari_run(tmp_path / "c", 1, told, changes={"atari.tv": True, "dqn.gamma": 0.5}),
        atari_run(tmp_path / "d", 1, told, changes={"intrinsic.beta": 0.5}),
    ]
    curves = [c for c in map(figure5.read, runs) if c is not None]
    found = figure5.grouped(curves)
    # Freeway's own beta of 0.01 belongs to the preset.
    assert {agent: [c.seed for c in group] for (_, agent, _), group in found.items()} == {
        "lwm, debug": [0, 1],
        "lwm, debug, atari.tv=True, dqn.gamma=0.5": [1],
        "lwm, debug, intrinsic.beta=0.5": [1],
    }
    again = figure5.read(atari_run(tmp_path / "e", 1, told))
    assert again is not None
    with pytest.raises(BadInput, match=r"/b and \S+/e are both seed 1 of freeway \(lwm, debug\)"):
        figure5.grouped([*curves, again])


def test_what_differs_from_a_preset() -> None:
    # The size decides what preset best is, so that only the change is one.
    config = to_dict(load_preset("best", {"env.size": 5, "dqn.gamma": 0.5, "seed": 3}))
    assert campaign.changed(config) == ["dqn.gamma=0.5"]
    assert campaign.label(config) == "lwm, best, dqn.gamma=0.5"
    # A run of an older version: a setting that is no more is told, one that was not yet is not.
    del config["dqn"]["gamma"]
    config["dqn"]["old"] = 1
    assert campaign.changed(config) == ["dqn.old=1"]
    gone = to_dict(load_preset("paper", {"dqn.gamma": 0.5})) | {"preset": "gone"}
    assert campaign.label(gone) == "lwm, gone, dqn.gamma=0.5"


def curve(frames: list[float], returns: list[float]) -> figure5.Curve:
    x, y = np.array(frames, float), np.array(returns, float)
    return figure5.Curve(Path("r"), "freeway", "lwm", 0, figure5.ALL, x, y)


def test_band_by_hand() -> None:
    # 0 to 10 and constant 4, both known on 10 ... 20: at 15 the first is 5.
    curves = [
        (np.array([10.0, 20]), np.array([0.0, 10])),
        (np.array([0.0, 30]), np.array([4.0, 4])),
    ]
    found = figure5.band(curves, points=3)
    assert found.frames.tolist() == [10, 15, 20]
    assert found.mean.tolist() == [2, 4.5, 7]
    assert found.low.tolist() == [0, 4, 4] and found.high.tolist() == [4, 5, 10]


def test_the_first_frame_of_a_goal() -> None:
    c = curve([100, 200, 300, 400], [0, 2500, 100, 9000])
    assert figure5.reached(c) == 200
    assert figure5.reached(c, 2501) == 400
    assert figure5.reached(c, 1e6) is None


def test_figure5_says_what_it_drew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in (0, 1):
        rows = [{"frames": f, "episode/return": 2600.0 * (f > 10)} for f in (10, 20, 30)]
        atari_run(tmp_path / f"runs/x/seed{seed}", seed, rows, "montezuma_revenge")
    assert main(["reproduce", "figure5"]) == 0
    told = capsys.readouterr().out
    assert "montezuma_revenge (lwm, debug): 2 seed(s), 120 frames (scale 2.4e-06)" in told
    assert "drawn: episode/return" in told and "2500 first reached at 80 frames" in told
    assert "24.5M, 43.2M, 33.6M, 28.2M, 41M" in told
    assert (tmp_path / "docs/figure5.png").is_file()


def test_figure5_without_runs_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunFailed, match="no run of Atari under runs/"):
        figure5.main(Options())
    with pytest.raises(BadInput, match="nowhere does not exist"):
        figure5.main(Options(runs=[Path("nowhere")]))
    (tmp_path / "runs").mkdir()
    with pytest.raises(RunFailed, match="no run of Atari"):
        figure5.main(Options())


@pytest.mark.parametrize("name", ["table1", "atari", "table2", "limits", "claims", "figure3"])
def test_a_place_for_pictures_is_refused_where_there_are_none(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", name, "--show", "--out", "docs"]) == 2
    assert f"{name} does not take --out" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--only", "x"], ["--jobs", "2"], ["--show"], ["--runs", "."]])
def test_flags_without_meaning_are_refused(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "figure4", *flags]) == 2
    assert f"figure4 does not take {flags[0]}" in capsys.readouterr().err


@pytest.mark.parametrize("scale", ["0", "-0.5", "1.01", "nan", "all"])
def test_a_bad_scale_is_one_line(scale: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "figure2", f"--scale={scale}"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "fraction in (0, 1]" in error
