"""Table 3 (supplementary): lwm with a feed-forward world model, and with random features."""

from __future__ import annotations

from lwm.experiments import atari, campaign, table2
from lwm.experiments.options import PAPER_ATARI_FRAMES, Options

PATH, COLUMNS, KEYS = atari.PATH, atari.COLUMNS, atari.KEYS
AGENTS = ("lwm-ff", "lwm-rf")

PAPER = {
    "freeway": (33.0, 30.4),
    "frostbite": (6353.0, 5178.0),
    "venture": (1206.0, 810.0),
    "gravitar": (1094.0, 1116.0),
    "solaris": (715.0, 903.0),
    "montezuma_revenge": (397.0, 0.0),
}
"""The paper's scores in the order of ``AGENTS``, one seed each."""

_PLAIN = Options()


def plan(options: Options = _PLAIN) -> list[tuple[atari.Setting, int]]:
    """Every (setting, seed): one seed as in the paper, more where ``--seeds`` asks."""
    found = table2.settings(AGENTS, options)
    return [(s, seed) for seed in range(options.seeds or 1) for s in found]


def status() -> str:
    """How many of the planned runs are there."""
    return campaign.status(plan(), PATH, COLUMNS, KEYS)


def campaign_of(options: Options) -> campaign.Campaign:
    """The runs that the options ask for."""
    return campaign.Campaign("table3", plan(options), PATH, COLUMNS, KEYS)


def main(options: Options) -> int:
    """Run what is missing (unless ``show``), a row as each run ends; then print."""
    options.allow("table3", "only", "seeds", "jobs", "show", "scale", "game", "preset")
    if not options.show:
        wanted = campaign_of(options)
        print(table2.cost(wanted.plan), flush=True)
        campaign.run_missing(wanted, options)
    print(markdown())
    print(f"\nscale 1 is the paper's {PAPER_ATARI_FRAMES:,} frames; each row gives its own scale")
    print("lwm itself is run by lwm reproduce table2")
    return 0


def markdown() -> str:
    """Both ablations and lwm itself, ours beside the paper's, a block a scale."""
    head = ["game", "scale", "preset"]
    for agent in ("feed-forward", "random features", "lwm"):
        head += [f"{agent}, ours", "95 % interval", "seeds"]
    head += ["feed-forward, paper", "random features, paper", "LWM, paper"]
    lines = [head, ["---"] * len(head)]
    for (scale, preset, game), agents in table2.whole(PATH, AGENTS).items():
        groups = (agents.get(agent, []) for agent in (*AGENTS, "lwm"))
        cells = [cell for group in groups for cell in table2.summary(group)]
        paper = [*PAPER.get(game, (None, None)), atari.PAPER.get(game)]
        lines.append([game, f"{scale:g}", preset, *cells, *map(table2.number, paper)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
