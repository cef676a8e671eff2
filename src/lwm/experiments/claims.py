"""Sentences of the paper that nobody tested, each as numbers with and without what it speaks of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lwm import runs, session
from lwm.config import Config, load_preset
from lwm.experiments import atari, campaign, claims_numbers, rows, runner, table1
from lwm.experiments.options import PAPER_ATARI_FRAMES, PAPER_LABYRINTH_FRAMES, Options
from lwm.files import replace_between
from lwm.statistics import interval

PATH = rows.RESULTS / "claims.csv"
COLUMNS = (
    "claim", "variant", "env", "seed", "frames", "value", "commit", "command", "machine",
)  # fmt: skip
KEYS = ("command",)

SIZE, FRAMES, SEEDS = 4, 300_000, 3
"""Of the labyrinth runs, preset ``paper``; those of Φ are one seed of preset ``laptop``."""
LABYRINTH, GAME = f"labyrinth-{SIZE}x{SIZE}", "montezuma_revenge"

SENTENCES = {
    "a": "Algorithm 1 computes the bonus anew for every sampled unroll",
    "b": "“The error of the world model indicates rooms that have not been visited during the "
    "current episode” (Sec. 4.1)",
    "c": "“keeping track of visited rooms in the belief state” (Sec. 4.1)",
    "d": "“Actors calculate LWM prediction error for the previous step and input it as a part of "
    "observation to the DQN” (Sec. 3.4)",
    "e": "“Φ is updated with W-MSE loss during the whole training; empirically, the "
    "representation adapts to the changing distribution of observations” (Sec. 3.4)",
    "f": "Φ is trained on frames shifted by up to 4 pixels (supplementary)",
    "g": "the world model helps by its bonus (Sec. 4.1): what is left of it at β = 0",
}

NUMBERS = {
    "score": "mean return of the final parameters on test seeds",
    "auc": "how often the bonus of a first visit exceeds that of a revisit; 0.5: chance",
    "auc_moves": "the same, over steps that led into another room",
    "rooms": "linear probe: which rooms of the map were visited (AUC, mean over rooms)",
    "doors": "linear probe: was the room behind an open door visited (AUC, mean over directions)",
    "positions": "positions visited by all actors in training",
    "rank_correlation": "of latent with temporal distance, on fresh play",
    "probe_x": "linear probe of the position on fresh play (R²)",
    "probe_y": "linear probe of the position on fresh play (R²)",
    "effective_rank": "of Φ's outputs on fresh play, 1 to 32",
}

FIRST = {
    "a": "recomputed", "b": "recurrent", "c": "observation and time", "d": "error as input",
    "e": "updated", "f": "shift 4", "g": "beta 1",
}  # fmt: skip
"""What the other variants of a claim are compared with."""


@dataclass(frozen=True)
class Setting:
    """One run, and what it is in which claims."""

    env: str
    agent: str = "lwm"
    change: str = ""
    """The switch, ``key=value``."""
    variants: tuple[tuple[str, str], ...] = ()
    """(claim, variant) that its score stands for (Atari: all its numbers)."""
    scale: float | None = None

    def job(self, seed: int) -> runner.Job:
        """The training run of one seed."""
        if self.env == LABYRINTH:
            frames = round((self.scale or FRAMES / PAPER_LABYRINTH_FRAMES) * PAPER_LABYRINTH_FRAMES)
            cut = campaign.shortened(load_preset("paper"), frames)
            found = table1.Setting(SIZE, self.agent, variant=f"{cut} {self.change}".strip())
            job = found.job(seed)
            return replace(job, id=job.id.replace("table1", "claims", 1))
        cut = ""
        if self.scale is not None:
            steps = round(self.scale * PAPER_ATARI_FRAMES / 4)
            cut = campaign.shortened(load_preset("laptop", workload="atari"), steps)
        # A run without a switch is one of the experiment ``atari``: it may be there already.
        owner = "claims" if self.change else "atari"
        variant = f"{cut} {self.change}".strip()
        return atari.Setting(self.env, self.agent, variant=variant, experiment=owner).job(seed)

    def key(self, seed: int) -> tuple[str, ...]:
        """The cells of ``KEYS``."""
        return (self.job(seed).command,)

    def rows(self, seed: int) -> list[dict[str, Any]]:
        """What the finished run has to say; nothing yet if it is compared with one to come."""
        job = self.job(seed)
        result, origin = campaign.outcome(job)
        told = self._told(job, seed, result)
        steps = job.config.atari.action_repeat if job.config.sees_images else 1
        common = {
            "env": self.env,
            "seed": seed,
            "frames": result["frames"] * steps,
            **origin,
        }
        return [{"claim": c, "variant": v, "value": value, **common} for c, v, value in told]

    def beside(self, seed: int) -> list[runner.Job]:
        """The run on whose walks this one is measured too, if any."""
        return [replace(self, agent="lwm").job(seed)] if self.agent == "lwm-ff" else []

    def _told(
        self, job: runner.Job, seed: int, result: dict[str, Any]
    ) -> list[tuple[str, str, float | None]]:
        """(claim and number, variant, value)."""
        if self.env != LABYRINTH:
            numbers = {"score": result["score"], "positions": _positions(job)}
            numbers |= claims_numbers.of_encoder(session.load(job.directory))
            return [(f"{c}-{n}", v, numbers[n]) for c, v in self.variants for n in numbers]
        told = [(f"{claim}-score", variant, result["score"]) for claim, variant in self.variants]
        if self.agent == "lwm-ff":
            (beside,) = self.beside(seed)
            if not runner.finished(beside):
                print(f"{job.id} waits for {beside.id}, whose walks it is measured on", flush=True)
                return []
            own, other = session.load(job.directory), session.load(beside.directory)
            return [*told, *claims_numbers.of_feed_forward(own, other)]
        if not self.change:
            told += claims_numbers.of_memory(session.load(job.directory))
        return told


def _positions(job: runner.Job) -> float | None:
    told = [r for r in runs.read_metrics(job.directory) if "coverage/positions" in r]
    return float(told[-1]["coverage/positions"]) if told else None


def plan(scale: float | None = None) -> list[tuple[Setting, int]]:
    """Every (run, seed): what all claims are compared with comes first."""
    base = tuple((claim, FIRST[claim]) for claim in ("a", "d", "g"))
    labyrinth = [
        Setting(LABYRINTH, variants=base),
        Setting(LABYRINTH, "lwm-ff"),
        Setting(LABYRINTH, change="intrinsic.stored_bonus=true", variants=(("a", "stored"),)),
        Setting(LABYRINTH, change="dqn.error_input=false", variants=(("d", "no error input"),)),
        Setting(LABYRINTH, change="intrinsic.beta=0", variants=(("g", "beta 0"),)),
    ]
    frozen = "encoder.freeze_after_pretraining=true"
    games = [
        Setting(GAME, variants=(("e", FIRST["e"]), ("f", FIRST["f"]))),
        Setting(GAME, change=frozen, variants=(("e", "frozen"),)),
        Setting(GAME, change="encoder.spatial_shift=0", variants=(("f", "shift 0"),)),
    ]
    found = [(s, seed) for seed in range(SEEDS) for s in labyrinth] + [(s, 0) for s in games]
    return [(replace(s, scale=scale), seed) for s, seed in found]


def config_of(row: Mapping[str, str]) -> Config:
    """The config that a row's command gives with this version."""
    told, seed = rows.told(row["command"]), int(row["seed"])
    further = " ".join(f"{k}={v}" for k, v in told.items() if not k.startswith("--"))
    agent, preset = told["--agent"], told["--preset"]
    if row["env"] == LABYRINTH:
        return table1.Setting(SIZE, agent, preset, further).job(seed).config
    return atari.Setting(row["env"], agent, preset, further).job(seed).config


def status() -> str:
    """How many of the planned runs are there."""
    return campaign.status(plan(), PATH, COLUMNS, KEYS)


def campaign_of(options: Options) -> campaign.Campaign:
    """The runs that the options ask for."""
    return campaign.Campaign(
        "claims", plan(options.scale), PATH, COLUMNS, KEYS, needs=Setting.beside
    )


def main(options: Options) -> int:
    """Run what is missing (unless ``show``), rows as each run ends; then print and write."""
    options.allow("claims", "only", "seeds", "jobs", "show", "scale")
    if not options.show:
        campaign.run_missing(campaign_of(options), options)
    rows.there("claims", PATH, rows.read(PATH, COLUMNS))
    table = markdown()
    print("\n".join(legend()))
    print(f"\n{table}\n")
    print(
        f"scale 1 is {PAPER_LABYRINTH_FRAMES:,} frames of the labyrinth and "
        f"{PAPER_ATARI_FRAMES:,} of Atari; each row gives its own"
    )
    begin, end = "<!-- claims: written by `lwm reproduce claims` -->\n", "<!-- /claims -->"
    replace_between(rows.RESULTS.parent / "docs" / "claims.md", begin, end, table + "\n")
    return 0


def legend() -> list[str]:
    """The sentence behind each letter of the table."""
    return [f"({claim}) {sentence}" for claim, sentence in SENTENCES.items()]


def markdown() -> str:
    """The table from the rows: mean over seeds, and the difference to the claim's first variant."""
    groups: dict[tuple[str, str, float], dict[str, dict[int, float]]] = {}
    made_by = {(claim, name): s.change for s, _ in plan() for claim, name in s.variants}
    found = rows.grouped(PATH, rows.read(PATH, COLUMNS, _fault), lambda row: _key(row, made_by))
    for (claim, env, scale, variant), group in found.items():
        values = {int(row["seed"]): float(row["value"]) for row in group if row["value"]}
        groups.setdefault((claim, env, scale), {})[variant] = values
    lines = [
        "| claim | number | env | scale | variant | mean | 95 % interval | seeds | "
        "difference, same seeds | 95 % interval of it |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (name, env, scale), variants in sorted(groups.items(), key=lambda g: g[0]):
        claim, _, number = name.partition("-")
        first = FIRST[claim]
        for variant in sorted(variants, key=lambda v: v != first):
            values, base = variants[variant], variants.get(first, {})
            shared = [values[s] - base[s] for s in values if s in base and variant != first]
            cells = [claim, number, env, f"{scale:g}", variant, *_mean(list(values.values()))]
            lines.append("| " + " | ".join([*cells, str(len(values)), *_mean(shared)]) + " |")
    return "\n".join(lines)


def _fault(row: Mapping[str, str]) -> str:
    letter = row["claim"].partition("-")[0]
    return "" if letter in FIRST else f"unknown claim {row['claim']!r}"


def _key(
    row: Mapping[str, str], made_by: Mapping[tuple[str, str], str]
) -> tuple[str, str, float, str]:
    """Claim, environment with what the run's command sets beside the variant, scale, variant.

    ``made_by``: (claim, variant) -> the setting that makes it.
    """
    switch = made_by.get((row["claim"].partition("-")[0], row["variant"]), "")
    told = rows.told(row["command"])
    steps = told.pop("loop.total_frames", None)
    further = (f"{key}={value}" for key, value in told.items() if not key.startswith("--"))
    env = ", ".join([row["env"], *sorted(s for s in further if s != switch)])
    if row["env"] != LABYRINTH:
        preset = {"preset": told.get("--preset", "laptop"), "command": row["command"]}
        return row["claim"], env, atari.scale_of({**row, **preset}), row["variant"]
    asked = int(steps) if steps is not None and steps.isdigit() else int(row["frames"])
    return row["claim"], env, asked / PAPER_LABYRINTH_FRAMES, row["variant"]


def _mean(values: list[float]) -> list[str]:
    """Mean and its interval over seeds."""
    if not values:
        return ["–", "–"]
    return [f"{np.mean(values):.3f}", interval(np.array(values), 3)]
