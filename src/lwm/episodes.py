"""Recorded episodes: the one file format that recorders write and plots and the viewer read.

One file an episode, ``episode-000017.safetensors.zst``.  It is a zstandard stream, so ``zstd -d``
gives a plain safetensors file; nothing in it is code.  In bytes:

    skippable zstd frame   "lwm-episode\\0", then the SHA-256 of everything after this frame
    zstd frame             a safetensors file; its metadata entry "lwm" is ``Episode.meta`` as JSON

An episode of T actions has T+1 rows (the time diagram is in ``types``).  Fields:

    obs         [T+1, ...]     any dtype; what the agent saw
    a_tm1       [T+1]          integer; the action that led here, 0 on the first row
    r_t         [T+1]          float; the extrinsic reward it paid
    r_in        [T+1]          float; the bonus it paid, 0 where there is none
    is_last     [T+1]          bool
    q           [T+1, A]       float, optional; action values in this row
    z           [T+1, D]       float, optional; embedding of this row
    prediction  [T+1, D]       float, optional; what the world model predicted for ``z`` of this row
    picture     [T+1, H, W, 3] uint8, optional; how the environment draws itself, where it does
    room        [T+1]          integer, optional; room number (labyrinth)
    doors       [rooms, 4]     optional; where each door of each room leads (labyrinth)

Any further field must have T+1 rows.  ``meta`` is JSON and has at least ``environment`` (id),
``agent``, ``seed`` and ``score``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import zstandard
from numpy.typing import NDArray
from safetensors import SafetensorError

from lwm.errors import BadInput, RunFailed, reason
from lwm.files import is_directory, make_directory, open_regular, read_up_to, write_bytes_atomic

FORMAT = 1
MAX_BYTES = 1 << 29  # of the safetensors file: a whole Atari game of 27 000 frames takes 200 MB
MAX_META_BYTES = 1 << 16
META = ("environment", "agent", "seed", "score")

_RANKS = {"a_tm1": 1, "r_t": 1, "r_in": 1, "is_last": 1, "q": 2, "z": 2, "prediction": 2, "room": 1}
_KINDS = {"a_tm1": "iu", "r_t": "f", "r_in": "f", "is_last": "b", "q": "f", "z": "f",
          "prediction": "f", "room": "iu"}  # fmt: skip
_REQUIRED = ("obs", "a_tm1", "r_t", "r_in", "is_last")
_MAGIC = b"lwm-episode\0"
_SKIPPABLE = struct.pack("<II", 0x184D2A50, len(_MAGIC) + 32)
_PREFIX_BYTES = len(_SKIPPABLE) + len(_MAGIC) + 32
_FILE = re.compile(r"episode-([0-9]{6,18})\.safetensors\.zst")


@dataclass(frozen=True)
class Episode:
    """One episode: arrays by name, and facts about it (see the table above)."""

    fields: dict[str, NDArray[Any]]
    meta: dict[str, Any]

    @property
    def rows(self) -> int:
        """T+1."""
        return len(self.fields["obs"])

    def check(self) -> None:
        """BadInput unless the fields are as in the table and meta is complete."""
        fault = _fault(self.fields, self.meta)
        if fault:
            raise BadInput(f"not a valid episode: {fault}")


def directory_of(run: Path) -> Path:
    """Where the episodes of a run are; BadInput if that is a link or no directory."""
    directory = Path(run) / "episodes"
    is_directory(directory)
    return directory


def episode_path(directory: Path, number: int) -> Path:
    """Where episode ``number`` of a run is kept."""
    return Path(directory) / f"episode-{number:06d}.safetensors.zst"


def list_episodes(directory: Path) -> list[Path]:
    """Episode files in ``directory`` by rising number; none if there is no such directory."""
    try:
        found = [(int(m[1]), n) for n in os.listdir(directory) if (m := _FILE.fullmatch(n))]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BadInput(f"cannot read {directory}: {reason(error)}") from error
    return [Path(directory) / name for _, name in sorted(found)]


def write_episode(path: Path, episode: Episode) -> None:
    """Write ``episode`` atomically, making its directory if need be."""
    episode.check()
    path = Path(path)
    try:
        meta = json.dumps({**episode.meta, "format": FORMAT}, allow_nan=False)
        arrays = {name: np.array(value, order="C") for name, value in episode.fields.items()}
        blob = safetensors.numpy.save(arrays, metadata={"lwm": meta})
    except (ValueError, TypeError, KeyError, SafetensorError) as error:
        raise BadInput(f"cannot write this episode: {error}") from error
    if len(blob) > MAX_BYTES or len(meta) > MAX_META_BYTES:
        raise BadInput(f"this episode is too large: {len(blob)} bytes, {len(meta)} of them meta")
    frame = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(blob)
    try:
        make_directory(path.parent)
    except OSError as error:
        raise RunFailed(f"cannot write {path}: {reason(error)}") from error
    write_bytes_atomic(path, _SKIPPABLE + _MAGIC + hashlib.sha256(frame).digest() + frame)


def read_episode(path: Path) -> Episode:
    """Read an episode; BadInput on any damage."""
    blob = _decompress(Path(path))
    try:
        meta = _metadata(blob)
        fields = safetensors.numpy.load(blob)
        if meta.pop("format", None) != FORMAT:
            raise ValueError(f"not format {FORMAT}")
        if fault := _fault(fields, meta):
            raise ValueError(fault)
    except (ValueError, TypeError, KeyError, RecursionError, SafetensorError) as error:
        raise BadInput(f"{path} is not a valid episode: {error}") from error
    return Episode(fields, meta)


def _decompress(path: Path) -> bytes:
    """The safetensors file inside an episode file, checked before it is unpacked."""
    try:
        with open_regular(path) as file:
            raw = read_up_to(file, MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise BadInput(f"{path} is not an episode file")
    except OSError as error:
        raise BadInput(f"cannot read {path}: {reason(error)}") from error
    prefix, frame = raw[:_PREFIX_BYTES], raw[_PREFIX_BYTES:]
    if not prefix.startswith(_SKIPPABLE + _MAGIC):
        raise BadInput(f"{path} is not an episode file")
    if prefix[-32:] != hashlib.sha256(frame).digest():
        raise BadInput(f"{path} is damaged: it does not match its checksum")
    try:
        size = zstandard.frame_content_size(frame)
        if not 0 <= size <= MAX_BYTES:
            raise BadInput(f"{path} says it unpacks to {size} bytes, over the {MAX_BYTES} allowed")
        decompressor = zstandard.ZstdDecompressor()
        return decompressor.decompress(frame, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BadInput(f"{path} is damaged: {error}") from error


def _metadata(blob: bytes) -> dict[str, Any]:
    """Our entry in the safetensors header, which ``safetensors.numpy.load`` does not return."""
    length = int.from_bytes(blob[:8], "little")
    if length > 2 * MAX_META_BYTES + 65536:
        raise ValueError(f"a header of {length} bytes")
    meta = json.loads(json.loads(blob[8 : 8 + length])["__metadata__"]["lwm"])
    if not isinstance(meta, dict):
        raise ValueError("meta is not an object")
    return meta


def _fault(fields: dict[str, NDArray[Any]], meta: dict[str, Any]) -> str | None:
    """What is wrong with an episode, None if nothing is."""
    for key in META:
        if key not in meta:
            return f"meta has no {key!r}"
    for name in _REQUIRED:
        if name not in fields:
            return f"there is no field {name!r}"
    rows = fields["is_last"].size
    if rows == 0:
        return "it has no rows"
    for name, value in fields.items():
        rank, kind = _RANKS.get(name), _KINDS.get(name)
        if name == "doors":
            if value.ndim != 2 or value.shape[1] != 4:
                return f"'doors' has shape {list(value.shape)}, not [rooms, 4]"
        elif value.ndim == 0 or len(value) != rows:
            return f"{name!r} has shape {list(value.shape)}, but there are {rows} rows"
        if rank is not None and value.ndim != rank:
            return f"{name!r} has {value.ndim} dimensions, not {rank}"
        if value.dtype.kind not in (kind or "biuf"):
            return f"{name!r} has dtype {value.dtype}"
    return None
