"""Sweeps without a cluster: the policy, the fence, the table, the selection, bad input."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from clusters import wait_for
from lwm import cli, files, runs
from lwm.config import load_preset
from lwm.errors import BadInput, RunInUse
from lwm.experiments import grid, runner, table1
from lwm.experiments.options import Options
from lwm.sweep import attend, choose, engine, fence
from lwm.sweep.policy import BUSY_DELAY, BUSY_LIMIT, UNFIT_DELAY, UNFIT_LIMIT, Ledger
from lwm.sweep.table import Table, last_row


def test_runs_start_in_order_and_the_dead_go_to_the_end() -> None:
    ledger = Ledger("abc", retries=1)
    assert [ledger.next(0.0).id for _ in range(2)] == ["a", "b"]  # type: ignore[union-attr]
    assert ledger.died("a", "its node died", 1.0)
    ledger.finished("b")
    assert [ledger.next(1.0).id for _ in range(2)] == ["c", "a"]  # type: ignore[union-attr]
    assert ledger.next(1.0) is None
    ledger.failed("c", "boom")
    assert ledger.open() and not ledger.died("a", "its node died", 2.0)
    assert ledger.runs["a"].message == "given up after 2 attempts: its node died"
    assert not ledger.open() and ledger.counts() == {"finished": 1, "failed": 2}


def test_waiting_for_another_writer_costs_no_try_but_has_an_end() -> None:
    ledger = Ledger("a", retries=0)
    ledger.next(0.0)
    assert ledger.busy("a", "in use", 0.0)
    assert ledger.next(BUSY_DELAY / 2) is None
    run = ledger.next(BUSY_DELAY)
    assert run is not None and run.attempts == 1
    assert not ledger.busy("a", "in use", BUSY_LIMIT + 1)
    assert (run.state, run.message) == ("failed", "in use")


def test_a_run_that_was_lost_after_hours_may_wait_again() -> None:
    ledger = Ledger("a", retries=0)
    ledger.next(0.0)
    assert ledger.busy("a", "in use", 0.0)
    ledger.next(BUSY_DELAY)
    assert ledger.busy("a", "taken over", 10 * BUSY_LIMIT, held=True)


def test_a_node_that_can_run_nothing_costs_no_try() -> None:
    ledger = Ledger("a", retries=0)
    ledger.next(0.0)
    assert ledger.unfit("a", "old version", 0.0)
    assert ledger.next(UNFIT_DELAY / 2) is None
    run = ledger.next(UNFIT_DELAY)
    assert run is not None and run.attempts == 1
    assert not ledger.unfit("a", "old version", UNFIT_LIMIT + 1) and run.state == "failed"


def test_a_storage_that_is_away_for_a_moment_is_no_lost_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = fence.take(tmp_path / "run", "n1", 1)

    def away(*_: object) -> None:
        raise BadInput("cannot read")

    with monkeypatch.context() as patch:
        patch.setattr(files, "read_json", away)
        assert claim.beat()
    assert claim.beat()
    fence.path_of(tmp_path / "run").unlink()
    assert not claim.beat()


def test_a_claim_that_is_touched_keeps_others_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fence, "BEAT", 0.05)
    monkeypatch.setattr(fence, "SILENCE", 0.4)
    run = tmp_path / "runs" / "a"
    claim = fence.take(run, "n1", 1)
    alive = True

    def beats() -> None:
        while alive:
            assert claim.beat()
            time.sleep(0.05)

    thread = threading.Thread(target=beats)
    thread.start()
    try:
        with pytest.raises(RunInUse, match="in use on node n1"):
            fence.take(run, "n2", 1)
    finally:
        alive = False
        thread.join()
    other = fence.take(run, "n2", 2)  # silent: taken over
    assert not claim.beat() and other.beat()
    claim.release()  # not ours any more
    assert fence.read(run)["node"] == "n2"
    other.release()
    assert fence.read(run) == {} and not other.beat()


def test_a_held_lock_keeps_others_away(tmp_path: Path) -> None:
    run = tmp_path / "a"
    run.mkdir()
    held = files.lock(run / "lock", run)
    with pytest.raises(RunInUse, match="in use by process"):
        fence.take(run, "n1", 1)
    assert fence.read(run) == {}
    files.unlock(held)
    fence.take(run, "n1", 1).release()


def test_who_lost_its_claim_kills_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that was cut off comes back: the run is another's by now."""
    monkeypatch.setattr(fence, "BEAT", 0.1)
    monkeypatch.setattr(attend, "node_name", lambda: "n1")
    frames = "loop.total_frames=1000000000"
    job = grid.Setting("2x2", "random", "debug", frames).job(0)
    with runner.stored_in(tmp_path):
        directory = job.directory  # a thread has a context of its own

        def rob() -> None:
            wait_for("run", lambda: runs.is_run(directory))
            files.write_json_atomic(fence.path_of(directory), {"token": "of another"})

        thread = threading.Thread(target=rob)
        thread.start()
        (tmp_path / "mark").touch()
        ended = attend.attend(attend.Order(job, tmp_path, "mark", 1))
        thread.join()
        assert ended.how == "lost" and "taken over" in ended.message
        fence.probe_lock(job.directory)  # nobody holds it: the process is gone
        assert fence.read(job.directory) == {"token": "of another"}


def test_a_run_holds_its_claim_itself_and_ends_when_it_is_anothers(tmp_path: Path) -> None:
    """Whoever attended it may be dead: nobody else touches the claim here."""
    job = grid.Setting("2x2", "random", "debug", "loop.total_frames=1000000000").job(0)
    with runner.stored_in(tmp_path):
        claim = fence.take(job.directory, "n1", 1)
        path = fence.path_of(job.directory)
        first = path.stat().st_mtime_ns
        process = attend.begin(job, claim)
        assert process.stdin is not None
        with process.stdin:
            wait_for("run", lambda: runs.is_run(job.directory))
            wait_for("touch", lambda: path.stat().st_mtime_ns > first)
            files.write_json_atomic(path, {"token": "of another"})
            assert process.wait(60) == -signal.SIGKILL


def test_an_orphan_stops_with_a_checkpoint(tmp_path: Path) -> None:
    job = grid.Setting("2x2", "random", "debug", "loop.total_frames=1000000000").job(0)
    with runner.stored_in(tmp_path):
        process = runner.start(job, "lwm.sweep.child", subprocess.PIPE)
        wait_for("run", lambda: runs.is_run(job.directory) and last_row(job.directory))
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 128 + signal.SIGTERM
        status = runs.read_status(job.directory)
        assert status is not None and status["state"] == "stopped" and status["frames"] > 0
        ended = attend._told(job, process.returncode)
        assert ended.how == "died"


def test_a_node_that_sees_other_storage_or_has_another_version_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attend, "node_name", lambda: "n1")
    assert "does not see the storage" in attend.check_node(tmp_path, "mark", attend.__version__)
    (tmp_path / "mark").touch()
    assert attend.check_node(tmp_path, "mark", attend.__version__) == ""
    assert "node n1 has lwm" in attend.check_node(tmp_path, "mark", "0.0.0")


class Terminal(io.StringIO):
    """Text that claims to be on a screen."""

    def isatty(self) -> bool:
        """Yes."""
        return True


def test_the_table_shows_every_state(tmp_path: Path) -> None:
    ledger = Ledger("abcd", retries=2)
    folders = {name: tmp_path / name for name in "abcd"}
    for _ in range(3):
        ledger.next(0.0)
    folders["a"].mkdir()
    rows = [
        {"kind": "train", "frames": 1200, "episode/return": -31.5},
        {"kind": "x", "frames": 1400},
    ]
    (folders["a"] / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    claim = fence.take(folders["a"], "10.0.0.7/ab12", 1)
    ledger.finished("b")
    ledger.failed("c", "boom")
    table = Table(ledger, folders, out=Terminal())
    lines = table.lines(100, 20)
    assert lines[0].split() == ["run", "state", "node", "frames", "return", "attempts"]
    assert lines[1].split() == ["a", "running", "10.0.0.7/ab12", "1,400", "-31.5", "1"]
    assert lines[2].split() == ["c", "failed", "1", "boom"]
    assert lines[3].split() == ["d", "queued"] and lines[4].split() == ["b", "finished", "1"]
    assert lines[5] == "4 runs: 1 running, 1 failed, 1 queued, 1 finished"
    assert max(map(len, table.lines(30, 20))) <= 30 and len(table.lines(100, 4)) == 4
    claim.release()  # handed over, but nobody attends it: it waits for a place
    assert table.lines(100, 20)[-1] == "4 runs: 0 running, 1 failed, 2 queued, 1 finished"
    table.show()
    table.tell("finished b")
    drawn = table._out.getvalue()  # type: ignore[attr-defined]
    assert drawn.endswith("\x1b[6A\x1b[Jfinished b\n")


def test_ids_choose_whole_experiments_rows_and_single_runs() -> None:
    plain = Options()
    (whole,) = choose.chosen(["table1"], plain)
    assert len(whole.plan) == len(table1.plan())
    (row,) = choose.chosen(["table1/4x4-lwm-paper"], plain)
    assert {s.job(seed).id for s, seed in row.plan} == {
        f"table1/4x4-lwm-paper/seed{i}" for i in range(3)
    }
    one, other = choose.chosen(["table1/3x3-dqn-paper/seed1", "minigrid"], plain)
    assert [s.job(seed).id for s, seed in one.plan] == ["table1/3x3-dqn-paper/seed1"]
    assert other.name == "minigrid"
    (small,) = choose.chosen(["table1/3x3-dqn-paper/seed1"], Options(scale=0.1))
    assert [s.job(seed).id for s, seed in small.plan] == [
        "table1/3x3-dqn-paper-loop.total_frames=100000/seed1"
    ]
    for wrong in ("table1/9x9", "figure4", "tabel1"):
        with pytest.raises(BadInput):
            choose.chosen([wrong], plain)


def test_a_cross_product_is_of_commands_that_give_its_configs() -> None:
    made = grid.campaign_of(
        ["3x3", "atari:freeway", "CartPole-v1"], ["lwm", "dqn"], ["debug"], [], 2, Path("rows.csv")
    )
    jobs = [s.job(seed) for s, seed in made.plan]
    assert len({job.id for job in jobs}) == len(jobs) == 12
    for job in jobs:
        args = cli._parse(job.arguments)
        from lwm import commands

        assert commands._chosen(args) == job.config
    assert jobs[0].config == load_preset("debug", {"env.size": 3})
    twice = grid.campaign_of(["2x2", "2x2"], ["lwm"] * 2, ["debug"], [], 1, Path("rows.csv"))
    assert len(twice.plan) == 1


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that bad input gives."""
    assert cli.main(["sweep", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("lwm: ") and err.count("\n") == 1, err
    return err


SMALL = ("--env", "2x2", "--agent", "random", "--preset", "debug")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing selected"),
        (("table1/9x9-lwm",), "no run of table1 is called table1/9x9-lwm"),
        (("tabel1",), "did you mean 'table1'"),
        (("figure4",), "figure4 has no training runs"),
        (("table1", "--env", "3x3"), "--env goes with --env"),
        (("table1", "dqn.gamma=1"), "dqn.gamma=1 goes with --env"),
        (("--env", "3x3", "--agent", "lwmm"), "unknown agent 'lwmm'"),
        (("--env", "3x3", "--preset", "laptop"), "no preset 'laptop'"),
        (("--env", "3x3", "--scale", "0.1"), "--scale belongs to ids"),
        (("table1/3x3-dqn-paper/seed1", "--seeds", "1"), "the selection has no runs"),
        (("--env", "2x3"), "labyrinths are square: not 2x3"),
        (("--env", "atari:nogame", "--preset", "debug"), "unknown game 'nogame'"),
        (("--env", "NoSuch-v0", "--preset", "debug"), "environment NoSuch-v0, make"),
        (("--env", "3x3", "env.size=3 x"), "is not of the form key=value, without blanks"),
        (("--env", "3x3", "seed=5"), "seed is no setting here"),
        (("--env", "3x3", "agent=dqn"), "agent is no setting here"),
        (("--env", "3x3", "env.size=5"), "env.size is no setting here"),
        (("--env", "3x3", "atari.game=freeway"), "atari.game means nothing for labyrinth"),
        ((*SMALL, "--gpus-per-run", "-1"), "'-1' is not a part of one (in steps of 0.0001)"),
        ((*SMALL, "--gpus-per-run", "1.5"), "'1.5' is not a part of one"),
        ((*SMALL, "--gpus-per-run", "0.00001"), "'0.00001' is not a part of one"),
        ((*SMALL, "--cpus-per-run", "0"), "a run needs some of a core"),
        ((*SMALL, "--retries", "x"), "'x' is not a whole number"),
        ((*SMALL, "--address", "nowhere"), "'nowhere' is not the address of a Ray head"),
        ((*SMALL, "--address", "ray://localhost:10001"), "is not the address of a Ray head"),
        ((*SMALL, "--address", "127.0.0.1:1"), "no Ray at 127.0.0.1:1: Connection refused"),
        ((*SMALL, "--storage", "s3://bucket/runs"), "is not a directory: mount it"),
    ],
)
def test_bad_input_is_one_line_at_once(
    arguments: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    began = time.monotonic()
    assert message in told(capsys, *arguments)
    assert time.monotonic() - began < 10


def test_reproduce_refuses_what_means_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["reproduce", "figure4", "--address", "127.0.0.1:1"]) == 2
    assert "figure4 has no training runs" in capsys.readouterr().err
    assert cli.main(["reproduce", "table1", "--gpus-per-run", "1"]) == 2
    assert "--gpus-per-run means nothing without --address" in capsys.readouterr().err


def test_without_ray_the_extra_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    message = told(capsys, *SMALL, "--storage", str(tmp_path))
    assert "pip install 'lwm[sweep]'" in message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_storage_that_may_not_be_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tmp_path.chmod(0o500)
    message = told(capsys, *SMALL, "--storage", str(tmp_path / "runs"))
    assert "cannot write to the storage" in message


def test_storage_that_is_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    message = told(capsys, *SMALL, "--storage", str(tmp_path / "runs"))
    assert "cannot write to the storage" in message


@contextmanager
def server(answer: bytes | None) -> Iterator[str]:
    """The address of something that answers every greeting so; None: says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            kept = []
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    break
                kept.append(connection)
                if answer is not None:
                    with suppress(OSError):  # the caller may have hung up already
                        connection.sendall(answer)
                        connection.shutdown(socket.SHUT_WR)
            for connection in kept:
                connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", None])
def test_an_address_of_something_else(
    answer: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "REACH_SECONDS", 0.5)
    with server(answer) as address, pytest.raises(BadInput, match=f"no Ray at {address}"):
        engine.check_address(address)


def test_an_address_that_speaks_grpc_is_let_through() -> None:
    with server(b"\0\0\6\4\0\0\0\0\0\0\4\0\0\0\0") as address:
        engine.check_address(address)


def test_stopping_a_sweep_and_going_on(tmp_path: Path) -> None:
    """On a Ray of its own: Ctrl-C; the same command again; a run's own error."""
    pytest.importorskip("ray", reason="needs the extra lwm[sweep]")
    change = "loop.total_frames=8000"
    command = [sys.executable, "-m", "lwm.cli", "sweep", "--env", "2x2", "--agent", "lwm", "dqn"]
    command += ["--preset", "debug", change]

    def call(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *more], cwd=tmp_path, capture_output=True, text=True)

    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            stdout=log,
            stderr=log,
            start_new_session=True,
            # Where the tests run in the background SIGINT is ignored, and children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    setting = grid.Setting("2x2", "lwm", "debug", change)
    with runner.stored_in(tmp_path / "runs"):
        directory = setting.job(0).directory

    def saved() -> int:
        found = runs.read_status(directory) if runs.is_run(directory) else None
        return (found or {}).get("frames", 0)

    wait_for("checkpoint", lambda: process.poll() is not None or saved())
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert process.wait(120) == 130, (tmp_path / "log").read_text()
    status = runs.read_status(directory)
    assert status is not None and status["state"] == "stopped", (tmp_path / "log").read_text()
    at, before = saved(), (directory / "timing.jsonl").read_bytes()
    assert 0 < at < 8000

    # The other run gets a directory that is no run: its own error, which does not stop the first.
    with runner.stored_in(tmp_path / "runs"):
        other = grid.Setting("2x2", "dqn", "debug", change).job(0).directory
    (other / "config.json").unlink()
    done = call()
    assert done.returncode == 1
    assert "failed   grid/2x2-dqn" in done.stdout and "already has a run" in done.stdout
    assert "finished grid/2x2-lwm" in done.stdout
    # It went on, and did not begin anew: how long the first rows took is not the same twice.
    assert before and (directory / "timing.jsonl").read_bytes().startswith(before)
    assert "1 of 2 runs failed" in done.stderr
    with open(tmp_path / "runs" / "grid" / "rows.csv", newline="", encoding="utf-8") as file:
        assert [row["agent"] for row in csv.DictReader(file)] == ["lwm"]
