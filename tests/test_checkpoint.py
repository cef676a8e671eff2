"""Checkpoints: what is saved comes back, what is damaged is noticed, a crash loses nothing."""

from __future__ import annotations

import errno
import json
import math
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lwm import checkpoint, codec, files, sealed
from lwm.errors import CheckpointError, LwmError, RunFailed, one_line
from processes import in_child

NAMES = [sealed.ARRAYS, sealed.STATE, sealed.MANIFEST]
SEAMS = [(files, "write"), (files, "fsync"), (files, "rename")]
# Removing never fails (what cannot be removed stays), but a process can die there.
MORTAL_SEAMS = [*SEAMS, (checkpoint, "_rmtree")]


@pytest.fixture(autouse=True, scope="module")
def without_waiting_for_the_disk() -> Iterator[None]:
    """Syncing takes milliseconds and changes nothing that a living machine can see."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "fsync", lambda descriptor: None)
        yield


def state_of(number: int) -> dict[str, Any]:
    """A small state that says which save it came from."""
    return {
        "number": number,
        "net": {"weight": np.full((3, 4), number, np.float32), "steps": np.array(number)},
        "rng": np.random.default_rng(number).bit_generator.state,
    }


def same(a: Any, b: Any) -> bool:
    """Equal in type, dtype, shape and every bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and repr(a) == repr(b))
    return bool(a == b)


def one_clear_line(error: LwmError) -> bool:
    """What the command line prints is one line, not too long."""
    return "\n" not in str(error) and 0 < len(str(error)) < 600


DTYPES = st.sampled_from([np.dtype(name) for name in codec._DTYPES])
ARRAYS = DTYPES.flatmap(
    lambda dtype: hnp.arrays(
        dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
    )
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats()
    | st.text(max_size=8)
    | ARRAYS
)
TREES = st.recursive(
    LEAVES,
    lambda node: (
        st.lists(node, max_size=3)
        | st.dictionaries(st.text("ab/~01\u00e9", max_size=3), node, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.text("ab/~01\u00e9", max_size=3), TREES, max_size=4))
def test_any_tree_comes_back_equal(state: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert same(checkpoint.load(checkpoint.save(Path(folder), "step-1", state)), state)


@pytest.mark.parametrize(
    "array",
    [
        np.array(7, np.uint64),
        np.array(2**64 - 1, np.uint64),
        np.array(True),
        np.zeros((0, 3), np.float16),
        np.arange(12).reshape(3, 4)[::2, ::-1],
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.float16([1.5, np.nan, -0.0, np.inf]),
        np.array([True, False])[::-1],
    ],
    ids=lambda a: f"{a.dtype}{a.shape}",
)
def test_awkward_arrays(tmp_path: Path, array: np.ndarray) -> None:
    (back,) = checkpoint.load(checkpoint.save(tmp_path, "step-1", {"a": array})).values()
    assert same(back, array)
    assert back.flags.writeable
    assert back.flags.aligned


def test_arrays_larger_than_a_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "CHUNK_BYTES", 100)
    monkeypatch.setattr(sealed, "CHUNK_BYTES", 77)
    state = {"a": np.arange(999, dtype=np.int16), "b": np.arange(50.0)}
    assert same(checkpoint.load(checkpoint.save(tmp_path, "step-1", state)), state)


def test_big_endian_and_scalars_and_tuples_come_back_native(tmp_path: Path) -> None:
    state = {"a": np.array([1, 2], ">i4"), "b": np.float32(0.1), "c": (1, np.bool_(True))}
    back = checkpoint.load(checkpoint.save(tmp_path, "step-1", state))
    expected = {"a": np.array([1, 2], "i4"), "b": float(np.float32(0.1)), "c": [1, True]}
    assert same(back, expected)


def test_a_generator_continues_where_it_was(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    rng.random(100)
    path = checkpoint.save(tmp_path, "step-1", {"rng": rng.bit_generator.state})
    restored = np.random.default_rng()
    restored.bit_generator.state = checkpoint.load(path)["rng"]
    assert restored.random(10).tolist() == rng.random(10).tolist()


@pytest.mark.parametrize(
    "state",
    [
        {"a": object()},
        {"a": np.array(["text"])},
        {"a": np.array([object()])},
        {"a": np.zeros(1, np.complex128)},
        {1: 2},
        {"__metadata__": np.zeros(1)},
        {"a": "\ud800"},
        {"\ud800": np.zeros(1)},
        {"a": 10**5000},
        {"a": "x" * codec.MAX_JSON_BYTES},
        [],
    ],
    ids=range(11),
)
def test_what_cannot_be_saved_is_refused_before_writing(tmp_path: Path, state: Any) -> None:
    with pytest.raises(CheckpointError) as caught:
        checkpoint.save(tmp_path, "step-1", state)
    assert one_clear_line(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_bottomless_state_is_refused(tmp_path: Path) -> None:
    state: dict[str, Any] = {}
    state["self"] = state
    with pytest.raises(CheckpointError):
        checkpoint.save(tmp_path, "step-1", state)


@pytest.mark.parametrize("name", ["", "../x", "a/b", "step-1.tmp-3", "a" * 200])
def test_bad_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError):
        checkpoint.save(tmp_path / "in", name, {})


def test_old_checkpoints_and_stale_leftovers_go(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / f"step-9.tmp-{dead.pid}").mkdir()
    (tmp_path / f"step-9.tmp-{os.getppid()}").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    for number in range(5):
        checkpoint.save(tmp_path, f"step-{number:09d}", state_of(number), keep=3)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [
        "notes.txt",
        "step-000000002",
        "step-000000003",
        "step-000000004",
        f"step-9.tmp-{os.getppid()}",
    ]


def test_what_only_looks_like_a_leftover_stays(tmp_path: Path) -> None:
    for name in ("thesis.tmp-999999999", "a.step-1.tmp-999999999", "model.tmp-999999999"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-7.old-1.tmp-999999999").mkdir()
    checkpoint.save(tmp_path, "step-1", state_of(1))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "a.step-1.tmp-999999999", "model.tmp-999999999", "step-1", "thesis.tmp-999999999",
    ]  # fmt: skip
    checkpoint.save(tmp_path, "model", state_of(2))
    assert not (tmp_path / "model.tmp-999999999").exists()
    assert (tmp_path / "thesis.tmp-999999999").exists()


def test_a_file_with_the_name_of_a_checkpoint_disturbs_nothing(tmp_path: Path) -> None:
    for stray in ("step-999999999", "step-000000002", "step-000000000"):
        (tmp_path / stray).write_text("mine")
    (tmp_path / "rows").mkdir()
    block = "rows-000000000-000000064-0123456789abcdef.zst"
    for number in (1, 3, 4):
        (tmp_path / "rows" / block).write_text("of no checkpoint")
        checkpoint.save(tmp_path, f"step-{number:09d}", state_of(number))
        assert not (tmp_path / "rows" / block).exists()
    left = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert left == ["rows", "step-000000003", "step-000000004"]
    size = sum(file.stat().st_size for file in (tmp_path / left[-1]).iterdir())
    assert checkpoint.newest_bytes(tmp_path) == size
    told: list[str] = []
    found = checkpoint.latest(tmp_path, told.append)
    assert found is not None and found[0].name == left[-1]
    assert len(told) == 1 and "step-999999999 is not a checkpoint directory" in told[0]


def test_a_deeply_nested_foreign_state_disturbs_no_later_save(tmp_path: Path) -> None:
    foreign = checkpoint.save(tmp_path, "step-9", state_of(9))
    text = b'{"values":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    for name in (sealed.STATE, sealed.MANIFEST):
        (foreign / name).unlink()
    arrays = (foreign / sealed.ARRAYS).read_bytes()
    (foreign / sealed.ARRAYS).unlink()
    written = {
        sealed.ARRAYS: files.write_file(foreign / sealed.ARRAYS, [arrays]),
        sealed.STATE: files.write_file(foreign / sealed.STATE, [text]),
    }
    (foreign / sealed.MANIFEST).write_bytes(sealed.manifest(written))
    for number in (1, 2, 3):
        checkpoint.save(tmp_path, f"step-{number}", state_of(number))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-2", "step-3", "step-9"]
    told: list[str] = []
    found = checkpoint.latest(tmp_path, told.append)
    assert found is not None and found[0].name == "step-3" and len(told) == 1


def test_rows_in_a_linked_directory_stay(tmp_path: Path) -> None:
    place, folder = tmp_path / "elsewhere", tmp_path / "checkpoints"
    place.mkdir()
    (place / "rows-000000000-000000064-0123456789abcdef.zst").write_text("mine")
    folder.mkdir()
    (folder / "rows").symlink_to(place)
    checkpoint.save(folder, "step-1", state_of(1))
    assert len(list(place.iterdir())) == 1


def test_saving_under_the_same_name_replaces(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, "step-1", state_of(1), keep=1)
    checkpoint.save(tmp_path, "step-1", state_of(2), keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]
    assert same(checkpoint.load(tmp_path / "step-1"), state_of(2))


def refused(path: Path) -> str:
    """The one line with which ``load`` refuses ``path``."""
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(path)
    assert one_clear_line(caught.value)
    return str(caught.value)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return checkpoint.save(tmp_path, "step-000000001", state_of(1))


@pytest.mark.parametrize("name", NAMES)
def test_every_flipped_byte_is_noticed(saved: Path, name: str) -> None:
    rng = random.Random(name)
    whole = (saved / name).read_bytes()
    for _ in range(150):
        position, mask = rng.randrange(len(whole)), rng.randrange(1, 256)
        damaged = bytearray(whole)
        damaged[position] ^= mask
        (saved / name).write_bytes(damaged)
        assert "step-000000001" in refused(saved)
    (saved / name).write_bytes(whole)
    checkpoint.load(saved)


@pytest.mark.parametrize("name", NAMES)
def test_every_truncation_and_extension_is_noticed(saved: Path, name: str) -> None:
    whole = (saved / name).read_bytes()
    rng = random.Random(name)
    lengths = {0, 1, len(whole) - 1, *(rng.randrange(len(whole)) for _ in range(40))}
    for damaged in [*(whole[:length] for length in lengths), whole + b"\n", whole + whole]:
        (saved / name).write_bytes(damaged)
        message = refused(saved)
        assert name in message
        # The size is compared before the content is read.
        assert name == sealed.MANIFEST or f"has {len(damaged)} bytes" in message


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_is_named(saved: Path, name: str) -> None:
    (saved / name).unlink()
    assert name in refused(saved)


def test_an_extra_file_is_named(saved: Path) -> None:
    (saved / "evil\n\x1b[2J.pkl").write_bytes(b"")
    assert "\x1b" not in refused(saved)


def test_files_of_another_checkpoint_are_noticed(tmp_path: Path, saved: Path) -> None:
    other = checkpoint.save(tmp_path, "step-000000002", state_of(2))
    for name in (sealed.ARRAYS, sealed.STATE):
        mixed = tmp_path / "mixed"
        shutil.copytree(saved, mixed)
        shutil.copy(other / name, mixed / name)
        assert name in refused(mixed)
        shutil.rmtree(mixed)
    (saved / sealed.ARRAYS).rename(saved / "x")
    (saved / sealed.STATE).rename(saved / sealed.ARRAYS)
    (saved / "x").rename(saved / sealed.STATE)
    refused(saved)


@pytest.mark.parametrize("name", NAMES)
def test_links_and_special_files_are_refused(tmp_path: Path, saved: Path, name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    (saved / name).rename(elsewhere)
    (saved / name).symlink_to(elsewhere)
    assert name in refused(saved)
    (saved / name).unlink()
    os.mkfifo(saved / name)
    assert name in refused(saved)


def test_a_linked_directory_is_refused(tmp_path: Path, saved: Path) -> None:
    (tmp_path / "link").symlink_to(saved)
    refused(tmp_path / "link")


def test_things_that_are_no_checkpoint(tmp_path: Path) -> None:
    bomb = b"cposix\nsystem\n(S'touch pwned'\ntR."
    (tmp_path / "step-1").write_bytes(bomb)
    refused(tmp_path / "step-1")
    (tmp_path / "step-2").mkdir()
    for name in NAMES:
        (tmp_path / "step-2" / name).write_bytes(bomb)
    refused(tmp_path / "step-2")
    refused(tmp_path / "step-3")
    assert not Path("pwned").exists()


def forge(path: Path, arrays: bytes, text: bytes) -> Path:
    """A checkpoint with a correct manifest over content of our choice."""
    path.mkdir()
    entries = {
        name: files.write_file(path / name, [data])
        for name, data in ((sealed.ARRAYS, arrays), (sealed.STATE, text))
    }
    (path / sealed.MANIFEST).write_bytes(sealed.manifest(entries))
    return path


def tensors(header: bytes, data: bytes = b"") -> bytes:
    """A safetensors file with a header of our choice."""
    return len(header).to_bytes(8, "little") + header + data


EMPTY_STATE = b'{"arrays":[],"floats":{},"values":{}}'


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ((2**63).to_bytes(8, "little"), EMPTY_STATE),
        ((codec.MAX_HEADER_BYTES + 1).to_bytes(8, "little") + b"{}", EMPTY_STATE),
        (tensors(b"{}" + b" " * codec.MAX_HEADER_BYTES), EMPTY_STATE),
        (b"", EMPTY_STATE),
        (tensors(b"[" * 100_000), EMPTY_STATE),
        (tensors(b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,4]}}', b"1234"), EMPTY_STATE),
        (tensors(b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}'), EMPTY_STATE),
        (tensors(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"1"), EMPTY_STATE),
        (
            tensors(b'{"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}', b"12"),
            b'{"arrays":["a"],"floats":{},"values":{"a":null}}',
        ),
        (tensors(b"{}"), b"[" * 100_000),
        (tensors(b"{}"), b'{"a":' * 100_000),
        (tensors(b"{}"), b"1" * 10_000),
        (tensors(b"{}"), b"null"),
        (tensors(b"{}"), b'{"arrays":[],"floats":{},"values":[]}'),
        (tensors(b"{}"), b'{"arrays":["a"],"floats":{},"values":{}}'),
        (tensors(b"{}"), b'{"arrays":[],"floats":{"a/b/c":"nan"},"values":{}}'),
        (tensors(b"{}"), b'{"arrays":[],"floats":{"a":"nan"},"values":{"a":1}}'),
        (tensors(b"{}"), b'{"arrays":[],"floats":{"a/x":"nan"},"values":{"a":[null]}}'),
        (tensors(b"{}"), b'{"arrays":[],"floats":[],"values":{}}'),
        (tensors(b"{}"), b" " * (codec.MAX_JSON_BYTES + 1)),
        (tensors(b"{}"), b"\xff\xfe"),
    ],
    ids=range(21),
)
def test_forged_content_with_right_sums_is_refused(
    tmp_path: Path, arrays: bytes, text: bytes
) -> None:
    refused(forge(tmp_path / "step-1", arrays, text))


def sparse(path: Path, size: int, name: str = "a") -> Path:
    """A checkpoint whose one array takes ``size`` bytes and next to nothing on the disk."""
    header = {name: {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    blob = json.dumps(header).encode()
    arrays = len(blob).to_bytes(8, "little") + blob
    values = {"a": None} if name == "a" else {"learner": {"w": None}}
    text = json.dumps({"arrays": [name], "floats": {}, "values": values}).encode()
    forge(path, arrays, text)
    os.truncate(path / sealed.ARRAYS, len(arrays) + size)
    manifest = path / sealed.MANIFEST
    document = json.loads(manifest.read_text())
    document["files"][sealed.ARRAYS]["size"] = len(arrays) + size
    manifest.write_bytes(sealed.manifest(document["files"]))
    return path


@pytest.mark.parametrize("part", [None, "learner"])
def test_arrays_that_no_memory_holds_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str | None
) -> None:
    path = sparse(tmp_path / "step-1", 1 << 40, "a" if part is None else "learner/w")

    def read(*arguments: Any) -> bytes:
        raise AssertionError("a terabyte would be read")

    monkeypatch.setattr(sealed, "read_safetensors", read)
    monkeypatch.setattr(sealed, "available_bytes", lambda: 1 << 34)
    with pytest.raises(CheckpointError, match=r"arrays\.safetensors needs \d+ bytes of memory"):
        checkpoint.load(path, part)


def test_a_part_needs_memory_for_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"learner": {"w": np.zeros(10)}, "replay": np.zeros(10_000)}
    path = checkpoint.save(tmp_path, "step-1", state)
    monkeypatch.setattr(sealed, "available_bytes", lambda: 1000)
    assert len(checkpoint.load(path, "learner")["learner"]["w"]) == 10
    assert "bytes of memory" in refused(path)
    monkeypatch.setattr(sealed, "available_bytes", lambda: None)
    assert len(checkpoint.load(path)["replay"]) == 10_000


@pytest.mark.parametrize(
    "offsets", ["[0]", "5", "null", "[0, 1e999]", '["x", 1]', "{}", "[" * 9999 + "]" * 9999]
)
def test_a_foreign_header_is_refused_by_readers_of_a_part(tmp_path: Path, offsets: str) -> None:
    blob = f'{{"learner/w": {{"data_offsets": {offsets}}}}}'.encode()
    text = b'{"arrays":["learner/w"],"floats":{},"values":{"learner":{"w":null}}}'
    path = forge(tmp_path / "step-1", len(blob).to_bytes(8, "little") + blob, text)
    with pytest.raises(CheckpointError, match="not a valid safetensors file"):
        checkpoint.load(path, "learner")


def test_the_forger_can_make_a_good_one(tmp_path: Path) -> None:
    assert checkpoint.load(forge(tmp_path / "step-1", tensors(b"{}"), EMPTY_STATE)) == {}


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"format": "1"},
        {"files": {}},
        {"files": []},
        {"more": 1},
        {"files": {sealed.ARRAYS: {"size": True, "sha256": None}}},
    ],
)
def test_a_foreign_manifest_is_refused(saved: Path, change: dict[str, Any]) -> None:
    path = saved / sealed.MANIFEST
    document = {**json.loads(path.read_text()), **change}
    path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    message = refused(saved)
    assert sealed.MANIFEST in message
    if change == {"format": 2}:
        assert "format 2" in message


def test_latest_is_the_highest_number(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path / "none") is None
    assert checkpoint.latest(tmp_path) is None
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="file: Not a directory"):
        checkpoint.latest(tmp_path / "file")
    for number in (2, 10, 9):
        checkpoint.save(tmp_path, f"step-{number}", state_of(number), keep=5)
    (tmp_path / "step-11.tmp-1").mkdir()
    found = checkpoint.latest(tmp_path)
    assert found is not None
    assert found[0].name == "step-10"
    assert same(found[1], state_of(10))


def test_latest_falls_back_with_a_warning(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        checkpoint.save(tmp_path, f"step-{number}", state_of(number), keep=3)
    (tmp_path / "step-3" / sealed.STATE).write_bytes(b"{}")
    told: list[str] = []
    found = checkpoint.latest(tmp_path, told.append)
    assert found is not None
    assert same(found[1], state_of(2))
    assert len(told) == 1
    assert str(tmp_path / "step-3" / sealed.STATE) in told[0]
    with pytest.warns(UserWarning, match="step-3"):
        checkpoint.latest(tmp_path)
    (tmp_path / "step-2" / sealed.ARRAYS).unlink()
    (tmp_path / "step-1" / sealed.MANIFEST).unlink()
    with pytest.raises(CheckpointError, match="no good checkpoint among the 3"):
        checkpoint.latest(tmp_path, told.append)


def test_one_part_alone_can_be_read(tmp_path: Path) -> None:
    part = {"w": np.arange(3), "deep": [np.ones(2), float("inf")], "n": 4}
    state = {"learner": part, "learner2": {"w": np.zeros(1)}, "replay": {"x": np.zeros(9), "k": 7}}
    path = checkpoint.save(tmp_path, "step-1", state)
    back = checkpoint.load(path, "learner")
    assert same(back["learner"], part)
    assert back["learner2"] == {"w": None} and back["replay"] == {"x": None, "k": 7}
    # What is not read is checked all the same.
    blob = bytearray((path / "arrays.safetensors").read_bytes())
    blob[-1] ^= 1
    (path / "arrays.safetensors").write_bytes(blob)
    with pytest.raises(CheckpointError, match="checksum"):
        checkpoint.load(path, "learner")


def test_latest_follows_a_writer_that_removes_what_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save(tmp_path, "step-1", state_of(1))
    whole_load = checkpoint.load

    def overtaken(path: Path, part: str | None) -> dict[str, Any]:
        monkeypatch.setattr(checkpoint, "load", whole_load)
        checkpoint.save(tmp_path, "step-2", state_of(2), keep=1)
        return whole_load(path, part)

    monkeypatch.setattr(checkpoint, "load", overtaken)
    told: list[str] = []
    found = checkpoint.latest(tmp_path, told.append)
    assert found is not None
    assert same(found[1], state_of(2))
    assert told == []


def test_the_order_of_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file is synced, then their directory, then it gets its name, then that is synced."""
    tape: list[str] = []

    def fsync(descriptor: int) -> None:
        os.fsync(descriptor)
        tape.append("sync " + os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))

    def rename(source: Path, target: Path) -> None:
        os.rename(source, target)
        tape.append(f"rename {source.name} {target.name}")

    monkeypatch.setattr(files, "fsync", fsync)
    monkeypatch.setattr(files, "rename", rename)
    checkpoint.save(tmp_path / "checkpoints", "step-1", state_of(1))
    temporary = f"step-1.tmp-{os.getpid()}"
    assert tape == [
        f"sync {tmp_path.name}",
        "sync arrays.safetensors",
        "sync state.json",
        "sync manifest.json",
        f"sync {temporary}",
        f"rename {temporary} step-1",
        "sync checkpoints",
    ]


class Cut:
    """Counts the calls through all seams and does ``act`` instead of call ``at``."""

    def __init__(self, at: int, act: Callable[[], None], seams: list[Any] = SEAMS) -> None:
        self.calls, self.at, self.act, self.seams = 0, at, act, seams

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            self.calls += 1
            if self.calls == self.at:
                self.act()
            return function(*arguments)

        return wrapped

    @contextmanager
    def installed(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for module, name in self.seams:
                patch.setattr(module, name, self.around(getattr(module, name)))
            yield


def count_calls(folder: Path, name: str, keep: int, seams: list[Any]) -> int:
    """How many cut points a save has."""
    prepare(folder)
    counter = Cut(0, lambda: None, seams)
    with counter.installed():
        checkpoint.save(folder, name, state_of(3), keep)
    return counter.calls


def prepare(folder: Path) -> None:
    """Two good checkpoints, 1 and 2."""
    shutil.rmtree(folder, ignore_errors=True)
    for number in (1, 2):
        checkpoint.save(folder, f"step-{number}", state_of(number))


def newest(folder: Path) -> dict[str, Any]:
    """What a reader gets, without any warning."""
    found = checkpoint.latest(folder)
    assert found is not None
    return found[1]


def fail(number: int) -> None:
    raise OSError(number, os.strerror(number))


@pytest.mark.parametrize(("name", "keep"), [("step-3", 2), ("step-3", 1), ("step-2", 1)])
def test_a_failure_at_any_point_keeps_the_previous_one(
    tmp_path: Path, name: str, keep: int
) -> None:
    calls = count_calls(tmp_path, name, keep, SEAMS)
    assert calls >= 10
    for at in range(1, calls + 1):
        prepare(tmp_path)
        with Cut(at, lambda: fail(errno.ENOSPC)).installed():
            try:
                checkpoint.save(tmp_path, name, state_of(3), keep)
            except RunFailed as error:
                assert one_clear_line(error)
                assert str(tmp_path / name) in str(error)
                assert "No space left" in str(error)
                left = {path.name for path in tmp_path.iterdir()}
                assert left >= {"step-1", "step-2"}
                assert not any(".tmp-" in entry for entry in left)
        assert newest(tmp_path)["number"] in (2, 3)
        checkpoint.save(tmp_path, "step-4", state_of(4), 1)
        assert newest(tmp_path)["number"] == 4
        assert [path.name for path in tmp_path.iterdir()] == ["step-4"]


def save_until(at: int, folder: Path, name: str, keep: int) -> None:
    """Start a save and die at the disk operation number ``at``."""
    with Cut(at, lambda: os._exit(9), MORTAL_SEAMS).installed():
        checkpoint.save(folder, name, state_of(3), keep)


@pytest.mark.parametrize(("name", "keep"), [("step-3", 2), ("step-3", 1), ("step-2", 1)])
def test_a_kill_at_any_point_keeps_the_previous_one(tmp_path: Path, name: str, keep: int) -> None:
    calls = count_calls(tmp_path, name, keep, MORTAL_SEAMS)
    for at in range(1, calls + 1):
        prepare(tmp_path)
        assert in_child(partial(save_until, at, tmp_path, name, keep)) == 9
        assert newest(tmp_path)["number"] in (2, 3)
        checkpoint.save(tmp_path, "step-4", state_of(4), 1)
        assert [path.name for path in tmp_path.iterdir()] == ["step-4"]


def test_a_half_written_file_is_never_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk takes one byte at a time and fills up after some of them."""
    prepare(tmp_path)
    room = 300

    def trickle(descriptor: int, data: bytes | memoryview) -> int:
        nonlocal room
        room -= 1
        if room < 0:
            fail(errno.EDQUOT)
        return os.write(descriptor, memoryview(data)[:1])

    monkeypatch.setattr(files, "write", trickle)
    with pytest.raises(RunFailed, match="step-3"):
        checkpoint.save(tmp_path, "step-3", state_of(3))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-1", "step-2"]
    room = 1 << 20
    checkpoint.save(tmp_path, "step-3", state_of(3))
    assert newest(tmp_path)["number"] == 3


def test_a_real_limit_on_file_size(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, "step-1", state_of(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(RunFailed, match="File too large"):
            checkpoint.save(tmp_path, "step-2", {"a": np.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]
    assert newest(tmp_path)["number"] == 1


def test_an_interrupt_cleans_up(tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with Cut(3, interrupt).installed(), pytest.raises(KeyboardInterrupt):
        checkpoint.save(tmp_path, "step-1", state_of(1))
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFailed, match="Not a directory"):
        checkpoint.save(tmp_path / "file" / "checkpoints", "step-1", {})


def test_an_unreadable_checkpoint(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed, "open_regular", lambda path: fail(errno.EIO))
    assert "Input/output error" in refused(saved)


def test_messages_are_one_printable_line() -> None:
    assert one_line("a\n b\tc\x1b[0m") == "a b c\\x1b[0m"
    assert str(CheckpointError("a\nb")) == "a b"
