"""Figure 3: the script and its file format, the parts, resuming, table and picture."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lwm import cli
from lwm.errors import BadInput, RunFailed
from lwm.experiments import figure3, figure3_data, figure3_parts, figure3_picture, rows
from lwm.experiments import trajectory as scripts
from lwm.experiments.options import Options
from processes import gone

GOOD: dict[str, Any] = {
    "format": 1,
    "game": "montezuma_revenge",
    "actions": [["DOWN", 2], ["LEFTFIRE", 1]],
    "end": {"room": 1, "x": 77, "y": 219},
}


def _write(path: Path, document: Any) -> Path:
    path.write_text(json.dumps(document))
    return path


def test_a_trajectory_file_is_read(tmp_path: Path) -> None:
    found = scripts.read(_write(tmp_path / "t.json", GOOD))
    assert found == ("montezuma_revenge", ("DOWN", "DOWN", "LEFTFIRE"), (1, 77, 219))


BAD: list[tuple[Any, str]] = [
    ([], "does not hold a JSON object"),
    ({k: v for k, v in GOOD.items() if k != "end"}, "it has no 'end'"),
    ({**GOOD, "speed": 2}, "unknown key 'speed'"),
    ({**GOOD, "format": 2}, "its format is 2, not 1"),
    ({**GOOD, "game": "pong"}, "game 'pong' has no known position"),
    ({**GOOD, "game": ["pong"]}, "game ['pong'] has no known position"),
    ({**GOOD, "actions": []}, "must be a list of [name, steps]"),
    ({**GOOD, "actions": [["DOWN", 1], "UP"]}, "entry 2 of 'actions'"),
    ({**GOOD, "actions": [["DOWN", 0]]}, "entry 1 of 'actions'"),
    ({**GOOD, "actions": [["DOWN", True]]}, "entry 1 of 'actions'"),
    ({**GOOD, "actions": [["DOWN", 10**9]]}, "more than 5000 steps"),
    ({**GOOD, "end": {"room": 1, "x": 2}}, "'end' must have room, x and y"),
    ({**GOOD, "end": {"room": 1, "x": 2, "y": 300}}, "from 0 to 255"),
]


@pytest.mark.parametrize(("document", "message"), BAD, ids=[message for _, message in BAD])
def test_a_bad_trajectory_file_is_one_line(
    tmp_path: Path,
    document: Any,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    file = _write(tmp_path / "t.json", document)
    assert cli.main(["reproduce", "figure3", "--trajectory", str(file)]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.json"]  # nothing was begun


@pytest.mark.parametrize("text", ["{", "\xff", ""])
def test_what_is_no_json_is_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "t.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(BadInput, match="not valid JSON"):
        scripts.read(file)
    with pytest.raises(BadInput, match="there is no trajectory file"):
        scripts.read(tmp_path / "other.json")


@pytest.mark.parametrize("scale", ["0", "-1", "1.01", "nan", "inf", "tenth", ""])
def test_a_bad_scale_is_one_line(scale: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["reproduce", "figure3", f"--scale={scale}"]) == 2
    err = capsys.readouterr().err
    assert "fraction in (0, 1]" in err and err.count("\n") == 1


def test_other_experiments_refuse_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["reproduce", "limits", "--trajectory", "x.json"]) == 2
    assert "limits does not take --trajectory" in capsys.readouterr().err


def test_the_committed_script_reaches_the_key() -> None:
    pytest.importorskip("ale_py", reason="replaying needs the extra 'atari'")
    script = scripts.read(scripts.COMMITTED)
    played = scripts.replay(script)
    T = len(script.actions)
    assert played.obs.shape == (T + 1, 84, 84) and played.actions.shape == (T,)
    assert played.place[0].tolist() == [1, 77, 235]
    assert tuple(played.place[-1].tolist()) == script.end == (1, 16, 205)
    assert played.place[:, 2].min() == 148  # it walked on the floor


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"end": {"room": 1, "x": 77, "y": 100}}, r"ends at room, x, y = \(1, 77, 219\), not"),
        ({"actions": [["JUMP", 1]]}, "has no action 'JUMP'"),
        ({"actions": [["DOWN", 8], ["NOOP", 60]]}, "a life is lost at step"),
    ],
)
def test_a_script_that_does_not_fit_the_game_is_noticed(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    pytest.importorskip("ale_py", reason="replaying needs the extra 'atari'")
    script = scripts.read(_write(tmp_path / "t.json", {**GOOD, **change}))
    with pytest.raises(BadInput, match=message):
        scripts.replay(script)


def _rows(steps: int = 40, envs: int = 2) -> figure3_data.Rows:
    rng = np.random.default_rng(0)
    is_first = np.zeros((steps, envs), np.bool_)
    is_first[0] = is_first[steps * 7 // 8, 1] = True
    place = rng.integers(0, 150, (steps, envs, 3))
    place[..., 0] = 1
    obs = rng.integers(0, 256, (steps, envs, 84, 84), dtype=np.uint8)
    return figure3_data.Rows(obs, rng.integers(0, 18, (steps, envs)), is_first, place)


def _episode(steps: int, scripted: bool) -> figure3_data.Episode:
    r = _rows(steps + 1)
    return figure3_data.Episode(r.obs[:, 0], r.a_tm1[1:, 0], r.place[:, 0], scripted)


def test_sequences_lie_inside_one_episode() -> None:
    is_first = np.zeros((6, 2), np.bool_)
    is_first[0] = is_first[3, 1] = True
    starts = figure3_parts.sequence_starts(is_first, 3).tolist()
    assert starts == [[0, 0], [0, 1], [1, 0], [2, 0], [3, 0], [3, 1]]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small batches and few updates."""
    from lwm.sections import EncoderConfig

    monkeypatch.setattr(figure3_parts, "CONFIG", EncoderConfig(batch=40))
    monkeypatch.setattr(figure3_parts, "SEQUENCES", 2)
    monkeypatch.setattr(figure3_parts, "LENGTH", 4)
    monkeypatch.setattr(figure3_parts.probes, "UPDATES", 5)


@pytest.mark.usefixtures("small")
def test_every_representation_starts_from_the_same_weights_and_all_but_one_move() -> None:
    held = [_episode(5, False)]
    trained = {
        name: figure3_parts.train(name, _rows(), held, 1e-4, seed=3, check=lambda: None)
        for name in figure3.REPRESENTATIONS
    }
    again = figure3_parts.train("wmse", _rows(), held, 1e-4, seed=3, check=lambda: None)
    weights = {name: t.encoder.projection.weight for name, t in trained.items()}
    assert (weights["wmse"] == again.encoder.projection.weight).all()
    for name in ("idf", "cpc", "wmse"):
        moved = (weights[name] - weights["rf"]).abs().max().item()
        # Adam's first steps are as long as the learning rate, 2 of them at this scale.
        assert 1e-4 < moved < 2e-3, name
    assert trained["idf"].accuracy is not None and trained["cpc"].accuracy is None


@pytest.mark.usefixtures("small")
def test_all_metrics_are_measured_raw_and_whitened() -> None:
    episodes = [_episode(70, False), _episode(70, True), _episode(9, True)]
    encoder = figure3_parts.train("rf", _rows(), episodes, 1, 0, lambda: None).encoder
    numbers = figure3_parts.measure(encoder, _rows(), episodes, seed=0)
    for whitened in (False, True):
        found = {n.metric: n.value for n in numbers if n.whitened == whitened}
        assert set(found) == set(figure3.METRICS) - {"action_accuracy"}
        assert found["probe_room"] is None  # one room only
        assert all(v is not None for k, v in found.items() if k != "probe_room")
        both = [found["rank_correlation_random"], found["rank_correlation_scripted"]]
        assert found["rank_correlation"] == pytest.approx(np.mean(both))  # the short one is out


def test_an_unwanted_part_stops() -> None:
    def check() -> None:
        raise SystemExit(1)

    with pytest.raises(SystemExit):
        figure3_parts.train("wmse", _rows(), [], 1, 0, check)


def _fake_part(
    directory: Path, name: str, scale: float, seed: int, parent: int
) -> list[dict[str, Any]]:
    if (name, seed) == ("cpc", 1) and not Path("mended").exists():
        raise RuntimeError("no luck")
    with open("ran", "a") as file:
        file.write(f"{name}{seed} ")
    directory.mkdir(parents=True, exist_ok=True)
    figure3.weights_file(directory, name, seed).write_bytes(b"")
    order = list(figure3.REPRESENTATIONS).index(name) + seed / 10
    both = [(name, m, order) for m in ("rank_correlation", "predictability")]
    also = [(name, "probe_room", None), (f"{name}-whitened", "rank_correlation", 0.25)]
    return [
        {"representation": r, "metric": m, "value": v, "seed": seed, "commit": "c"}
        for r, m, v in [*both, *also]
    ]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that take no time, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(figure3, "ProcessPoolExecutor", lambda n, _: ThreadPoolExecutor(1))
    monkeypatch.setattr(figure3, "run_part", _fake_part)
    monkeypatch.setattr(figure3, "check_extras", lambda: None)
    monkeypatch.setattr(figure3_picture, "draw", lambda files, _, out: out.write_bytes(b"picture"))
    monkeypatch.setattr(figure3_data, "prepare", lambda directory, observations: None)
    monkeypatch.setattr(scripts, "replay", lambda script: None)


@pytest.mark.usefixtures("fake")
def test_a_reproduction_continues_where_it_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RunFailed, match=r"1 of 8 parts failed, e\.g\. figure3/cpc/seed1: no luck"):
        figure3.main(Options(seeds=2, jobs=1, scale=0.5))
    assert Path("ran").read_text() == "wmse0 idf0 cpc0 rf0 wmse1 idf1 rf1 "
    Path("mended").touch()
    figure3.main(Options(seeds=2, jobs=1, scale=0.5))
    assert Path("ran").read_text().split()[7:] == ["cpc1"]
    figure3.main(Options(seeds=2, jobs=1, scale=0.25))  # another scale is another matter
    assert len(Path("ran").read_text().split()) == 16
    assert figure3.status() == "parts: 8 of 12 at scale 0.25, 8 of 12 at scale 0.5"
    found = rows.read(figure3.PATH, figure3.COLUMNS)
    assert len(found) == 2 * 8 * 4
    assert found[0] == {
        "representation": "wmse", "metric": "rank_correlation", "value": "3",
        "scale": "0.5", "seed": "0", "commit": "c",
    }  # fmt: skip
    lines = capsys.readouterr().out.splitlines()
    assert "| linear probe of the room, accuracy | – | – | – | – |" in lines
    assert any(
        line.startswith("| rank correlation with time, lags 1–64 | 0.050 [") for line in lines
    )


SLOW = """
import os, sys, time
from pathlib import Path
from lwm import cli
from lwm.experiments import figure3, figure3_data
from lwm.experiments import trajectory as scripts

def part(directory, name, scale, seed, parent):
    Path("begun.part").write_text(str(os.getpid()))
    os.rename("begun.part", "begun")
    time.sleep(60)

if __name__ == "__main__":
    figure3.run_part = part
    figure3.check_extras = scripts.replay = figure3_data.prepare = lambda *_: None
    sys.exit(cli.main(["reproduce", "figure3", "--scale", "0.5", "--jobs", "1"]))
"""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_end_it_ends_at_once_with_its_processes(tmp_path: Path, signum: int) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    process = subprocess.Popen(
        [sys.executable, "slow.py"],
        cwd=tmp_path,
        text=True,
        stderr=subprocess.PIPE,
        # Who starts the tests in the background may have had SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 120
        while not (tmp_path / "begun").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signum)
        _, told = process.communicate(timeout=30)  # the parts would take twelve minutes
    finally:
        process.kill()
    assert process.returncode == 128 + signum
    assert "Traceback" not in told
    deadline = time.monotonic() + 10
    while not gone(int((tmp_path / "begun").read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.usefixtures("fake")
def test_weights_that_the_picture_needs_are_made_again_without_new_rows() -> None:
    figure3.main(Options(only=["wmse"], seeds=1, jobs=1, scale=1.0))
    before = figure3.PATH.read_bytes()
    figure3.main(Options(only=["wmse"], seeds=1, jobs=1, scale=1.0))
    assert Path("ran").read_text() == "wmse0 "
    figure3.weights_file(figure3.folder(1), "wmse", 0).unlink()
    figure3.main(Options(only=["wmse"], seeds=1, jobs=1, scale=1.0))
    assert Path("ran").read_text() == "wmse0 wmse0 " and figure3.PATH.read_bytes() == before
    with pytest.raises(BadInput, match="no part of figure3 has vae"):
        figure3.main(Options(only=["vae"]))


@pytest.mark.usefixtures("fake")
def test_the_page_shows_the_largest_whole_scale() -> None:
    figure3.PAGE.parent.mkdir()
    begin, end = figure3._MARKS
    figure3.PAGE.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    figure3.main(Options(seeds=1, jobs=1, scale=0.2))
    shown = figure3.PAGE.read_text()
    assert shown.startswith("before\n") and shown.endswith("after\n") and "old" not in shown
    assert "Scale 0.2" in shown and figure3.PICTURE.read_bytes() == b"picture"
    figure3.main(Options(seeds=1, jobs=1, scale=0.1))
    assert figure3.PAGE.read_text() == shown
    figure3.main(Options(only=["wmse"], seeds=1, jobs=1, scale=0.4))  # not all four
    assert figure3.PAGE.read_text() == shown


@pytest.mark.usefixtures("fake")
def test_shown_without_a_scale_is_the_largest_that_has_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(RunFailed, match="no rows"):
        figure3.main(Options(show=True))
    figure3.main(Options(only=["wmse"], seeds=1, jobs=1, scale=0.4))
    capsys.readouterr()
    figure3.main(Options(show=True))  # a part of a scale is better than none
    assert "scale 0.4: 160,000 of" in capsys.readouterr().out
    figure3.main(Options(seeds=1, jobs=1, scale=0.2))
    capsys.readouterr()
    figure3.main(Options(show=True))
    shown = capsys.readouterr().out
    assert "scale 0.2: 80,000 of" in shown
    assert "| rank correlation with time, lags 1–64 | 0.000 | 1.000 | 2.000 | 3.000 |" in shown
    figure3.main(Options(show=True, scale=0.4))
    assert "scale 0.4: 160,000 of" in capsys.readouterr().out


def test_a_missing_extra_is_told_before_anything_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure3, "find_spec", lambda name: None if name == "sklearn" else name)
    with pytest.raises(BadInput, match=r"pip install 'lwm\[figures\]'"):
        figure3.main(Options())


def _screen() -> NDArray[np.uint8]:
    return np.zeros((210, 160, 3), np.uint8)


def test_the_picture_is_drawn_with_the_same_numbers_everywhere(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need the extra 'viz'")
    from lwm.plots.latent import latent_figure, numbered

    assert numbered(79) == [0, 10, 20, 29, 39, 49, 58, 68, 78]
    assert numbered(3) == [0, 1, 2]
    path = np.random.default_rng(0).uniform(0, 150, (20, 2))
    panels = {name: path for name in figure3.REPRESENTATIONS.values()}
    latent_figure(_screen(), path, panels, tmp_path / "new" / "figure.png")
    assert (tmp_path / "new" / "figure.png").read_bytes().startswith(b"\x89PNG")
    away = path.copy()
    away[8:] = np.nan  # in another room
    latent_figure(_screen(), away, panels, tmp_path / "away.png")
    assert (tmp_path / "away.png").read_bytes().startswith(b"\x89PNG")


def test_t_sne_gives_the_same_plane_twice() -> None:
    pytest.importorskip("sklearn", reason="t-SNE needs the extra 'figures'")
    z = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
    flat = figure3_picture.flat(z)
    assert flat.shape == (12, 2) and np.array_equal(flat, figure3_picture.flat(z))


def test_damaged_weights_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "wmse-seed0.safetensors"
    file.write_bytes(b"\x00" * 20)
    played = scripts.Replayed(
        np.zeros((2, 84, 84), np.uint8), np.ones((2, 3), int), np.zeros(1, int)
    )
    with pytest.raises(BadInput, match="is damaged"):
        figure3_picture.draw({"W-MSE": file}, played, tmp_path / "out.png")
