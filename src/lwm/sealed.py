"""A sealed folder: a state in three files, and nothing is believed that does not match its sum.

::

    arrays.safetensors   every array of the state, named by its place ("dqn/gru/weight")
    state.json           every other value, and where the arrays belong
    manifest.json        format version, size and SHA-256 of the two files above; written last

Loading executes nothing: no pickle, only JSON and raw numbers, with bounds on both.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import IO, Any

import numpy as np

from lwm import files
from lwm.codec import (
    CHUNK_BYTES,
    MAX_JSON_BYTES,
    claimed_bytes,
    decode,
    read_safetensors,
    safetensors_chunks,
)
from lwm.errors import CheckpointError
from lwm.machine import available_bytes

FORMAT = 1
ARRAYS, STATE, MANIFEST = "arrays.safetensors", "state.json", "manifest.json"
MAX_MANIFEST_BYTES = 4096


def fill(folder: Path, arrays: dict[str, np.ndarray], text: bytes) -> None:
    """Write the three files of a state: its arrays, and the ``text`` that ``encode`` gave."""
    written = {
        ARRAYS: files.write_file(folder / ARRAYS, safetensors_chunks(arrays)),
        STATE: files.write_file(folder / STATE, [text]),
    }
    files.write_file(folder / MANIFEST, [manifest(written)])
    files.sync_directory(folder)


def manifest(written: dict[str, Any]) -> bytes:
    """The text of manifest.json, of the sizes and sums by name."""
    document = {"files": written, "format": FORMAT}
    return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()


def load(path: Path, part: str | None) -> dict[str, Any]:
    """The state in the folder ``path``, read once all is checked that can be without trusting it.

    ``part``: of the arrays only those below this key, the others are None.
    """
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        raise CheckpointError(f"{path} is not a checkpoint directory")
    names = set(os.listdir(path))
    for name in (MANIFEST, ARRAYS, STATE):
        if name not in names:
            raise CheckpointError(f"damaged checkpoint: {path / name} is missing")
    if extra := sorted(names - {MANIFEST, ARRAYS, STATE}):
        raise CheckpointError(f"damaged checkpoint: {path / extra[0]} does not belong there")
    listed = _read_manifest(path / MANIFEST)
    text = read_checked(path / STATE, listed[STATE], MAX_JSON_BYTES)
    _check_memory(path / ARRAYS, listed[ARRAYS][0], part)
    read_checked(path / ARRAYS, listed[ARRAYS], None)
    return decode(path / STATE, text, read_safetensors(path / ARRAYS, part), part)


def read_state(path: Path) -> bytes:
    """The text of state.json in the folder ``path``, as written; nothing else is looked at."""
    return read_checked(path / STATE, _read_manifest(path / MANIFEST)[STATE], MAX_JSON_BYTES)


def read_checked(path: Path, entry: tuple[int, str], limit: int | None) -> bytes:
    """Compare a file with its manifest entry; return its content if it has a ``limit`` in bytes."""
    size, expected = entry
    with open_regular(path) as file:
        actual = os.fstat(file.fileno()).st_size
        if actual != size:
            raise CheckpointError(
                f"damaged checkpoint: {path} has {actual} bytes, it was written with {size}"
            )
        if limit is not None and size > limit:
            raise CheckpointError(f"{path} has {size} bytes, more than the {limit} allowed")
        digest, kept = hashlib.sha256(), []
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            if limit is not None:
                kept.append(chunk)
    if digest.hexdigest() != expected:
        raise CheckpointError(f"damaged checkpoint: {path} does not match its checksum")
    return b"".join(kept)


def open_regular(path: Path) -> IO[bytes]:
    """For reading; a link, a pipe or a device is refused."""
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise CheckpointError(f"damaged checkpoint: {path} is not a regular file")
    return open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")


def _read_manifest(path: Path) -> dict[str, tuple[int, str]]:
    """Size and sum of each file."""
    with open_regular(path) as file:
        raw = file.read(MAX_MANIFEST_BYTES + 1)
    try:
        if len(raw) > MAX_MANIFEST_BYTES:
            raise ValueError("too long")
        document = json.loads(raw)
        version, files = document["format"], document["files"]
        if isinstance(version, int) and version != FORMAT:
            raise CheckpointError(f"{path} has format {version}; this lwm reads format {FORMAT}")
        entries = {name: (files[name]["size"], files[name]["sha256"]) for name in (ARRAYS, STATE)}
        # Compared as bytes, so that no change of the manifest goes unseen, not even a blank.
        if raw != manifest({n: {"sha256": s, "size": z} for n, (z, s) in entries.items()}):
            raise ValueError("not as written")
        if not all(type(z) is int and type(s) is str for z, s in entries.values()):
            raise ValueError("wrong types")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"damaged checkpoint: {path} is not a valid manifest") from error
    return entries


def _check_memory(path: Path, size: int, part: str | None) -> None:
    """Refuse arrays (a file of ``size`` bytes) that do not fit into memory, before any is read.

    Twice: whoever asks for them has room for the same numbers.
    """
    open_regular(path).close()
    need = 2 * (size if part is None else claimed_bytes(path, part))
    have = available_bytes()
    if have is not None and need > have:
        raise CheckpointError(f"{path} needs {need} bytes of memory, {have} can be had")
