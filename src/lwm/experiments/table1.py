"""Table 1 and the labyrinth ablations of the supplementary: ours | paper | limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lwm.config import AGENTS, Config, load_preset
from lwm.experiments import campaign, limits, rows, runner
from lwm.experiments.options import PAPER_LABYRINTH_FRAMES, Options
from lwm.files import replace_between
from lwm.statistics import half_width

PATH = rows.RESULTS / "table1.csv"
COLUMNS = (
    "size", "agent", "variant", "preset", "seed", "frames", "episodes", "score", "score128",
    "solved", "median_solved", "command", "commit", "machine",
)  # fmt: skip
KEYS = ("size", "agent", "variant", "preset", "seed")

PAPER = {
    (3, "random", ""): -156.0,
    (3, "dqn", ""): -12.4,
    (3, "lwm", ""): -10.8,
    (4, "random", ""): -518.0,
    (4, "dqn", ""): -1000.0,
    (4, "lwm", ""): -23.5,
    (5, "random", ""): -848.0,
    (5, "dqn", ""): -1000.0,
    (5, "lwm", ""): -72.1,
    (3, "mbie-eb", ""): -55.7,
    (4, "mbie-eb", ""): -1000.0,
    (3, "lwm-ff", ""): -969.0,
}
"""(size, agent, variant) -> the paper's score.  Of MBIE-EB we report every beta: the paper's score
stands beside each, and none is chosen by its test score."""


@dataclass(frozen=True)
class Setting:
    """One row of the table before seeds: what is trained."""

    size: int
    agent: str
    preset: str = "paper"
    variant: str = ""
    """``key=value`` settings on top of the preset, separated by blanks."""

    @property
    def id(self) -> str:
        """Name of the row: ``4x4-lwm-paper``."""
        tail = f"-{self.variant.replace(' ', '-')}" if self.variant else ""
        return f"{self.size}x{self.size}-{self.agent}-{self.preset}{tail}"

    def job(self, seed: int) -> runner.Job:
        """The training run of one seed."""
        flags = ("--size", str(self.size), "--agent", self.agent, "--preset", self.preset)
        changes = self.variant.split()
        arguments = ("train", "labyrinth", *flags, "--seed", str(seed), *changes)
        config = load_preset(
            self.preset,
            {"env.size": self.size, "agent": self.agent, "seed": seed}
            | dict(change.split("=", 1) for change in changes),
        )
        return runner.Job(f"table1/{self.id}/seed{seed}", arguments, config)

    def key(self, seed: int) -> tuple[str, ...]:
        """The cells of ``KEYS``."""
        return (str(self.size), self.agent, self.variant, self.preset, str(seed))

    def rows(self, seed: int) -> list[dict[str, Any]]:
        """The row of a finished run, from its directory."""
        job = self.job(seed)
        result, origin = campaign.outcome(job)
        row = {
            "size": self.size,
            "agent": self.agent,
            "variant": self.variant,
            "preset": self.preset,
            "seed": seed,
            **origin,
            **{k: result[k] for k in ("frames", "episodes", "score", "score128", "solved")},
            "median_solved": result["median_solved"],
        }
        return [row]


_SWITCHES = (
    "dqn.reset_state=false",
    "intrinsic.boundary=mask",
    "intrinsic.boundary=reset",
    "replay.start_state=zero",
    "intrinsic.moments_include_burn_in=true",
    "dqn.truncation_bootstraps=false",
)


# What `best` changes, taken back one at a time.
_WITHOUT = (
    "replay.symmetry_share=0",
    "replay.symmetry_share=0.5",
    "replay.align_starts=0",
    "intrinsic.start_belief=zero",
    "world_model.loss=mse world_model.learning_rate=5e-4",
    "loop.actors=32",
    "dqn.n_step=1",
    "dqn.gap=0",
    "dqn.epsilon_base=0.01 dqn.epsilon_high=1",
    "env.early_steps_per_room=0",
    "intrinsic.final_beta=-1",
    "dqn.final_learning_rate=0",
    "dqn.average=0",
    "world_model.clip_norm=0",
    "world_model.pretrain_iterations=1000 world_model.pretrain_rows=100",
)


def plan() -> list[tuple[Setting, int]]:
    """Every (setting, seed), in the order in which time is best spent."""
    lwm_dqn = ("lwm", "dqn")
    betas = [f"intrinsic.beta={b}" for b in (0.1, 1, 10)]
    blocks: list[tuple[list[Setting], range]] = [
        ([Setting(n, a) for n in (3, 4) for a in lwm_dqn], range(3)),
        ([Setting(5, "lwm", "best")], range(3)),
        ([Setting(n, "lwm", "best") for n in (3, 4)], range(3)),
        ([Setting(5, a) for a in lwm_dqn], range(3)),
        ([Setting(5, "lwm", variant=s) for s in _SWITCHES], range(1)),
        ([Setting(n, "mbie-eb", variant=b) for n in (3, 4) for b in betas], range(1)),
        ([Setting(3, "lwm-ff")], range(3)),
        ([Setting(n, a, "official") for n in (3, 4, 5) for a in lwm_dqn], range(1)),
        ([Setting(n, "lwm", p) for p in ("paper", "best") for n in (3, 4, 5)], range(3, 5)),
        ([Setting(4, "lwm", variant=s) for s in _SWITCHES], range(2)),
        ([Setting(4, "dqn", variant="intrinsic.leak_to_baseline=true")], range(2)),
        (
            [Setting(4, "lwm", "best", "dqn.epsilon_base=0.01 dqn.epsilon_high=1 dqn.gap=0")],
            range(1),
        ),
        ([Setting(5, "lwm", "best", "dqn.gap=0")], range(2)),
        ([Setting(5, "lwm", "best", "dqn.gap=0 dqn.symmetric_share=1")], range(3)),
        ([Setting(4, "lwm", "best", w) for w in _WITHOUT], range(2)),
        # An hour a run in float32: rounded products save a third of it.
        ([Setting(6, "lwm", "best", "unroll_precision=bfloat16")], range(3)),
        ([Setting(n, "random") for n in (3, 4, 5)], range(1)),
    ]
    return [(s, seed) for settings, seeds in blocks for seed in seeds for s in settings]


def config_of(row: Mapping[str, str]) -> Config:
    """The config that a row's command gives with this version."""
    setting = Setting(int(row["size"]), row["agent"], row["preset"], row["variant"])
    return setting.job(int(row["seed"])).config


def read() -> list[dict[str, str]]:
    """The rows that are there."""
    return rows.read(PATH, COLUMNS, _fault)


def _fault(row: Mapping[str, str]) -> str:
    return rows.unknown(row, "agent", AGENTS) or ("" if row["solved"] else "no share of solved")


def status() -> str:
    """How many of the planned runs are there."""
    return campaign.status(plan(), PATH, COLUMNS, KEYS)


def scaled(scale: float | None) -> list[tuple[Setting, int]]:
    """The plan at a fraction of the paper's frames: another variant, so its rows stay apart."""
    if scale is None or scale == 1:
        return plan()
    frames = round(scale * PAPER_LABYRINTH_FRAMES)
    cut = {s: campaign.shortened(s.job(0).config, frames) for s, _ in plan()}
    return [(replace(s, variant=f"{s.variant} {cut[s]}".strip()), seed) for s, seed in plan()]


def campaign_of(options: Options) -> campaign.Campaign:
    """The runs that the options ask for."""
    return campaign.Campaign("table1", scaled(options.scale), PATH, COLUMNS, KEYS)


def main(options: Options) -> int:
    """Run what is missing (unless ``show``), a row as each run ends; then print and plot."""
    options.allow("table1", "only", "seeds", "jobs", "show", "scale")
    if not options.show:
        campaign.run_missing(campaign_of(options), options)
    rows.there("table1", PATH, read())
    table = markdown()
    print(table)
    print(f"scale 1 is {PAPER_LABYRINTH_FRAMES:,} frames; other scales: total_frames in `variant`")
    _put_in_readme(table)
    _plot()
    return 0


def markdown() -> str:
    """The table from the rows: mean, 95 % interval over seeds, the paper's number, the limits."""
    found = rows.grouped(
        PATH, read(), lambda r: (int(r["size"]), r["agent"], r["variant"], r["preset"])
    )
    known = limits.table()
    lines = [
        "| size | agent | preset | variant | ours, 4,096 episodes | 95 % interval | seeds | "
        "128 episodes | solved | median of solved | paper | Bayes-optimal, ε = 0.01 | "
        "blind DFS, ε = 0 |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for key in sorted(found, key=_order):
        size, agent, variant, preset = key
        group = found[key]
        score = np.array([float(r["score"]) for r in group])
        medians = [float(r["median_solved"]) for r in group if r["median_solved"]]
        cells = [
            f"{size}×{size}",
            agent,
            preset,
            variant or "–",
            f"{score.mean():.2f}",
            interval(score),
            str(len(group)),
            f"{np.mean([float(r['score128']) for r in group]):.2f}",
            f"{np.mean([float(r['solved']) for r in group]):.2%}",
            f"{np.median(medians):.0f}" if medians else "–",
            _number(PAPER.get((size, agent, ""))),
            _number(known.get((size, "bayes-optimal-eps0.01"))),
            _number(known.get((size, "blind-dfs"))),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def interval(score: np.ndarray, digits: int = 2) -> str:
    """95 % interval of the mean over seeds by Student's t; one seed has none."""
    half, mean = half_width(score), score.mean()
    return "–" if half is None else f"[{mean - half:.{digits}f}, {mean + half:.{digits}f}]"


def _order(key: tuple[Any, ...]) -> tuple[Any, ...]:
    size, agent, variant, preset = key
    presets = ("paper", "best", "official", "debug")  # one that is no more: behind, by name
    place = presets.index(preset) if preset in presets else len(presets)
    return size, AGENTS.index(agent), place, preset, variant


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:g}"


def _put_in_readme(table: str) -> None:
    """Replace the generated part of README.md, where there is one."""
    begin, end = "<!-- table1: written by `lwm reproduce table1` -->\n", "<!-- /table1 -->"
    replace_between(rows.RESULTS.parent / "README.md", begin, end, table + "\n")


def _plot() -> None:
    from lwm import plots

    data = read()
    out = rows.RESULTS.parent / "docs" / "table1.png"
    if data:
        try:
            plots.score_plot(data, out, limits.table(), PAPER)
        except ImportError:
            print("no picture: install the extra lwm[viz]")
        else:
            print(f"picture: {out}")
