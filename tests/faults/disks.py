"""Disks that are full or read-only, at each point where a run writes."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from faults import seams
from faults.common import Ended, Options, Tally, Witness, call, differs, flags, trained
from lwm import checkpoint, runs

CODES = (errno.ENOSPC, errno.EROFS)
TMPFS_KB = 4096
RARE = {"loop.checkpoint_every_frames": 400}
"""Two checkpoints and their end: every point where such a run writes can be tried."""


def failing_from(number: int, code: int, half: bool) -> Callable[[], None]:
    """From the ``number``-th touch on the disk takes nothing any more; half a write may go in."""
    left = number

    def touch(name: str, real: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        nonlocal left
        left -= 1
        if left == 0 and half and name == "write" and len(arguments[1]) > 1:
            return seams.first_half(real, arguments)
        if left <= 0:
            raise OSError(code, os.strerror(code))
        return real(*arguments)

    return lambda: seams.watch(touch)


def good(folder: Path) -> set[str]:
    """Names of the checkpoints that are there, all of them good (or a CheckpointError)."""
    found = [path for path in folder.glob("step-*") if ".tmp-" not in path.name]
    for path in found:
        checkpoint.load(path)
    return {path.name for path in found}


def kept_before(path: Path, function: Callable[[], Any]) -> list[set[str]]:
    """Of each touch of the disk of an undisturbed run: the checkpoints that were there before it.

    (``function`` is that run, into ``path``.)
    """
    told: list[set[str]] = []

    def look(name: str, real: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        found = (path / "checkpoints").glob("step-*")
        told.append({entry.name for entry in found if ".tmp-" not in entry.name})
        return real(*arguments)

    with seams.watched(look):
        function()
    return told


def judge(
    ended: Ended, path: Path, elsewhere: Path, whole: Path, before: Set[str] = frozenset()
) -> str:
    """One clear line, every checkpoint that was there ``before`` still there, all good, and the run
    can go on elsewhere, from the newest of them."""
    said = ended.text.strip()
    if ended.code == 0:
        return "" if not differs(path, whole) else "finished, but differs"
    if ended.hung or ended.code not in (1, 2) or "\n" in said or not said.startswith("lwm: "):
        return f"exit code {ended.code}, hung {ended.hung}: {said[-400:]}"
    if not runs.is_run(path):
        return "the run is gone" if before else ""  # it could not begin
    if lost := before - good(path / "checkpoints"):
        return f"{', '.join(sorted(lost))} was good before and is gone"
    shutil.copytree(path, elsewhere)
    witness = Witness(elsewhere, whole)
    if fault := witness.look():
        return fault
    log = elsewhere.with_name(elsewhere.name + ".log")
    ended = call(["train", "--resume", str(elsewhere), "--quiet"], log).wait()
    if ended.code != 0 and not (ended.code == 2 and "finished" in ended.text):
        return f"elsewhere: {ended.text[-300:]}"
    return witness.look() or differs(elsewhere, whole)


def write_points(o: Options, tally: Tally, whole: Path, kept: list[set[str]]) -> int:
    """Fail at each touch of the disk (or at a sample of them), as full and as read-only.

    ``kept``: of ``kept_before``.
    """
    rng = o.random("write points")
    points = [(n, CODES[n % 2]) for n in range(1, len(kept) + 1)]
    points = rng.sample(points, min(len(points), o.count(3, 10, len(points))))
    for number, code in points:
        path = o.where / f"point-{number}-{code}"
        before = failing_from(number, code, rng.random() < 0.3)
        ended = call(flags("labyrinth", path, **RARE), o.where / "point.log", before).wait()
        elsewhere = path.with_name(path.name + "-elsewhere")
        fault = judge(ended, path, elsewhere, whole, kept[number - 1])
        tally.count(not fault, f"{errno.errorcode[code]} at touch {number}: {fault}")
        for left in (path, elsewhere):
            shutil.rmtree(left, ignore_errors=True)
    return len(points)


@contextmanager
def tmpfs(path: Path) -> Iterator[Path | None]:
    """A small file system of its own; None where we may not mount one."""
    path.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_KB}k", "tmpfs", str(path)],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        yield None
        return
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=False, capture_output=True)


def real_full(o: Options, tally: Tally, whole: Path, disk: Path) -> int:
    """A file system with less and less room: the run fails where it is full, and goes on."""
    room = [0, 1, 3, 8, 20, 60, 150, 300, 500, 700, 900, 1200]
    tried = room if o.form == "long" else room[:: 3 if o.form == "short" else 11]
    for number, free in enumerate(tried):
        path = disk / "run"
        usage = shutil.disk_usage(disk).free - free * 1024
        with open(disk / "filler", "wb") as file:
            file.write(bytes(max(0, usage)))
        ended = call(flags("labyrinth", path, **RARE), o.where / "full.log").wait()
        fault = judge(ended, path, o.where / f"full-{number}", whole)
        tally.count(not fault, f"{free} KB free: {fault}")
        shutil.rmtree(path, ignore_errors=True)
        (disk / "filler").unlink()
    return len(tried)


def real_read_only(o: Options, tally: Tally, whole: Path, disk: Path) -> int:
    """A file system that became read-only: resume, evaluate and train each say so in one line."""
    path = disk / "run"
    call(flags("labyrinth", path, **RARE), o.where / "ro.log").wait()
    (path / "status.json").unlink()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True, capture_output=True)
    cases = [
        ["train", "--resume", str(path), "--quiet"],
        ["evaluate", str(path)],
        flags("labyrinth", disk / "other", **RARE),
        ["report", str(path), "--out", str(disk / "r.html")],
    ]
    for arguments in cases:
        ended = call(arguments, o.where / "ro.log").wait()
        last = ended.text.strip().splitlines()[-1:] or [""]
        held = ended.code in (1, 2) and "Read-only" in last[0] and "Traceback" not in ended.text
        tally.count(held, f"read-only {arguments[0]}: {ended.code} {ended.text[-300:]}")
    shutil.copytree(path, o.where / "ro-elsewhere")
    again = ["train", "--resume", str(o.where / "ro-elsewhere"), "--quiet"]
    ended = call(again, o.where / "ro.log").wait()
    fault = ended.text[-300:] if ended.code else differs(o.where / "ro-elsewhere", whole)
    tally.count(not fault, f"read-only, elsewhere: {fault}")
    return len(cases) + 1


def full_disk(o: Options) -> Tally:
    """A clear line, the checkpoint before intact, and the run can go on elsewhere."""
    tally = Tally("disk full, read-only")
    whole = o.where / "whole"
    kept = kept_before(whole, lambda: trained("labyrinth", whole, **RARE))
    points = write_points(o, tally, whole, kept)
    with tmpfs(o.where / "disk") as disk:
        if disk is None:
            real = "no real file systems: we may not mount one here"
        else:
            full = real_full(o, tally, whole, disk)
            real = f"{full} full and {real_read_only(o, tally, whole, disk)} read-only on a tmpfs"
    tally.detail = f"{points} of {len(kept)} write points (ENOSPC or EROFS); {real}"
    return tally
