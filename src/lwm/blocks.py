"""Blocks of replay rows on disk: each is written once, never changed, and shared by checkpoints.

A block is some consecutive rows of all environments.  Its file is a zstandard stream; in bytes:

    skippable zstd frame   "lwm-rows", then JSON: {"fields": [[name, dtype, shape], ...],
                           "lengths": [bytes of each of the frames below]}
    zstd frames            one an environment: its rows of every field, end to end

Every array has the shape [n, environments, ...].  A run of pictures of one environment shrinks many
times more than the pictures one by one, as each is almost the one before.

The file's name holds the numbers of its rows and the start of its SHA-256, so that a file of that
name is always replaced by itself: a run that goes on from an older checkpoint, and by chance plays
on differently, does not touch the blocks of a newer one.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import struct
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from lwm.errors import BadInput, CheckpointError, RunFailed, reason
from lwm.files import make_directory, open_regular, read_up_to, write_bytes_atomic

ROWS = 64
"""Rows in a block, at most: as many pictures of 84 x 84 as fit into the window of level 1."""
FRAMES = 4096
"""Rows times environments, at most: what is packed and written in about a tenth of a second."""
LEVEL = 1  # higher ones take several times as long for 5 % less (Atari)
MAX_BYTES = 1 << 30  # of a block, unpacked
MAX_HEADER_BYTES = 1 << 18
MAX_FILE_BYTES = MAX_BYTES + (MAX_BYTES >> 6)  # what does not compress grows a little

_MAGIC = b"lwm-rows"
_SKIPPABLE = 0x184D2A50
_FILE = re.compile(r"rows-[0-9]{9,18}-[0-9]{9,18}-[0-9a-f]{16}\.zst")
_TEMPORARY = re.compile(r"\.rows-.+\.tmp-[0-9]+")

Rows = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Block:
    """Rows ``first`` ... ``stop`` - 1, and the size in bytes and sum of the file that has them."""

    first: int
    stop: int
    size: int
    sha256: str

    @property
    def name(self) -> str:
        """Of its file."""
        return f"rows-{self.first:09d}-{self.stop:09d}-{self.sha256[:16]}.zst"

    @property
    def rows(self) -> int:
        """Rows of each environment."""
        return self.stop - self.first


def block_rows(rows: int, envs: int) -> int:
    """Rows in a block of a ring of ``rows`` rows of ``envs`` environments."""
    return max(1, min(ROWS, rows, FRAMES // envs))


def write(directory: Path, first: int, rows: Rows) -> Block:
    """Write the rows that begin with number ``first`` as a file in ``directory``, durably."""
    data = pack(rows)
    sha256 = hashlib.sha256(data).hexdigest()
    block = Block(first, first + len(rows["obs"]), len(data), sha256)
    try:
        make_directory(directory)
    except OSError as error:
        raise RunFailed(f"cannot write {directory}: {reason(error)}") from error
    write_bytes_atomic(directory / block.name, data)
    return block


def read(directory: Path, block: Block) -> Rows:
    """The arrays of ``block``; a CheckpointError names a file that is not as written."""
    path = directory / block.name
    try:
        with open_regular(path) as file:
            data = read_up_to(file, block.size + 1)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {reason(error)}") from error
    except BadInput as error:
        raise CheckpointError(f"damaged checkpoint: {error}") from error
    if len(data) != block.size or hashlib.sha256(data).hexdigest() != block.sha256:
        raise CheckpointError(f"damaged checkpoint: {path} does not match its checksum")
    try:
        return unpack(data)
    except (ValueError, TypeError, KeyError, RecursionError, zstandard.ZstdError) as error:
        raise CheckpointError(f"{path} is not a valid block of rows: {error}") from error


def prune(directory: Path, keep: Iterable[Block]) -> None:
    """Remove the files of all blocks but ``keep``, and what a killed writer left; no other file.

    Only for the one writer of the run, between its writes.
    """
    names = {block.name for block in keep}
    for entry in os.listdir(directory) if directory.is_dir() else ():
        if (_FILE.fullmatch(entry) and entry not in names) or _TEMPORARY.fullmatch(entry):
            (directory / entry).unlink(missing_ok=True)


def to_json(blocks: Iterable[Block]) -> list[dict[str, Any]]:
    """``blocks`` as plain values."""
    return [asdict(block) for block in blocks]


def from_json(value: Any) -> list[Block]:
    """Inverse of ``to_json``; raises ValueError on anything that it does not return."""
    if not isinstance(value, list):
        raise ValueError("blocks of rows are not a list")
    found = []
    for item in value:
        if not isinstance(item, dict) or set(item) != set(Block.__dataclass_fields__):
            raise ValueError("a block of rows lacks its facts")
        block = Block(**item)
        counts = (block.first, block.stop, block.size)
        if not all(type(n) is int and 0 <= n < 10**18 for n in counts) or block.rows < 1:
            raise ValueError("a block of rows has impossible bounds")
        if block.size > MAX_FILE_BYTES:
            raise ValueError(f"a block of rows has {block.size} bytes")
        if type(block.sha256) is not str or not re.fullmatch("[0-9a-f]{64}", block.sha256):
            raise ValueError("a block of rows has no checksum")
        found.append(block)
    return found


def pack(rows: Rows) -> bytes:
    """The file of arrays [n, environments, ...]; n may differ from array to array."""
    fields = [[name, array.dtype.name, list(array.shape)] for name, array in rows.items()]
    envs = _layout(fields)[1]
    compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=False)
    frames = []
    for env in range(envs):
        parts = (a[:, env].astype(a.dtype.newbyteorder("<"), copy=False) for a in rows.values())
        frames.append(compressor.compress(b"".join(part.tobytes() for part in parts)))
    header = {"fields": fields, "lengths": [len(frame) for frame in frames]}
    text = _MAGIC + json.dumps(header, separators=(",", ":")).encode()
    if len(text) > MAX_HEADER_BYTES:
        raise ValueError(f"a block of {envs} environments has too long a header")
    return b"".join([struct.pack("<II", _SKIPPABLE, len(text)), text, *frames])


def unpack(data: bytes) -> Rows:
    """Inverse of ``pack``; raises ValueError or ZstdError on anything that it does not return."""
    magic, length = struct.unpack_from("<II", data.ljust(8, b"\0"))
    text = data[8 : 8 + min(length, MAX_HEADER_BYTES)]
    if magic != _SKIPPABLE or len(text) != length or not text.startswith(_MAGIC):
        raise ValueError("no header")
    header = json.loads(text[len(_MAGIC) :])
    layout, envs, size = _layout(header["fields"])
    lengths = header["lengths"]
    if len(lengths) != envs or not all(type(n) is int and n > 0 for n in lengths):
        raise ValueError("not a frame for every environment")
    if 8 + length + sum(lengths) != len(data):
        raise ValueError("its frames do not fill it")
    rows = {name: np.empty(shape, dtype) for name, dtype, shape in layout}
    decompressor, at = zstandard.ZstdDecompressor(), 8 + length
    for env, n in enumerate(lengths):
        frame, at = data[at : at + n], at + n
        if zstandard.frame_content_size(frame) != size:
            raise ValueError(f"frame {env} is not of {size} bytes")
        raw = decompressor.decompress(frame, max_output_size=size, allow_extra_data=False)
        begin = 0
        for array in rows.values():
            some = array[:, env]
            little = some.dtype.newbyteorder("<")
            some[...] = np.frombuffer(raw, little, some.size, begin).reshape(some.shape)
            begin += some.nbytes
    return rows


def _layout(fields: Any) -> tuple[list[tuple[str, np.dtype[Any], tuple[int, ...]]], int, int]:
    """Names, dtypes and shapes, checked; environments; and bytes of one of them, unpacked."""
    layout = []
    for name, kind, shape in fields:
        dtype = np.dtype(str(kind))
        if type(name) is not str or dtype.kind not in "biuf" or dtype.name != kind:
            raise ValueError(f"a field of dtype {kind!r}")
        if not (2 <= len(shape) <= 8 and all(type(n) is int and 0 <= n < 1 << 32 for n in shape)):
            raise ValueError(f"a field of shape {shape}")
        layout.append((name, dtype, tuple(shape)))
    envs = {shape[1] for _, _, shape in layout}
    if len(envs) != 1 or len({name for name, _, _ in layout}) != len(layout):
        raise ValueError("its fields do not belong together")
    total = sum(dtype.itemsize * math.prod(shape) for _, dtype, shape in layout)
    count = envs.pop()
    if not 0 < total <= MAX_BYTES or count < 1:
        raise ValueError(f"{total} bytes of {count} environments")
    return layout, count, total // count
