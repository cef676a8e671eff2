"""Pictures: what must be in them, for rows and episodes whose look is known beforehand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lwm import plots
from lwm.config import load_preset, to_dict
from lwm.episodes import Episode
from lwm.errors import BadInput
from lwm.plots import curves, episode
from lwm.writing import RunWriter

BLUE, UNSEEN, WHITE = (0, 114, 178), (169, 176, 188), (255, 255, 255)


def snake(steps: int = 3, **extra: Any) -> Episode:
    """A 2×2 labyrinth without the wall between rooms 2 and 3: start in 0, then 1, 3, 2, 3, 2 ..."""
    doors = np.array([[0, 0, 0, 1], [0, 1, 1, 0], [0, 0, 0, 1], [1, 0, 1, 0]], np.bool_)
    room = np.array([0, 1, 3, 2, *([3, 2] * steps)])[: steps + 1]
    a_tm1 = np.array([0, 3, 1, 2, *([3, 2] * steps)])[: steps + 1]
    fields = {
        "obs": doors[room].astype(np.int8),
        "a_tm1": a_tm1,
        "r_t": np.where(np.arange(steps + 1) > 0, -1.0, 0.0),
        "r_in": np.where(np.arange(steps + 1) == 1, 4.0, 0.0),
        "is_last": np.arange(steps + 1) == steps,
        "room": room,
        "doors": doors,
        **extra,
    }
    return Episode(fields, {"environment": "test", "agent": "lwm", "seed": 0, "score": -3.0})


def full(steps: int) -> Episode:
    """As ``snake``, with action values and predictions."""
    rng = np.random.default_rng(0)
    return snake(steps, q=rng.normal(size=(steps + 1, 4)), prediction=rng.random((steps + 1, 4)))


def frames(path: Path) -> tuple[list[Image.Image], list[int]]:
    """The pictures of a GIF and how many milliseconds each is shown."""
    found, times = [], []
    with Image.open(path) as picture:
        for number in range(picture.n_frames):
            picture.seek(number)
            found.append(picture.convert("RGB"))
            times.append(picture.info["duration"])
    return found, times


def assert_png(path: Path) -> None:
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        assert picture.width > 900


def near(colour: Any, wanted: tuple[int, int, int]) -> bool:
    return max(abs(a - b) for a, b in zip(colour, wanted, strict=True)) <= 4


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two records and a validation."""
    path = tmp_path / "run"
    with RunWriter.create(path, to_dict(load_preset("debug")), {"commit": None}) as writer:
        writer.log({"kind": "warmup", "frames": 100, "episode/return": -900.0})
        writer.log({"kind": "pretrain", "frames": 100, "iteration": 5})
        writer.log({"kind": "train", "frames": 200, "episode/return": -11.0})
        writer.log({"kind": "train", "frames": 250, "episodes": 0})
        scores = {"score": -10.5, "low": -10.7, "high": -10.3}
        writer.log({"kind": "validation", "frames": 200, **scores})
        writer.set_status("finished")
    return path


def test_learning_curve_is_a_picture_with_all_it_was_given(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(curves, "_save", lambda figure, out: drawn.append(figure))
    plots.learning_curve([run, run], tmp_path / "x.png", {"paper": -10.8, "limit": -10.63})
    (axes,) = drawn[0].axes
    text = [label.get_text() for label in drawn[0].legends[0].get_texts()]
    assert {"paper: −10.8", "limit: −10.63"} <= set(text)
    curve = next(line for line in axes.lines if "training" in line.get_label())
    assert curve.get_xydata().tolist() == [[100, 900], [200, 11]]
    low, high = axes.get_ylim()
    assert low > 900 > 10.5 > high, "better is up, and all of it is in view"


def test_learning_curve_is_written_as_png(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "curve.png"
    plots.learning_curve([run], out, {"paper": -10.8})
    assert_png(out)


def test_a_run_without_returns_is_bad_input(tmp_path: Path) -> None:
    path = tmp_path / "run"
    RunWriter.create(path, to_dict(load_preset("debug")), {}).close()
    with pytest.raises(BadInput, match="no returns"):
        plots.learning_curve([path], tmp_path / "x.png", {})


def rows(scores: list[float], **changes: Any) -> list[dict[str, str]]:
    """Rows as a CSV file has them."""
    base = {"size": 3, "agent": "lwm", "variant": "", "preset": "paper"} | changes
    return [
        {k: str(v) for k, v in {**base, "seed": n, "score": s}.items()}
        for n, s in enumerate(scores)
    ]


def test_score_plot_has_a_line_per_setting_and_the_limits_of_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(curves, "_save", lambda figure, out: drawn.append(figure))
    data = rows([-11.0, -12.0, -13.0]) + rows([-900.0], agent="dqn")
    data += rows([-30.0], size=4, preset="best")
    limits = {(3, "blind-dfs"): -11.67, (3, "full-map"): -10.26, (4, "full-map"): -20.04}
    plots.score_plot(data, tmp_path / "x.png", limits, {(3, "lwm", ""): -10.8})
    assert len(drawn[0].axes) == 4, "two panels for each size"
    whole, near_limits = drawn[0].axes[:2]
    assert [t.get_text() for t in whole.get_yticklabels()] == ["dqn, paper", "lwm, paper"]
    assert [t.get_text() for t in whole.texts] == []
    assert [t.get_text() for t in near_limits.texts] == ["◀ off the scale"], "that is the dqn"
    verticals = {
        round(line.get_xdata()[0], 2) for line in whole.lines if len(line.get_xdata()) == 2
    }
    assert {11.67, 10.26} <= verticals
    assert 20.04 not in verticals
    left, right = whole.get_xlim()
    assert left > 900 > 10.26 > right, "better is to the right"


def test_the_papers_mark_stands_beside_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(curves, "_save", lambda figure, out: drawn.append(figure))
    data = rows([-11.0]) + rows([-10.9], preset="best") + rows([-12.0], variant="dqn.gamma=0.5")
    for beta in (0.1, 10):
        data += rows([-60.0], agent="mbie-eb", variant=f"intrinsic.beta={beta}")
    data += rows([-70.0], agent="mbie-eb", variant="intrinsic.beta=1 loop.total_frames=9")
    paper = {(3, "lwm", ""): -10.8, (3, "mbie-eb", ""): -55.7}
    plots.score_plot(data, tmp_path / "x.png", {}, paper)
    whole = drawn[0].axes[0]
    marks = [c.get_offsets()[0].tolist() for c in whole.collections if c.get_label() == "paper"]
    names = [t.get_text() for t in whole.get_yticklabels()]
    assert [(names[int(y)], x) for x, y in marks] == [
        ("lwm, paper", 10.8),
        ("mbie-eb, paper, beta=0.1", 55.7),
        ("mbie-eb, paper, beta=10", 55.7),
    ]


def test_score_plot_is_written_with_and_without_lines(tmp_path: Path) -> None:
    plots.score_plot(rows([-11.0, -12.0]), tmp_path / "scores.png")
    assert_png(tmp_path / "scores.png")
    with pytest.raises(BadInput):
        plots.score_plot([], tmp_path / "none.png")


def test_settings_are_named_and_ordered() -> None:
    assert curves._name("lwm", "intrinsic.beta=0.1", "paper") == "lwm, paper, beta=0.1"
    keys = [("mbie-eb", "", "paper"), ("lwm", "x=1", "paper"), ("lwm", "", "best"),
            ("lwm", "", "paper"), ("new", "", "paper"), ("random", "", "paper")]  # fmt: skip
    ranked = sorted(keys, key=curves._rank)
    assert ranked[0][0] == "random"
    assert ranked[1:4] == [("lwm", "", "paper"), ("lwm", "", "best"), ("lwm", "x=1", "paper")]
    assert ranked[4][0] == "mbie-eb"


def test_animation_shows_every_row_and_holds_the_last(tmp_path: Path) -> None:
    out = tmp_path / "new" / "episode.gif"
    plots.animate_episode(full(3), out)
    shown, times = frames(out)
    assert len(shown) == 4
    assert times[-1] >= 2000
    assert max(times[:-1]) < 1000


def test_animation_shades_rooms_as_they_are_visited(tmp_path: Path) -> None:
    plots.animate_episode(full(3), tmp_path / "e.gif")
    shown, _ = frames(tmp_path / "e.gif")
    quarter = 336 // 4
    # A place in each room off its middle, where neither path, agent nor text is.
    corner = [(18 + quarter * x + 20, 18 + quarter * y + 20) for y in (0, 2) for x in (0, 2)]
    middle = [(18 + quarter * (2 * x + 1) + 14, 18 + quarter * (2 * y + 1) + 14)
              for y in range(2) for x in range(2)]  # fmt: skip
    visited = [(0,), (0, 1), (0, 1, 3), (0, 1, 2, 3)]
    for picture, rooms in zip(shown, visited, strict=True):
        for number in range(4):
            unseen = near(picture.getpixel(corner[number]), UNSEEN)
            assert unseen == (number not in rooms)
    assert near(shown[0].getpixel(corner[0]), WHITE), "no bonus on the first row"
    red, _, blue = shown[1].getpixel(corner[1])
    assert red > blue + 100, "the strongest bonus is orange"
    for picture, at in zip(shown, (0, 1, 3, 2), strict=True):
        assert [near(picture.getpixel(m), BLUE) for m in middle] == [at == n for n in range(4)]


def test_long_episodes_are_shown_in_few_frames_and_bytes(tmp_path: Path) -> None:
    plots.animate_episode(full(999), tmp_path / "e.gif")
    assert len(frames(tmp_path / "e.gif")[0]) == 200
    assert (tmp_path / "e.gif").stat().st_size < 1_000_000


def test_an_episode_of_an_agent_without_model_or_bonus(tmp_path: Path) -> None:
    bare = snake(3, r_in=np.zeros(4))
    plots.animate_episode(bare, tmp_path / "e.gif")
    assert len(frames(tmp_path / "e.gif")[0]) == 4


def test_what_is_no_labyrinth_episode_is_bad_input(tmp_path: Path) -> None:
    good = full(3)
    for changes in ({"doors": None}, {"room": np.full(4, 4)}, {"doors": np.ones((3, 4), np.bool_)}):
        fields = {k: v for k, v in (good.fields | changes).items() if v is not None}
        with pytest.raises(BadInput):
            plots.animate_episode(Episode(fields, good.meta), tmp_path / "e.gif")
    assert not list(tmp_path.iterdir())


def test_the_palette_fits_a_gif() -> None:
    assert len(episode._palette()) <= 3 * 255, "one colour is left for what does not change"


def test_drawing_libraries_wait_until_something_is_drawn() -> None:
    code = "import sys, json, lwm.plots; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"matplotlib", "PIL", "torch"} & set(json.loads(done.stdout))
