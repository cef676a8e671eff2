"""Who may import whom: a module imports its own layer or lower ones, and imports form no cycle."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[1] / "src"

# Module, or package with all that is in it -> layer.  docs/architecture.md draws the same order.
LAYERS = {
    "lwm.types": 0,
    "lwm.errors": 0,
    "lwm.kernels": 0,
    "lwm.registration": 0,
    "lwm.settings": 1,
    "lwm.sections": 1,
    "lwm.presets": 1,
    "lwm.config": 1,
    "lwm.run_config": 1,
    "lwm.streams": 1,
    "lwm.devices": 2,
    "lwm.envs": 2,
    "lwm.replay": 2,
    "lwm.frames": 2,
    "lwm.pairs": 2,
    "lwm.priorities": 2,
    "lwm.symmetry": 2,
    "lwm.networks": 2,
    "lwm.unrolling": 2,
    "lwm.returns": 2,
    "lwm.vision": 2,
    "lwm.senses": 2,
    "lwm.transitions": 2,
    "lwm.arguments": 2,
    "lwm.whitening": 2,
    "lwm.statistics": 2,
    "lwm.probes": 2,
    "lwm.world_model": 3,
    "lwm.agent": 3,
    "lwm.encoder": 3,
    "lwm.representations": 3,
    "lwm.intrinsic": 4,
    "lwm.rivals": 4,
    "lwm.novelty": 5,
    "lwm.actor": 5,
    "lwm.learner": 5,
    "lwm.ranking": 6,
    "lwm.coverage": 2,
    "lwm.viewing": 2,
    "lwm.training": 6,
    "lwm.updates": 6,
    "lwm.evaluate": 6,
    "lwm.files": 7,
    "lwm.machine": 7,
    "lwm.codec": 7,
    "lwm.blocks": 7,
    "lwm.sealed": 7,
    "lwm.checkpoint": 7,
    "lwm.episodes": 7,
    "lwm.saved": 7,
    "lwm.runs": 7,
    "lwm.writing": 7,
    "lwm.plan": 8,
    "lwm.recording": 8,
    "lwm.saving": 8,
    "lwm.session": 8,
    "lwm.progress": 8,
    "lwm.plots": 8,
    "lwm.experiments": 8,
    "lwm.report": 8,
    "lwm.viewer": 8,
    "lwm.playing": 8,
    "lwm.bonus_saved": 8,
    "lwm.bonus": 8,
    "lwm.adapters": 9,
    "lwm.sweep": 9,
    "lwm.bench": 9,
    "lwm.quickstart": 9,
    "lwm.cli": 9,
    "lwm.commands": 9,
    "lwm.__main__": 9,
    "lwm": 9,  # the package's own __init__: the front door, which only looks up names on demand
}
# The on-disk contract stands apart from the algorithm: files are read without building an agent.
ONLY_VOCABULARY = {module for module, layer in LAYERS.items() if layer == 7}


def layer_of(module: str) -> int | None:
    """Layer of a module: its own entry or that of the package it is in; None if neither is listed.

    The entry ``lwm`` stands for the top package's ``__init__`` alone.
    """
    name = module
    while name not in LAYERS:
        name = name.rpartition(".")[0]
        if name in ("", "lwm"):
            return None
    return LAYERS[name]


def module_name(path: Path, src: Path) -> str:
    """Dotted name of a source file; that of the package for ``__init__.py``."""
    parts = path.relative_to(src).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def targets(node: ast.AST, module: str, is_package: bool, known: set[str]) -> Iterator[str]:
    """Modules of lwm that one statement imports, given the module that it stands in."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.split(".")[0] == "lwm":
                yield alias.name
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            package = module.split(".")
            package = package[: len(package) - node.level + is_package]
            base = ".".join([*package, *filter(None, [base])])
        if base.split(".")[0] != "lwm":
            return
        for alias in node.names:
            submodule = f"{base}.{alias.name}"
            if submodule in known:
                yield submodule
            elif submodule != "lwm.__version__":  # a constant, open to all
                yield base


def import_graph(src: Path) -> dict[str, set[str]]:
    """Module -> modules of lwm that it imports, also inside functions and only for types."""
    paths = {module_name(path, src): path for path in sorted((src / "lwm").rglob("*.py"))}
    graph: dict[str, set[str]] = {}
    for module, path in paths.items():
        is_package = path.name == "__init__.py"
        graph[module] = {
            target
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            for target in targets(node, module, is_package, set(paths))
        } - {module}
    return graph


def violations(graph: dict[str, set[str]]) -> list[str]:
    """One line per module without a layer and per import that climbs."""
    lines = []
    for module, imported in graph.items():
        layer = layer_of(module)
        if layer is None:
            lines.append(f"{module}: no layer; add it to LAYERS in tests/test_layers.py")
            continue
        for target in sorted(imported):
            lower = layer_of(target)
            if lower is None:
                continue  # reported on its own line, if it exists at all
            if lower > layer:
                lines.append(f"{module} (layer {layer}) imports {target} (layer {lower})")
            elif module in ONLY_VOCABULARY and 0 < lower < layer:
                lines.append(f"{module} may import only layer 0 and its own, not {target}")
    return lines


def test_imports_never_climb() -> None:
    graph = import_graph(SRC)
    assert "lwm.types" in graph
    assert violations(graph) == []


def test_imports_form_no_cycle() -> None:
    try:
        TopologicalSorter(import_graph(SRC)).prepare()
    except CycleError as error:
        pytest.fail("import cycle: " + " -> ".join(error.args[1]))


@pytest.mark.parametrize("module", ["lwm", "lwm.cli"])
@pytest.mark.parametrize("heavy", ["torch", "matplotlib"])
def test_front_doors_start_without_heavy_libraries(module: str, heavy: str) -> None:
    """``lwm --help`` and ``import lwm`` answer at once."""
    code = f"import sys, {module}; sys.exit({heavy!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr or f"import {module} loads {heavy}"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small source tree with one fault of each kind."""
    files = {
        "__init__.py": "",
        "types.py": "",
        "replay.py": "def f():\n    from lwm import training\n",
        "training.py": "import lwm.types\nfrom lwm.replay import X\nfrom lwm import __version__",
        "runs.py": "from . import config, types",
        "config.py": "",
        "stray.py": "",
        "envs/__init__.py": "from .maze import Maze",
        "envs/maze.py": "from ..types import Step\nimport numpy",
    }
    for name, text in files.items():
        path = tmp_path / "lwm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def test_the_walk_sees_every_form_of_import(tree: Path) -> None:
    graph = import_graph(tree)
    assert graph["lwm.replay"] == {"lwm.training"}
    assert graph["lwm.training"] == {"lwm.types", "lwm.replay"}
    assert graph["lwm.runs"] == {"lwm.config", "lwm.types"}
    assert graph["lwm.envs"] == {"lwm.envs.maze"}
    assert graph["lwm.envs.maze"] == {"lwm.types"}


def test_the_walk_reports_every_fault(tree: Path) -> None:
    graph = import_graph(tree)
    assert violations(graph) == [
        "lwm.replay (layer 2) imports lwm.training (layer 6)",
        "lwm.runs may import only layer 0 and its own, not lwm.config",
        "lwm.stray: no layer; add it to LAYERS in tests/test_layers.py",
    ]
    with pytest.raises(CycleError):
        TopologicalSorter(graph).prepare()
