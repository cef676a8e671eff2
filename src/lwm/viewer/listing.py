"""All runs below a directory as rows of one table, and what has changed since the last look.

A run is named by its path below the directory.  Requests name runs and nothing else; the name is
looked up among the runs that were found, so no request can lead anywhere else.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

from lwm.errors import BadInput
from lwm.experiments.figure5 import ALL, LAST
from lwm.viewer import disk

DEPTH = 6
BATCH = 60
PATIENCE = 0.25
MAX_DIRECTORIES = 50_000
FILES = ("config.json", "status.json", "metrics.jsonl", "timing.jsonl", "evaluation.json")
RETURNS = (*LAST, ALL)
STALE_SECONDS = 60
"""A run whose lock nobody is seen to hold and that wrote nothing for so long is not running."""

Stamps = tuple[disk.Stamp | None, ...]


class Listing:
    """The runs below ``root``.  Looks at the disk when asked, at most every ``rest`` seconds."""

    def __init__(self, root: Path, rest: float = 1.0) -> None:
        self.root = Path(root)
        self.rest = rest
        self.version = 0
        self.truncated = False
        self._rows: dict[str, dict[str, Any]] = {}
        self._stamps: dict[str, Stamps] = {}
        self._changed: dict[str, int] = {}
        self._gone: dict[str, int] = {}
        self._looked, self._took = float("-inf"), 0.0
        self._lock = threading.Lock()
        """Of the rows."""
        self._looking = threading.Lock()
        """Of whoever looks at the disk."""
        self._complete = threading.Event()

    def path(self, name: str) -> Path:
        """Directory of the run called ``name``; ``BadInput`` if there is none (any more)."""
        if name not in self._rows:
            self.look(force=name not in self._gone)
        if name not in self._rows:
            raise BadInput("there is no such run")
        path = self.root if name == "." else self.root / name
        if disk.stamp(path / "config.json") is None:
            raise BadInput("this run is gone")
        return path

    def row(self, name: str) -> dict[str, Any]:
        """The row of one run."""
        self.path(name)
        return self._rows[name]

    def names(self) -> list[str]:
        """Of all runs, as found last."""
        return sorted(self._rows)

    def changes(self, since: int = 0) -> dict[str, Any]:
        """Rows that changed after version ``since``, names that are gone, and the version.

        The first look at a large tree takes seconds: what is known after ``PATIENCE`` is told, and
        ``complete`` says whether that is all.
        """
        if self._complete.is_set():
            self.look()
        else:
            threading.Thread(target=self.look, daemon=True).start()
            self._complete.wait(PATIENCE)
        with self._lock:
            if since > self.version:  # of a server before this one
                since = 0
            return {
                "version": self.version,
                "complete": self._complete.is_set(),
                "root": self.root.resolve().name or str(self.root),
                "truncated": self.truncated,
                "missing": not self.root.is_dir(),
                "rows": [self._rows[n] for n, v in self._changed.items() if v > since],
                "gone": [n for n, v in self._gone.items() if v > since] if since else [],
            }

    def look(self, force: bool = False) -> None:
        """Compare what is on the disk with what is known; one at a time."""
        with self._looking:
            # A large tree is looked at less often: looking takes at most 2 % of one core.
            rest = max(self.rest, 50 * self._took)
            began = time.monotonic()
            if began - self._looked < (self.rest if force else rest):
                return
            self._compare()
            self._looked = time.monotonic()
            self._took = self._looked - began
            self._complete.set()

    def _compare(self) -> None:
        found = dict(self._walk())
        held = _held_locks()
        names = list(found)
        for start in range(0, len(names), BATCH):
            self._take({name: found[name] for name in names[start : start + BATCH]}, held)
        with self._lock:
            lost = self._rows.keys() - found.keys()
            self.version += bool(lost)
            for name in lost:
                del self._rows[name], self._stamps[name], self._changed[name]
                self._gone[name] = self.version

    def _take(self, found: dict[str, str], held: set[int] | None) -> None:
        """Look at some runs, then tell of those that changed."""
        changed = {}
        for name, path in found.items():
            stamps = tuple(disk.stamp(f"{path}/{file}") for file in FILES)
            row = self._rows.get(name)
            if row is None or stamps != self._stamps[name]:
                row = read_row(name, path, stamps)
            row = row | {"state": _state(row, path, stamps, held)}
            if row != self._rows.get(name):
                changed[name] = row
            self._stamps[name] = stamps
        with self._lock:
            self.version += bool(changed)
            for name, row in changed.items():
                self._rows[name], self._changed[name] = row, self.version
                self._gone.pop(name, None)

    def _walk(self) -> list[tuple[str, str]]:
        """(name, path) of each run; links are not followed, what cannot be read is left out."""
        root = str(self.root)
        if disk.stamp(f"{root}/config.json") is not None:
            return [(".", root)]
        found: list[tuple[str, str]] = []
        waiting = [("", root, 0)]
        seen = 0
        self.truncated = False
        while waiting:
            prefix, path, depth = waiting.pop()
            seen += 1
            if seen > MAX_DIRECTORIES:
                self.truncated = True
                break
            inside: list[tuple[str, str, int]] = []
            is_run = False
            try:
                with os.scandir(path) as entries:
                    for entry in entries:
                        if entry.name == "config.json" and depth:
                            is_run = entry.is_file(follow_symlinks=False)
                        elif not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                            inside.append((f"{prefix}{entry.name}/", entry.path, depth + 1))
            except OSError:
                continue
            if is_run and _printable(prefix):
                found.append((prefix[:-1], path))
            elif depth < DEPTH:
                waiting += inside
        return sorted(found)


def read_row(name: str, path: str, stamps: Stamps) -> dict[str, Any]:
    """What the table says of a run; a damaged file makes a note, not an error."""
    notes: list[str] = []
    config: dict[str, Any] = {}
    status: dict[str, Any] = {}
    for index, document in ((0, config), (1, status)):
        if stamps[index] is None:
            continue
        try:
            document |= disk.read_document(f"{path}/{FILES[index]}") or {}
        except BadInput as error:
            notes.append(str(error))
    given = config.get("config")
    settings: dict[str, Any] = given if isinstance(given, dict) else {}
    if not settings and not notes:
        notes.append("config.json is not a run config")
    frames, last = _integer(status.get("frames")), None
    for row in disk.last_rows(f"{path}/metrics.jsonl"):
        frames = max(frames, _integer(row.get("frames")))
        last = next((row[k] for k in RETURNS if _plain(row.get(k))), None)
        if last is not None:
            break
    speed = next(
        (r["frames_per_second"] for r in disk.last_rows(f"{path}/timing.jsonl")
         if _plain(r.get("frames_per_second"))), None,
    )  # fmt: skip
    score = None
    if stamps[4] is not None:
        try:
            score = (disk.read_document(f"{path}/evaluation.json") or {}).get("score")
        except BadInput as error:
            notes.append(str(error))
    message = status.get("message")
    if isinstance(message, str) and message:
        notes.append(message)
    return {
        "id": name,
        "agent": _text(settings.get("agent")),
        "environment": environment(settings),
        "preset": _text(settings.get("preset")),
        "seed": settings.get("seed") if type(settings.get("seed")) is int else None,
        "frames": frames,
        "total": _integer(_section(settings, "loop").get("total_frames")),
        "return": last,
        "speed": speed,
        "score": score if _plain(score) else None,
        "told": _text(status.get("state")),
        "notes": notes,
    }


def environment(settings: dict[str, Any]) -> str:
    """What a run is trained on, in a few words."""
    workload = settings.get("workload", "labyrinth")
    if workload == "atari":
        return _text(_section(settings, "atari").get("game"))
    if workload == "gym":
        return _text(_section(settings, "gym").get("env"))
    size = _section(settings, "env").get("size")
    return f"labyrinth {size}×{size}" if type(size) is int else ""


def _state(row: dict[str, Any], path: str, stamps: Stamps, held: set[int] | None) -> str:
    """As the status says, unless it says running and nobody is."""
    told = row["told"]
    if told != "running":
        return told if told in ("finished", "stopped", "failed") else "unknown"
    try:
        inode = os.lstat(f"{path}/lock").st_ino
    except OSError:
        inode = -1
    if held is None or inode in held:
        return "running"
    newest = max((s.time for s in stamps if s is not None), default=0)
    return "running" if time.time() - newest / 1e9 < STALE_SECONDS else "stopped"


def _held_locks() -> set[int] | None:
    """Inodes that some process has flock'ed; None where the system does not tell."""
    try:
        with open("/proc/locks", encoding="ascii", errors="replace") as file:
            lines = [line.split() for line in file]
    except OSError:
        return None
    held = set()
    for words in lines:
        if "FLOCK" in words:
            place = next((w for w in words if w.count(":") == 2), "")
            number = place.rpartition(":")[2]
            if number.isdigit():
                held.add(int(number))
    return held


def _section(settings: dict[str, Any], name: str) -> dict[str, Any]:
    found = settings.get(name)
    return found if isinstance(found, dict) else {}


def _plain(value: Any) -> bool:
    return type(value) in (int, float)


def _integer(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 1 << 53 else 0


def _text(value: Any) -> str:
    return value[:200] if isinstance(value, str) else ""


def _printable(name: str) -> bool:
    """Names that are no text (bytes that are not UTF-8) cannot be asked for."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
