"""The supplementary's thought experiment, measured: what does a TV full of noise pay?

One run of the ordinary loop per row.  ``policy`` random: actions are uniform and only the bonus is
trained; agent: the DQN is trained with that bonus.  Numbers are of the last quarter of a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lwm import runs
from lwm.config import Config, load_preset
from lwm.errors import RunFailed
from lwm.experiments import campaign, rows, runner
from lwm.experiments.options import Options
from lwm.files import replace_between
from lwm.statistics import interval
from lwm.viewing import Numbers, Viewing, between

PATH = rows.RESULTS / "noisy-tv.csv"
COLUMNS = (
    "env", "policy", "bonus", "embedding", "seed", "frames", "bonus_tv", "bonus_elsewhere",
    "time_share", "commit", "score", "solved", "command", "machine",
)  # fmt: skip
KEYS = ("command",)

BONUSES = {
    "pixels": "raw observation",
    "rf": "random features",
    "idf": "inverse dynamics",
    "rnd": "RND",
    "wmse": "W-MSE + LWM",
}
POLICIES = {"random": "random player", "agent": "agents trained with the bonus"}
GAME = "montezuma_revenge"
STEPS = {
    ("labyrinth", "random"): 100_000,
    ("labyrinth", "agent"): 1_000_000,
    (GAME, "random"): 100_000,
    (GAME, "agent"): 250_000,
}
"""Agent steps of a run at scale 1: agents have those of presets ``paper`` and ``laptop``."""
RAW = {"labyrinth": 12, GAME: 84 * 84}
"""Numbers in an observation, which raw prediction takes as they are."""
SIZES = (2, 4, 8, 32)
HIDDEN = 128
"""Width of Φ's hidden layers on bits, if nothing else is said."""
LAST = 0.75
"""Share of a run after which its numbers are taken."""
PICTURE, PAGE = Path("docs/noisy-tv.png"), Path("docs/noisy-tv.md")

_MARKS = ("<!-- noisy-tv: written by `lwm reproduce noisy-tv` -->", "<!-- noisy-tv end -->")


@dataclass(frozen=True)
class Setting:
    """One row before seeds."""

    env: str
    policy: str
    bonus: str
    embedding: int
    steps: int
    hidden: int = HIDDEN
    """Labyrinth: width of Φ's two hidden layers; 0: Φ is linear."""

    def changes(self) -> dict[str, str]:
        """Settings on top of the preset, as a command gives them."""
        found = {"encoder.representation": self.bonus}
        if self.bonus != "pixels":
            found["encoder.embedding"] = str(self.embedding)
        if self.env == "labyrinth":
            found["env.tv"] = "true"
            if self.bonus != "pixels":  # these are no bits any more
                found |= {
                    "world_model.sigmoid_output": "false",
                    "encoder.pretrain_iterations": "2000",
                }
            if self.hidden != HIDDEN:
                found["encoder.hidden"] = str(self.hidden)
        else:
            found["atari.tv"] = "true"
            if self.bonus == "pixels":  # 7,056 of them do not pass through the RNN's 256
                found["world_model.residual"] = "true"
            elif self.bonus != "rf":  # the preset's 1,000 leave a Φ that the model cannot follow
                found["encoder.pretrain_iterations"] = "5000"
        if self.policy == "random":
            found |= {
                "loop.policy": "random",
                "world_model.pretrain_batch": "8" if self.env == GAME else "16",
                "evaluation.episodes": "8",
            }
        return found

    def job(self, seed: int) -> runner.Job:
        """The training run of one seed."""
        if self.env == "labyrinth":
            workload, preset = "labyrinth", "paper"
            place, key = ("--size", "3"), {"env.size": "3"}
        else:
            workload, preset = "atari", "laptop"
            place, key = ("--game", self.env), {"atari.game": self.env}
        flags = (*place, "--agent", "lwm", "--preset", preset, "--frames", str(self.steps))
        changes = self.changes()
        config = load_preset(
            preset,
            {**key, "agent": "lwm", "loop.total_frames": self.steps, "seed": seed, **changes},
            workload,
        )
        told = tuple(f"{k}={v}" for k, v in changes.items())
        arguments = ("train", workload, *flags, "--seed", str(seed), *told)
        width = "" if self.hidden == HIDDEN else f"-hidden{self.hidden}"
        name = f"{self.env}-{self.policy}-{self.bonus}{self.embedding}{width}-{self.steps}"
        return runner.Job(f"noisy-tv/{name}/seed{seed}", arguments, config)

    def key(self, seed: int) -> tuple[str, ...]:
        """The cells of ``KEYS``."""
        return (self.job(seed).command,)

    def rows(self, seed: int) -> list[dict[str, Any]]:
        """The row of a finished run, from its directory."""
        job = self.job(seed)
        result, origin = campaign.outcome(job)
        repeat = 1 if self.env == "labyrinth" else job.config.atari.action_repeat
        row = {
            "env": self.env,
            "policy": self.policy,
            "bonus": self.bonus,
            "embedding": self.embedding,
            "seed": seed,
            "frames": result["frames"] * repeat,
            **numbers(job.directory, result["frames"])._asdict(),
            "score": result["score"],
            "solved": result.get("solved"),
            **origin,
        }
        return [row]


def numbers(run: Path, steps: int) -> Numbers:
    """What the TV paid in the last quarter of a run of so many agent steps."""
    told = [r for r in runs.read_metrics(run) if "tv/steps" in r]
    if not told:
        raise RunFailed(f"{run} does not tell what its TV paid")
    early = [r for r in told if r["frames"] <= LAST * steps]
    return between(early[-1] if early else Viewing().totals, told[-1])


def plan(scale: float | None = None) -> list[tuple[Setting, int]]:
    """Every (setting, seed), in the order in which time is best spent."""

    def settings(env: str, policy: str, which: list[tuple[str, int]]) -> list[Setting]:
        return [Setting(env, policy, b, d, steps(env, policy, scale)) for b, d in which]

    maze, images = "labyrinth", [(b, 32) for b in ("wmse", "rf", "idf", "rnd")]
    raw = ("pixels", RAW[maze])
    every = [raw, *((b, d) for d in SIZES for b in ("wmse", "rf", "idf", "rnd"))]
    agents = [("wmse", 8), raw, ("wmse", 2), ("wmse", 4), ("wmse", 32)]
    agents += [(b, 8) for b in ("rf", "idf", "rnd")]
    linear_agents = [
        replace(s, hidden=0) for s in settings(maze, "agent", [("wmse", 4), ("wmse", 2)])
    ]
    linear_walks = [
        replace(s, hidden=0) for s in settings(maze, "random", [("wmse", d) for d in SIZES])
    ]
    screens = [images[0], ("pixels", RAW[GAME]), *images[1:]]
    blocks = [
        (settings(GAME, "random", [*screens, ("wmse", 4), ("wmse", 8)]), range(1)),
        (settings(maze, "random", every), range(3)),
        (linear_walks, range(3)),
        (linear_agents, range(3)),
        (settings(maze, "agent", agents), range(3)),
        (settings(GAME, "agent", screens), range(1)),
    ]
    return [(s, seed) for some, seeds in blocks for seed in seeds for s in some]


def steps(env: str, policy: str, scale: float | None) -> int:
    """Agent steps of a run at this scale: at least twice the warm-up."""
    workload, preset = ("labyrinth", "paper") if env == "labyrinth" else ("atari", "laptop")
    warm = load_preset(preset, workload=workload).loop.warmup_frames
    return max(round(STEPS[env, policy] * (1.0 if scale is None else scale)), 2 * warm)


def config_of(row: Mapping[str, str]) -> Config:
    """The config that a row's command gives with this version."""
    cells = (row["env"], row["policy"], row["bonus"], int(row["embedding"]))
    hidden = int(rows.told(row["command"]).get("encoder.hidden", HIDDEN))
    return Setting(*cells, _steps(row), hidden).job(int(row["seed"])).config


def _steps(row: Mapping[str, str]) -> int:
    """Agent steps that a row's command asks for: its run ends with a cycle, some steps later."""
    return int(rows.told(row["command"])["loop.total_frames"])


def _fault(row: Mapping[str, str]) -> str:
    steps = rows.told(row["command"]).get("loop.total_frames", "")
    bad = "" if steps.isdigit() else f"no --frames in the command {row['command']!r}"
    return rows.unknown(row, "bonus", BONUSES) or bad


def status() -> str:
    """How many of the planned runs are there."""
    return campaign.status(plan(), PATH, COLUMNS, KEYS)


def campaign_of(options: Options) -> campaign.Campaign:
    """The runs that the options ask for."""
    return campaign.Campaign("noisy-tv", plan(options.scale), PATH, COLUMNS, KEYS, "bonus_tv")


def main(options: Options) -> int:
    """Run what is missing (unless ``show``), a row as each run ends; then print and draw."""
    options.allow("noisy-tv", "only", "seeds", "jobs", "show", "scale")
    if not options.show:
        campaign.run_missing(campaign_of(options), options)
    rows.there("noisy-tv", PATH, rows.read(PATH, COLUMNS, _fault))
    table = markdown()
    print(table)
    full = ", ".join(f"{env} {policy} {n:,}" for (env, policy), n in STEPS.items())
    print(f"each row gives its own agent steps; those of scale 1: {full}")
    replace_between(PAGE, *_MARKS, f"\n\n{table}\n\n")
    _draw()
    return 0


Group = tuple[str, str, int, str, int]


def _key(row: Mapping[str, str]) -> Group:
    """Settings other than those that the plan gives such a row stand behind its policy."""
    cells = (row["env"], row["policy"], row["bonus"], int(row["embedding"]))
    usual = Setting(*cells, _steps(row)).changes()
    told = {k: v for k, v in rows.told(row["command"]).items() if not k.startswith("--")}
    del told["loop.total_frames"]
    other = [f"{key}={value}" for key, value in told.items() if usual.get(key) != value]
    other += [f"without {key}" for key in usual if key not in told]
    policy = ", ".join([row["policy"], *sorted(other)])
    return row["env"], policy, _steps(row), row["bonus"], int(row["embedding"])


def grouped() -> dict[Group, list[dict[str, str]]]:
    """The seeds of each (env, policy, steps, bonus, embedding), in the order of the table."""
    found = rows.grouped(PATH, rows.read(PATH, COLUMNS, _fault), _key)
    order = list(BONUSES)
    return dict(
        sorted(found.items(), key=lambda item: (*item[0][:3], order.index(item[0][3]), item[0][4]))
    )


def markdown() -> str:
    """The table from the rows: means over seeds, and the interval of the difference."""
    lines = [
        "| environment | policy | agent steps | bonus | embedding | on re-tune steps | elsewhere |"
        " difference [95 % interval] | time share | score | solved | seeds |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (env, policy, size, bonus, embedding), group in grouped().items():
        tv, elsewhere, share, score, solved = (
            np.array([float(r[c]) for r in group if r[c]])
            for c in ("bonus_tv", "bonus_elsewhere", "time_share", "score", "solved")
        )
        both = len(tv) == len(elsewhere) == len(group)
        apart = f"{(tv - elsewhere).mean():+.2f}" if both else "–"
        if both and len(group) > 1:
            apart += f" {interval(tv - elsewhere)}"
        agent = policy.startswith("agent")
        cells = (
            env, policy, f"{size:,}", BONUSES[bonus], str(embedding), _mean(tv, ".2f"),
            _mean(elsewhere, ".2f"), apart, _mean(share, ".1%"),
            _mean(score, ".1f") if agent else "–", _mean(solved, ".1%") if agent else "–",
            str(len(group)),
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _mean(values: np.ndarray, form: str) -> str:
    return format(values.mean(), form) if len(values) else "–"


def panels() -> dict[str, list[tuple[str, float, float]]]:
    """Environment and policy -> each bonus, what it pays on re-tune steps, and elsewhere.

    Without rows of further settings, but for a linear Φ: they stand in the table only.
    """
    found: dict[str, list[tuple[str, float, float]]] = {}
    order = list(BONUSES)
    for (env, told_policy, size, bonus, embedding), group in sorted(
        grouped().items(), key=lambda item: order.index(item[0][3])
    ):
        told = [r for r in group if r["bonus_tv"] and r["bonus_elsewhere"]]
        policy, _, other = told_policy.partition(", ")
        if not told or other not in ("", "encoder.hidden=0"):
            continue
        words = [BONUSES[bonus], str(embedding) if bonus != "pixels" else ""]
        words += [
            "linear Φ" if other else "",
            f"{size:,} steps" if size < STEPS[env, policy] else "",
        ]
        tv, elsewhere = (
            float(np.mean([float(r[c]) for r in told])) for c in ("bonus_tv", "bonus_elsewhere")
        )
        bar = (", ".join(word for word in words if word), tv, elsewhere)
        found.setdefault(f"{env.replace('_', ' ')}, {POLICIES[policy]}", []).append(bar)
    return dict(sorted(found.items()))


def _draw() -> None:
    bars = panels()
    if not bars:
        return
    from lwm.plots import television

    try:
        television.bars(bars, PICTURE)
    except ImportError:
        print("no picture: install the extra lwm[viz]")
    else:
        print(f"picture: {PICTURE}")
