"""MiniGrid: the whole method on a public benchmark, against no bonus, RND and random features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lwm.config import AGENTS, Config, load_preset
from lwm.experiments import campaign, curves, rows, runner
from lwm.experiments.options import Options
from lwm.files import replace_between
from lwm.statistics import interval

PATH = rows.RESULTS / "minigrid.csv"
COLUMNS = (
    "env", "agent", "seed", "frames", "return", "success", "command", "commit", "machine",
)  # fmt: skip
KEYS = ("command",)

MAIN = "MiniGrid-MultiRoom-N4-S5-v1"
"""Version 1 has the four rooms of its name; version 0 has six."""
OTHERS = ("MiniGrid-DoorKey-8x8-v0", "MiniGrid-MultiRoom-N6-v0", "MiniGrid-KeyCorridorS3R3-v0")
SEEDS = 3
SMALL = "intrinsic.beta=0.002"
"""A tenth of the preset's β: does the bonus outbid the reward?"""
PAGE, PICTURE = Path("docs/minigrid.md"), Path("docs/minigrid.png")
CURVES = rows.RESULTS / "curves" / "minigrid.csv"
"""What the runs told while they trained: their directories are not kept."""
CURVE_COLUMNS = (
    "env", "agent", "seed", "frames", "return", "success", "command", "commit",
)  # fmt: skip

_MARKS = ("<!-- minigrid: written by `lwm reproduce minigrid` -->", "<!-- /minigrid -->")


@dataclass(frozen=True)
class Setting:
    """One row of the table before seeds."""

    env: str
    agent: str
    variant: str = ""
    """``key=value`` settings on top of the preset, separated by blanks."""

    def job(self, seed: int) -> runner.Job:
        """The training run of one seed."""
        flags = ("--env", self.env, "--agent", self.agent, "--preset", "minigrid")
        further = self.variant.split()
        changes: dict[str, Any] = {"gym.env": self.env, "agent": self.agent, "seed": seed}
        changes |= dict(change.split("=", 1) for change in further)
        name = "-".join([f"minigrid/{self.env}-{self.agent}", *further])
        config = load_preset("minigrid", changes, "gym")
        arguments = ("train", "gym", *flags, "--seed", str(seed), *further)
        return runner.Job(f"{name}/seed{seed}", arguments, config)

    def key(self, seed: int) -> tuple[str, ...]:
        """The cells of ``KEYS``."""
        return (self.job(seed).command,)

    def rows(self, seed: int) -> list[dict[str, Any]]:
        """The row of a finished run, from its directory."""
        job = self.job(seed)
        result, origin = campaign.outcome(job)
        row = {
            "env": self.env,
            "agent": self.agent,
            "seed": seed,
            "frames": result["frames"],
            "return": result["score"],
            "success": result["success"],
            **origin,
        }
        return [row]


def plan(scale: float | None = None) -> list[tuple[Setting, int]]:
    """Every (setting, seed), in the order in which time is best spent."""
    base = load_preset("minigrid", workload="gym")
    steps = round((1.0 if scale is None else scale) * base.loop.total_frames)
    cut = campaign.shortened(base, steps)
    first = [Setting(MAIN, agent, cut) for agent in ("lwm", "dqn", "rnd", "lwm-rf")]
    rest = [Setting(env, agent, cut) for env in OTHERS for agent in ("lwm", "dqn")]
    small = [Setting(env, "lwm", f"{SMALL} {cut}".strip()) for env in (MAIN, *OTHERS)]
    return [(s, seed) for group in (first, rest, small) for seed in range(SEEDS) for s in group]


def config_of(row: Mapping[str, str]) -> Config:
    """The config that a row's command gives with this version."""
    told = rows.told(row["command"])
    further = " ".join(f"{k}={v}" for k, v in told.items() if not k.startswith("--"))
    return Setting(row["env"], row["agent"], further).job(int(row["seed"])).config


def status() -> str:
    """How many of the planned runs are there."""
    return campaign.status(plan(), PATH, COLUMNS, KEYS)


def campaign_of(options: Options) -> campaign.Campaign:
    """The runs that the options ask for."""
    planned = plan(options.scale)
    return campaign.Campaign("minigrid", planned, PATH, COLUMNS, KEYS, "success", keep_curve)


def main(options: Options) -> int:
    """Run what is missing (unless ``show``), a row as each run ends; then print."""
    options.allow("minigrid", "only", "seeds", "jobs", "show", "scale")
    if not options.show:
        campaign.run_missing(campaign_of(options), options)
    rows.there("minigrid", PATH, rows.read(PATH, COLUMNS, _fault))
    table = markdown()
    print(table)
    replace_between(PAGE, *_MARKS, f"\n{table}\n")
    _draw()
    print("scale 1 is the budget of preset minigrid; each row gives its own frames")
    return 0


def keep_curve(job: runner.Job) -> None:
    """Append the curve of a finished run, if it tells one; episodes of all actors."""
    config = job.config
    named = {"env": config.gym.env, "agent": config.agent, "seed": config.seed}
    told = {"return": "episode/return", "success": "episode/success"}
    curves.keep(CURVES, CURVE_COLUMNS, job, named, told)


def _draw() -> None:
    """The share of episodes with a reward while training: a panel an environment."""
    points = []
    for row in rows.read(CURVES, CURVE_COLUMNS, _fault):
        env, agent, steps, _ = _key(row)
        line = f"{agent}, {steps} steps" if steps else agent
        points.append(((env, line, "success"), row["command"], row["frames"], row["success"]))
    try:
        if curves.draw(points, PICTURE, "agent steps"):
            print(f"picture: {PICTURE} (share of episodes with a reward while training)")
    except ImportError:
        print("no picture: install the extra lwm[viz]")


def _fault(row: Mapping[str, str]) -> str:
    return rows.unknown(row, "agent", AGENTS)


def _key(row: Mapping[str, str]) -> tuple[str, str, str, int]:
    """Environment, agent with further settings, steps asked for, and frames in thousands."""
    told = rows.told(row["command"])
    steps = told.pop("loop.total_frames", "")
    further = sorted(f"{k}={v}" for k, v in told.items() if not k.startswith("--"))
    agent = ", ".join([row["agent"], *further])
    return row["env"], agent, steps, round(int(row["frames"]), -3)


def markdown() -> str:
    """The table from the rows: mean and 95 % interval over seeds."""
    found = rows.grouped(PATH, rows.read(PATH, COLUMNS, _fault), _key)
    lines = [
        "| environment | agent | frames | success | 95 % interval | return | seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    for (env, agent, _, frames), group in sorted(found.items()):
        success, value = (np.array([float(r[c]) for r in group]) for c in ("success", "return"))
        cells = (
            env, agent, f"{frames:,}", f"{success.mean():.3f}", interval(success, 3),
            f"{value.mean():.3f}", str(len(group)),
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
