"""One self-contained HTML page of everything measured: ``lwm report``.

It reads committed rows, pictures under docs/ and run directories; it trains nothing.  The page
loads nothing from anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lwm import __version__, runs
from lwm.errors import BadInput, RunFailed, reason
from lwm.files import write_bytes_atomic
from lwm.machine import machine_facts
from lwm.report import curves, figures, page, player, provenance, tables

_HOW = (
    "<p>No run given has a recorded labyrinth episode. Make one with "
    "<code>lwm evaluate RUN --record 1</code>, then <code>lwm report RUN</code>.</p>"
)


def write_report(places: Sequence[Path], out: Path) -> str:
    """Write the page to ``out``; -> one line that says what is in it.

    Args:
        places: run directories or directories above them; none: runs/, if it is there.
        out: the file.
    """
    for place in places:
        if not place.exists():
            raise BadInput(f"{place} does not exist")
    default = [Path("runs")] if Path("runs").is_dir() else []
    found = [run for place in places or default for run in runs.find_runs(place)]
    if places and not found:
        raise BadInput(f"no run under {', '.join(map(str, places))}")
    players = player.players(found)
    parts = [
        page.section("Results", "results", tables.results()),
        page.section("Over several tasks", "tasks", tables.over_tasks()),
        page.section("Learning curves", "curves", curves.charts(found)),
        page.section("An episode, step by step", "episode", "".join(players) or _HOW),
        page.section("Figures", "figures", figures.figures()),
        page.section("Where every row comes from", "rows", provenance.rows_of_results()),
        page.section("Runs on this page", "runs", provenance.run_details(found)),
    ]
    commit = machine_facts()["commit"] or "unknown"
    text = page.document("".join(parts), f"lwm {__version__}, commit {commit}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFailed(f"cannot write {out}: {reason(error)}") from error
    write_bytes_atomic(out, text.encode())
    return (
        f"report: {out} ({len(text.encode()) / 1e6:.1f} MB): {len(found)} run(s), "
        f"{len(players)} animated episode(s)"
    )
