"""Replay rows on disk: a block is written once, checkpoints share it, a crash loses nothing."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import random
import signal
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from lwm import blocks, checkpoint, files, runs, sealed
from lwm.blocks import Block
from lwm.errors import CheckpointError, LwmError, RunFailed
from lwm.replay import Replay
from lwm.saved import Saved
from lwm.saving import RowBlocks, Stops
from lwm.types import Step
from lwm.writing import RunWriter
from processes import in_child

ENVS, RING, HIDDEN = 3, 37, 4
CONFIG, MACHINE = {"seed": 0}, {"threads": 1}
GOLDEN = "6640eb493f065b43697cccd1583c60a413982465b0bd4394a5522e614399ddfa"


@pytest.fixture(autouse=True)
def small_blocks_and_no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "ROWS", 8)
    monkeypatch.setattr(files, "fsync", lambda descriptor: None)


def new_replay() -> Replay:
    return Replay(
        RING, ENVS, (5, 5), np.uint8, HIDDEN, 0, compress=True, state_every=5, window=10
    )  # fmt: skip


def add_row(replay: Replay, salt: int = 0) -> None:
    """The next row; what is in it depends on its number and ``salt`` alone."""
    rng = np.random.default_rng([replay.count, salt])
    first, last = replay.count % 9 == 0, replay.count % 9 == 8
    flags = np.ones(ENVS, np.bool_)
    step = Step(
        obs=rng.integers(4, size=(ENVS, 5, 5), dtype=np.uint8),
        a_tm1=rng.integers(18, size=ENVS),
        r_t=rng.random(ENVS, np.float32) * (not first),
        is_first=flags & first,
        is_last=flags & last,
        discount_t=np.ones(ENVS, np.float32),
        episode_return=np.zeros(ENVS, np.float32),
        episode_length=np.zeros(ENVS, np.int64),
        episode_end=flags & last,
    )
    h = rng.standard_normal((ENVS, HIDDEN)).astype(np.float32)
    replay.append(step, h, rng.random(ENVS, np.float32))
    new = replay.new_windows()
    replay.set_priorities(new, rng.random(len(new)))


def contents(replay: Replay) -> dict[str, bytes]:
    """All that can be sampled from a replay, bit for bit."""
    replay.check_valid()
    rows = replay.get_rows(replay.oldest, replay.count)
    ranked = {"priorities": replay.priorities.get_state()}
    return {k: v.tobytes() for k, v in (rows | ranked).items()} | {"n": bytes([replay.count])}


def restored(saved: Saved) -> Replay:
    replay = new_replay()
    replay.set_blocks(saved.state["replay"], saved.rows())
    return replay


def save(writer: RunWriter, rows: RowBlocks, number: int | None = None) -> Path:
    """A checkpoint of a run whose state is its replay."""
    state = {"replay": rows.replay.get_index()}
    return writer.checkpoint(number or rows.replay.count, state, rows.write_all(Stops()))


def on_disk(path: Path) -> set[str]:
    """Names in the directory of blocks."""
    return {entry.name for entry in (path / "checkpoints" / "rows").iterdir()}


def named(path: Path) -> set[str]:
    """Names of the blocks of all checkpoints of a run, each of which must be whole."""
    found = (path / "checkpoints").glob("step-*")
    return {b.name for step in found for b in checkpoint.load(step)[checkpoint.BLOCKS]}


def grow(writer: RunWriter, rows: RowBlocks, stop: int, every: int, salt: int = 0) -> None:
    """Append rows up to number ``stop``; a checkpoint after every so many."""
    while rows.replay.count < stop:
        add_row(rows.replay, salt)
        rows.write_complete(Stops())
        if rows.replay.count % every == 0:
            save(writer, rows)


def one_line(error: LwmError) -> str:
    assert "\n" not in str(error)
    return str(error)


# One block.


def example(n: int = 6, states: int = 2) -> blocks.Rows:
    rng = np.random.default_rng(n)
    h = rng.standard_normal((states, ENVS, HIDDEN)).astype(np.float32)
    h.ravel()[:1] = np.nan
    return {
        "obs": rng.integers(256, size=(n, ENVS, 5, 5), dtype=np.uint8),
        "a_tm1": rng.integers(-(2**40), 2**40, size=(n, ENVS)),
        "is_last": rng.random((n, ENVS)) < 0.5,
        "discount_t": rng.random((n, ENVS)),
        "h": h,
        "belief": np.zeros((states, ENVS, 0), np.float32),
    }


@pytest.mark.parametrize(("n", "states"), [(1, 0), (1, 1), (6, 2)])
def test_a_block_comes_back_equal(n: int, states: int, tmp_path: Path) -> None:
    rows = example(n, states)
    block = blocks.write(tmp_path / "rows", 70, rows)
    assert (block.first, block.stop, block.rows) == (70, 70 + n, n)
    (file,) = (tmp_path / "rows").iterdir()
    data = file.read_bytes()
    assert file.name == f"rows-000000070-{70 + n:09d}-{block.sha256[:16]}.zst"
    assert (block.size, block.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    back = blocks.read(tmp_path / "rows", block)
    assert list(back) == list(rows)
    for name, array in rows.items():
        assert (back[name].dtype, back[name].shape) == (array.dtype, array.shape)
        assert back[name].tobytes() == array.tobytes() and back[name].flags.writeable
    assert blocks.pack(back) == data  # the same rows always have the same name
    assert blocks.from_json(json.loads(json.dumps(blocks.to_json([block])))) == [block]


def test_a_run_of_like_pictures_takes_little_room() -> None:
    rng = np.random.default_rng(0)
    picture = rng.integers(256, size=(1, 2, 84, 84), dtype=np.uint8)
    one, many = (len(blocks.pack({"obs": np.repeat(picture, n, 0)})) for n in (1, 64))
    assert one > 2 * 84 * 84 and many < 1.1 * one


def test_blocks_hold_no_more_than_is_soon_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "ROWS", 64)
    assert blocks.block_rows(7812, 128) == 32  # the paper's
    assert blocks.block_rows(80, 2) == 64
    assert blocks.block_rows(10, 10) == 10  # no more than the ring holds
    assert blocks.block_rows(244, 4096) == 1
    assert blocks.block_rows(7, 10**6) == 1


def forged(fields: Any, lengths: Any, tail: bytes) -> bytes:
    text = b"lwm-rows" + json.dumps({"fields": fields, "lengths": lengths}).encode()
    return struct.pack("<II", 0x184D2A50, len(text)) + text + tail


FRAME = zstandard.ZstdCompressor().compress(b"1234")
LONG = zstandard.ZstdCompressor().compress(b"\0" * 9999)
UNSAID = zstandard.ZstdCompressor(write_content_size=False).compress(b"1234")
OBS = ["obs", "uint8", [4, 1]]
GOOD = forged([OBS], [len(FRAME)], FRAME)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04",
        GOOD[:-1],
        GOOD + b"\0",
        GOOD[:4] + struct.pack("<I", 2**32 - 1) + GOOD[8:],
        struct.pack("<II", 0x184D2A50, 2**18 + 1) + b"lwm-rows" + b" " * 2**18,
        struct.pack("<II", 0x184D2A50, 100_008) + b"lwm-rows" + b"[" * 100_000,
        forged([], [], b""),
        forged([OBS, OBS], [len(FRAME)], FRAME),
        forged([["obs", "object", [4, 1]]], [len(FRAME)], FRAME),
        forged([["obs", "O", [4, 1]]], [len(FRAME)], FRAME),
        forged([["obs", "u1", [4, 1]]], [len(FRAME)], FRAME),
        forged([["obs", "uint8,uint8", [2, 1]]], [len(FRAME)], FRAME),
        forged([["obs", "no such", [4, 1]]], [len(FRAME)], FRAME),
        forged([["obs", "uint8", [4]]], [len(FRAME)], FRAME),
        forged([["obs", "uint8", [-4, -1]]], [len(FRAME)], FRAME),
        forged([["obs", "uint8", [4.0, 1]]], [len(FRAME)], FRAME),
        forged([["obs", "uint8", [2**31, 1, 2**31]]], [len(FRAME)], FRAME),
        forged([["obs", "uint8", [2**31, 1]]], [len(FRAME)], FRAME),
        forged([["obs", "uint8", [4, 0]]], [], b""),
        forged([["obs", "uint8", [0, 1]]], [len(FRAME)], FRAME),
        forged([["obs", "uint8", [5, 1]]], [len(FRAME)], FRAME),
        forged([["obs", "uint8", [4, 2]]], [len(FRAME)], FRAME),
        forged([OBS, ["h", "uint8", [4, 2]]], [len(FRAME)], FRAME),
        forged([OBS], [str(len(FRAME))], FRAME),
        forged([OBS], [-1], FRAME),
        forged([OBS], [4], b"1234"),
        forged([OBS], [len(LONG)], LONG),
        forged([OBS], [len(UNSAID)], UNSAID),
        forged([OBS], [2 * len(FRAME)], FRAME + FRAME),
        forged([OBS], {}, FRAME),
        forged(7, [len(FRAME)], FRAME),
    ],
    ids=itertools.count(),
)
def test_forged_blocks_with_right_sums_are_refused(data: bytes, tmp_path: Path) -> None:
    block = Block(0, 4, len(data), hashlib.sha256(data).hexdigest())
    (tmp_path / block.name).write_bytes(data)
    with pytest.raises(CheckpointError) as caught:
        blocks.read(tmp_path, block)
    assert str(tmp_path / block.name) in one_line(caught.value)


def test_the_forger_can_make_a_good_one() -> None:
    assert blocks.unpack(GOOD)["obs"].tobytes() == b"1234"


@pytest.mark.parametrize(
    "change",
    [
        {"sha256": "../../etc/passwd"},
        {"sha256": "A" * 64},
        {"sha256": 1},
        {"first": -1},
        {"first": "0"},
        {"stop": 0},
        {"stop": 10**18},
        {"size": True},
        {"size": 1 << 40},
        {"more": 1},
    ],
    ids=str,
)
def test_blocks_that_cannot_be_named(change: dict[str, Any], tmp_path: Path) -> None:
    good = {"first": 0, "stop": 4, "size": 1, "sha256": "a" * 64}
    assert blocks.from_json([good]) == [Block(**good)]  # type: ignore[arg-type]
    for bad in ([good | change], good, [1], "x"):
        with pytest.raises(ValueError, match="block"):
            blocks.from_json(bad)
    checkpoint.save(tmp_path, "step-1", {"_bloc": 0, "n": 1})
    text = (tmp_path / "step-1" / sealed.STATE).read_bytes()
    state = json.loads(text)
    state["values"]["_blocks"] = [good | change]
    arrays = (tmp_path / "step-1" / sealed.ARRAYS).read_bytes()
    (tmp_path / "step-2").mkdir()
    entries = {
        name: files.write_file(tmp_path / "step-2" / name, [data])
        for name, data in (
            (sealed.ARRAYS, arrays),
            (sealed.STATE, json.dumps(state).encode()),
        )
    }
    (tmp_path / "step-2" / sealed.MANIFEST).write_bytes(sealed.manifest(entries))
    with pytest.raises(CheckpointError, match="step-2"):
        checkpoint.load(tmp_path / "step-2")


# Blocks and checkpoints.


@pytest.fixture
def writer(tmp_path: Path) -> Any:
    with RunWriter.create(tmp_path / "run", CONFIG, MACHINE) as made:
        yield made


@pytest.mark.parametrize("count", [1, 7, 8, 9, 36, 37, 38, 45, 61, 160])
def test_a_replay_comes_back_from_its_blocks(count: int, writer: RunWriter) -> None:
    # The ring of 37 rows is no multiple of a block: its oldest block is mostly half overwritten.
    rows = RowBlocks(writer, new_replay())
    grow(writer, rows, count, every=1000)
    save(writer, rows)
    saved = runs.load_checkpoint(writer.path)
    assert [b.rows for b in saved.blocks[:-1]] == [8] * (len(saved.blocks) - 1)
    assert saved.blocks[0].first <= rows.replay.oldest < saved.blocks[0].stop
    assert saved.blocks[-1].stop == count
    assert set(saved.state["replay"]) == {"count", "priorities"}  # no row is in it
    new = restored(saved)
    assert contents(new) == contents(rows.replay)
    for _ in range(50):
        add_row(new)
        add_row(rows.replay)
    assert contents(new) == contents(rows.replay)


def test_a_row_is_written_once(writer: RunWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[int, int]] = []
    original = blocks.write

    def noting(directory: Path, first: int, rows: blocks.Rows) -> Block:
        written.append((first, first + len(rows["obs"])))
        return original(directory, first, rows)

    monkeypatch.setattr(blocks, "write", noting)
    rows = RowBlocks(writer, new_replay())
    grow(writer, rows, 50, every=20)
    whole = [(first, first + 8) for first in range(0, 48, 8)]
    assert sorted(set(written) - set(whole)) == [(16, 20)]  # at 20 a rest; at 40 there is none
    assert len(written) == len(whole) + 1


def test_an_empty_replay(writer: RunWriter) -> None:
    rows = RowBlocks(writer, new_replay())
    save(writer, rows, 5)
    assert not (writer.path / "checkpoints" / "rows").exists()
    saved = runs.load_checkpoint(writer.path)
    assert saved.blocks == () and restored(saved).count == 0


def test_exactly_the_blocks_that_are_named_stay(writer: RunWriter) -> None:
    rows = RowBlocks(writer, new_replay())
    grow(writer, rows, 7, every=1000)
    stray = writer.path / "checkpoints" / "rows"
    stray.mkdir(parents=True)
    (stray / "notes.txt").write_text("mine")
    (stray / ".rows-1-2-3.zst.tmp-1").write_text("of a killed writer")
    for stop in range(8, 170, 5):
        grow(writer, rows, stop, every=1000)
        save(writer, rows)
        assert on_disk(writer.path) == named(writer.path) | {"notes.txt"}
        for step in (writer.path / "checkpoints").glob("step-*"):
            assert checkpoint.load(step)[checkpoint.BLOCKS][-1].stop == int(step.name[5:])
    assert len(on_disk(writer.path)) < 12


def test_a_checkpoint_that_was_left_behind_keeps_its_blocks(writer: RunWriter) -> None:
    """The run goes on from the one before the newest, and plays on differently."""
    rows = RowBlocks(writer, new_replay())
    grow(writer, rows, 45, every=15)
    expected = contents(rows.replay)
    writer.close()
    arrays = writer.path / "checkpoints" / "step-000000045" / sealed.ARRAYS
    whole = arrays.read_bytes()
    arrays.write_bytes(b"")
    again, saved = RunWriter.reopen(writer.path, warn=lambda text: None)
    with again:
        assert saved is not None and saved.frames == 30 and again.blocks == saved.blocks
        other = RowBlocks(again, restored(saved))
        grow(again, other, 44, every=11, salt=1)
        arrays.write_bytes(whole)
        newest = runs.load_checkpoint(writer.path)
        assert newest.frames == 45 and contents(restored(newest)) == expected
        arrays.write_bytes(b"")
        grow(again, other, 45, every=45, salt=1)
    assert on_disk(writer.path) == named(writer.path)
    newest = runs.load_checkpoint(writer.path)
    assert newest.frames == 45
    assert contents(restored(newest)) == contents(other.replay) != expected


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def drawn_out(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"\0")


def flipped(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[random.Random(file.name).randrange(len(data))] ^= 16
    file.write_bytes(data)


def linked(file: Path) -> None:
    file.rename(file.with_name("elsewhere"))
    file.symlink_to("elsewhere")


def piped(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize("damage", [cut_short, drawn_out, flipped, linked, piped, Path.unlink])
def test_a_damaged_block_is_named_and_the_checkpoint_before_it_used(
    damage: Callable[[Path], None], writer: RunWriter
) -> None:
    rows = RowBlocks(writer, new_replay())
    grow(writer, rows, 20, every=20)
    expected = contents(rows.replay)
    grow(writer, rows, 40, every=20)
    newest = runs.load_checkpoint(writer.path)
    directory = writer.path / "checkpoints" / "rows"
    file = directory / newest.blocks[-1].name
    damage(file)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(newest.path)
    assert str(file) in one_line(caught.value)
    told: list[str] = []
    before = runs.load_checkpoint(writer.path, told.append)
    assert before.frames == 20 and contents(restored(before)) == expected
    assert len(told) == 1 and str(file) in told[0]
    # Damaged after it was checked, while the others are read.
    with pytest.raises(CheckpointError) as caught:
        if damage in (linked, piped):
            file.unlink()
        restored(newest)
    assert str(file) in one_line(caught.value)
    # A block that both need leaves no good one.
    damage(directory / before.blocks[0].name)
    with pytest.raises(CheckpointError, match="no good checkpoint among the 2"):
        runs.load_checkpoint(writer.path, told.append)


@pytest.mark.parametrize("gap", [slice(1, None), slice(0, -1), [0, 1, 3, 4], [1, 0], []])
def test_missing_rows_are_noticed(gap: Any, writer: RunWriter) -> None:
    rows = RowBlocks(writer, new_replay())
    grow(writer, rows, 36, every=36)
    saved = runs.load_checkpoint(writer.path)
    read = list(saved.rows())
    some = read[gap] if isinstance(gap, slice) else [read[i] for i in gap]
    with pytest.raises(ValueError, match=r"the rows from .* on are missing"):
        new_replay().set_blocks(saved.state["replay"], some)


@pytest.mark.parametrize("seam", ["write", "fsync", "rename"])
def test_a_full_disk_while_a_block_is_written(
    seam: str, writer: RunWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = RowBlocks(writer, new_replay())
    grow(writer, rows, 12, every=12)
    good, before = contents(rows.replay), on_disk(writer.path)

    def full(*arguments: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(files, seam, full)
        with pytest.raises(RunFailed) as caught:
            grow(writer, rows, 16, every=1000)
        assert "checkpoints/rows/rows-000000008-000000016-" in one_line(caught.value)
        assert str(caught.value).endswith(": No space left on device")
        with pytest.raises(RunFailed):
            save(writer, rows)
    assert on_disk(writer.path) == before
    saved = runs.load_checkpoint(writer.path)
    assert saved.frames == 12 and contents(restored(saved)) == good
    save(writer, rows)
    assert contents(restored(runs.load_checkpoint(writer.path))) == contents(rows.replay)


# Killed.


def play(path: Path, end: int, warn: Callable[[str], None]) -> None:
    """A run whose state is its replay: a checkpoint every 13 rows; goes on where it was."""
    if runs.is_run(path):
        writer, saved = RunWriter.reopen(path, warn=warn)
    else:
        writer, saved = RunWriter.create(path, CONFIG, MACHINE), None
    with writer:
        rows = RowBlocks(writer, restored(saved) if saved else new_replay())
        grow(writer, rows, end, every=13)
        writer.set_status("finished", end)


def play_until_killed(path: Path, end: int, call: int) -> None:
    """``play``, but the disk operation number ``call`` is the death of this process."""
    calls = itertools.count(1)

    def around(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            if next(calls) == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return wrapped

    with pytest.MonkeyPatch.context() as patch:
        for name in ("write", "fsync", "rename"):
            patch.setattr(files, name, around(getattr(files, name)))
        patch.setattr(Path, "unlink", around(Path.unlink))
        play(path, end, lambda text: os._exit(3))  # no checkpoint may be damaged


def test_kills_at_random_points_leave_no_trace(tmp_path: Path) -> None:
    whole, cut, end = tmp_path / "whole", tmp_path / "cut", 130
    play(whole, end, pytest.fail)
    rng = random.Random(0)
    killed, code = 0, -signal.SIGKILL
    while code == -signal.SIGKILL:
        code = in_child(partial(play_until_killed, cut, end, rng.randrange(1, 60)))
        killed += code == -signal.SIGKILL
    assert code == 0 and killed >= 10
    assert on_disk(cut) == on_disk(whole) == named(whole)
    for name in ("manifest.json", "state.json"):  # with the sums of all blocks
        one, other = (p / "checkpoints" / "step-000000130" / name for p in (whole, cut))
        assert one.read_bytes() == other.read_bytes()


def test_checkpoints_without_blocks_are_as_they_were(tmp_path: Path) -> None:
    """The labyrinth's: byte for byte what was written before there were blocks."""
    state = {"number": 7, "net": {"weight": np.arange(4, dtype=np.float32)}, "x": float("inf")}
    path = checkpoint.save(tmp_path, "step-1", state)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["step-1"]
    assert hashlib.sha256((path / sealed.MANIFEST).read_bytes()).hexdigest() == GOLDEN
    assert checkpoint.load(path).keys() == state.keys()
    with pytest.raises(CheckpointError, match="reserved"):
        checkpoint.save(tmp_path, "step-2", {checkpoint.BLOCKS: []})
