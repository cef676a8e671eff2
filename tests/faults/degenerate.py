"""Degenerate data: environments that are constant, extreme, broken, or never answer."""

from __future__ import annotations

import math
from pathlib import Path

from faults import worlds
from faults.common import Options, Tally, call
from lwm import runs
from lwm.envs import gymnasium

HANG_SECONDS = 2.0
FINISH = (
    "constant-frames", "black-frames", "constant-vectors", "rank-1", "huge-vectors", "one-step",
    "rewards-1e9",
)  # fmt: skip
"""Training goes on to its end with these, all of its numbers finite."""
REASONS = {
    "nan": "finite observations", "infinite": "finite observations", "wrong-shape": "shape",
    "rewards-1e38": "not finite", "nan-reward": "finite rewards", "no-reward": "finite rewards",
    "raise": "step: RuntimeError", "raise-on-reset": "no more resets", "exit": "SystemExit",
    "hang": "no answer for", "spin": "no answer for",
}  # fmt: skip
"""What the one line says where training cannot go on."""
PROCESSES = {"raise": "the game is broken", "exit": "step", "die": "step", "hang": "no answer for"}
"""The same for environments that live in processes of their own."""


def impatient() -> None:
    """A hang is noticed after seconds here, not minutes."""
    gymnasium.PATIENCE = HANG_SECONDS


def cases(o: Options) -> list[tuple[str, str]]:
    """(how, vectorization) of the environments to try."""
    if o.form == "tiny":
        return [("rewards-1e9", "sync"), ("nan-reward", "sync"), ("exit", "sync"),
                ("spin", "sync"), ("die", "async")]  # fmt: skip
    return [(how, "sync") for how in (*FINISH, *REASONS)] + [(how, "async") for how in PROCESSES]


def degenerate(o: Options) -> Tally:
    """Each finishes with finite numbers, or ends with one clear line and a run marked failed."""
    tally = Tally("degenerate data")
    for how, mode in cases(o):
        path = o.where / f"{how}-{mode}"
        env = f"{worlds.__name__}:Faulty-{how}-v0"
        arguments = ["train", "gym", "--env", env, "--preset", "debug", "--quiet", "--out",
                     str(path), f"gym.vectorization={mode}"]  # fmt: skip
        fault = judge(how, mode, arguments, path)
        tally.count(not fault, f"{how} ({mode}): {fault}")
    tally.detail = f"{len(FINISH)} finish with finite numbers, the others end with one clear line"
    return tally


def judge(how: str, mode: str, arguments: list[str], path: Path) -> str:
    """What is wrong with the way a run with such an environment goes; nothing: all is well."""
    ended = call(arguments, path.with_name(path.name + ".log"), impatient).wait(120)
    if ended.hung:
        return "hung"
    if "Traceback" in ended.text.split("lwm: ")[-1]:
        return f"a traceback: {ended.text[-300:]}"
    if how in FINISH:
        if ended.code != 0:
            return f"exit code {ended.code}: {ended.text[-300:]}"
        return "" if finite(path) else "numbers that are not finite"
    said = ended.text.strip().splitlines()[-1:]
    words = (REASONS if mode == "sync" else PROCESSES)[how]
    if ended.code != 1 or not said or not said[0].startswith("lwm: ") or (
        words not in said[0]
    ):  # fmt: skip
        return f"exit code {ended.code}: {said}"
    status = runs.read_status(path) or {}
    return "" if status.get("state") == "failed" and status.get("message") else f"{status}"


def finite(path: Path) -> bool:
    """All numbers of a run's log, and of its score."""
    rows = [*runs.read_metrics(path), runs.read_evaluation(path) or {"score": math.nan}]
    values = [v for row in rows for k, v in row.items() if not isinstance(v, str)]
    return all(v is not None and math.isfinite(v) for v in values)
