"""A recorded episode for the page: numbers as JSON, pictures in compressed chunks."""

from __future__ import annotations

import threading
import zlib
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lwm.episodes import Episode, episode_path, read_episode
from lwm.errors import BadInput
from lwm.viewer import disk

CHUNK = 128
"""Pictures in one answer."""
MAX_ROWS = 100_000
MAX_NUMBERS = 1 << 22
"""Of one field: as JSON they take thirty times the memory."""
MAX_LATENT = 1024
"""Dimensions of z, at most, whose directions of greatest variance are looked for."""
_KEPT_BYTES = 600 << 20


class Films:
    """The episodes looked at last, unpacked."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Path, disk.Stamp], Episode] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, run: Path, number: int) -> Episode:
        """An episode of a run; ``BadInput`` if there is none or it is damaged."""
        directory = run / "episodes"
        path = episode_path(directory, number)
        stamp = None if directory.is_symlink() else disk.stamp(path)
        if stamp is None:
            raise BadInput("there is no such episode")
        with self._lock:
            key = (path, stamp)
            if key not in self._kept:
                try:
                    episode = read_episode(path)
                except BadInput as error:
                    raise BadInput(str(error).replace(str(path), path.name)) from None
                if episode.rows > MAX_ROWS:
                    raise BadInput(f"{path.name} has more than {MAX_ROWS} rows")
                self._kept[key] = episode
            self._kept.move_to_end(key)
            while len(self._kept) > 1 and self._bytes() > _KEPT_BYTES:
                self._kept.popitem(last=False)
            return self._kept[key]

    def _bytes(self) -> int:
        return sum(a.nbytes for e in self._kept.values() for a in e.fields.values())


def told(episode: Episode) -> dict[str, Any]:
    """Everything but the pictures."""
    f, rows = episode.fields, episode.rows
    if "q" in f and f["q"].size > MAX_NUMBERS:
        raise BadInput(f"it has more than {MAX_NUMBERS} action values")
    if {"z", "prediction"} <= f.keys() and f["z"].shape != f["prediction"].shape:
        raise BadInput("its predictions are not of what was seen")
    last = np.flatnonzero(f["is_last"])
    found: dict[str, Any] = {
        "rows": rows,
        "meta": {k: v for k, v in episode.meta.items() if isinstance(v, str | int | float)},
        "action": f["a_tm1"].tolist(),
        "reward": _short(f["r_t"]),
        "bonus": _short(f["r_in"]),
        "ends": last[last < rows - 1].tolist(),
        "kind": "labyrinth" if {"room", "doors"} <= f.keys() else "other",
    }
    if found["kind"] == "labyrinth":
        found |= _labyrinth(episode)
        return found
    shape = picture_shape(_shown(episode))
    if shape is not None:
        height, width, channels = shape
        found |= {"kind": "images", "height": height, "width": width, "channels": channels,
                  "chunk": CHUNK}  # fmt: skip
    if "q" in f:
        found["q"] = _short(f["q"], 4)
    if "z" in f and f["z"].shape[1] <= MAX_LATENT:
        found["latent"] = _short(projected(f["z"]), 4)
        if "prediction" in f:
            with np.errstate(all="ignore"):  # what is not finite is told as null
                error = np.square(f["z"].astype(np.float64) - f["prediction"]).mean(1)
            error[[0, *(last[last < rows - 1] + 1)]] = np.nan  # nothing predicts a first row
            found["error"] = _short(error, 4)
    return found


def _labyrinth(episode: Episode) -> dict[str, Any]:
    f = episode.fields
    rooms = len(f["doors"])
    side = round(rooms**0.5)
    if side * side != rooms or side < 1:
        raise BadInput(f"not a labyrinth: {rooms} rooms are no square")
    if f["room"].min() < 0 or f["room"].max() >= rooms:
        raise BadInput("not a labyrinth: a room that is not there")
    found = {
        "side": side,
        "room": f["room"].tolist(),
        "doors": f["doors"].astype(np.int64).tolist(),
        "seen": _short(f["obs"].reshape(episode.rows, -1)[:, :8], 4),
    }
    if "q" in f:
        found["q"] = _short(f["q"], 4)
    if "prediction" in f:
        found["prediction"] = _short(f["prediction"][:, :8], 3)
        found["embedding"] = _short(f["z"][:, :8], 3) if "z" in f else found["seen"]
    return found


def _shown(episode: Episode) -> NDArray[Any]:
    """[T+1, ...] how the environment drew itself, where that was recorded, else what was seen."""
    return episode.fields.get("picture", episode.fields["obs"])


def picture_shape(obs: NDArray[Any]) -> tuple[int, int, int] | None:
    """Height, width and channels (1 or 3) of what was seen; None if it is no picture."""
    if obs.dtype != np.uint8 or obs.ndim not in (3, 4) or min(obs.shape[1:3]) < 8:
        return None
    if obs.ndim == 3:
        return obs.shape[1], obs.shape[2], 1
    channels = obs.shape[3]
    return (obs.shape[1], obs.shape[2], channels) if channels in (1, 3) else None


def pictures(episode: Episode, chunk: int) -> bytes:
    """Chunk ``chunk`` of the pictures: their bytes one after the other, deflated."""
    obs = _shown(episode)
    if picture_shape(obs) is None or not 0 <= chunk * CHUNK < len(obs):
        raise BadInput("there are no such pictures")
    part = np.ascontiguousarray(obs[chunk * CHUNK : (chunk + 1) * CHUNK])
    return zlib.compress(part.tobytes(), 1)


def projected(z: NDArray[Any]) -> NDArray[np.float64]:
    """[T, D] -> [T, 2]: the two directions of greatest variance, each scaled to [-1, 1]."""
    centred = np.nan_to_num(z.astype(np.float64), posinf=0, neginf=0)
    centred = centred - centred.mean(0)
    _, axes = np.linalg.eigh(centred.T @ centred)
    flat = centred @ axes[:, ::-1][:, :2]
    if flat.shape[1] < 2:
        flat = np.concatenate([flat, np.zeros((len(flat), 2 - flat.shape[1]))], axis=1)
    for axis in range(2):  # an eigenvector's sign is arbitrary: the start is on the left, below
        if flat[0, axis] > 0:
            flat[:, axis] *= -1
    return flat / np.maximum(np.abs(flat).max(0), 1e-12)


def _short(values: NDArray[Any], digits: int = 5) -> list[Any]:
    """Lists of numbers with few digits; what is not finite becomes None."""

    def short(value: Any) -> Any:
        if isinstance(value, list):
            return [short(v) for v in value]
        number = float(f"{value:.{digits}g}")
        return number if number - number == 0 else None

    return [short(v) for v in values.tolist()]
