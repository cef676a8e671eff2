"""Damaged and foreign checkpoints: flipped bits, cut, swapped, of another config or version."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from faults.common import Options, Tally, trained
from lwm import checkpoint, runs, sealed
from lwm.errors import LwmError
from lwm.files import cut_fault
from lwm.saved import LOGS, RESERVED
from lwm.writing import RunWriter
from trees import same

Damage = Callable[[random.Random, "Victim"], str]
OWN = (sealed.ARRAYS, sealed.STATE, sealed.MANIFEST)


class Victim:
    """A copy of a stopped run with two checkpoints, and what a reader may make of it."""

    def __init__(self, source: Path, path: Path, foreign: list[Path]) -> None:
        self.source, self.path, self.foreign = source, path, foreign
        self.restore()
        self.older, self.newest = sorted((path / "checkpoints").glob("step-*"))
        self.good = {p.name: checkpoint.load(p) for p in (self.older, self.newest)}
        self.found: Counter[str] = Counter()
        """How often the newest, or the one before it, was used, and how often none was."""
        self.config = runs.read_config(path)
        self.saved = runs.load_checkpoint(path)

    def restore(self) -> None:
        """As it was."""
        shutil.rmtree(self.path, ignore_errors=True)
        shutil.copytree(self.source, self.path)

    @property
    def files(self) -> list[Path]:
        """What may be damaged: the newest checkpoint, its rows, the config and both logs."""
        rows = [checkpoint.rows_directory(self.newest.parent) / b.name for b in self.saved.blocks]
        beside = [self.path / n for n in ("config.json", "metrics.jsonl", "timing.jsonl")]
        return [*(self.newest / name for name in OWN), *rows, *beside]


def pick(rng: random.Random, victim: Victim) -> Path:
    """A file, the checkpoint's own more often."""
    return rng.choice([*victim.files, *(victim.newest / name for name in OWN)])


def flip(rng: random.Random, victim: Victim) -> str:
    """One to three bits of a file."""
    path = pick(rng, victim)
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return path.name


def cut(rng: random.Random, victim: Victim) -> str:
    """The end of a file is gone."""
    path = pick(rng, victim)
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data))])
    return path.name


def grown(rng: random.Random, victim: Victim) -> str:
    """Bytes behind the end."""
    path = rng.choice([victim.newest / name for name in OWN])
    path.write_bytes(path.read_bytes() + rng.randbytes(rng.randint(1, 99)))
    return path.name


def swapped(rng: random.Random, victim: Victim) -> str:
    """Two files of the checkpoint, or one with that of the checkpoint before."""
    a = rng.choice([victim.newest / name for name in OWN])
    b = rng.choice([p / n for p in (victim.newest, victim.older) for n in OWN if p / n != a])
    if a.read_bytes() == b.read_bytes():
        return flip(rng, victim)
    if b.parent == victim.older:  # the older one is to stay good: a copy, not an exchange
        shutil.copy(b, a)
    else:
        one, two = a.read_bytes(), b.read_bytes()
        a.write_bytes(two)
        b.write_bytes(one)
    return f"{a.name} with {b.parent.name}/{b.name}"


def gone(rng: random.Random, victim: Victim) -> str:
    """A file is not there."""
    path = rng.choice([victim.newest / name for name in OWN])
    path.unlink()
    return path.name


def replaced(rng: random.Random, victim: Victim) -> str:
    """By a checkpoint of another config that has the same shapes, in part or whole."""
    foreign = rng.choice(victim.foreign)
    shutil.rmtree(victim.newest)
    shutil.copytree(foreign, victim.newest)
    return foreign.parents[1].name


def mixed(rng: random.Random, victim: Victim) -> str:
    """One file of another run's checkpoint."""
    foreign, name = rng.choice(victim.foreign), rng.choice(OWN)
    shutil.copy(foreign / name, victim.newest / name)
    return f"{name} of {foreign.parents[1].name}"


def another_version(rng: random.Random, victim: Victim) -> str:
    """A manifest of a format that this lwm does not know."""
    path = victim.newest / sealed.MANIFEST
    document = json.loads(path.read_text())
    document["format"] = rng.choice([0, 2, 99, -1, "1", 1.5, None, True, [1]])
    path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    return f"format {document['format']!r}"


DAMAGES: tuple[tuple[Damage, int], ...] = (
    (flip, 45), (cut, 20), (grown, 5), (swapped, 10), (gone, 3), (replaced, 7), (mixed, 7),
    (another_version, 3),
)  # fmt: skip


def judge(victim: Victim) -> str:
    """What is wrong with how a damaged run is taken up; nothing: as it should be."""
    told: list[str] = []
    own = [p.read_bytes() if p.exists() else None for p in victim.files]
    try:
        writer, saved = RunWriter.reopen(victim.path, warn=told.append)
        writer.close()
    except LwmError as error:
        victim.found["refused"] += 1
        one_line = "\n" not in str(error) and len(str(error)) < 1000
        return "" if one_line and fatal(victim, own) else f"refused: {error}"
    if saved is None:
        return "begun anew: everything is lost"
    state = {**saved.state}
    wanted = {k: v for k, v in victim.good[saved.path.name].items() if not k.startswith("_")}
    if not same(state, wanted) or runs.read_config(victim.path) != victim.config:
        victim.found["wrong"] += 1
        return "loaded wrong"
    victim.found["older" if saved.path == victim.older else "newest"] += 1
    if saved.path == victim.older:
        return "" if told else "an older checkpoint was used without a word"
    if told:
        return ""  # a log: its rows are told to be wrong, the weights are right
    logs = zip(("metrics.jsonl", "timing.jsonl"), saved.log_bytes, strict=True)
    for name, length in logs:
        before, now = ((p / name).read_bytes()[:length] for p in (victim.source, victim.path))
        if before != now:
            return f"{name} was changed and nobody told"
    return ""


def fatal(victim: Victim, now: list[bytes | None]) -> bool:
    """Something that both checkpoints need is damaged: then to refuse is right."""
    older = victim.good[victim.older.name]
    shared = {block.name for block in older.get(checkpoint.BLOCKS, ())}
    logs = zip(LOGS, older[RESERVED]["log_bytes"], strict=True)
    short = {name for name, length in logs if cut_fault(victim.path / name, length)}
    names = {"config.json"} | shared | short
    before = [victim.source / p.relative_to(victim.path) for p in victim.files]
    changed = {p.name for p, data in zip(before, now, strict=True) if p.read_bytes() != data}
    return bool(changed & names)


def corruption(o: Options) -> Tally:
    """Detected every time; the checkpoint before is used with a warning; never loaded wrong."""
    tally, rng = Tally("corrupted and foreign checkpoints"), o.random("corruption")
    victims = [_victim(o, "labyrinth")]
    if o.form != "tiny":
        victims.append(_victim(o, "atari"))
    kinds, weights = zip(*DAMAGES, strict=True)
    for number in range(o.count(25, 150, 1000)):
        victim = victims[number % len(victims)]
        kind = rng.choices(kinds, weights)[0]
        what = kind(rng, victim)
        try:
            fault = judge(victim)
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
        tally.count(not fault, f"{number} {kind.__name__} {what}: {fault}")
        victim.restore()
    found = sum((victim.found for victim in victims), Counter())
    tally.detail = (
        f"flips, cuts, swaps, other configs and versions; {found['older']} resumed from the one "
        f"before, {found['newest']} from the newest (a log was hit), {found['refused']} refused "
        f"(both need what was hit), {found['wrong']} loaded wrong"
    )
    return tally


def _victim(o: Options, workload: str) -> Victim:
    """A stopped run, and checkpoints of other configs at the same number of frames."""
    source = trained(workload, o.where / f"{workload}-source")
    newest = sorted((source / "checkpoints").glob("step-*"))[-1].name
    foreign = []
    others = {"seed": 1, "dqn.learning_rate": 3e-4}
    for key, value in others.items():
        other = trained(workload, o.where / f"{workload}-{key}", **{key: value})
        found = sorted((other / "checkpoints").glob("step-*"))[-1]
        if found.name != newest:  # the right name, so that only its config tells
            found = found.rename(found.with_name(newest))
        foreign.append(found)
    (source / "status.json").unlink()
    return Victim(source, o.where / f"{workload}-victim", foreign)
