"""Table 2: six Atari games at 50M frames; ours and ours without the bonus beside the paper's.

Its rows are in the same file as those of ``atari`` and ``table3``: a run is a run, whoever asked.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lwm.config import load_preset
from lwm.envs.atari import rom_of
from lwm.experiments import atari, campaign, rows
from lwm.experiments.options import PAPER_ATARI_FRAMES, Options
from lwm.statistics import interval

PATH, COLUMNS, KEYS = atari.PATH, atari.COLUMNS, atari.KEYS
AGENTS, SEEDS = ("lwm", "dqn"), 5

METHODS = ("EMI", "EX2", "ICM", "RND", "AE-SimHash")
PAPER = {
    "freeway": (33.8, 27.1, 33.6, 33.3, 33.5),
    "frostbite": (7002.0, 3387.0, 4465.0, 2227.0, 5214.0),
    "venture": (646.0, 589.0, 418.0, 707.0, 445.0),
    "gravitar": (558.0, 550.0, 424.0, 546.0, 482.0),
    "solaris": (2688.0, 2276.0, 2453.0, 2051.0, 4467.0),
    "montezuma_revenge": (387.0, 0.0, 161.0, 377.0, 75.0),
}
"""The paper's columns beside its own method, whose scores are ``atari.PAPER``."""
GAMES = tuple(PAPER)

CONTEXT = {
    "random": [atari.RANDOM_HUMAN[game][0] for game in GAMES],
    "human": [atari.RANDOM_HUMAN[game][1] for game in GAMES],
    "LWM (paper)": [atari.PAPER[game] for game in GAMES],
    "Rainbow, Nature CNN": [33.3, 6100.0, 1412.0, 1108.0, 2205.0, 567.0],
    "Rainbow, Impala CNN": [33.6, 8210.0, 1521.0, 2369.0, 2278.0, 1570.0],
    "DreamerV3": [33.5, 10746.0, 0.0, 4382.0, 3918.0, 1817.0],
}
"""Published scores at 50M frames, or taken from public score files, in the order of ``GAMES``.
Protocols differ: orders of magnitude."""

SMALL = 0.128
"""Scales below leave preset ``paper`` less than four of its warm-ups: preset ``laptop`` is run."""

_PLAIN = Options()

Groups = dict[tuple[float, str, str], dict[str, list[dict[str, str]]]]
"""(scale, preset with further settings, game) -> agent -> rows of its seeds."""


def settings(agents: Sequence[str], options: Options) -> list[atari.Setting]:
    """What the options ask for: every game with every agent, at one scale."""
    for game in options.game:
        rom_of(game)  # an unknown one is told before anything runs
    small = options.scale is not None and options.scale < SMALL
    preset = options.preset or ("laptop" if small else "paper")
    variant = ""
    if options.scale is not None:
        steps = round(options.scale * PAPER_ATARI_FRAMES / 4)
        variant = campaign.shortened(load_preset(preset, workload="atari"), steps)
    return [
        atari.Setting(game, agent, preset, variant=variant)
        for game in options.game or GAMES
        for agent in agents
    ]


def plan(options: Options = _PLAIN) -> list[tuple[atari.Setting, int]]:
    """Every (setting, seed): all games with one seed before the next."""
    return [(s, seed) for seed in range(SEEDS) for s in settings(AGENTS, options)]


def status() -> str:
    """How many of the planned runs are there."""
    return campaign.status(plan(), PATH, COLUMNS, KEYS)


def campaign_of(options: Options) -> campaign.Campaign:
    """The runs that the options ask for."""
    return campaign.Campaign("table2", plan(options), PATH, COLUMNS, KEYS)


def main(options: Options) -> int:
    """Run what is missing (unless ``show``), a row as each run ends; then print."""
    options.allow("table2", "only", "seeds", "jobs", "show", "scale", "game", "preset")
    if not options.show:
        wanted = campaign_of(options)
        print(cost(wanted.plan), flush=True)
        campaign.run_missing(wanted, options)
    print(markdown())
    print(f"\nscale 1 is the paper's {PAPER_ATARI_FRAMES:,} frames; each row gives its own scale")
    return 0


def cost(todo: campaign.Plan) -> str:
    """What one of the runs takes on one core, where it was measured."""
    job = todo[0][0].job(todo[0][1])
    steps, preset = job.config.loop.total_frames, job.config.preset
    millions = steps * job.config.atari.action_repeat / 1e6
    told = f"{len(todo)} runs in the plan, {millions:g}M frames each (preset {preset})"
    hours = hours_per_million()
    if preset != "paper" or hours is None:
        return f"{told}; what one costs here: lwm plan {' '.join(job.arguments[1:])}"
    return (
        f"{told}; on one core about {hours * millions:.0f} hours a run "
        f"({hours:.2f} per million frames, results/bench.json)"
    )


def hours_per_million() -> float | None:
    """Hours of one core per million frames with the paper's settings; None: never measured."""
    try:
        found = json.loads((rows.RESULTS / "bench.json").read_text(encoding="utf-8"))
        (ms,) = [
            row["ms"]
            for row in found
            if (row["workload"], row["stage"], row["cores"]) == ("atari", "cycle", 1)
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    paper = load_preset("paper", workload="atari")
    return float(ms) * 1e6 / (paper.loop.actors * paper.atari.action_repeat) / 3.6e6


def whole(path: Path, agents: Sequence[str]) -> Groups:
    """Rows by scale, settings and game, where one of ``agents`` was run; the paper's scale and
    games in front, whether anybody has run them or not."""
    groups: Groups = {}
    seeds = rows.grouped(
        path,
        rows.read(path, COLUMNS, atari.fault),
        lambda row: (atari.scale_of(row), atari.preset_of(row), row["game"], row["agent"]),
    )
    for (scale, preset, game, agent), group in seeds.items():
        groups.setdefault((scale, preset, game), {})[agent] = group
    ours = {key: group for key, group in groups.items() if any(a in group for a in agents)}
    ordered = sorted(ours.items(), key=lambda item: (-item[0][0], item[0][1:]))
    first = ((1.0, "paper", game) for game in GAMES)
    return {key: groups.get(key, {}) for key in first} | dict(ordered)


def summary(group: list[dict[str, str]]) -> list[str]:
    """Cells of one agent: mean over seeds, interval, number of seeds."""
    if not group:
        return ["–", "–", "0"]
    score = np.array([float(row["score"]) for row in group])
    return [f"{score.mean():.1f}", interval(score), str(len(group))]


def number(value: float | None) -> str:
    """A score of the paper."""
    return "–" if value is None else f"{value:g}"


def markdown() -> str:
    """The paper's table with ours beside it, a block a scale; then others' scores as context."""
    head = ["game", "scale", "preset", "lwm, ours", "95 % interval", "seeds"]
    head += ["no bonus (dqn), ours", "95 % interval", "seeds"]
    head += [f"{name}, paper" for name in (*METHODS, "LWM")]
    lines = [head, ["---"] * len(head)]
    for (scale, preset, game), agents in whole(PATH, AGENTS).items():
        ours = [cell for agent in AGENTS for cell in summary(agents.get(agent, []))]
        paper = [*PAPER.get(game, [None] * len(METHODS)), atari.PAPER.get(game)]
        lines.append([game, f"{scale:g}", preset, *ours, *map(number, paper)])
    context = [["50M frames, published", *GAMES], ["---"] * (1 + len(GAMES))]
    context += [[name, *map(number, scores)] for name, scores in CONTEXT.items()]
    return "\n\n".join(
        "\n".join("| " + " | ".join(line) + " |" for line in table) for table in (lines, context)
    )
