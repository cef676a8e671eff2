"""Makes the labyrinth known to Gymnasium without importing Gymnasium.

``import lwm`` must register ``lwm/Labyrinth-v0``, but Gymnasium and NumPy take longer to import
than all else that ``lwm --help`` needs.  So if Gymnasium is there already, the labyrinth is
registered at once, and if not, as soon as somebody imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_LIBRARY = "gymnasium"


def register_when_needed() -> None:
    """Register now if Gymnasium is imported, else right after it is."""
    library = sys.modules.get(_LIBRARY)
    if library is not None:
        _register(library)
    else:
        sys.meta_path.insert(0, _Wait())


def _register(gymnasium: ModuleType) -> None:
    # The environment truncates by itself: a limit here would wrap it in a second one.
    gymnasium.register(
        id="lwm/Labyrinth-v0",
        entry_point="lwm.envs.labyrinth:LabyrinthEnv",
        vector_entry_point="lwm.envs.labyrinth_vector:LabyrinthVectorEnv",
    )


class _Wait:
    """Finds nothing but Gymnasium, and that once."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _LIBRARY or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            loader: Any = _Then(spec.loader)
            spec.loader = loader
        return spec


class _Then:
    """Loads as the loader it is given does, then registers."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        # From here on the module has its own loader again: resources are asked from that one.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _register(module)
