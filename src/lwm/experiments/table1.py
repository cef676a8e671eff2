"""Table 1 and the labyrinth ablations of the supplementary: ours | paper | limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from lwm.config import AGENTS, Config
from lwm.experiments import campaign, limits, rows
from lwm.experiments.options import PAPER_LABYRINTH_FRAMES, Options
from lwm.experiments.table1_plan import ABLATED, ROUNDED, SHORT, WITHOUT, Setting, ablation, plan
from lwm.files import replace_between
from lwm.statistics import interval

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
    """The plan at a fraction of its frames: other variants, so their rows stay apart."""
    return [(_shorter(s, scale), seed) for s, seed in plan()] if scale not in (None, 1) else plan()


@cache
def _shorter(setting: Setting, scale: float) -> Setting:
    config = setting.job(0).config
    cut = campaign.shortened(config, round(scale * config.loop.total_frames))
    whole = setting.variant.replace(SHORT, "").strip()
    return replace(setting, variant=f"{whole} {cut}".strip())


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
    _put_in_pages(table)
    _plot()
    return 0


def markdown() -> str:
    """All scores, and the ablations of preset ``best`` if there are any."""
    return "\n\n".join(table for table in (scores(), ablations()) if table)


def scores() -> str:
    """The table from the rows: mean, 95 % interval over seeds, the paper's number, the limits."""
    known = limits.table()
    lines = [
        "| size | agent | preset | variant | ours, 4,096 episodes | 95 % interval | seeds | "
        "128 episodes | solved | median of solved | paper | Bayes-optimal, ε = 0.01 | "
        "blind DFS, ε = 0 |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (size, agent, preset, variant), group in _groups().items():
        score = np.array([float(r["score"]) for r in group])
        cells = [
            f"{size}×{size}",
            agent,
            preset,
            variant or "–",
            f"{score.mean():.2f}",
            interval(score),
            _seeds(group),
            f"{np.mean([float(r['score128']) for r in group]):.2f}",
            _solved(group),
            _median(group),
            _number(PAPER.get((size, agent, ""))),
            _number(known.get((size, "bayes-optimal-eps0.01")), ".2f"),
            _number(known.get((size, "blind-dfs")), ".2f"),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def summary() -> str:
    """The presets as they are, or with rounded products: what the README shows."""
    known = limits.table()
    lines = [
        "| size | agent | preset | ours | seeds | solved | median of solved | paper | "
        "best possible |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (size, agent, preset, variant), group in _groups().items():
        if variant not in ("", ROUNDED):
            continue
        best = known.get((size, "bayes-optimal-eps0.01"))
        blind = known.get((size, "blind-dfs"))
        limit = "–" if blind is None else f"unknown; blind DFS {blind:.2f}"
        cells = [
            f"{size}×{size}",
            f"`{agent}`",
            f"{preset}, bfloat16" if variant == ROUNDED else preset,
            f"{np.mean([float(r['score']) for r in group]):.2f}",
            str(len(group)),
            _solved(group),
            _median(group),
            _number(PAPER.get((size, agent, ""))),
            limit if best is None else f"{best:.2f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def ablations() -> str:
    """What ``best`` changes, taken back one at a time; differences are on the same seeds."""
    found = {
        key: [row for row in group if int(row["seed"]) in ABLATED]
        for key, group in _every_group().items()
        if key in _ABLATIONS
    }
    base = {row["seed"]: float(row["score"]) for row in found.get(_key(ablation("")), [])}
    lines = [
        "| `best` on 4×4, 300,000 frames, products of bfloat16, with | score | difference | seeds "
        "| solved | median of solved |",
        "|---|---|---|---|---|---|",
    ]
    for key, taken_back in _ABLATIONS.items():
        if group := found.get(key):
            apart = [float(r["score"]) - base[r["seed"]] for r in group if r["seed"] in base]
            cells = [
                f"`{taken_back}`" if taken_back else "– (as it is)",
                f"{np.mean([float(r['score']) for r in group]):.2f}",
                " ".join(f"{value:+.2f}" for value in apart) if taken_back and apart else "–",
                _seeds(group),
                _solved(group),
                _median(group),
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) if len(lines) > 2 else ""


Key = tuple[int, str, str, str]
"""Size, agent, preset, variant."""


def _key(setting: Setting) -> Key:
    return setting.size, setting.agent, setting.preset, setting.variant


_ABLATIONS = {_key(ablation(taken_back)): taken_back for taken_back in ("", *WITHOUT)}
"""The ablations of preset ``best``, which have a table of their own -> what they take back."""


def _every_group() -> dict[Key, list[dict[str, str]]]:
    """The seeds of each setting, in the order of the rows."""
    return rows.grouped(
        PATH, read(), lambda r: (int(r["size"]), r["agent"], r["preset"], r["variant"])
    )


def _groups() -> dict[Key, list[dict[str, str]]]:
    """The seeds of each setting but the ablations, in the order of the tables."""
    found = _every_group()
    return {key: found[key] for key in sorted(found, key=_order) if key not in _ABLATIONS}


def _seeds(group: list[dict[str, str]]) -> str:
    return " ".join(sorted((r["seed"] for r in group), key=int))


def _solved(group: list[dict[str, str]]) -> str:
    return f"{np.mean([float(r['solved']) for r in group]):.2%}"


def _median(group: list[dict[str, str]]) -> str:
    medians = [float(r["median_solved"]) for r in group if r["median_solved"]]
    return f"{np.median(medians):.0f}" if medians else "–"


def _order(key: Key) -> tuple[Any, ...]:
    size, agent, preset, variant = key
    presets = ("paper", "best", "official", "debug")  # one that is no more: behind, by name
    place = presets.index(preset) if preset in presets else len(presets)
    return size, AGENTS.index(agent), place, preset, variant


def _number(value: float | None, form: str = "g") -> str:
    return "–" if value is None else format(value, form)


def _put_in_pages(table: str) -> None:
    """Replace the generated parts of the pages that have one."""
    begin, end = "<!-- table1: written by `lwm reproduce table1` -->\n", "<!-- /table1 -->"
    top = rows.RESULTS.parent
    for page, text in (("README.md", summary()), ("docs/table1.md", table)):
        replace_between(top / page, begin, end, text + "\n")


def _plot() -> None:
    from lwm import plots

    data = [row for group in _groups().values() for row in group]
    out = rows.RESULTS.parent / "docs" / "table1.png"
    if data:
        try:
            plots.score_plot(data, out, limits.table(), PAPER)
        except ImportError:
            print("no picture: install the extra lwm[viz]")
        else:
            print(f"picture: {out}")
