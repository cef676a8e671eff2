"""A tree of values as two plain files: arrays as safetensors, everything else as JSON.

Used by ``checkpoint``, which documents what a tree may hold.  Nothing here can execute code; sizes
are bounded on both sides, so what is written can be read back.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from lwm.errors import CheckpointError

MAX_JSON_BYTES = 8 << 20  # parsed JSON can take thirty times its text, so this also bounds memory
MAX_HEADER_BYTES = 8 << 20
CHUNK_BYTES = 8 << 20

_DTYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "float16": "F16",
    "uint32": "U32", "int32": "I32", "float32": "F32", "uint64": "U64", "int64": "I64",
    "float64": "F64", "complex64": "C64",
}  # fmt: skip


def encode(state: dict[str, Any]) -> tuple[dict[str, np.ndarray], bytes]:
    """Split a state into its arrays by place, and the text of state.json."""
    arrays: dict[str, np.ndarray] = {}
    floats: dict[str, str] = {}
    try:
        if not isinstance(state, dict):
            raise ValueError(f"it is a {type(state).__name__}, not a dict")
        values = _flatten(state, (), arrays, floats)
        document = {"arrays": sorted(arrays), "floats": floats, "values": values}
        text = json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
        if len(text) > MAX_JSON_BYTES:
            raise ValueError(
                f"{len(text)} bytes of plain values, over the {MAX_JSON_BYTES} allowed"
            )
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"cannot save this state: {error}") from error
    return arrays, text


def _flatten(
    node: Any, place: tuple[str, ...], arrays: dict[str, np.ndarray], floats: dict[str, str]
) -> Any:
    """The JSON form of ``node``; arrays and non-finite floats are put aside and leave a null."""
    name = "/".join(token.replace("~", "~0").replace("/", "~1") for token in place)
    if isinstance(node, np.generic):
        node = node.item()
    if isinstance(node, np.ndarray):
        if node.dtype.name not in _DTYPES or name == "__metadata__":
            raise ValueError(f"array {name!r} of dtype {node.dtype} has no place in safetensors")
        arrays[name] = node
        return None
    if isinstance(node, dict):
        if not all(isinstance(key, str) for key in node):
            raise ValueError(f"the keys of {name!r} are not all strings")
        return {
            _utf8(key): _flatten(child, (*place, key), arrays, floats)
            for key, child in node.items()
        }
    if isinstance(node, list | tuple):
        return [_flatten(child, (*place, str(i)), arrays, floats) for i, child in enumerate(node)]
    if isinstance(node, float) and not math.isfinite(node):
        floats[name] = str(float(node))
        return None
    if node is None or isinstance(node, bool | int | float):
        return node
    if isinstance(node, str):
        return _utf8(node)
    raise ValueError(f"{name!r} is a {type(node).__name__}")


def _utf8(text: str) -> str:
    text.encode()  # a lone surrogate would be written and then not be readable
    return text


def decode(
    path: Path, text: bytes, arrays: dict[str, np.ndarray], part: str | None = None
) -> dict[str, Any]:
    """Put the arrays and non-finite floats back in their places.

    ``part``: arrays and floats are only those below this key of the tree; the others stay None.
    """
    try:
        document = json.loads(text)
        state = document["values"]
        expected = [name for name in document["arrays"] if _within(name, part)]
        if not isinstance(state, dict) or sorted(arrays) != expected:
            raise ValueError("the arrays are not those of the state")
        floats = {n: float(v) for n, v in document["floats"].items() if _within(n, part)}
        leaves = {**floats, **arrays}
        for name, leaf in leaves.items():
            *place, last = (t.replace("~1", "/").replace("~0", "~") for t in name.split("/"))
            node: Any = state
            for token in place:
                node = node[int(token) if isinstance(node, list) else token]
            key: Any = int(last) if isinstance(node, list) else last
            if node[key] is not None:
                raise ValueError(f"{name!r} is taken")
            node[key] = leaf
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a valid state: {error}") from error
    return state


def _within(name: str, part: str | None) -> bool:
    return part is None or name.startswith(f"{part}/")


def safetensors_chunks(arrays: dict[str, np.ndarray]) -> Iterator[bytes | memoryview]:
    """The safetensors file of ``arrays`` in pieces, so that no second copy is held in memory."""
    # Widest items first keeps every array aligned to its item size.
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    header, offset = {}, 0
    for name in order:
        array = arrays[name]
        header[name] = {
            "dtype": _DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES:
        raise CheckpointError(f"the state has too many arrays to save ({len(arrays)})")
    yield len(text).to_bytes(8, "little") + text
    for name in order:
        array = arrays[name]
        flat = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).reshape(-1)
        raw = memoryview(flat.view(np.uint8))  # type: ignore[arg-type]
        for start in range(0, len(raw), CHUNK_BYTES):
            yield raw[start : start + CHUNK_BYTES]


def claimed_bytes(path: Path, part: str | None = None) -> int:
    """Bytes of the arrays that ``read_safetensors`` would return, as the file's header tells."""
    with open(path, "rb") as file:
        text = file.read(_header_length(path, file.read(8)))
    try:
        header = json.loads(text)
        spans = [entry["data_offsets"] for name, entry in header.items() if _within(name, part)]
        return sum(int(stop) - int(start) for start, stop in spans)
    except (ArithmeticError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is not a valid safetensors file: {error}") from error
    except RecursionError:
        raise CheckpointError(f"{path} is not a valid safetensors file: too deep") from None


def read_safetensors(path: Path, part: str | None = None) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file, each its own writable copy; all of them, or those below
    the key ``part`` of the tree."""
    with open(path, "rb") as file:
        _header_length(path, file.read(8))
    try:
        with safe_open(path, framework="np") as file:
            names = [name for name in file.keys() if _within(name, part)]  # noqa: SIM118
            return {name: file.get_tensor(name) for name in names}
    except (SafetensorError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path} is not a valid safetensors file: {error}") from error


def _header_length(path: Path, prefix: bytes) -> int:
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(f"{path} claims a header of {length} bytes")
    return length
