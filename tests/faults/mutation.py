"""Mutation testing of the mathematical core: small changes of the code that a test must notice.

``python -m faults.mutation [--tries N] [--only returns ...]``.  A mutant is a module with one
operator, comparison, constant, condition or statement changed, in the memory of a forked process;
its own tests run there with ``-x``.  A mutant that no test notices survives, and is printed.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.abc
import importlib.util
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CORE: dict[str, tuple[str, ...]] = {
    "returns": ("test_returns.py",),
    "whitening": ("test_whitening.py",),
    "intrinsic": ("test_intrinsic.py",),
    "replay": ("test_replay.py",),
}
SECONDS = 120.0
"""After these a mutant counts as killed: it does not end."""
_UNUSED_PLUGINS = ("cacheprovider", "hypothesispytest", "anyio")
"""What these add to pytest no test of the core uses, and to load them takes longer than many a
mutant lives."""
EQUIVALENT: dict[tuple[str, str], str] = {
    (
        "whitening",
        "126.0: pivots > rounding * matrix.diagonal() -> pivots >= rounding * matrix.diagonal()",
    ): "differs only where a rounded pivot equals the rounded bound to the last bit",
}
"""(module, mutant) -> why no test can tell it from the original."""

_BINARY = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip


def mutations(node: ast.AST) -> Iterator[Callable[[ast.AST], ast.AST]]:
    """What may be done to one node: functions of a copy of it."""
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _BINARY:
        yield lambda n: _with(n, op=_BINARY[type(n.op)]())  # type: ignore[attr-defined]
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARED:
        yield lambda n: _with(n, ops=[_COMPARED[type(n.ops[0])](), *n.ops[1:]])  # type: ignore[attr-defined]
    if isinstance(node, ast.BoolOp):
        other = ast.Or if isinstance(node.op, ast.And) else ast.And
        yield lambda n: _with(n, op=other())
    if isinstance(node, ast.UnaryOp):
        yield lambda n: n.operand  # type: ignore[attr-defined]
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield lambda n: _with(n, value=n.value + 1)  # type: ignore[attr-defined]
        if node.value:
            yield lambda n: _with(n, value=type(n.value)(0))  # type: ignore[attr-defined]
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        yield lambda n: _with(n, value=not n.value)  # type: ignore[attr-defined]
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        yield lambda n: _with(n, test=ast.UnaryOp(ast.Not(), n.test))  # type: ignore[attr-defined]
    dropped = isinstance(node, ast.AugAssign | ast.Raise) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    )
    if dropped:
        yield lambda n: ast.Pass()
    if isinstance(node, ast.Call) and len(node.args) == 2 and not node.keywords:
        yield lambda n: _with(n, args=n.args[::-1])  # type: ignore[attr-defined]


def _with(node: ast.AST, **changed: Any) -> ast.AST:
    for name, value in changed.items():
        setattr(node, name, value)
    return node


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Parts of a node that compute: no annotations, no texts of errors, no decorators."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list") or isinstance(node, ast.JoinedStr):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child


def nodes(tree: ast.AST) -> list[ast.AST]:
    """All of them in a fixed order."""
    return [tree, *(n for child in _children(tree) for n in nodes(child))]


def mutants(source: str) -> Iterator[tuple[str, ast.Module]]:
    """(name, tree) of every mutant of a module."""
    tree = ast.parse(source)
    for number, node in enumerate(nodes(tree)):
        for variant, change in enumerate(mutations(node)):
            mutant = copy.deepcopy(tree)
            target = nodes(mutant)[number]
            before = ast.unparse(target)
            after = change(target)
            if after is not target:
                mutant = _Replace(target, after).visit(mutant)
            text = ast.unparse(after)
            if text != before:
                line = getattr(node, "lineno", 0)
                yield f"{line}.{variant}: {_short(before)} -> {_short(text)}", mutant


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self.new if node is self.old else super().generic_visit(node)


def _short(text: str) -> str:
    return " ".join(text.split())[:70]


class _Loader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives the mutant in the place of the module."""

    def __init__(self, name: str, path: Path, tree: ast.Module) -> None:
        self.name, self.path, self.tree = name, path, tree

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if name == self.name:
            return importlib.util.spec_from_loader(name, self, origin=str(self.path))
        return None

    def exec_module(self, module: Any) -> None:
        exec(compile(ast.fix_missing_locations(self.tree), str(self.path), "exec"), module.__dict__)


def survives(module: str, tree: ast.Module | None) -> bool:
    """Whether the module's tests pass with the mutant (None: with the module as it is)."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setpgid(0, 0)
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            if tree is not None:
                path = ROOT / "src" / "lwm" / f"{module}.py"
                sys.meta_path.insert(0, _Loader(f"lwm.{module}", path, tree))
            import pytest

            files = [str(ROOT / "tests" / name) for name in CORE[module]]
            with tempfile.TemporaryDirectory() as where:
                options = ["-x", "-q", f"--basetemp={where}/t", f"--rootdir={ROOT}"]
                without = [f"-pno:{plugin}" for plugin in _UNUSED_PLUGINS]
                code = int(pytest.main([*options, *without, *files]))
        finally:
            os._exit(code)
    until = time.monotonic() + SECONDS
    while (done := os.waitpid(pid, os.WNOHANG))[0] == 0:
        if time.monotonic() > until:
            os.killpg(pid, signal.SIGKILL)
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(done[1]) == 0


def tell(tried: int, killed: int, detail: str, rows: Path) -> None:
    """Write the row; the README quotes it if the rows are those of the tree."""
    from faults import __main__ as campaign
    from faults.common import Tally

    campaign.write(Tally("mutants of the core", tried, killed, detail), rows, campaign.commit())
    if rows.resolve() == campaign.ROWS:
        campaign.quote(campaign.ROWS, campaign.README)


def _load_before_the_forks() -> None:
    """Other people's code that every test needs: once, instead of once a mutant."""
    import gymnasium  # noqa: F401
    import pytest  # noqa: F401
    import torch

    torch.set_num_threads(1)
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # loads torch's compiler


def main() -> int:
    """Print the survivors and the kill rate; exit code 1 if it is below 90 %."""
    parser = argparse.ArgumentParser(prog="python -m faults.mutation")
    parser.add_argument("--only", nargs="+", choices=list(CORE), default=list(CORE))
    parser.add_argument("--tries", type=int, help="a sample of so many mutants of each module")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=Path, help="the file of the rows, if it is to have one")
    args = parser.parse_args()
    _load_before_the_forks()
    tried = killed = 0
    told = []
    for module in args.only:
        source = (ROOT / "src" / "lwm" / f"{module}.py").read_text()
        if not survives(module, None):
            print(f"{module}: its own tests fail", file=sys.stderr)
            return 1
        found = [m for m in mutants(source) if (module, m[0]) not in EQUIVALENT]
        rng = random.Random(f"{args.seed}/{module}")
        sample = rng.sample(found, min(args.tries or len(found), len(found)))
        left = [name for name, tree in sample if survives(module, tree)]
        for name in left:
            print(f"{module}:{name} survives", flush=True)
        tried, killed = tried + len(sample), killed + len(sample) - len(left)
        told.append(f"{module} {len(sample) - len(left)} of {len(sample)} (of {len(found)})")
        print(told[-1], flush=True)
    rate = killed / max(tried, 1)
    detail = f"killed {rate:.1%}: " + ", ".join(told)
    print(f"mutants: {killed} of {tried} killed ({rate:.1%})")
    if args.rows:
        tell(tried, killed, detail, args.rows)
    return int(rate < 0.9)


if __name__ == "__main__":
    sys.exit(main())
