"""What ``lwm tune`` searches: a small TOML file, read and sampled.

::

    workload = "labyrinth"            # labyrinth, atari or gym
    preset = "debug"                  # of the workload; default: its first
    samples = 8                       # points to try
    seed = 0                          # of the points; every run has the seed its settings say

    [asha]                            # early stopping
    first_frames = 4000               # no run is stopped before
    reduction = 3                     # of that many runs, one goes on

    [settings]                        # the same in all runs
    "loop.total_frames" = 12000
    "loop.evaluate_every_frames" = 2000

    [space]                           # searched
    "intrinsic.beta" = { log_uniform = [0.01, 10.0] }
    "dqn.gamma" = { uniform = [0.9, 0.999] }
    "dqn.n_step" = { choice = [1, 3, 5] }

The score that decides is the one on validation seeds, every ``loop.evaluate_every_frames``.
"""

from __future__ import annotations

import math
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lwm.config import PRESETS, WORKLOADS, Config, load_preset
from lwm.errors import BadInput, reason
from lwm.experiments.runner import Job

_LIMIT = 1 << 20
_KEYS = {"workload", "preset", "samples", "seed", "asha", "settings", "space"}
_KINDS = ("choice", "uniform", "log_uniform")


@dataclass(frozen=True)
class Space:
    """What is searched."""

    name: str
    workload: str
    preset: str
    samples: int
    seed: int
    first_frames: int
    reduction: int
    settings: dict[str, Any]
    searched: dict[str, tuple[str, list[Any]]]
    """Setting -> kind (``choice``, ``uniform``, ``log_uniform``) and its values or bounds."""

    def points(self) -> list[dict[str, Any]]:
        """The points to try; a seed gives the same ones, and more samples the same first ones."""
        rng = np.random.default_rng(self.seed)
        return [
            {key: _draw(rng, kind, values) for key, (kind, values) in self.searched.items()}
            for _ in range(self.samples)
        ]

    def config(self, point: dict[str, Any]) -> Config:
        """The settings of one point; BadInput if the point is none of them."""
        return load_preset(self.preset, {**self.settings, **point}, self.workload)

    def job(self, number: int, point: dict[str, Any]) -> Job:
        """The training run of one point."""
        changes = [f"{key}={_text(value)}" for key, value in {**self.settings, **point}.items()]
        flags = ("--preset", self.preset)
        arguments = ("train", self.workload, *flags, *changes)
        return Job(f"tune/{self.name}/trial{number:04d}", arguments, self.config(point))


def read(path: Path, samples: int | None = None) -> Space:
    """The space in a file; anything wrong with it is told by its name."""
    try:
        with open(path, "rb") as file:
            raw = file.read(_LIMIT + 1)
        found = tomllib.loads(raw.decode()) if len(raw) <= _LIMIT else None
    except OSError as error:
        raise BadInput(f"cannot read {path}: {reason(error)}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadInput(f"{path} is not TOML: {error}") from error
    if found is None:
        raise BadInput(f"{path} is too long")
    try:
        space = _space(_name(path), found, samples)
        for point in space.points():
            _check(space, space.config(point))
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from error
    return space


def _name(path: Path) -> str:
    return re.sub(r"[^\w.-]+", "_", path.stem) or "space"


def _space(name: str, found: dict[str, Any], samples: int | None) -> Space:
    unknown = sorted(found.keys() - _KEYS)
    if unknown:
        raise BadInput(f"unknown key {unknown[0]!r}; there are {', '.join(sorted(_KEYS))}")
    for key in ("workload", "preset"):
        if not isinstance(found.get(key, ""), str):
            raise BadInput(f"{key}={found[key]!r} is not a name")
    workload = found.get("workload", WORKLOADS[0])
    if workload not in WORKLOADS:
        raise BadInput(f"unknown workload {workload!r}; choose from {' and '.join(WORKLOADS)}")
    asha, searched = _table(found, "asha"), _table(found, "space")
    if not searched:
        raise BadInput("nothing to search: [space] is empty")
    return Space(
        name,
        workload,
        found.get("preset", next(iter(PRESETS[workload]))),
        samples or _count(found, "samples", 8),
        _count(found, "seed", 0, least=0),
        _count(asha, "first_frames", 1),
        _count(asha, "reduction", 3, least=2),
        _table(found, "settings"),
        {key: _searched(key, value) for key, value in searched.items()},
    )


def _check(space: Space, config: Config) -> None:
    every, total = config.loop.evaluate_every_frames, config.loop.total_frames
    if not 0 < every <= total:
        raise BadInput(f"loop.evaluate_every_frames={every} gives no score to decide by")
    if space.first_frames > total:
        raise BadInput(f"first_frames={space.first_frames} is beyond loop.total_frames={total}")


def _table(found: dict[str, Any], key: str) -> dict[str, Any]:
    value = found.get(key, {})
    if not isinstance(value, dict):
        raise BadInput(f"{key} is not a table")
    return value


def _count(found: dict[str, Any], key: str, usual: int, least: int = 1) -> int:
    value = found.get(key, usual)
    if type(value) is not int or not least <= value <= 10**9:
        raise BadInput(f"{key}={value!r} is not a whole number from {least}")
    return value


def _searched(key: str, value: Any) -> tuple[str, list[Any]]:
    if not isinstance(value, dict) or len(value) != 1 or next(iter(value)) not in _KINDS:
        raise BadInput(f"{key} is searched by one of {', '.join(_KINDS)} = [...]")
    ((kind, values),) = value.items()
    if not isinstance(values, list) or not values:
        raise BadInput(f"{key}: {kind} needs a list")
    if kind != "choice":
        bounds = [v for v in values if type(v) in (int, float) and math.isfinite(v)]
        ordered = len(bounds) == len(values) == 2 and bounds[0] < bounds[1]
        if not ordered or (kind == "log_uniform" and bounds[0] <= 0):
            raise BadInput(f"{key}: {kind} needs two numbers, the smaller first")
    return kind, values


def _draw(rng: np.random.Generator, kind: str, values: list[Any]) -> Any:
    if kind == "choice":
        return values[int(rng.integers(len(values)))]
    low, high = values
    if kind == "log_uniform":
        drawn = math.exp(rng.uniform(math.log(low), math.log(high)))
    else:
        drawn = float(rng.uniform(low, high))
    # Short enough to type again, long enough to tell two draws apart, and never out of bounds.
    digits = 4 + max(0, math.floor(math.log10(max(abs(low), abs(high)) / (high - low))))
    return min(max(float(f"{drawn:.{digits}g}"), float(low)), float(high))


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
