"""The run directory: one writer, honest logs, resume where the checkpoint was, readers in peace."""

from __future__ import annotations

import errno
import getpass
import itertools
import json
import os
import platform
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lwm import __version__, checkpoint, files, runs, sealed
from lwm.errors import BadInput, CheckpointError, LwmError, RunFailed, RunInUse
from lwm.machine import available_bytes, machine_facts, mismatches
from lwm.writing import RunWriter
from processes import in_child

CONFIG = {"seed": 3, "env": {"id": "lwm/Labyrinth-v0"}}
MACHINE = {"python": "3.11.7", "torch": "2.13.0", "numpy": "2.4.0", "threads": 1}


@pytest.fixture(autouse=True)
def without_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "fsync", lambda descriptor: None)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[RunWriter]:
    with RunWriter.create(tmp_path / "run", CONFIG, MACHINE) as made:
        yield made


def refusal(kind: type[LwmError], call: Callable[..., Any], *arguments: Any) -> str:
    """The one line with which ``call`` refuses."""
    with pytest.raises(kind) as caught:
        call(*arguments)
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)
    return str(caught.value)


def fail(number: int) -> None:
    raise OSError(number, os.strerror(number))


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Another process that sees the same package."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def test_layout(writer: RunWriter) -> None:
    writer.log({"frames": 1})
    writer.log_timing({"seconds": 0.5})
    writer.checkpoint(10, {"w": np.arange(3)})
    writer.write_evaluation({"mean": 1.0})
    path = writer.path
    assert sorted(entry.name for entry in path.iterdir()) == [
        "checkpoints",
        "config.json",
        "evaluation.json",
        "lock",
        "machine.json",
        "metrics.jsonl",
        "status.json",
        "timing.jsonl",
    ]
    document = json.loads((path / "config.json").read_text())
    assert document == {"format": 1, "lwm_version": __version__, "config": CONFIG}
    assert (path / "lock").read_text() == str(os.getpid())
    assert (path / "metrics.jsonl").read_text() == '{"frames": 1}\n'
    assert [entry.name for entry in (path / "checkpoints").iterdir()] == ["step-000000010"]


def test_readers_see_what_was_written(writer: RunWriter) -> None:
    writer.log({"frames": 1, "loss": np.float32(0.5), "q": np.array([1, 2]), "n": np.int64(7)})
    writer.log({"nan": float("nan"), "inf": [float("inf")], "deep": {"x": np.float64("-inf")}})
    path = writer.path
    assert list(runs.read_metrics(path)) == [
        {"frames": 1, "loss": 0.5, "q": [1, 2], "n": 7},
        {"nan": None, "inf": [None], "deep": {"x": None}},
    ]
    assert list(runs.read_timing(path)) == []
    assert runs.read_config(path) == CONFIG
    assert runs.read_machine(path) == MACHINE
    assert runs.read_evaluation(path) is None
    writer.write_evaluation({"mean": float("nan"), "returns": np.ones(2)})
    assert runs.read_evaluation(path) == {"mean": None, "returns": [1.0, 1.0]}
    writer.set_status("running", 12, "warming up")
    assert runs.read_status(path) == {
        "state": "running",
        "frames": 12,
        "message": "warming up",
        "pid": os.getpid(),
    }
    with pytest.raises(ValueError, match="state"):
        writer.set_status("asleep")


def test_a_checkpoint_comes_back_with_its_facts(writer: RunWriter) -> None:
    assert "no checkpoint yet" in refusal(BadInput, runs.load_checkpoint, writer.path)
    writer.checkpoint(10, {"w": np.arange(3)})
    saved = runs.load_checkpoint(writer.path)
    assert (saved.frames, saved.machine, saved.log_bytes) == (10, MACHINE, (0, 0))
    assert list(saved.state) == ["w"]
    assert saved.path.name == "step-000000010"
    refusal(CheckpointError, writer.checkpoint, 11, {"_run": 1})
    for frames in (20, 30):
        writer.checkpoint(frames, {})
    kept = sorted(entry.name for entry in (writer.path / "checkpoints").iterdir())
    assert kept == ["step-000000020", "step-000000030"]


@pytest.mark.parametrize(
    ("leave", "state", "message"),
    [
        (lambda w: None, "stopped", ""),
        (lambda w: w.set_status("finished"), "finished", ""),
        (lambda w: 1 / 0, "failed", "ZeroDivisionError: division by zero"),
        (lambda w: fail_with(RunFailed("disk full")), "failed", "disk full"),
        (lambda w: fail_with(KeyboardInterrupt()), "stopped", "KeyboardInterrupt: "),
    ],
)
def test_leaving_records_a_status_and_unlocks(
    tmp_path: Path, leave: Callable[[RunWriter], Any], state: str, message: str
) -> None:
    try:
        with RunWriter.create(tmp_path, CONFIG, MACHINE) as writer:
            leave(writer)
    except (ZeroDivisionError, RunFailed, KeyboardInterrupt):
        pass
    status = runs.read_status(tmp_path)
    assert status is not None
    assert (status["state"], status["message"]) == (state, message)
    writer.close()
    again, saved = RunWriter.reopen(tmp_path)
    again.close()
    assert saved is None


def fail_with(error: BaseException) -> None:
    raise error


def test_a_directory_with_a_run_is_refused(writer: RunWriter, tmp_path: Path) -> None:
    message = refusal(BadInput, RunWriter.create, writer.path, CONFIG, MACHINE)
    assert "--resume" in message
    assert str(writer.path) in message
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "metrics.jsonl").write_text("")
    refusal(BadInput, RunWriter.create, tmp_path / "half", CONFIG, MACHINE)


def test_a_directory_with_other_things_is_used(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "lock").write_text("")
    RunWriter.create(tmp_path, CONFIG, MACHINE).close()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_what_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        assert str(path) in refusal(BadInput, RunWriter.create, path, CONFIG, MACHINE)
    RunWriter.create(tmp_path / "run", CONFIG, MACHINE).close()
    # Tests may run as root, whom no permission stops.
    monkeypatch.setattr(files.os, "open", lambda *arguments: fail(errno.EROFS))
    assert "Read-only" in refusal(BadInput, RunWriter.create, tmp_path / "b", CONFIG, MACHINE)
    assert "Read-only" in refusal(BadInput, RunWriter.reopen, tmp_path / "run")


def test_a_failed_start_leaves_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(files, "rename", lambda source, target: fail(errno.ENOSPC))
        message = refusal(RunFailed, RunWriter.create, tmp_path, CONFIG, MACHINE)
    assert "No space left" in message
    assert not runs.is_run(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["lock"]
    RunWriter.create(tmp_path, CONFIG, MACHINE).close()


OPEN_RUN = """
import sys
from functools import partial
from pathlib import Path
from lwm.errors import LwmError
from lwm.writing import RunWriter
try:
    RunWriter.reopen(Path(sys.argv[1]))[0].close()
except LwmError as error:
    print(type(error).__name__, error.exit_code, error)
else:
    print("opened")
"""


def test_a_second_writer_is_refused(writer: RunWriter) -> None:
    message = f"{writer.path} is in use by process {os.getpid()}"
    assert refusal(RunInUse, RunWriter.reopen, writer.path) == message
    writer.log({"frames": 1})
    done = run_python(OPEN_RUN, str(writer.path))
    assert done.stdout == f"RunInUse 2 {message}\n", done.stderr
    assert list(runs.read_metrics(writer.path)) == [{"frames": 1}]
    writer.close()
    assert run_python(OPEN_RUN, str(writer.path)).stdout == "opened\n"


def test_the_lock_of_a_killed_writer_is_free_even_if_its_workers_live(tmp_path: Path) -> None:
    reading, writing = os.pipe()

    def write_with_a_worker() -> None:
        RunWriter.create(tmp_path, CONFIG, MACHINE)
        if os.fork() == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
        os._exit(9)

    assert in_child(write_with_a_worker) == 9
    writer, saved = RunWriter.reopen(tmp_path)
    writer.close()
    os.close(writing)
    os.close(reading)
    assert saved is None


def test_a_fork_does_not_unlock(writer: RunWriter) -> None:
    assert in_child(lambda: None) == 0
    refusal(RunInUse, RunWriter.reopen, writer.path)


def test_resume_cuts_the_logs_at_the_checkpoint(writer: RunWriter) -> None:
    writer.log({"frames": 1})
    writer.log_timing({"s": 1})
    writer.checkpoint(1, {"n": 1})
    writer.log({"frames": 2})
    writer.log_timing({"s": 2})
    writer.close()
    with open(writer.path / "metrics.jsonl", "ab") as file:
        file.write(b'{"frames": 3, "lo')
    again, saved = RunWriter.reopen(writer.path, {**MACHINE, "threads": 2})
    assert saved is not None
    assert (saved.frames, saved.state, saved.machine) == (1, {"n": 1}, MACHINE)
    with again:
        assert list(runs.read_metrics(writer.path)) == [{"frames": 1}]
        assert list(runs.read_timing(writer.path)) == [{"s": 1}]
        again.log({"frames": 2})
        again.checkpoint(2, {"n": 2})
    assert (writer.path / "metrics.jsonl").read_text() == '{"frames": 1}\n{"frames": 2}\n'
    assert runs.load_checkpoint(writer.path).machine["threads"] == 2
    assert runs.read_machine(writer.path) == MACHINE


def test_resume_without_a_checkpoint_starts_over(writer: RunWriter) -> None:
    writer.log({"frames": 1})
    writer.close()
    again, saved = RunWriter.reopen(writer.path)
    with again:
        assert saved is None
        assert list(runs.read_metrics(writer.path)) == []
        again.checkpoint(1, {})
    assert runs.load_checkpoint(writer.path).machine == MACHINE


@pytest.mark.parametrize("left", ["nothing", "an empty directory", "a file"])
@pytest.mark.parametrize("witness", ["status.json", "timing.jsonl"])
def test_a_run_whose_checkpoints_are_gone_does_not_begin_anew(
    writer: RunWriter, witness: str, left: str
) -> None:
    writer.log({"frames": 1})
    writer.checkpoint(1, {})
    writer.log({"frames": 2})
    if witness == "timing.jsonl":
        writer.log_timing({"seconds": 1, "checkpoint_seconds": 0.5})
        writer.set_status("running", 0)
    writer.close()
    folder = writer.path / "checkpoints"
    shutil.rmtree(folder)
    if left == "an empty directory":
        folder.mkdir()
    elif left == "a file":
        folder.write_text("")
    logs = [writer.path / name for name in ("metrics.jsonl", "timing.jsonl")]
    before = [log.read_bytes() for log in logs]
    said = refusal(BadInput, RunWriter.reopen, writer.path)
    assert str(folder) in said and (left == "a file" or witness in said)
    assert [log.read_bytes() for log in logs] == before
    assert (runs.read_status(writer.path) or {})["state"] == "stopped"


def test_resume_falls_back_and_cuts_further(writer: RunWriter) -> None:
    for frames in (1, 2):
        writer.log({"frames": frames})
        writer.checkpoint(frames, {"n": frames})
    writer.close()
    (writer.path / "checkpoints" / "step-000000002" / sealed.STATE).write_bytes(b"{}")
    told: list[str] = []
    again, saved = RunWriter.reopen(writer.path, warn=told.append)
    with again:
        assert saved is not None
        assert saved.frames == 1
        assert len(told) == 1
        assert list(runs.read_metrics(writer.path)) == [{"frames": 1}]
        again.log({"frames": 2})
        again.checkpoint(2, {"n": 2})
    assert runs.load_checkpoint(writer.path).frames == 2
    assert len(list((writer.path / "checkpoints").iterdir())) == 2


def test_resume_refuses_when_no_checkpoint_is_good(writer: RunWriter) -> None:
    writer.log({"frames": 1})
    saved = writer.checkpoint(1, {})
    writer.close()
    (saved / sealed.STATE).unlink()
    told: list[str] = []
    refusal(CheckpointError, RunWriter.reopen, writer.path, None, 2, told.append)
    assert list(runs.read_metrics(writer.path)) == [{"frames": 1}]


@pytest.mark.parametrize("log", ["metrics.jsonl", "timing.jsonl"])
def test_resume_refuses_a_log_that_is_not_its_own(writer: RunWriter, log: str) -> None:
    for _ in range(3):
        writer.log({"frames": 1})
        writer.log_timing({"seconds": 1})
    writer.checkpoint(3, {})
    writer.close()
    path = writer.path / log
    whole = path.read_bytes()
    for damaged in (whole[:-1], b"", b"x" * len(whole)):
        path.write_bytes(damaged)
        other = {name: (writer.path / name).read_bytes() for name in ("metrics.jsonl", log)}
        told: list[str] = []
        refusal(CheckpointError, RunWriter.reopen, writer.path, None, 2, told.append)
        assert len(told) == 1 and str(path) in told[0]
        assert {name: (writer.path / name).read_bytes() for name in other} == other
    path.unlink()
    refusal(CheckpointError, RunWriter.reopen, writer.path, None, 2, told.append)
    assert f"{path} has 0 bytes" in told[-1] and not path.exists()
    path.write_bytes(whole)
    RunWriter.reopen(writer.path)[0].close()


@pytest.mark.parametrize("log", ["metrics.jsonl", "timing.jsonl"])
@pytest.mark.parametrize("cut", [1, 5])
def test_a_checkpoint_that_saw_more_of_a_log_is_passed_over(
    writer: RunWriter, log: str, cut: int
) -> None:
    for frames in (1, 2, 3):
        writer.log({"frames": frames})
        writer.log_timing({"seconds": frames})
        writer.checkpoint(frames, {"n": frames})
    writer.close()
    path = writer.path / log
    path.write_bytes(path.read_bytes()[:-cut])
    assert runs.load_checkpoint(writer.path).frames == 3  # readers of weights need no log
    told: list[str] = []
    again, saved = RunWriter.reopen(writer.path, warn=told.append)
    with again:
        assert saved is not None and saved.frames == 2
        assert len(told) == 1 and "step-000000003 saw" in told[0] and str(path) in told[0]
        assert [row["frames"] for row in runs.read_metrics(writer.path)] == [1, 2]
        assert [row["seconds"] for row in runs.read_timing(writer.path)] == [1, 2]


def test_a_checkpoint_of_something_else_is_refused(writer: RunWriter) -> None:
    folder = writer.path / "checkpoints"
    good = {"frames": 7, "machine": {}, "log_bytes": [0, 0]}
    for own in (
        None,
        {},
        {**good, "frames": "7"},
        {**good, "frames": 8},
        {**good, "log_bytes": [0, -1]},
        {**good, "log_bytes": [0]},
        {**good, "machine": 1},
        {**good, "machine": {"cpu": np.zeros(3)}},
    ):
        checkpoint.save(folder, "step-000000007", {"_run": own})
        told: list[str] = []
        refusal(CheckpointError, runs.load_checkpoint, writer.path, told.append)
        assert len(told) == 1 and "step-000000007 is not a checkpoint of a run" in told[0]
    checkpoint.save(folder, "step-000000007", {"_run": good})
    assert runs.load_checkpoint(writer.path).frames == 7


def test_a_checkpoint_of_another_config_is_passed_over(writer: RunWriter, tmp_path: Path) -> None:
    # Same shapes, same frames, right sums: nothing else would tell it from the run's own.
    with RunWriter.create(tmp_path / "other", {"seed": 1}, {}) as other:
        foreign = other.checkpoint(20, {"of": "another"})
    writer.checkpoint(10, {"of": "this"})
    writer.close()
    shutil.copytree(foreign, writer.path / "checkpoints" / foreign.name)
    told: list[str] = []
    assert runs.load_checkpoint(writer.path, told.append).state == {"of": "this"}
    again, saved = RunWriter.reopen(writer.path, None, 2, told.append)
    again.close()
    assert saved is not None and saved.frames == 10
    assert len(told) == 2 and "of another config" in told[0] == told[1]


def test_checkpoints_of_an_earlier_lwm_are_read(writer: RunWriter) -> None:
    own = {"frames": 7, "machine": {}, "log_bytes": [0, 0]}  # without sums
    writer.close()
    checkpoint.save(writer.path / "checkpoints", "step-000000007", {"_run": own})
    again, saved = RunWriter.reopen(writer.path)
    again.close()
    assert saved is not None and saved.frames == 7 and saved.log_sums == ()


@pytest.mark.parametrize("log", ["metrics.jsonl", "timing.jsonl"])
def test_a_row_that_was_changed_is_told(writer: RunWriter, log: str) -> None:
    for number in range(3):
        writer.log({"frames": number})
        writer.log_timing({"seconds": number})
    writer.checkpoint(3, {})
    writer.close()
    told: list[str] = []
    RunWriter.reopen(writer.path, None, 2, told.append)[0].close()
    assert told == []
    path = writer.path / log
    path.write_bytes(path.read_bytes().replace(b"1", b"7"))
    again, saved = RunWriter.reopen(writer.path, None, 2, told.append)
    assert saved is not None and saved.frames == 3
    assert len(told) == 1 and str(path) in told[0]
    # From here on the log is taken as it is.
    again.checkpoint(4, {})
    again.close()
    RunWriter.reopen(writer.path, None, 2, told.append)[0].close()
    assert len(told) == 1


@pytest.mark.parametrize("kind", ["link", "pipe"])
@pytest.mark.parametrize("log", ["metrics.jsonl", "timing.jsonl"])
def test_a_log_that_is_no_file_is_neither_cut_nor_waited_for(
    writer: RunWriter, tmp_path: Path, log: str, kind: str
) -> None:
    writer.close()
    precious = tmp_path / "precious"
    precious.write_text("precious\n")
    (writer.path / log).unlink()
    if kind == "link":
        (writer.path / log).symlink_to(precious)
    else:
        os.mkfifo(writer.path / log)
    said = refusal(BadInput, RunWriter.reopen, writer.path)
    assert said == f"{writer.path / log} is not a regular file"
    assert precious.read_text() == "precious\n"
    reader = runs.read_metrics if log == "metrics.jsonl" else runs.read_timing
    assert said == refusal(BadInput, lambda: list(reader(writer.path)))


def elsewhere(tmp_path: Path) -> Path:
    """Somebody's directory, with things in it that look as if they were leftovers of ours."""
    place = tmp_path / "elsewhere"
    (place / "thesis.tmp-999999").mkdir(parents=True)
    (place / "step-000000001.tmp-999999").mkdir()
    rows = "rows-000000000-000000064-0123456789abcdef.zst"
    for name in (rows, ".rows-1.tmp-1", "notes.txt"):
        (place / name).write_text("mine")
    return place


@pytest.mark.parametrize("name", ["checkpoints", "checkpoints/rows"])
def test_linked_directories_are_not_followed(writer: RunWriter, tmp_path: Path, name: str) -> None:
    place = elsewhere(tmp_path)
    before = sorted(path.name for path in place.iterdir())
    writer.checkpoint(1, {})
    link = writer.path / name
    if name == "checkpoints":
        shutil.rmtree(link)
    link.symlink_to(place)
    said = f"{link} is a link, which is not followed"
    assert refusal(BadInput, writer.checkpoint, 2, {}) == said
    rows = {"obs": np.zeros((1, 1, 4), np.uint8)}
    assert refusal(BadInput, writer.write_block, 0, rows) == said
    assert refusal(BadInput, runs.load_checkpoint, writer.path) == said
    writer.close()
    assert refusal(BadInput, RunWriter.reopen, writer.path) == said
    assert sorted(path.name for path in place.iterdir()) == before


@pytest.mark.parametrize("name", ["config.json", "status.json", "machine.json"])
def test_links_to_documents_are_not_followed(writer: RunWriter, tmp_path: Path, name: str) -> None:
    writer.close()
    (writer.path / name).rename(tmp_path / name)
    (writer.path / name).symlink_to(tmp_path / name)
    read = {"config": runs.read_config, "status": runs.read_status, "machine": runs.read_machine}
    assert "not a regular file" in refusal(BadInput, read[name[:-5]], writer.path)


def test_a_half_written_last_line_is_skipped(writer: RunWriter) -> None:
    writer.log({"frames": 1})
    with open(writer.path / "metrics.jsonl", "ab") as file:
        for tail in (b"{", b'"frames": 2', b"}"):
            file.write(tail)
            file.flush()
            assert list(runs.read_metrics(writer.path)) == [{"frames": 1}]
        file.write(b"\n")
        file.flush()
    assert list(runs.read_metrics(writer.path)) == [{"frames": 1}, {"frames": 2}]


@pytest.mark.parametrize("line", [b"{]\n", b"[1]\n", b"\xff\n", b"[" * 99_999 + b"\n", b"\n"])
def test_a_damaged_line_inside_is_named(writer: RunWriter, line: bytes) -> None:
    writer.log({"frames": 1})
    with open(writer.path / "metrics.jsonl", "ab") as file:
        file.write(line + b"{}\n")
    assert "line 2 of" in refusal(BadInput, list, runs.read_metrics(writer.path))


def test_endless_lines_are_refused(writer: RunWriter) -> None:
    refusal(RunFailed, writer.log, {"a": "x" * files.MAX_ROW_BYTES})
    with open(writer.path / "metrics.jsonl", "ab") as file:
        file.write(b" " * (files.MAX_ROW_BYTES + 10))
    assert "too long" in refusal(BadInput, list, runs.read_metrics(writer.path))


def test_a_full_disk_leaves_no_half_row(writer: RunWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    writer.log({"frames": 1})
    writer.checkpoint(1, {"n": 1})
    room = 5

    def trickle(descriptor: int, data: bytes | memoryview) -> int:
        nonlocal room
        if room == 0:
            fail(errno.ENOSPC)
        room -= 1
        return os.write(descriptor, memoryview(data)[:1])

    with monkeypatch.context() as patch:
        patch.setattr(files, "write", trickle)
        message = refusal(RunFailed, writer.log, {"frames": 2})
        assert message == f"cannot write {writer.path / 'metrics.jsonl'}: No space left on device"
        refusal(RunFailed, writer.checkpoint, 2, {"n": 2})
        refusal(RunFailed, writer.set_status, "running")
    assert (writer.path / "metrics.jsonl").read_text() == '{"frames": 1}\n'
    assert runs.load_checkpoint(writer.path).frames == 1
    status = runs.read_status(writer.path)
    assert status is not None
    writer.log({"frames": 2})
    writer.checkpoint(2, {"n": 2})
    assert len(list(runs.read_metrics(writer.path))) == 2


def test_the_first_error_is_the_one_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        pytest.raises(RunFailed, match=r"metrics\.jsonl"),
        RunWriter.create(tmp_path, CONFIG, MACHINE) as writer,
    ):
        monkeypatch.setattr(files, "write", lambda descriptor, data: fail(errno.ENOSPC))
        writer.log({"frames": 1})
    monkeypatch.undo()
    RunWriter.reopen(tmp_path)[0].close()


def test_logs_are_synced_before_the_checkpoint(
    writer: RunWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    tape: list[str] = []

    def fsync(descriptor: int) -> None:
        tape.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))

    monkeypatch.setattr(files, "fsync", fsync)
    writer.checkpoint(1, {})
    assert tape[:4] == ["metrics.jsonl", "timing.jsonl", "run", "arrays.safetensors"]


@pytest.mark.parametrize("state", ["finished", "stopped", "failed"])
def test_logs_are_synced_before_a_final_status(
    writer: RunWriter, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    tape: list[str] = []

    def fsync(descriptor: int) -> None:
        tape.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")).split(".tmp")[0])

    monkeypatch.setattr(files, "fsync", fsync)
    writer.set_status(state)
    assert tape[:3] == ["metrics.jsonl", "timing.jsonl", ".status.json"]
    tape.clear()
    writer.set_status("running")
    assert tape == [".status.json", "run"]


def test_names_of_new_directories_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tape: list[Path] = []

    def fsync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_dir():
            tape.append(path.relative_to(tmp_path))

    monkeypatch.setattr(files, "fsync", fsync)
    with RunWriter.create(tmp_path / "a" / "b" / "run", CONFIG, MACHINE) as writer:
        assert [str(path) for path in tape[:4]] == [".", "a", "a/b", "a/b/run"]
        tape.clear()
        writer.write_block(0, {"obs": np.zeros((1, 1, 4), np.uint8)})
        run = Path("a/b/run")
        assert tape == [run, run / "checkpoints", run / "checkpoints" / "rows"]
        tape.clear()
        writer.checkpoint(1, {})
        assert run not in tape and tape[-1] == run / "checkpoints"


def count_to(path: Path, end: int, warn: Callable[[str], None]) -> None:
    """A training run whose state is a number: log it, now and then save it, resume if need be."""
    if runs.is_run(path):
        writer, saved = RunWriter.reopen(path, warn=warn)
    else:
        writer, saved = RunWriter.create(path, CONFIG, MACHINE), None
    start = int(saved.state["number"]) if saved else 0
    with writer:
        for number in range(start + 1, end + 1):
            writer.log({"number": number, "square": number * number})
            if number % 7 == 0 or number == end:
                writer.checkpoint(number, {"number": np.array(number)})
        writer.set_status("finished", end)


def die_at(call: int, patch: pytest.MonkeyPatch) -> None:
    """Let the disk operation number ``call`` from now be the death of this process."""
    calls = itertools.count(1)

    def around(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            if next(calls) == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments)

        return wrapped

    for name in ("write", "fsync", "rename"):
        patch.setattr(files, name, around(getattr(files, name)))


def count_until_killed(path: Path, end: int, call: int) -> None:
    """``count_to``, but die at the disk operation number ``call``; no checkpoint may be damaged."""
    with pytest.MonkeyPatch.context() as patch:
        die_at(call, patch)
        count_to(path, end, lambda text: os._exit(3))


def test_kills_at_random_points_leave_no_trace(tmp_path: Path) -> None:
    told: list[str] = []
    count_to(tmp_path / "whole", 200, told.append)
    rng = random.Random(0)
    killed, code = 0, -signal.SIGKILL
    while code == -signal.SIGKILL:
        last = rng.randrange(1, 60)
        code = in_child(partial(count_until_killed, tmp_path / "cut", 200, last))
        killed += code == -signal.SIGKILL
    assert code == 0
    assert killed >= 10
    for name in ("metrics.jsonl", "checkpoints/step-000000200/manifest.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    status = runs.read_status(tmp_path / "cut")
    assert status is not None
    assert status["state"] == "finished"
    assert told == []


READERS = [
    runs.read_config,
    runs.read_machine,
    runs.read_status,
    runs.read_evaluation,
    runs.read_metrics,
    runs.read_timing,
    runs.load_checkpoint,
    RunWriter.reopen,
]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_what_is_no_run_is_refused(tmp_path: Path, reader: Callable[[Path], Any]) -> None:
    (tmp_path / "file").write_text("")
    assert "does not exist" in refusal(BadInput, reader, tmp_path / "none")
    assert "is not a run" in refusal(BadInput, reader, tmp_path)
    assert "is not a run" in refusal(BadInput, reader, tmp_path / "file")
    assert not runs.is_run(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"format": 2, "config": {}}',
        b'{"format": 1, "config": []}',
        b"[" * 100_000,
        b"\x80\x04",
        b" " * (runs.MAX_CONFIG_BYTES + 1),
    ],
    ids=range(9),
)
def test_bad_config_files_are_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "config.json").write_bytes(text)
    assert "config.json" in refusal(BadInput, runs.read_config, tmp_path)
    assert "config.json" in refusal(BadInput, RunWriter.reopen, tmp_path)


def test_a_pipe_instead_of_a_document_does_not_block(writer: RunWriter) -> None:
    os.mkfifo(writer.path / "evaluation.json")
    assert "regular" in refusal(BadInput, runs.read_evaluation, writer.path)


def test_runs_are_found(tmp_path: Path) -> None:
    for name in ("b/seed1", "b/seed0", "a", "c/d/e/f/too-deep"):
        RunWriter.create(tmp_path / name, CONFIG, MACHINE).close()
    (tmp_path / "a" / "inside").mkdir()
    (tmp_path / "a" / "inside" / "config.json").write_text("{}")
    (tmp_path / "loop").symlink_to(tmp_path)
    found = [path.relative_to(tmp_path).as_posix() for path in runs.find_runs(tmp_path)]
    assert found == ["a", "b/seed0", "b/seed1"]
    assert runs.find_runs(tmp_path / "a") == [tmp_path / "a"]
    refusal(BadInput, runs.find_runs, tmp_path / "none")


def test_evaluating_needs_no_lock(writer: RunWriter) -> None:
    done = run_python(
        "import sys; from pathlib import Path; from lwm import writing;"
        "writing.write_evaluation(Path(sys.argv[1]), {'mean': 2.0})",
        str(writer.path),
    )
    assert done.returncode == 0, done.stderr
    assert runs.read_evaluation(writer.path) == {"mean": 2.0}


def test_machine_facts_name_no_person_and_no_place() -> None:
    facts = machine_facts(2)
    assert facts["threads"] == 2
    assert facts["python"] == platform.python_version()
    assert facts["numpy"] == np.__version__
    assert facts["torch"]
    text = json.dumps(facts)
    for private in (platform.node(), os.path.expanduser("~"), os.getcwd()):
        assert len(private) < 3 or private not in text
    assert getpass.getuser() not in text.split()


def test_memory_that_can_be_had_heeds_the_limit_of_the_process() -> None:
    free = available_bytes()
    assert free is None or free > 0

    def limited() -> None:
        limit = 40 << 30
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        left = available_bytes()
        assert left is not None and 0 < left < limit
        resource.setrlimit(resource.RLIMIT_AS, (1 << 20, 1 << 20))
        assert available_bytes() == 0

    assert in_child(limited) == 0


def test_mismatches_are_told_in_words() -> None:
    assert mismatches(MACHINE, dict(MACHINE)) == []
    now = {**MACHINE, "torch": "2.14", "threads": 2, "extra": 1}
    del now["numpy"]
    assert mismatches(MACHINE, now) == [
        "torch 2.13.0 then, 2.14 now",
        "numpy 2.4.0 then, unknown now",
        "threads 1 then, 2 now",
    ]


def test_nothing_here_loads_torch() -> None:
    done = run_python(
        "import sys, lwm.writing, lwm.machine, lwm.episodes; lwm.machine.machine_facts(1);"
        "print('torch' in sys.modules)"
    )
    assert done.stdout == "False\n", done.stderr


def test_what_stands_between_marks_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before <a>old</a> after </a>", encoding="utf-8")
    assert files.replace_between(page, "<a>", "</a>", "new")
    assert page.read_text(encoding="utf-8") == "before <a>new</a> after </a>"
    for begin, end in (("<b>", "</a>"), ("<a>", "</b>")):
        assert not files.replace_between(page, begin, end, "other")
    assert not files.replace_between(tmp_path / "none.md", "<a>", "</a>", "new")
    assert page.read_text(encoding="utf-8") == "before <a>new</a> after </a>"
    assert list(tmp_path.iterdir()) == [page]
