"""Learning on Atari at this machine's scale: lwm against the same agent without the bonus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lwm import runs
from lwm.config import AGENTS, PRESETS, Config, load_preset
from lwm.experiments import campaign, curves, rows, runner
from lwm.experiments.options import PAPER_ATARI_FRAMES, Options
from lwm.statistics import interval

PATH = rows.RESULTS / "atari.csv"
COLUMNS = (
    "game", "agent", "preset", "seed", "frames", "score", "median", "rooms", "positions",
    "command", "commit", "machine", "eval_positions",
)  # fmt: skip
KEYS = ("command",)
CURVES, PICTURE = rows.RESULTS / "curves" / "atari.csv", Path("docs/atari.png")
CURVE_COLUMNS = (
    "game", "agent", "preset", "seed", "frames", "return", "positions", "command", "commit",
)  # fmt: skip
"""Of emulator frames: the mean return of the games that ended, over all actors, and positions that
all of them have visited, where the game's RAM tells."""

PAPER = {
    "freeway": 30.8,
    "frostbite": 8409.0,
    "venture": 998.0,
    "gravitar": 1376.0,
    "solaris": 1268.0,
    "montezuma_revenge": 2276.0,
}
"""The paper's scores of lwm, at 50M frames: another scale than preset ``laptop``."""

RANDOM_HUMAN = {
    "freeway": (0.0, 29.6),
    "frostbite": (65.0, 4335.0),
    "venture": (0.0, 1188.0),
    "gravitar": (173.0, 3351.0),
    "solaris": (1236.0, 12327.0),
    "montezuma_revenge": (0.0, 4753.0),
}
"""Published scores of a random player and of a human: what scores are put on one scale with."""


@dataclass(frozen=True)
class Setting:
    """One row of the table before seeds."""

    game: str
    agent: str
    preset: str = "laptop"
    variant: str = ""
    """``key=value`` settings on top of the preset, separated by blanks."""
    experiment: str = "atari"
    """Whose run it is: where it is kept."""

    def job(self, seed: int) -> runner.Job:
        """The training run of one seed."""
        flags = ("--game", self.game, "--agent", self.agent, "--preset", self.preset)
        changes: dict[str, Any]
        changes = {"atari.game": self.game, "agent": self.agent, "seed": seed}
        further = self.variant.split()
        changes |= dict(change.split("=", 1) for change in further)
        name = "-".join([f"{self.experiment}/{self.game}-{self.agent}-{self.preset}", *further])
        config = load_preset(self.preset, changes, "atari")
        arguments = ("train", "atari", *flags, "--seed", str(seed), *further)
        return runner.Job(f"{name}/seed{seed}", arguments, config)

    def key(self, seed: int) -> tuple[str, ...]:
        """The cells of ``KEYS``: the command, which also tells the number of steps."""
        return (self.job(seed).command,)

    def rows(self, seed: int) -> list[dict[str, Any]]:
        """The row of a finished run; rooms and positions are over all actors since frame 0, and
        ``eval_positions`` those of the scored games alone."""
        job = self.job(seed)
        result, origin = campaign.outcome(job)
        told = [r for r in runs.read_metrics(job.directory) if "coverage/rooms" in r]
        seen = told[-1] if told else {}
        row = {
            "game": self.game,
            "agent": self.agent,
            "preset": self.preset,
            "seed": seed,
            "frames": result["frames"] * job.config.atari.action_repeat,
            "score": result["score"],
            "median": result["median"],
            "rooms": seen.get("coverage/rooms"),
            "positions": seen.get("coverage/positions"),
            "eval_positions": result.get("positions"),
            **origin,
        }
        return [row]


def plan(scale: float | None = None) -> list[tuple[Setting, int]]:
    """Every (setting, seed), in the order in which time is best spent."""
    variant = ""
    if scale is not None:
        # As in table2 and table3: the same run has the same command, whoever asks for it.
        steps = round(scale * PAPER_ATARI_FRAMES / 4)
        variant = campaign.shortened(load_preset("laptop", workload="atari"), steps)
    games, agents = ("freeway", "montezuma_revenge"), ("lwm", "dqn")
    settings = [Setting(game, agent, variant=variant) for game in games for agent in agents]
    return [(setting, seed) for seed in range(3) for setting in settings]


def config_of(row: Mapping[str, str]) -> Config:
    """The config that a row's command gives with this version."""
    setting = Setting(row["game"], row["agent"], row["preset"], " ".join(settings_of(row)))
    return setting.job(int(row["seed"])).config


def fault(row: Mapping[str, str]) -> str:
    """What no row of ours can have."""
    return rows.unknown(row, "agent", AGENTS)


def settings_of(row: Mapping[str, str]) -> list[str]:
    """Settings of a row's command that its preset does not have already, ``key=value``."""
    found = {k: v for k, v in rows.told(row["command"]).items() if not k.startswith("--")}
    if found.get("loop.total_frames") == str(_budget(row["preset"])):
        del found["loop.total_frames"]
    return sorted(f"{key}={value}" for key, value in found.items())


def scale_of(row: Mapping[str, str]) -> float:
    """Budget of a row's run, of which it is some steps over, as a fraction of the paper's."""
    frames, told = int(row["frames"]), rows.told(row["command"]).get("loop.total_frames")
    steps = _budget(row["preset"]) if told is None else int(told) if told.isdigit() else 0
    budget = steps * round(frames / steps) if steps else frames
    return (budget or frames) / PAPER_ATARI_FRAMES


def preset_of(row: Mapping[str, str]) -> str:
    """The preset, with the settings on top of it that the scale does not tell."""
    further = [s for s in settings_of(row) if not s.startswith("loop.total_frames=")]
    return ", ".join([row["preset"], *further])


def _budget(preset: str) -> int:
    """Agent steps of a preset; 0 if there is none of that name any more."""
    known = preset in PRESETS["atari"]
    return load_preset(preset, workload="atari").loop.total_frames if known else 0


def status() -> str:
    """How many of the planned runs are there."""
    return campaign.status(plan(), PATH, COLUMNS, KEYS)


def campaign_of(options: Options) -> campaign.Campaign:
    """The runs that the options ask for."""
    planned = plan(options.scale)
    return campaign.Campaign("atari", planned, PATH, COLUMNS, KEYS, keep=keep_curve)


def main(options: Options) -> int:
    """Run what is missing (unless ``show``), a row as each run ends; then print."""
    options.allow("atari", "only", "seeds", "jobs", "show", "scale")
    if not options.show:
        campaign.run_missing(campaign_of(options), options)
    rows.there("atari", PATH, rows.read(PATH, COLUMNS, fault))
    print(markdown())
    print(f"scale 1 is the paper's {PAPER_ATARI_FRAMES:,} frames; each row gives its own scale")
    _draw()
    print("the last actor's curves, of the runs on this disk: lwm reproduce figure5")
    return 0


def keep_curve(job: runner.Job) -> None:
    """Append the curve of a finished run."""
    c = job.config
    named = {"game": c.atari.game, "agent": c.agent, "preset": c.preset, "seed": c.seed}
    told = {"return": "episode/return", "positions": "coverage/positions"}
    curves.keep(CURVES, CURVE_COLUMNS, job, named, told, c.atari.action_repeat)


def _draw() -> None:
    """Positions visited where the game tells them, returns elsewhere: a panel a game."""
    found = rows.read(CURVES, CURVE_COLUMNS, fault)
    mapped = {row["game"] for row in found if row["positions"]}
    points = []
    for row in found:
        what = "positions" if row["game"] in mapped else "return"
        key = (f"{row['game']}: {what}", f"{row['agent']}, {preset_of(row)}", what)
        points.append((key, row["command"], row["frames"], row[what]))
    try:
        if curves.draw(points, PICTURE, "emulator frames"):
            print(f"picture: {PICTURE} (all actors, while training)")
    except ImportError:
        print("no picture: install the extra lwm[viz]")


def markdown() -> str:
    """The table from the rows: mean and 95 % interval over seeds, the paper's number."""
    found = rows.grouped(
        PATH,
        rows.read(PATH, COLUMNS, fault),
        lambda row: (row["game"], preset_of(row), row["agent"], scale_of(row)),
    )
    lines = [
        "| game | preset | agent | frames | scale | score |"
        " 95 % interval | seeds | rooms | positions | positions, scored games alone |"
        " lwm in the paper, 50M frames |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (game, preset, agent, share), group in sorted(found.items()):
        score = np.array([float(r["score"]) for r in group])
        cells = (
            game, preset, agent, f"{int(group[0]['frames']):,}", f"{share:g}",
            f"{score.mean():.2f}",
            interval(score), str(len(group)), _mean(group, "rooms"), _mean(group, "positions"),
            _mean(group, "eval_positions"),
            f"{PAPER[game]:g}" if game in PAPER else "–",
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _mean(group: list[dict[str, str]], column: str) -> str:
    values = [float(r[column]) for r in group if r[column]]
    return f"{np.mean(values):.1f}" if values else "–"
