"""Hostile files, given as a checkpoint, a config, a trajectory, an episode, rows or a log.

No file may have code run, memory taken beyond a bound, or anything outside its directory touched.
"""

from __future__ import annotations

import importlib.util
import resource
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from faults.common import Child, Ended, Options, Tally, call, trained
from faults.forgeries import (
    Case,
    elsewhere,
    forged_episodes,
    forged_state,
    given_as_directory,
    given_as_file,
    given_as_import,
    given_as_rows,
    given_as_size,
)
from lwm import files, runs

MEMORY = 3 << 30
"""Bytes of address space that a child may take: torch alone takes most of one."""


def bounded() -> None:
    """A child may take so much memory and no more."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def importable(o: Options, mark: Path) -> Callable[[], None]:
    """``bounded``, in a process that would find the hostile module if it looked for it."""
    folder = o.where / "modules"
    folder.mkdir()
    (folder / "hostile_module.py").write_text(f"import os\nos.mkdir({str(mark)!r})\n")

    def before() -> None:
        bounded()
        sys.path.insert(0, str(folder))

    return before


def judge(case: Case, ended: Ended) -> str:
    """What is wrong with how a command met a hostile file; nothing: it refused it in one line, or
    did not need it."""
    said = [line for line in ended.text.splitlines() if not line.startswith("lwm: warning")]
    told = f"exit code {ended.code}: {ended.text[-300:]}"
    if ended.hung or "Traceback" in ended.text:
        return told
    if ended.code == 0:
        return "" if case.harmless else f"was not refused; {told}"
    one_line = len(said) == 1 and said[0].startswith("lwm: ")
    return "" if ended.code in (1, 2) and one_line else told


def met(read: Callable[[], Any]) -> int:
    """An episode is read in a bounded child: 0 if it was refused as it should be."""
    bounded()
    try:
        read()
    except files.BadInput:
        return 0
    print("was read")
    return 3


def tree(path: Path) -> list[tuple[str, str]]:
    """What is in a directory."""
    return sorted((p.name, p.read_text() if p.is_file() else "") for p in path.rglob("*"))


def hostile(o: Options) -> Tally:
    """Refused with one line; nothing ran, nothing escaped, no memory was taken beyond a bound."""
    tally, rng = Tally("hostile files"), o.random("hostile")
    mark, precious = o.where / "code-ran", o.where / "precious"
    precious.write_text("precious\n")
    foreign = tree(elsewhere(o.where / "elsewhere"))
    source = trained("labyrinth", o.where / "source")
    (source / "status.json").unlink()
    before = importable(o, mark)
    groups = [given_as_file(o, mark), given_as_directory(o), given_as_import(o), given_as_size(o)]
    if o.form != "tiny" and importlib.util.find_spec("ale_py"):
        groups.append(given_as_rows(o, mark))
    used = 0
    for group in groups:
        cases = list(group)
        for case in rng.sample(cases, min(len(cases), o.count(2, 12, len(cases)))):
            ended = call(case.arguments, o.where / "hostile.log", before).wait(60)
            fault = judge(case, ended)
            used += ended.code == 0
            tally.count(not fault, f"{case.name}: {fault}")
    for name, read in forged_episodes(o, mark):
        ended = Child(partial(met, read), o.where / "episode.log").wait(60)
        held = ended.code == 0 and not ended.hung
        tally.count(held, f"{name}: exit code {ended.code}: {ended.text[-300:]}")
    odd = o.count(4, 20, 150)
    for number in range(odd):
        path = o.where / f"forged-{number}"
        what = forged_state(rng, source, path)
        arguments = ["train", "--resume", str(path), "--quiet"]
        ended = call(arguments, o.where / "forged.log", bounded).wait(120)
        fault = judge(Case(what, arguments, True), ended)
        used += ended.code == 0
        tally.count(not fault, f"{what}: {fault}")
        shutil.rmtree(path)
    refused = tally.tried - used
    safe = not mark.exists() and precious.read_text() == "precious\n"
    safe = safe and tree(o.where / "elsewhere") == foreign
    tally.count(safe, "code ran, or a file outside was touched")
    tally.detail = (
        f"{refused} refused with one line within {MEMORY >> 30} GB, {used} harmless ones used "
        f"(of {odd} states with one odd value and a log that was not read); no code ran"
    )
    assert runs.is_run(source)
    return tally
