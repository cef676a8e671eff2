"""One frozen config describes a run: a named preset plus overrides.

Unknown keys and values out of range are errors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from lwm.errors import BadInput
from lwm.presets import ATARI_SOURCES, GAME_BETA, PRESETS, best_for
from lwm.run_config import AGENTS, Config
from lwm.settings import difference, fields, flatten, get, hint, replace, to_dict

__all__ = [
    "AGENTS",
    "PRESETS",
    "WORKLOADS",
    "Config",
    "difference",
    "fields",
    "from_dict",
    "get",
    "load_preset",
    "replace",
    "source",
    "to_dict",
]

WORKLOADS = tuple(PRESETS)

UNREAD: dict[str, tuple[str, ...]] = {
    "labyrinth": ("atari", "gym"),
    "atari": ("env", "gym"),
    "gym": ("env", "atari"),
}
"""Sections of the config that a workload does not read."""


def check_read(workload: str, keys: Collection[str]) -> None:
    """BadInput for a setting that a run of this workload would not look at."""
    others = UNREAD[workload]
    if workload == "labyrinth" and "encoder.representation" not in keys:
        others += ("encoder",)  # its bits are their own embedding
    for key in keys:
        if key.partition(".")[0] in others:
            raise BadInput(f"{key} means nothing for {workload}")


def load_preset(
    name: str = "paper",
    overrides: Mapping[str, Any] | None = None,
    workload: str = "labyrinth",
) -> Config:
    """The config of preset ``name`` with dotted overrides, e.g. ``{"env.size": 4}``."""
    if workload not in PRESETS:
        raise BadInput(f"unknown workload {workload!r}{hint(workload, PRESETS)}")
    known = PRESETS[workload]
    if name not in known:
        raise BadInput(f"unknown preset {name!r} of {workload}{hint(name, known)}")
    changes = dict(overrides or {})
    start = {"workload": workload, "preset": name, **known[name]}
    plain = replace(Config(), {**start, **changes})
    # Some values of a preset depend on others that the user may choose.
    follow: dict[str, Any] = {}
    if workload == "atari" and plain.atari.game in GAME_BETA:
        follow["intrinsic.beta"] = GAME_BETA[plain.atari.game]
    if workload == "labyrinth" and name == "best":
        follow |= best_for(plain.env.size)
    return replace(Config(), {**start, **follow, **changes})


def source(key: str, workload: str) -> str:
    """Where the paper has the value of a setting: its table or section; empty if it has none.

    The fields name the labyrinth's tables ("POL ..."); Atari has one for each of them.
    """
    given: str = dict(fields(Config()))[key].metadata["source"]
    if workload != "atari":
        return given
    return ATARI_SOURCES.get(key, given.replace("POL", "Atari", 1))


def from_dict(data: Mapping[str, Any]) -> Config:
    """The inverse of ``to_dict``; unknown keys and bad values are errors."""
    return replace(Config(), flatten(data))
