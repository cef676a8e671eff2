"""What the page says of one run: its settings against its preset, its score beside the paper's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lwm.config import Config, fields, load_preset
from lwm.episodes import list_episodes
from lwm.errors import BadInput
from lwm.experiments import atari, limits, table1
from lwm.settings import flatten, to_dict
from lwm.viewer import disk

_NAMED = ("workload", "preset", "agent", "seed", "env.size", "atari.game", "gym.env")
"""What a run is called by: not a difference."""
_FOLLOWED = ("env.size", "atari.game", "gym.env")
"""Other values of a preset depend on these."""
_SECTIONS = {"labyrinth": ("atari", "gym"), "atari": ("env", "gym"), "gym": ("env", "atari")}
"""Workload -> sections of the config that it does not read."""


def about(run: Path) -> dict[str, Any]:
    """Config, evaluation, machine, status and episodes of a run; ``notes`` says what is damaged."""
    notes: list[str] = []

    def read(name: str) -> dict[str, Any]:
        try:
            return disk.read_document(run / name, 8 << 20) or {}
        except BadInput as error:
            notes.append(str(error))
            return {}

    document = read("config.json")
    given = document.get("config")
    config: dict[str, Any] = given if isinstance(given, dict) else {}
    return {
        "settings": settings(config, notes),
        "evaluation": compared(read("evaluation.json"), config),
        "machine": read("machine.json"),
        "status": read("status.json"),
        "version": document.get("lwm_version"),
        "episodes": episodes(run, notes),
        "notes": notes,
    }


def settings(config: dict[str, Any], notes: list[str]) -> list[dict[str, Any]]:
    """Every setting that the workload reads: value, the preset's value, meaning; changed first."""
    flat = flatten(config)
    workload, preset = str(flat.get("workload", "labyrinth")), str(flat.get("preset", "paper"))
    try:
        chosen = {k: flat[k] for k in _FOLLOWED if k in flat and k.split(".")[0] in _own(workload)}
        base = flatten(to_dict(load_preset(preset, chosen, workload)))
    except BadInput as error:
        notes.append(f"its preset is not known here: {error}")
        base = {}
    known = dict(fields(Config()))
    rows = []
    for key, value in flat.items():
        if key.partition(".")[0] in _SECTIONS.get(workload, ()):
            continue
        usual = base.get(key)
        rows.append(
            {
                "key": key,
                "value": value,
                "usual": usual,
                "changed": bool(base) and value != usual and key not in _NAMED,
                "doc": known[key].metadata["doc"] if key in known else "unknown to this version",
            }
        )
    return sorted(rows, key=lambda row: not row["changed"])


def _own(workload: str) -> tuple[str, ...]:
    return tuple({"env", "atari", "gym"} - set(_SECTIONS.get(workload, ())))


def compared(result: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """The evaluation with the numbers that belong beside it: [name, score, remark]."""
    beside: list[tuple[str, float, str]] = []
    agent, workload = config.get("agent"), config.get("workload", "labyrinth")
    if workload == "labyrinth":
        size = _inside(config, "env", "size")
        paper = table1.PAPER.get((size, str(agent), "")) if type(size) is int else None
        if paper is not None:
            beside.append(("paper", paper, f"{agent}, {size}×{size}, 1M frames"))
        for player, remark in (
            ("bayes-optimal", "the limit: the best possible without a map"),
            ("blind-dfs", "a depth-first walk with perfect memory"),
            ("full-map", "knows the whole maze beforehand"),
            ("random", "acts at random"),
        ):
            known = {k: v for k, v in _limits().items() if k[0] == size}
            if (size, player) in known:
                beside.append((player, known[size, player], remark))
    elif workload == "atari":
        game = str(_inside(config, "atari", "game"))
        if agent == "lwm" and game in atari.PAPER:
            beside.append(("paper", atari.PAPER[game], "lwm at 50M frames"))
        if game in atari.RANDOM_HUMAN:
            low, high = atari.RANDOM_HUMAN[game]
            beside.append(("human", high, "published"))
            beside.append(("random", low, "published"))
    return {"result": result, "beside": beside}


def _limits() -> dict[tuple[int, str], float]:
    try:
        return limits.table()
    except BadInput:
        return {}


def _inside(config: dict[str, Any], section: str, key: str) -> Any:
    found = config.get(section)
    return found.get(key) if isinstance(found, dict) else None


def episodes(run: Path, notes: list[str]) -> list[dict[str, Any]]:
    """Recorded episodes: number and size in bytes.  Links are not followed."""
    directory = run / "episodes"
    if directory.is_symlink():
        notes.append("episodes is a link: not followed")
        return []
    try:
        found = [(path, disk.stamp(path)) for path in list_episodes(directory)]
    except BadInput as error:
        notes.append(str(error).replace(str(directory), "episodes"))
        return []
    return [
        {"number": int(path.name[8:].partition(".")[0]), "bytes": stamp.size}
        for path, stamp in found
        if stamp is not None
    ]
