"""A saved bonus: where one may be written, and whether it is of such a bonus."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lwm import checkpoint
from lwm.errors import CheckpointError

_BUILT_BY = (
    "encoder.embedding", "encoder.hidden", "world_model.features", "world_model.hidden",
    "world_model.head", "world_model.relu_features", "world_model.residual", "gym.pixel_unit",
)  # fmt: skip
"""Settings without which saved networks mean something else."""


def check_target(path: Path) -> None:
    """ValueError unless a bonus may be saved there: in no place, or in that of an older one."""
    if path.name in ("", ".."):
        raise ValueError(f"expected a path that ends with a name, got {str(path)!r}")
    if not os.path.lexists(path):
        return
    why = "a checkpoint of something else"
    try:
        if path.is_dir() and not path.is_symlink() and not os.listdir(path):
            return
        if {"kind", "spaces", "novelty"} <= set(checkpoint.load(path, "novelty")):
            return
    except (CheckpointError, OSError) as e:
        why = str(e)
    raise ValueError(f"expected no file, or a saved bonus to replace, at {path}; got {why}")


def check_fits(path: str | Path, state: dict[str, Any], own: dict[str, Any]) -> None:
    """ValueError unless ``state``, read from ``path``, is of such a bonus as ``own``.

    Of both ``kind``, ``config``, ``spaces`` and ``representation`` are compared.
    """
    expected, got = _facts(own), _facts(state)
    for key, value in expected.items():
        if got.get(key) != value:
            raise ValueError(f"{path}: expected {key} {value}, got {got.get(key)}")


def _facts(state: dict[str, Any]) -> dict[str, Any]:
    """What must be the same, by name."""
    facts = {"kind": state.get("kind"), **state.get("spaces", {})}
    # As resolved: what ``auto`` stands for follows from kind and space.
    facts["encoder.representation"] = state.get("representation")
    for key in _BUILT_BY:
        section, _, name = key.partition(".")
        facts[key] = state["config"][section][name]
    return facts
