"""Recorded episodes: round trips, shapes, and every kind of damage."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import zstandard

from lwm import episodes, files
from lwm.episodes import Episode, read_episode, write_episode
from lwm.errors import BadInput, RunFailed

META = {"environment": "lwm/Labyrinth-v0", "agent": "lwm", "seed": 3, "score": 12.0, "note": "é"}
ROWS = 6


def episode(**changes: Any) -> Episode:
    """An episode of five actions with every field; ``None`` leaves one out."""
    rng = np.random.default_rng(0)
    fields: dict[str, Any] = {
        "obs": rng.integers(0, 255, (ROWS, 4, 4), np.uint8),
        "a_tm1": np.arange(ROWS),
        "r_t": np.arange(ROWS, dtype=np.float32),
        "r_in": rng.random(ROWS, np.float32),
        "is_last": np.arange(ROWS) == ROWS - 1,
        "q": rng.random((ROWS, 5), np.float32),
        "prediction": np.full((ROWS, 3), np.nan, np.float32),
        "z": rng.random((ROWS, 3), np.float32)[:, ::-1],
        "doors": np.array([[1, -1, -1, -1], [-1, 0, -1, -1]]),
        "room": np.array([0, 0, 0, 1, 1, 1]),
    }
    fields.update(changes)
    return Episode({name: value for name, value in fields.items() if value is not None}, META)


def refusal(path: Path) -> str:
    """The one line with which ``path`` is refused."""
    with pytest.raises(BadInput) as caught:
        read_episode(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = episodes.episode_path(tmp_path, 17)
    write_episode(path, episode())
    return path


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "episodes" / "episode-000000.safetensors.zst"
    for sent in (episode(), episode(q=None, prediction=None, z=None, doors=None, room=None)):
        write_episode(path, sent)
        back = read_episode(path)
        assert back.meta == sent.meta
        assert back.rows == ROWS
        assert set(back.fields) == set(sent.fields)
        for name, value in sent.fields.items():
            assert back.fields[name].dtype == value.dtype
            assert back.fields[name].shape == value.shape
            assert back.fields[name].tobytes() == value.tobytes()
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_the_command_line_tool_unpacks_it(written: Path, tmp_path: Path) -> None:
    tool = shutil.which("zstd")
    if tool is None:
        pytest.skip("no zstd tool")
    plain = tmp_path / "plain.safetensors"
    subprocess.run([tool, "-q", "-d", str(written), "-o", str(plain)], check=True)
    assert safetensors.numpy.load_file(plain)["room"].tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("obs", None),
        ("is_last", None),
        ("obs", np.zeros((ROWS - 1, 2))),
        ("a_tm1", np.zeros(ROWS, np.float32)),
        ("a_tm1", np.zeros((ROWS, 1), int)),
        ("r_t", np.zeros(ROWS + 1, np.float32)),
        ("r_in", np.zeros(ROWS, int)),
        ("is_last", np.zeros(ROWS)),
        ("is_last", np.zeros((ROWS, 1), bool)),
        ("q", np.zeros(ROWS, np.float32)),
        ("doors", np.zeros((2, 3), int)),
        ("doors", np.zeros(4, int)),
        ("extra", np.zeros(2)),
        ("extra", np.array(1)),
    ],
)
def test_wrong_shapes_are_refused(tmp_path: Path, field: str, value: Any) -> None:
    with pytest.raises(BadInput, match=f"'{field}'"):
        write_episode(tmp_path / "e", episode(**{field: value}))
    assert list(tmp_path.iterdir()) == []


def test_no_rows_and_no_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no rows"):
        write_episode(tmp_path / "e", episode(is_last=np.zeros(0, bool)))
    with pytest.raises(BadInput, match="'extra' has dtype"):
        write_episode(tmp_path / "e", episode(extra=np.array(["text"] * ROWS)))
    with pytest.raises(BadInput, match="'extra' has dtype complex64"):
        write_episode(tmp_path / "e", episode(extra=np.zeros(ROWS, np.complex64)))
    assert list(tmp_path.iterdir()) == []


def test_own_fields_are_welcome(tmp_path: Path) -> None:
    write_episode(tmp_path / "e", episode(position=np.zeros((ROWS, 2), np.int8)))
    assert read_episode(tmp_path / "e").fields["position"].dtype == np.int8


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {key: value for key, value in META.items() if key != "score"},
        {**META, "score": float("nan")},
        {**META, "agent": object()},
        {**META, "note": "x" * episodes.MAX_META_BYTES},
    ],
    ids=range(5),
)
def test_bad_meta_is_refused(tmp_path: Path, meta: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        write_episode(tmp_path / "e", Episode(episode().fields, meta))
    assert list(tmp_path.iterdir()) == []


def test_every_flipped_byte_is_noticed(written: Path) -> None:
    whole = written.read_bytes()
    rng = random.Random(0)
    for position in [*range(60), *(rng.randrange(len(whole)) for _ in range(150))]:
        damaged = bytearray(whole)
        damaged[position] ^= rng.randrange(1, 256)
        written.write_bytes(damaged)
        refusal(written)


def test_every_truncation_and_extension_is_noticed(written: Path) -> None:
    whole = written.read_bytes()
    rng = random.Random(0)
    for length in [0, 1, 7, 8, 51, 52, 53, *(rng.randrange(len(whole)) for _ in range(60))]:
        written.write_bytes(whole[:length])
        refusal(written)
    for tail in (b"\0", whole):
        written.write_bytes(whole + tail)
        refusal(written)


def forge(path: Path, frame: bytes) -> Path:
    """An episode file with a right checksum over content of our choice."""
    path.write_bytes(episodes._SKIPPABLE + episodes._MAGIC + hashlib.sha256(frame).digest() + frame)
    return path


def packed(blob: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(blob)


def blob(meta: Any, **fields: Any) -> bytes:
    return safetensors.numpy.save(fields, metadata={"lwm": meta})


GOOD_META = json.dumps({**META, "format": 1})


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"junk",
        packed(b""),
        packed(b"junk"),
        packed((2**62).to_bytes(8, "little")),
        packed((8).to_bytes(8, "little") + b"[" * 8),
        packed((90_000).to_bytes(8, "little") + b"[" * 90_000),
        packed(safetensors.numpy.save({"obs": np.zeros(3)})),
        packed(blob("[]", **episode().fields)),
        packed(blob("nonsense", **episode().fields)),
        packed(blob("[" * 60_000, **episode().fields)),
        packed(blob(json.dumps({**META, "format": 2}), **episode().fields)),
        packed(blob(json.dumps(META), **episode().fields)),
        packed(blob('{"format": 1}', **episode().fields)),
        packed(blob(GOOD_META, obs=np.zeros(3))),
        packed(blob(GOOD_META, **episode().fields)) + packed(b"more"),
        packed(blob(GOOD_META, **episode().fields))[:-5],
        b"cposix\nsystem\n(S'touch pwned'\ntR.",
        # A frame that claims a terabyte, and one that does not say.
        b"\x28\xb5\x2f\xfd\xe0" + (2**40).to_bytes(8, "little") + b"\x01\x00\x00",
        zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 10),
    ],
    ids=range(20),
)
def test_forged_content_with_a_right_sum_is_refused(tmp_path: Path, frame: bytes) -> None:
    refusal(forge(tmp_path / "e", frame))


def test_the_forger_can_make_a_good_one(tmp_path: Path) -> None:
    frame = packed(blob(GOOD_META, **episode(z=None).fields))
    assert read_episode(forge(tmp_path / "e", frame)).meta == META


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes, "MAX_BYTES", 100_000)
    assert "allowed" in refusal(forge(tmp_path / "e", packed(bytes(10_000_000))))
    with pytest.raises(BadInput, match="too large"):
        write_episode(tmp_path / "f", episode(obs=np.zeros((ROWS, 20_000))))


def test_what_is_no_file(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "none")
    refusal(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    refusal(tmp_path / "pipe")


def test_a_full_disk_keeps_the_old_file(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "write", full)
    with pytest.raises(RunFailed, match="No space left"):
        write_episode(written, episode(q=None))
    assert "q" in read_episode(written).fields
    assert [entry.name for entry in written.parent.iterdir()] == [written.name]
    with pytest.raises(RunFailed, match="Not a directory"):
        write_episode(written / "under" / "a-file", episode())


def test_a_linked_directory_is_refused(tmp_path: Path) -> None:
    assert episodes.directory_of(tmp_path) == tmp_path / "episodes"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "episodes").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadInput, match="episodes is a link, which is not followed"):
        episodes.directory_of(tmp_path)


def test_listing(tmp_path: Path) -> None:
    assert episodes.list_episodes(tmp_path / "none") == []
    for number in (1_000_000, 2, 10):
        write_episode(episodes.episode_path(tmp_path, number), episode())
    (tmp_path / "other").write_text("")
    names = [path.name.split(".")[0] for path in episodes.list_episodes(tmp_path)]
    assert names == ["episode-000002", "episode-000010", "episode-1000000"]
