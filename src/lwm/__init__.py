"""Latent world models for intrinsically motivated exploration.

Importing the package registers ``lwm/Labyrinth-v0`` with Gymnasium and is cheap: whatever needs
torch is loaded when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import gymnasium

if TYPE_CHECKING:
    from lwm.config import Config, load_preset
    from lwm.training import train

__version__ = "0.1.0"
__all__ = ["Config", "__version__", "load_preset", "train"]

_HOME = {"Config": "lwm.config", "load_preset": "lwm.config", "train": "lwm.training"}

# The environment truncates by itself: a limit here would wrap it in a second one.
gymnasium.register(
    id="lwm/Labyrinth-v0",
    entry_point="lwm.envs.labyrinth:LabyrinthEnv",
    vector_entry_point="lwm.envs.labyrinth:LabyrinthVectorEnv",
)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'lwm' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
