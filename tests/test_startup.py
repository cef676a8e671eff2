"""Starting up is cheap: what may be imported before a command has decided what it needs.

Nothing here measures time: ``lwm bench startup`` does.  The number of modules is what the time
depends on, and is the same on every machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import lwm

HEAVY = ("torch", "numpy", "gymnasium", "matplotlib", "PIL", "zstandard", "safetensors", "tqdm")
MOST_MODULES = 75
"""Modules that ``lwm --help`` may import on top of what Python has at its start."""

REPORT = """
import json, sys
before = set(sys.modules)
{code}
print(json.dumps(sorted(set(sys.modules) - before)), file=sys.stderr)
"""


def imported(code: str, *arguments: str) -> list[str]:
    """Modules that a program of its own imports, run with this source tree."""
    source = str(Path(lwm.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", REPORT.format(code=code), *arguments],
        env=os.environ | {"PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stderr.splitlines()[-1])
    return found


COMMAND = (
    "from lwm.cli import main\n"
    "try:\n    main(sys.argv[1:])\n"
    "except SystemExit as end:\n    assert end.code == 0"
)


@pytest.mark.parametrize("arguments", [["--help"], ["bench", "--help"], ["--version"], ["config"]])
def test_a_command_that_computes_nothing_imports_nothing_heavy(arguments: list[str]) -> None:
    names = imported(COMMAND, *arguments)
    assert "lwm.cli" in names
    assert [name for name in HEAVY if name in names] == []
    assert len(names) <= MOST_MODULES, names


def test_the_package_alone_is_a_handful_of_modules() -> None:
    names = imported("import lwm")
    assert [name for name in names if name.startswith("lwm")] == ["lwm", "lwm.registration"]
    assert [name for name in HEAVY if name in names] == []


@pytest.mark.parametrize("first", ["lwm, gymnasium", "gymnasium, lwm"])
def test_the_labyrinth_is_registered_whoever_is_imported_first(first: str) -> None:
    code = (
        f"import {first}\n"
        "assert gymnasium.spec('lwm/Labyrinth-v0').id == 'lwm/Labyrinth-v0'\n"
        "assert gymnasium.make('lwm:lwm/Labyrinth-v0', size=3).unwrapped.size == 3\n"
        "from importlib.resources import files\n"
        "assert (files(gymnasium) / '__init__.py').is_file()\n"
        "assert not any('lwm' in type(finder).__module__ for finder in sys.meta_path)\n"
    )
    assert "gymnasium" in imported(code)


def test_without_gymnasium_the_package_still_imports() -> None:
    code = (
        "sys.modules['gymnasium'] = None\n"
        "import lwm\n"
        "from lwm.cli import main\n"
        "assert main(['config']) == 0"
    )
    assert "lwm.cli" in imported(code)
