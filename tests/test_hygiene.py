"""What must not stand in the tree: code that executes data, machine paths, bare functions."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

TOP = Path(__file__).resolve().parents[1]
SOURCES = sorted((TOP / "src" / "lwm").rglob("*.py"))

# Modules whose files can run code when they are read.
EXECUTABLE_FORMATS = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
# torch.save is listed with torch.load: what must not be read is not written.
FORBIDDEN_CALLS = {"eval", "exec", "builtins.eval", "builtins.exec", "torch.load", "torch.save"}

MACHINE_PATH = re.compile(
    rb"(?<![\w.~-])/(?:root|home|Users|work|farm|opt|mnt|tmp/bash_jobs)[\w.]*/"
    rb"|\b[A-Za-z]:\\{1,2}Users\b"
)


def qualified_names(tree: ast.AST) -> dict[str, str]:
    """Local name -> full dotted name, for all that a module imports."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def executed_data(source: str) -> list[str]:
    """One ``line: what`` per place in a source text where data could be executed as code."""
    tree = ast.parse(source)
    names = qualified_names(tree)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
            modules += [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            modules = []
        for module in modules:
            if module.split(".")[0] in EXECUTABLE_FORMATS or module in FORBIDDEN_CALLS:
                found.append(f"{node.lineno}: import {module}")
        if isinstance(node, ast.Attribute | ast.Name):
            head, _, rest = ast.unparse(node).partition(".")
            name = ".".join(filter(None, [names.get(head, head), rest]))
            if name in FORBIDDEN_CALLS:
                found.append(f"{node.lineno}: {name}")
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            allowed = node.value
            if not (isinstance(allowed, ast.Constant) and allowed.value is False):
                found.append(f"{node.value.lineno}: allow_pickle")
    return found


def undocumented(source: str) -> list[str]:
    """Names of the module, public classes, functions and methods of a text without a docstring."""

    def walk(body: list[ast.stmt], prefix: str) -> Iterator[str]:
        for node in body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if node.name.startswith("_"):
                continue
            # A setter or an overload shares the docstring of the function it belongs to.
            shared = any(
                ast.unparse(decorator).split(".")[-1] in {"setter", "deleter", "overload"}
                for decorator in node.decorator_list
            )
            if not shared and ast.get_docstring(node) is None:
                yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from walk(node.body, f"{prefix}{node.name}.")

    tree = ast.parse(source)
    module = ["(module)"] if tree.body and ast.get_docstring(tree) is None else []
    return module + list(walk(tree.body, ""))


def loose_starts(source: str) -> list[int]:
    """Lines where a module is started with whatever lies in the working directory importable."""
    found = []
    for node in ast.walk(ast.parse(source)):
        words = [ast.unparse(word) for word in node.elts] if isinstance(node, ast.List) else []
        if "sys.executable" in words and "'-m'" in words and "'-P'" not in words:
            found.append(node.lineno)
    return found


def tracked_files() -> list[Path]:
    """Files under version control; in an unpacked archive, all files of the project's folders."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=TOP, capture_output=True, text=True)
    if listed.returncode == 0:
        paths = [TOP / name for name in listed.stdout.split("\0") if name]
    else:
        folders = ("src", "tests", "docs", "examples", "results")
        paths = [path for folder in folders for path in (TOP / folder).rglob("*")]
        paths = [path for path in [*TOP.iterdir(), *paths] if "__pycache__" not in path.parts]
    return [path for path in paths if path.is_file()]


def relative(path: Path) -> str:
    """A test's name for a source file."""
    return path.relative_to(TOP).as_posix()


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_no_data_is_executed(path: Path) -> None:
    assert executed_data(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_no_process_imports_from_where_it_is(path: Path) -> None:
    assert loose_starts(path.read_text(encoding="utf-8")) == []


def test_loose_starts_are_seen() -> None:
    assert loose_starts("run([sys.executable, '-m', 'lwm.cli', *more])") == [1]
    assert loose_starts("run([sys.executable, '-P', '-m', 'lwm.cli', *more])") == []


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_everything_public_has_a_docstring(path: Path) -> None:
    assert undocumented(path.read_text(encoding="utf-8")) == []


def test_no_path_of_one_machine_in_tracked_files() -> None:
    found = [
        f"{relative(path)}: {match.group().decode()}"
        for path in tracked_files()
        for match in MACHINE_PATH.finditer(path.read_bytes())
    ]
    assert found == []


def test_every_dependency_is_pinned_within_its_range() -> None:
    text = (TOP / "pyproject.toml").read_text(encoding="utf-8")
    declared = tomllib.loads(text)
    needs = [*declared["project"]["dependencies"], *declared["build-system"]["requires"]]
    for extra in declared["project"]["optional-dependencies"].values():
        needs += extra
    pins = {}
    for line in (TOP / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            pin = Requirement(line)
            (exact,) = pin.specifier
            assert exact.operator == "==", line
            pins[canonicalize_name(pin.name)] = exact.version
    for need in map(Requirement, needs):
        if need.name != "lwm":
            pinned = pins[canonicalize_name(need.name)]
            assert need.specifier.contains(pinned), f"{need} excludes the pin {pinned}"


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import torch\nx = torch.load('f')",
        "import torch as t\nx = t.load('f')",
        "from torch import load",
        "f = eval",
        "exec('1')",
        "import numpy as np\nnp.load('f', allow_pickle=True)",
    ],
)
def test_executed_data_is_seen(source: str) -> None:
    assert executed_data(source)


@pytest.mark.parametrize(
    "source",
    [
        "model.eval()",
        "from safetensors.torch import load_file\nload_file('f')",
        "import numpy as np\nnp.load('f', allow_pickle=False)",
        "import re\nre.compile('x')",
    ],
)
def test_harmless_code_is_let_through(source: str) -> None:
    assert executed_data(source) == []


def test_missing_docstrings_are_seen() -> None:
    source = (
        '"""Doc."""\nclass A:\n  """Doc."""\n  def f(self): ...\n  def _g(self): ...\ndef h(): ...'
    )
    assert undocumented(source) == ["A.f", "h"]


@pytest.mark.parametrize("folder", [b"root", b"home", b"work", b"opt", b"tmp/bash_jobs.0"])
def test_machine_paths_are_seen(folder: bytes) -> None:
    assert MACHINE_PATH.search(b"see '/" + folder + b"/x'")
    assert not MACHINE_PATH.search(b"docs/" + folder + b"/x")
