"""The report: self-contained, complete, and right where the answer is known."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from lwm import report
from lwm.cli import main
from lwm.config import load_preset, to_dict
from lwm.episodes import Episode, episode_path, write_episode
from lwm.errors import BadInput
from lwm.experiments import claims, limits, minigrid, rows, table1
from lwm.report import curves, page, player, provenance, tables
from lwm.writing import RunWriter

VOID = {"meta", "img", "input", "br", "line", "rect", "circle", "polyline"}


class Checker(HTMLParser):
    """Collects what a page refers to, its headings and ids; every tag must be closed in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.levels: list[int] = []
        self.ids: set[str] = set()
        self.images_without_text = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        self.links += [v or "" for k, v in attrs if k in ("src", "href", "action", "data")]
        self.ids |= {v or "" for k, v in attrs if k == "id"}
        if re.fullmatch("h[1-6]", tag):
            self.levels.append(int(tag[1]))
        self.images_without_text += tag == "img" and not values.get("alt")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Drawn shapes close themselves."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(text: str) -> Checker:
    found = Checker()
    found.feed(text)
    assert found.open == []
    return found


def walk() -> Episode:
    """2×2: rooms 0, 1, 3, 2; the bonus is highest in room 1."""
    doors = np.array([[0, 0, 0, 1], [0, 1, 1, 0], [0, 0, 0, 1], [1, 0, 1, 0]], np.bool_)
    room = np.array([0, 1, 3, 2])
    fields = {
        "obs": doors[room].astype(np.int8),
        "a_tm1": np.array([0, 3, 1, 2]),
        "r_t": np.array([0.0, -1, -1, -1]),
        "r_in": np.array([0.0, 4.0, -1.0, 0.5]),
        "is_last": np.array([False, False, False, True]),
        "room": room,
        "doors": doors,
    }
    return Episode(fields, {"environment": "t", "agent": "<lwm>", "seed": 0, "score": -3.0})


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with rows, a picture and a run with an episode."""
    monkeypatch.chdir(tmp_path)
    base = {"agent": "lwm", "variant": "", "preset": "paper", "frames": 1_000_001, "episodes": 4096}
    base |= {"score128": -11.0, "solved": 1.0, "median_solved": -11, "commit": "c" * 40}
    for size, seed, score in ((3, 0, -11.0), (3, 1, -13.0), (4, 0, -25.0), (4, 1, -27.0)):
        command = f"lwm train labyrinth --size {size} --agent lwm --preset paper --seed {seed}"
        row = base | {
            "size": size,
            "seed": seed,
            "score": score,
            "command": command,
            "machine": "m",
        }
        rows.append(table1.PATH, table1.COLUMNS, row)
    for size, player_name, score in ((3, "random", -111.0), (3, "blind-dfs", -11.0),
                                     (4, "random", -425.0), (4, "blind-dfs", -25.0)):  # fmt: skip
        row = {"size": size, "player": player_name, "episodes": 9, "score": score}
        row |= {"standard_error": 0.1, "command": "x", "commit": "d" * 40, "machine": "m"}
        rows.append(limits.PATH, limits.COLUMNS, row)
    (tmp_path / "results/extra.csv").write_text("name,value\n<b>,1\n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/figure4.png").write_bytes(b"\x89PNG...")
    run = tmp_path / "runs/a&b"
    config = to_dict(load_preset("debug", {"env.size": 3}))
    with RunWriter.create(run, config, {"commit": "e" * 40}) as writer:
        writer.log({"kind": "train", "frames": 100, "episode/return": -900.0})
        writer.log({"kind": "train", "frames": 200, "episode/return": -11.0})
        writer.write_evaluation({"score": -12.0, "low": -13.0, "high": -11.0})
        writer.set_status("finished", 200)
    write_episode(episode_path(run / "episodes", 0), walk())
    return tmp_path


def test_the_page_is_whole_and_loads_nothing(place: Path) -> None:
    assert main(["report", "--out", "new/r.html"]) == 0
    text = (place / "new/r.html").read_text()
    found = checked(text)
    assert all(link.startswith(("#", "data:image/")) for link in found.links)
    assert {link[1:] for link in found.links if link.startswith("#")} <= found.ids
    assert not re.search(r"url\(|@import|https?://", text)
    assert found.images_without_text == 0
    assert found.levels[0] == 1 and found.levels.count(1) == 1
    assert all(b <= a + 1 for a, b in zip(found.levels, found.levels[1:], strict=False))
    assert 'lang="en"' in text and "prefers-color-scheme: dark" in text and "viewport" in text


def test_what_must_be_on_the_page(place: Path) -> None:
    report.write_report([Path("runs")], Path("r.html"))
    text = (place / "r.html").read_text()
    assert "−12.00" in text and "−10.8" in text, "ours and the paper's on 3×3"
    assert "lwm train labyrinth --size 3 --agent lwm --preset paper --seed 1" in text
    assert "c" * 40 in text and "e" * 40 in text, "whole commits of a row and of the run"
    assert "&lt;b&gt;" in text and "<b>" not in text, "a file of rows that nobody knows, escaped"
    assert "&lt;lwm&gt;" in text and "runs/a&amp;b" in text
    assert "config of runs/a&amp;b" in text and "&quot;total_frames&quot;: 2000" in text
    assert text.count('class="player"') == 1


def test_without_anything_the_page_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    report.write_report([], Path("r.html"))
    text = (tmp_path / "r.html").read_text()
    checked(text)
    assert "lwm evaluate RUN --record 1" in text and "lwm reproduce" in text


def test_bad_places_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for name, words in (("nowhere", "does not exist"), ("empty", "no run under empty")):
        assert main(["report", name]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and words in error
    assert not (tmp_path / "report.html").exists()


def test_interquartile_mean_over_sizes_by_hand(place: Path) -> None:
    # 3×3: 1 and 0.98; 4×4: 1 and 0.995.  The middle two of four: (0.995 + 1) / 2 = 0.9975.
    text = tables.over_tasks()
    assert ">0.998<" in text or ">0.997<" in text
    assert "3×3: 2, 4×4: 2" in text


def test_agents_are_compared_over_the_tasks_they_share() -> None:
    groups = {
        "all": {"a": [0.0, 0.0], "b": [1.0] * 6, "c": [9.0, 9.0]},
        "two": {"a": [1.0, 1.0], "b": [1.0, 1.0]},
        "one": {"c": [5.0]},
    }
    text = tables._aggregate(groups, "x.")
    # Without c, and a and b alike although b has three times the seeds: 0.5, not 1.
    assert re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", text)[4:] == [
        *("all", "0.500", "[0.500, 0.500]", "a: 2, b: 6"),
        *("two", "1.000", "[1.000, 1.000]", "a: 2, b: 2"),
    ]
    assert "all agents shown have: a, b;" in text and "for want of shared tasks: one." in text
    assert tables._aggregate({"one": {"c": [5.0]}}, "x.") == ""


def test_code_in_cells_is_set_as_code() -> None:
    made = page.from_markdown("| `a<b` | c |\n|---|---|\n| `x=1` | `y` or 2 |\n", "t")
    assert re.findall(r"<t[hd].*?>(.*?)</t[hd]>", made.replace("<thead>", "")) == [
        "<code>a&lt;b</code>", "c", "<code>x=1</code>", "<code>y</code> or 2",
    ]  # fmt: skip


def test_columns_to_compare_stand_behind_the_seeds() -> None:
    text = "| a | seeds | x | paper | blind DFS |\n|---|---|---|---|---|\n| r | 2 | 7 | -1 | -2 |"
    made = page.from_markdown(text, "c")
    assert re.findall(r"<th scope=\"col\".*?>(.*?)</th>", made) == [
        "a",
        "seeds",
        "paper",
        "blind DFS",
        "x",
    ]
    assert re.findall(r"<td.*?>(.*?)</td>", made) == ["2", "−1", "−2", "7"]


def test_columns_of_several_agents_of_ours_stay_together() -> None:
    head = ["game", "a, ours", "seeds", "b, ours", "seeds", "a, paper", "further", "b, paper"]
    text = "\n".join("| " + " | ".join(line) + " |" for line in (head, ["---"] * 8, ["1"] * 8))
    found = re.findall(r"<th scope=\"col\".*?>(.*?)</th>", page.from_markdown(text, "c"))
    assert found == [*head[:6], "b, paper", "further"]


def test_each_row_is_told_by_its_names_and_its_value(place: Path) -> None:
    row = {"claim": "d-score", "variant": "no error input", "env": claims.LABYRINTH, "seed": 2}
    command = "lwm train labyrinth --size 4 --agent lwm --preset paper --seed 2"
    row |= {"frames": 9, "value": -25.5, "commit": "f" * 40, "machine": "m"}
    command += " loop.total_frames=300000 dqn.error_input=false"
    rows.append(claims.PATH, claims.COLUMNS, row | {"command": command})
    faults = "attack,tried,held,detail,commit\nsoak,3,2,x,abc\n"
    (place / "results/faults.csv").write_text(faults)
    (place / "results/list.json").write_text('[{"size": 4, "scores": [[1, -4711.5]]}]')
    (place / "results/object.json").write_text('{"counts": 1}')
    (place / "docs/viewer-atari.png").write_bytes(b"\x89PNG...")
    report.write_report([], Path("r.html"))
    text = (place / "r.html").read_text()
    assert "d-score, labyrinth-4x4, no error input, 2" in text and "value -25.5" in text
    assert "dqn.error_input = False    (paper: True)" in text
    without = command.replace(" --seed 2", "")
    assert text.count(f"<summary>claims: {without}</summary>") == 1
    told = {"env": minigrid.MAIN, "agent": "lwm", "seed": "0", "command": (
        f"lwm train gym --env {minigrid.MAIN} --agent lwm --preset minigrid --seed 0")}  # fmt: skip
    (changes,) = provenance._settings("minigrid", told).values()
    assert "intrinsic.beta = 0.02    (default: 1.0)" in changes
    assert claims.SENTENCES["d"][:30] in text
    assert "soak" in text and "held 2" in text
    assert "4711" not in text and ">object<" not in text and "viewer-atari" not in text


def test_the_player_knows_the_episode() -> None:
    told = player.contents(walk())
    assert told["room"] == [0, 1, 3, 2] and told["side"] == 2 and told["most"] == 4.0
    assert told["action"][1:] == ["right", "down", "left"] and told["total"] == [0, -1, -2, -3]
    made = player._player(walk(), "x</script>")
    packed = re.search(r'<script type="application/json">(.*?)</script>', made)
    assert packed and json.loads(packed[1]) == told
    assert made.count('class="room"') == 4
    # 12 walls of a 2×2 grid, of which 3 have a door and so two pieces (room 2's door right is one).
    assert made.count('stroke="var(--ink)"') == 12 + 3


def test_curves_are_drawn_with_better_above(place: Path) -> None:
    text = curves.charts([place / "runs/a&b"])
    (points,) = re.findall(r'<polyline points="(.*?)"', text)
    (x1, y1), (x2, y2) = (map(float, p.split(",")) for p in points.split())
    assert x1 < x2 and y1 > y2, "later is right, a better return is higher"
    assert "paper, lwm: −10.8" in text and "blind depth-first walk: −11" in text


def test_a_gymnasium_run_is_no_labyrinth_and_other_settings_are_told(place: Path) -> None:
    found = []
    for name, changes in (("x", {}), ("y", {"dqn.gamma": 0.5})):
        config = load_preset("debug", {"gym.env": "CartPole-v1", **changes}, "gym")
        with RunWriter.create(place / "runs" / name, to_dict(config), {}) as writer:
            writer.log({"kind": "train", "frames": 100, "episode/return": 9.0})
            writer.log({"kind": "train", "frames": 200, "episode/return": 20.0})
        found.append(place / "runs" / name)
    text = curves.charts(found)
    assert "<h3>CartPole-v1: return over agent steps</h3>" in text
    assert "labyrinth" not in text and "paper" not in text and "blind" not in text
    labels = re.findall(r"</i>(.*?) <span", text)
    assert labels == ["lwm, debug, seed 0", "lwm, debug, dqn.gamma=0.5, seed 0"]


def test_returns_while_training_are_not_said_to_be_below_the_scores(place: Path) -> None:
    text = curves.charts([place / "runs/a&b"])
    assert "may lie above or below the scores" in text and "so below" not in text


def test_damaged_rows_are_one_line(place: Path) -> None:
    (place / "results/other.json").write_text("{broken")
    with pytest.raises(BadInput, match=r"other\.json"):
        report.write_report([], Path("r.html"))


def test_a_bar_in_a_name_is_no_column() -> None:
    found = page.from_markdown("| a | CPC|Action | c |\n|---|---|---|\n| 1 | | 3 |\n", "t")
    assert "CPC|Action</th>" in found and found.count("<td") == 2
