"""Writes docs/api.md from the docstrings: python docs/make_api.py (nothing is imported)."""

from __future__ import annotations

import ast
import inspect
import sys
from itertools import pairwise
from pathlib import Path

DOCS = Path(__file__).resolve().parent
SOURCE = DOCS.parent / "src"
TARGET = DOCS / "api.md"

CONTENTS = {
    "lwm.bonus": ("Bonus",),
    "lwm.transitions": ("Sequences", "sequences_of"),
    "lwm.adapters.stream": ("Stream",),
    "lwm.adapters.gymnasium": ("LWMVectorReward",),
    "lwm.adapters.sb3": (
        "LWMRewardWrapper", "LWMCallback", "save", "load_bonus", "bonus_of",
    ),
    "lwm.adapters.sb3_replay": ("LWMReplayBuffer", "LWMDictReplayBuffer"),
    "lwm.training": ("train",),
    "lwm.types": ("Event",),
    "lwm.config": ("load_preset",),
}  # fmt: skip
HEAD = """# API reference

What the [plug-in guide](plugin.md) uses, and training from Python; written from the docstrings by
`make api`, a test holds it to them. `Bonus`, `Sequences`, `sequences_of`, `Stream`, `train` and
`load_preset` are found in the package itself. Shapes: T transitions, B environments.
"""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def page() -> str:
    """The whole reference."""
    parts = [HEAD]
    for module, names in CONTENTS.items():
        path = SOURCE.joinpath(*module.split(".")).with_suffix(".py")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        top = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef | Function)}
        parts.append(f"## `{module}`\n\n{_doc(tree).splitlines()[0]}\n")
        for name in names:
            node = top[name]
            if isinstance(node, ast.ClassDef):
                parts += _class(node)
            else:
                parts.append(_entry("###", node.name, _signature(node, node.name), _doc(node)))
    return "\n".join(parts)


def _class(node: ast.ClassDef) -> list[str]:
    """The class with its constructor, then its public methods and documented fields."""
    methods = [n for n in node.body if isinstance(n, Function)]
    made = next((m for m in methods if m.name == "__init__"), None)
    doc = _doc(node)
    if made is not None and ast.get_docstring(made):
        doc += "\n\n" + _doc(made)
    signature = None if made is None else _signature(made, node.name)
    parts = [_entry("###", node.name, signature, doc)]
    if fields := _fields(node.body):
        parts.append(fields)
    for method in methods:
        if not method.name.startswith("_"):
            name = f"{node.name}.{method.name}"
            parts.append(_entry("####", name, _signature(method, method.name), _doc(method)))
    return parts


def _fields(body: list[ast.stmt]) -> str:
    """Annotated names that a string follows."""
    lines = []
    for field, text in pairwise(body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            said = " ".join(str(text.value.value).split()).replace("``", "`")
            lines.append(f"- `{field.target.id}`: {said}")
    return "\n".join(lines) + "\n" if lines else ""


def _signature(node: Function, name: str) -> str:
    arguments = node.args
    own = arguments.args[1:] if arguments.args and arguments.args[0].arg == "self" else None
    if own is not None:
        arguments = ast.arguments(**{**vars(arguments), "args": own})
    returned = "" if node.returns is None or name[0].isupper() else f" -> {_text(node.returns)}"
    said = f"{name}({_text(arguments)}){returned}"
    if len(said) <= 100:
        return said
    lines = []
    padded = [None] * (len(arguments.args) - len(arguments.defaults)) + arguments.defaults
    pairs = [*zip(arguments.args, padded, strict=True)]
    for argument, default in pairs:
        lines.append(_argument(argument, default))
    if arguments.vararg:
        lines.append("*" + _argument(arguments.vararg, None))
    elif arguments.kwonlyargs:
        lines.append("*")
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        lines.append(_argument(argument, default))
    if arguments.kwarg:
        lines.append("**" + _argument(arguments.kwarg, None))
    return f"{name}(\n" + "".join(f"    {line},\n" for line in lines) + f"){returned}"


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    return _text(argument) + ("" if default is None else f" = {_text(default)}")


def _text(node: ast.AST) -> str:
    """Source of a node, without the quotes of annotations."""
    return ast.unparse(node).replace("'", '"')


def _doc(node: ast.Module | ast.ClassDef | Function) -> str:
    return inspect.cleandoc(ast.get_docstring(node) or "").replace("``", "`")


def _entry(level: str, name: str, signature: str | None, doc: str) -> str:
    code = "" if signature is None else f"```\n{signature}\n```\n\n"
    return f"{level} {name}\n\n{code}{doc}\n"


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{TARGET.name}: {len(page().splitlines())} lines\n")
