"""The viewer's server: what it reads, what it refuses, and that it survives what it is given."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs the extra lwm[viewer]")

from asgi import Client
from lwm.cli import main
from lwm.config import load_preset, to_dict
from lwm.episodes import Episode, episode_path, write_episode
from lwm.errors import BadInput
from lwm.viewer import disk, film, server
from lwm.viewer.app import COOKIE, make_app
from lwm.viewer.listing import Listing
from lwm.viewer.series import Logs, thinned
from lwm.writing import RunWriter

TEMPTATIONS = [
    "..", "../secret", "..%2fsecret", "%2e%2e/secret", "....//secret", "/etc", "//etc",
    "a/../../secret", "a/..", "./a", "a/.", "a//", "a\\..", "..\\secret", "%00", "a\x00", "a%00",
    "~", "file:///etc", "link",
]  # fmt: skip


def write_run(path: Path, rows: int = 3, seed: int = 0, **settings: Any) -> Path:
    """A finished run with ``rows`` rows: return -100, -99, ..."""
    config = to_dict(load_preset("debug", {"env.size": 3, "seed": seed, **settings}))
    with RunWriter.create(path, config, {"commit": "c" * 40}) as writer:
        for k in range(rows):
            data = {"episode/return": -100.0 + k, "episode/length": 9.0}
            writer.log({"kind": "train", "frames": 10 * (k + 1), **data})
            writer.log_timing({"frames": 10 * (k + 1), "frames_per_second": 50.0 + k})
        writer.log({"kind": "end", "frames": 10 * rows, "updates": 5})
        writer.write_evaluation({"score": -12.0, "low": -13.0, "high": -11.0, "episodes": 32})
        writer.set_status("finished", 10 * rows)
    return path


def maze() -> Episode:
    """2×2: rooms 0, 1, 3, 2."""
    doors = np.array([[0, 0, 0, 1], [0, 1, 1, 0], [0, 0, 0, 1], [1, 0, 1, 0]], np.bool_)
    room = np.array([0, 1, 3, 2])
    seen = doors[room]
    fields = {
        "obs": seen.astype(np.int8),
        "a_tm1": np.array([0, 3, 1, 2]),
        "r_t": np.array([0.0, -1, -1, -1]),
        "r_in": np.array([0.0, 4.0, -1.0, 0.5]),
        "is_last": np.array([False, False, False, True]),
        "q": np.arange(16.0).reshape(4, 4),
        "z": seen.astype(np.float32),
        "prediction": np.full((4, 4), 0.25, np.float32),
        "room": room,
        "doors": doors,
    }
    return Episode(fields, {"environment": "t", "agent": "lwm", "seed": 0, "score": -3.0})


def pictures(rows: int = 300) -> Episode:
    """Every picture is filled with its number; a life is lost at row 99."""
    number = np.arange(rows)
    z = np.zeros((rows, 5), np.float32)
    z[:, 3] = np.linspace(-1, 3, rows)
    fields = {
        "obs": np.broadcast_to((number % 256)[:, None, None], (rows, 84, 84)).astype(np.uint8),
        "a_tm1": number % 18,
        "r_t": (number % 50 == 0).astype(np.float32),
        "r_in": np.sin(number / 9).astype(np.float32),
        "is_last": (number == 99) | (number == rows - 1),
        "z": z,
    }
    return Episode(fields, {"environment": "atari t", "agent": "lwm", "seed": 0, "score": 6.0})


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """DIR with the runs ``a`` and ``deep/b``, a link out of it, and a secret beside it."""
    root = tmp_path / "runs"
    write_run(root / "a")
    write_run(root / "deep/b", seed=1)
    write_run(tmp_path / "secret")
    (root / "link").symlink_to(tmp_path / "secret")
    write_episode(episode_path(root / "a/episodes", 0), maze())
    write_episode(episode_path(root / "a/episodes", 1), pictures())
    return root


@pytest.fixture
def client(place: Path) -> Client:
    return Client(make_app(place))


def rows_of(client: Client) -> dict[str, Any]:
    told = client.get("/api/runs?since=0").json()
    while not told["complete"]:
        told = client.get("/api/runs?since=0").json()
    return {row["id"]: row for row in told["rows"]}


def test_the_table_has_every_run_and_no_other(client: Client) -> None:
    rows = rows_of(client)
    assert sorted(rows) == ["a", "deep/b"], "not what a link leads to"
    a = rows["a"]
    assert (a["agent"], a["environment"], a["preset"], a["seed"]) == (
        "lwm", "labyrinth 3×3", "debug", 0,
    )  # fmt: skip
    assert (a["frames"], a["return"], a["speed"], a["score"]) == (30, -98.0, 52.0, -12.0)
    assert a["state"] == "finished"
    assert rows["deep/b"]["seed"] == 1


def test_only_changes_are_told_again(place: Path) -> None:
    listing = Listing(place, rest=0)
    listing.look()
    first = listing.changes(0)
    assert listing.changes(first["version"])["rows"] == []
    write_run(place / "c")
    shutil.rmtree(place / "a")
    listing._took = 0
    second = listing.changes(first["version"])
    assert [row["id"] for row in second["rows"]] == ["c"] and second["gone"] == ["a"]
    assert {row["id"] for row in listing.changes(0)["rows"]} == {"c", "deep/b"}
    assert len(listing.changes(10**6)["rows"]) == 2, "of a server before this one"


def test_a_run_whose_process_is_gone_is_not_running(tmp_path: Path) -> None:
    listing = Listing(tmp_path, rest=0)
    config = to_dict(load_preset("debug"))
    with RunWriter.create(tmp_path / "r", config, {}) as writer:
        writer.log({"kind": "train", "frames": 1})
        listing.look()
        assert listing.changes(0)["rows"][0]["state"] == "running"
        for name in ("config.json", "status.json", "metrics.jsonl", "timing.jsonl"):
            os.utime(tmp_path / "r" / name, (1, 1))
        listing._took = 0
        if Path("/proc/locks").exists():
            assert listing.changes(0)["rows"][0]["state"] == "running", "its lock is held"
            status = (tmp_path / "r/status.json").read_bytes()
            writer.set_status("finished", 1)
    (tmp_path / "r/status.json").write_bytes(status)
    os.utime(tmp_path / "r/status.json", (1, 1))
    listing._took = 0
    assert listing.changes(0)["rows"][0]["state"] == "stopped"


def test_one_run(client: Client) -> None:
    told = client.get("/api/run?id=a").json()
    assert told["log"]["curves"]["episode/return"] == {"x": [10, 20, 30], "y": [-100, -99, -98]}
    assert told["log"]["curves"]["frames_per_second"]["y"] == [50, 51, 52]
    assert told["evaluation"]["beside"][0][:2] == ["paper", -10.8]
    assert [e["number"] for e in told["episodes"]] == [0, 1]
    again = client.get("/api/run", params={"id": "a", "version": told["stamp"]}).json()
    assert again == {"same": True}


def test_settings_are_told_against_the_preset(tmp_path: Path) -> None:
    write_run(tmp_path / "r", seed=7, **{"dqn.n_step": 4})
    client = Client(make_app(tmp_path), "localhost")
    settings = client.get("/api/run?id=r").json()["settings"]
    changed = [(s["key"], s["value"]) for s in settings if s["changed"]]
    assert changed == [("dqn.n_step", 4)], "a seed is a name, not a difference"
    assert all(s["doc"] for s in settings)
    assert not any(s["key"].startswith("atari.") for s in settings)


def test_runs_are_compared(client: Client) -> None:
    query = {"id": ["a", "deep/b", "gone"], "key": "episode/length"}
    told = client.get("/api/compare", params=query).json()
    assert [run.get("curve") for run in told["runs"][:2]] == [
        {"x": [10, 20, 30], "y": [9, 9, 9]}
    ] * 2
    assert told["runs"][2] == {"id": "gone", "error": "there is no such run"}
    assert "episode/return" in told["keys"] and "frames_per_second" in told["keys"]
    assert client.get("/api/compare", params={"key": "x"}).status == 404


def test_thinning_keeps_mean_and_range() -> None:
    made = thinned((range(10), [0, 1, 2, 3, 4, 5, 6, 7, 8, 109]), 5)
    assert made["x"] == [0, 2, 4, 6, 8] and made["y"] == [0.5, 2.5, 4.5, 6.5, 58.5]
    assert made["low"] == [0, 2, 4, 6, 8] and made["high"] == [1, 3, 5, 7, 109]


def test_a_log_is_read_on_where_reading_stopped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = disk.Log(path)
    log.update()
    assert log.columns == {}
    path.write_bytes(b'{"frames": 1, "x": 5}\n{"frames": 2, "x"')
    log.update()
    assert log.columns["x"][1].tolist() == [5], "a half-written row is left for later"
    with open(path, "ab") as file:
        file.write(b': 6}\nnot json\n[1]\n{"frames": 3, "x": null, "y": 1e999, "z": true}\n')
    log.update()
    assert log.columns["x"][1].tolist() == [5, 6] and log.damaged == 2 and log.rows == 3
    assert set(log.columns) == {"x"}, "neither null nor infinity nor a truth is a number"
    version = log.version
    log.update()
    assert log.version == version
    path.write_bytes(b'{"frames": 1, "x": 7}\n')  # cut and written anew: a resumed run
    log.update()
    assert log.columns["x"][1].tolist() == [7] and log.version > version
    path.write_bytes(b'{"frames": 1, "x": 8}\n{"frames": 2, "x": 9}\n')  # the same, longer already
    log.update()
    assert log.columns["x"][1].tolist() == [8, 9]
    path.unlink()
    log.update()
    assert log.columns == {}


@pytest.mark.parametrize("nearest", [1, 7, 64, 10_000])
def test_last_rows_come_from_the_end(tmp_path: Path, nearest: int) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"".join(b'{"n": %d}\n' % k for k in range(50)) + b'{"n": 50')
    found = [row["n"] for row in disk.last_rows(path, nearest)]
    assert found == list(range(49, -1, -1))


def test_damage_is_told_in_words(place: Path) -> None:
    a, b = place / "a", place / "deep/b"
    with open(a / "metrics.jsonl", "ab") as file:
        file.write(b"\xff\xfe{{{\n" + b'{"frames": 40, "episode/ret')
    (a / "evaluation.json").write_text("{")
    (a / "status.json").write_text("[]")
    (b / "config.json").write_text('{"config": 3}')
    client = Client(make_app(place))  # which looks at once: not before the damage
    rows = rows_of(client)
    assert rows["a"]["return"] == -98.0 and rows["a"]["state"] == "unknown"
    assert any("evaluation.json" in note for note in rows["a"]["notes"])
    told = client.get("/api/run?id=a").json()
    assert told["log"]["damaged"] == 1 and told["log"]["rows"] == 4
    assert client.get("/api/run", params={"id": "deep/b"}).status == 200


def test_what_vanishes_is_gone(place: Path, client: Client) -> None:
    assert "a" in rows_of(client)
    shutil.rmtree(place / "a")
    for path in ("/api/run?id=a", "/api/episode?id=a&n=0", "/api/frames?id=a&n=1&chunk=0"):
        answer = client.get(path)
        assert answer.status == 404 and "gone" in answer.json()["error"]
    shutil.rmtree(place)
    assert client.get("/api/runs").json()["missing"] in (True, False)


def test_no_request_leaves_the_directory(client: Client) -> None:
    rows_of(client)
    encoded = [(n, quote(n, safe=""), quote(quote(n, safe=""), safe="")) for n in TEMPTATIONS]
    for text in sum(encoded, ()):
        word = quote(text, safe="%")
        for path in (
            f"/api/run?id={word}",
            f"/api/episode?id={word}&n=0",
            f"/api/frames?id={word}&n=0&chunk=0",
            f"/api/export?view=run&id={word}",
            f"/api/episode?id=a&n={word}",
            f"/static/{word}",
            f"/api/{word}",
            f"/{word}",
        ):
            answer = client.get(path)
            assert answer.status == 404 and answer.json()["error"], path
        told = client.get("/api/compare", {"id": text, "key": "episode/return"})
        assert told.status == 404 or "error" in told.json()["runs"][0]


def test_links_inside_a_run_are_not_followed(place: Path) -> None:
    secret = place.parent / "secret"
    (secret / "metrics.jsonl").write_text('{"frames": 1, "episode/return": 4711}\n')
    (place / "a/metrics.jsonl").unlink()
    (place / "a/metrics.jsonl").symlink_to(secret / "metrics.jsonl")
    shutil.move(place / "a/episodes", secret / "episodes")
    (place / "a/episodes").symlink_to(secret / "episodes")
    client = Client(make_app(place))  # which looks at once: not before the damage
    assert rows_of(client)["a"]["return"] is None
    told = client.get("/api/run?id=a")
    assert "4711" not in told.text and told.json()["episodes"] == []
    assert client.get("/api/episode?id=a&n=0").status == 404


def test_a_pipe_is_not_waited_for(place: Path) -> None:
    for name in ("metrics.jsonl", "status.json"):
        (place / "a" / name).unlink()
        os.mkfifo(place / "a" / name)
    client = Client(make_app(place))  # which looks at once: not before the damage
    assert rows_of(client)["a"]["return"] is None
    assert client.get("/api/run?id=a").status == 200


def test_episodes_of_a_labyrinth(client: Client) -> None:
    told = client.get("/api/episode?id=a&n=0").json()
    assert told["kind"] == "labyrinth" and told["side"] == 2 and told["room"] == [0, 1, 3, 2]
    assert told["q"][3] == [12, 13, 14, 15] and told["prediction"][0] == [0.25] * 4
    assert told["seen"][1] == [0, 1, 1, 0] and told["bonus"] == [0, 4, -1, 0.5]


def test_episodes_of_pictures(client: Client) -> None:
    told = client.get("/api/episode?id=a&n=1").json()
    assert (told["kind"], told["rows"], told["ends"]) == ("images", 300, [99])
    assert (told["height"], told["width"], told["channels"]) == (84, 84, 1)
    first, last = told["latent"][0], told["latent"][-1]
    assert first == [-1, 0] and last == [1, 0], "one direction of variance, from left to right"
    data = zlib.decompress(client.get("/api/frames?id=a&n=1&chunk=2").content)
    assert len(data) == (300 - 256) * 84 * 84
    assert data[0] == 0 and data[84 * 84] == 1, "picture 256 is filled with 256 mod 256"
    assert client.get("/api/frames?id=a&n=1&chunk=3").status == 404
    assert client.get("/api/frames?id=a&n=0&chunk=0").status == 404


def test_a_damaged_episode_is_one_sentence(place: Path, client: Client) -> None:
    path = episode_path(place / "a/episodes", 0)
    raw = bytearray(path.read_bytes())
    raw[-5] ^= 1
    path.write_bytes(raw)
    answer = client.get("/api/episode?id=a&n=0")
    assert answer.status == 404 and "damaged" in answer.json()["error"]
    assert str(place) not in answer.text, "paths of this machine are nobody's business"


def test_numbers_that_are_none_become_null() -> None:
    episode = pictures(4)
    episode.fields["r_in"][1] = np.nan
    assert film.told(episode)["bonus"][1] is None
    json.dumps(film.told(episode), allow_nan=False)


def test_an_export_is_whole_and_loads_nothing(client: Client) -> None:
    for query in ("view=runs", "view=run&id=a", "view=episode&id=a&n=0", "view=episode&id=a&n=1",
                  "view=compare&id=a&id=deep%2Fb&key=episode%2Freturn"):  # fmt: skip
        answer = client.get(f"/api/export?{query}&hash=%23%2Fx%3Cscript%3E")
        assert answer.status == 200 and "attachment" in answer.headers["content-disposition"]
        text = answer.text
        found = re.search(r'<script type="application/json" id="exported">(.*?)</script>', text)
        assert found and json.loads(found[1])["hash"] == "#/x<script>"
        assert not re.search(r"""(src|href)=["'](?!data:|#)""", text)
        assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org)", text)
    assert client.get("/api/export?view=play").status == 404


def test_every_answer_is_guarded(client: Client) -> None:
    for path in ("/", "/static/core.js", "/api/runs", "/nothing", "/api/nothing"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_another_name_for_this_address_is_refused(client: Client) -> None:
    for host in ("evil.example", "evil.example:8642", "127.0.0.1.evil.example", ""):
        assert client.get("/api/runs", host=host).status == 403
    for host in ("localhost:9", "127.0.0.1", "[::1]:80"):
        assert client.get("/api/runs", host=host).status == 200


def test_the_token_opens_and_nothing_else_does(place: Path) -> None:
    app = make_app(place, token="right")
    for wrong in ({}, {"token": "wrong"}, {"token": ""}, {"token": "righ"}, {"token": "rightt"}):
        client = Client(app, "any.example")
        for path in ("/", "/api/runs", "/static/core.js", "/nothing"):
            answer = client.get(path, params=wrong)
            assert answer.status == 401 and "token" in answer.json()["error"]
    assert client.get("/api/runs", authorization="Bearer right").status == 200
    answer = client.get("/?token=right&x=1")
    assert answer.status == 303 and answer.headers["location"] == "/?x=1"
    assert "HttpOnly" in answer.headers["set-cookie"] and "strict" in answer.headers["set-cookie"]
    assert client.get("/api/runs", cookie=f"{COOKIE}=right").status == 200
    assert client.get("/api/runs", cookie=f"{COOKIE}=wrong").status == 401


def test_a_fault_of_ours_is_no_stack_trace(
    place: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Logs, "curves", lambda *_: 1 // 0)
    answer = client.get("/api/run?id=a")
    assert answer.status == 500 and answer.json() == {
        "error": "this could not be read; the server goes on"
    }


def test_a_port_in_use_is_one_line(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["view", str(place), "--port", str(port), "--no-browser"]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and f"port {port}" in error and "in use" in error


def test_without_a_port_the_next_free_one_is_taken() -> None:
    with server.listen("127.0.0.1", None) as one, server.listen("127.0.0.1", None) as two:
        assert one.getsockname()[1] != two.getsockname()[1]
        assert server.address(two, "127.0.0.1", "t/k").endswith("/?token=t/k")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nowhere"], "not a directory"),
        ([".", "--port", "70000"], "not a port"),
        ([".", "--host", "no.such.host.invalid"], "no address"),
    ],
)
def test_bad_requests_of_the_command_line(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["view", *words, "--no-browser"]) == 2
    assert told in capsys.readouterr().err


def test_only_this_machine_needs_no_token() -> None:
    local = ("127.0.0.1", "127.8.8.8", "::1", "localhost")
    assert all(map(server.is_loopback, local))
    assert not any(map(server.is_loopback, ("0.0.0.0", "::", "192.168.1.5", "example.org")))


def test_the_viewer_loads_no_training_code() -> None:
    code = (
        "import sys, lwm.viewer.app, lwm.viewer.server\n"
        "bad = {'torch', 'lwm.training', 'lwm.learner', 'lwm.session', 'lwm.playing', 'ale_py'}\n"
        "sys.exit(', '.join(bad & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_the_play_page_sends_is_checked(place: Path, client: Client) -> None:
    for what, document in (
        ("play", {"id": "../secret"}), ("play", {}), ("play", {"id": "a", "game": "../x"}),
        ("play", {"id": "a", "game": ["pong"]}), ("step", {"session": "x", "action": 0}),
        ("step", {"session": ["x"], "action": 0}), ("step", {"session": "x", "action": "0"}),
        ("save", {"session": "../x"}), ("save", {}), ("other", {}), ("step", b"["),
        ("step", b"x" * 5000), ("step", b"[1]"),
    ):  # fmt: skip
        answer = client.post(f"/api/{what}", document)
        assert answer.status == 404 and answer.json()["error"], what
    assert client.post("/api/leave", {"session": "x"}).status == 200
    assert not (place / "trajectories").exists()
    plain = {"content-type": "text/plain"}
    assert client.ask("POST", "/api/leave", b"{}", plain).status == 404, "a form can send that"
    foreign = {"origin": "http://evil.example"}
    assert client.post("/api/leave", {}, **foreign).status == 403


def test_an_unknown_run_is_bad_input(place: Path) -> None:
    with pytest.raises(BadInput, match="no such run"):
        Listing(place).path("../secret")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("status.json", '{"state": "stopped", "frames": NaN, "message": "\\ud800"}'),
        ("evaluation.json", '{"score": NaN, "low": -Infinity}'),
        ("machine.json", '{"cpu": Infinity}'),
        ("config.json", '{"format": 1, "config": {"seed": NaN, "agent": "\\udfff"}}'),
        ("metrics.jsonl", '{"frames": 1, "\\ud800": 2}\n{"frames": NaN, "x": 1e999}\n'),
        ("timing.jsonl", '{"frames": 1, "frames_per_second": NaN}\n'),
    ],
)
def test_what_json_cannot_hold_spoils_no_answer(place: Path, file: str, text: str) -> None:
    (place / "a" / file).write_text(text)
    client = Client(make_app(place))

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    for address in ("/api/runs", "/api/run?id=a", "/api/compare?id=a&key=x", "/api/run?id=b/c"):
        answer = client.get(address)
        assert answer.status in (200, 404), address
        json.loads(answer.content, parse_constant=refuse)
    names = {row["id"] for row in client.get("/api/runs").json()["rows"]}
    assert "a" in names and len(names) > 1  # one bad run hides no other
    exported = client.get("/api/export?view=run&id=a").text
    inside = exported.partition('id="exported">')[2].partition("</script>")[0]
    json.loads(inside, parse_constant=refuse)


def test_documents_nested_too_deeply_are_refused() -> None:
    deep: Any = 0.0
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(BadInput, match="nested"):
        disk.told(deep)


def test_episodes_that_would_take_all_memory_or_time() -> None:
    def made(**fields: Any) -> Episode:
        rows = 3
        base = {
            "obs": np.zeros((rows, 4), np.uint8), "a_tm1": np.zeros(rows, np.int64),
            "r_t": np.zeros(rows, np.float32), "r_in": np.zeros(rows, np.float32),
            "is_last": np.zeros(rows, bool),
        }  # fmt: skip
        return Episode(base | fields, {})

    wide = np.zeros((3, film.MAX_LATENT + 1), np.float32)
    assert "latent" not in film.told(made(z=wide))
    assert "latent" in film.told(made(z=wide[:, 1:]))
    with pytest.raises(BadInput, match="action values"):
        film.told(made(q=np.zeros((3, film.MAX_NUMBERS), np.bool_)))
    with pytest.raises(BadInput, match="not of what was seen"):
        film.told(made(z=wide[:, :4], prediction=wide[:, :3]))
    infinite = np.full((3, 4), np.inf, np.float32)
    told = film.told(made(z=infinite, prediction=infinite))
    assert told["error"] == [None, None, None] and told["latent"] == [[0.0, 0.0]] * 3
