"""Latent world models for intrinsically motivated exploration.

Importing the package registers ``lwm/Labyrinth-v0`` with Gymnasium and is cheap: Gymnasium, NumPy
and torch are loaded when they are first needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lwm.registration import register_when_needed

if TYPE_CHECKING:
    from lwm.adapters.stream import Stream
    from lwm.bonus import Bonus
    from lwm.config import Config, load_preset
    from lwm.training import train
    from lwm.transitions import Sequences, sequences_of

__version__ = "0.1.0"
__all__ = [
    "Bonus", "Config", "Sequences", "Stream", "__version__", "load_preset", "sequences_of", "train",
]  # fmt: skip

_HOME = {
    "Bonus": "lwm.bonus",
    "Config": "lwm.config",
    "Sequences": "lwm.transitions",
    "Stream": "lwm.adapters.stream",
    "load_preset": "lwm.config",
    "sequences_of": "lwm.transitions",
    "train": "lwm.training",
}

register_when_needed()


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'lwm' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
