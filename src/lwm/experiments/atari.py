"""Learning on Atari at this machine's scale: lwm against the same agent without the bonus."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lwm import runs
from lwm.config import load_preset
from lwm.errors import RunFailed
from lwm.experiments import campaign, rows, runner
from lwm.experiments.table1 import interval

PATH = rows.RESULTS / "atari.csv"
COLUMNS = (
    "game", "agent", "preset", "seed", "frames", "score", "median", "rooms", "positions",
    "command", "commit", "machine",
)  # fmt: skip
KEYS = ("game", "agent", "preset", "seed")

PAPER = {
    "freeway": 30.8,
    "frostbite": 8409.0,
    "venture": 998.0,
    "gravitar": 1376.0,
    "solaris": 1268.0,
    "montezuma_revenge": 2276.0,
}
"""The paper's scores of lwm, at 50M frames: another scale than preset ``laptop``."""


@dataclass(frozen=True)
class Setting:
    """One row of the table before seeds."""

    game: str
    agent: str
    preset: str = "laptop"

    def job(self, seed: int) -> runner.Job:
        """The training run of one seed."""
        flags = ("--game", self.game, "--agent", self.agent, "--preset", self.preset)
        config = load_preset(
            self.preset, {"atari.game": self.game, "agent": self.agent, "seed": seed}, "atari"
        )
        arguments = ("train", "atari", *flags, "--seed", str(seed))
        name = f"atari/{self.game}-{self.agent}-{self.preset}/seed{seed}"
        return runner.Job(name, arguments, config)

    def key(self, seed: int) -> tuple[str, ...]:
        """The cells of ``KEYS``."""
        return (self.game, self.agent, self.preset, str(seed))

    def row(self, seed: int) -> dict[str, Any]:
        """The row of a finished run; rooms and positions are over all actors since frame 0."""
        job = self.job(seed)
        result, machine = runs.read_evaluation(job.directory), runs.read_machine(job.directory)
        if result is None or machine is None:
            raise RunFailed(f"{job.directory} has no evaluation")
        told = [r for r in runs.read_metrics(job.directory) if "coverage/rooms" in r]
        seen = told[-1] if told else {}
        return {
            "game": self.game,
            "agent": self.agent,
            "preset": self.preset,
            "seed": seed,
            "frames": result["frames"] * job.config.atari.action_repeat,
            "score": result["score"],
            "median": result["median"],
            "rooms": seen.get("coverage/rooms"),
            "positions": seen.get("coverage/positions"),
            "command": job.command,
            "commit": machine["commit"],
            "machine": f"{machine['cpu']}, torch {machine['torch']}",
        }


def plan() -> list[tuple[Setting, int]]:
    """Every (setting, seed), in the order in which time is best spent."""
    settings = [Setting(g, a) for g in ("freeway", "montezuma_revenge") for a in ("lwm", "dqn")]
    return [(setting, seed) for seed in range(3) for setting in settings]


def status() -> str:
    """How many of the planned runs are there."""
    return campaign.status(plan(), PATH, COLUMNS, KEYS)


def main(only: list[str], seeds: int | None, jobs: int | None, show: bool) -> int:
    """Run what is missing (unless ``show``), a row as each run ends; then print and plot."""
    if not show:
        campaign.run_missing(plan(), PATH, COLUMNS, KEYS, only, seeds, jobs)
    print(markdown())
    _plot()
    return 0


def _plot() -> None:
    """The curves of the finished runs that are on this disk."""
    from lwm import plots

    jobs = [setting.job(seed) for setting, seed in plan()]
    found = [job.directory for job in jobs if runner.finished(job)]
    out = Path("runs/atari/curves.png")
    if found:
        try:
            plots.game_curves(found, out)
        except ImportError:
            print("no picture: install the extra lwm[viz]")
        else:
            print(f"picture: {out}")


def markdown() -> str:
    """The table from the rows: mean and 95 % interval over seeds, the paper's number."""
    found: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    for row in rows.read(PATH, COLUMNS):
        found.setdefault((row["game"], row["preset"], row["agent"]), []).append(row)
    lines = [
        "| game | preset | agent | frames | score | 95 % interval | seeds | rooms | positions | "
        "lwm in the paper, 50M frames |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (game, preset, agent), group in sorted(found.items()):
        score = np.array([float(r["score"]) for r in group])
        cells = (
            game, preset, agent, f"{int(group[0]['frames']):,}", f"{score.mean():.2f}",
            interval(score), str(len(group)), _mean(group, "rooms"), _mean(group, "positions"),
            f"{PAPER[game]:g}" if game in PAPER else "–",
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _mean(group: list[dict[str, str]], column: str) -> str:
    values = [float(r[column]) for r in group if r[column]]
    return f"{np.mean(values):.1f}" if values else "–"
