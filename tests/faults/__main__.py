"""``python -m faults [--form short|long] [--only WORD] [--tries N] [--seed N] [--minutes M]``."""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from faults import asking, damage, degenerate, disks, hostile, kills, soak, viewing, words
from faults.common import Options, Tally
from lwm.files import replace_between, write_bytes_atomic

ATTACKS: dict[str, Callable[[Options], Tally]] = {
    "sigkill": kills.sigkill,
    "signals": asking.signals,
    "disk": disks.full_disk,
    "corruption": damage.corruption,
    "hostile": hostile.hostile,
    "command-lines": words.command_lines,
    "degenerate": degenerate.degenerate,
    "two-processes": asking.two_writers,
    "soak": soak.soak,
    "viewer": viewing.viewer,
}
HEAD = ["attack", "tried", "held", "detail", "commit"]
ROOT = Path(__file__).resolve().parents[2]
ROWS = ROOT / "results" / "faults.csv"
README = ROOT / "README.md"
BEGIN, END = "<!-- faults: written by `make faults` -->\n", "<!-- /faults -->"


def commit() -> str:
    """The commit of what is attacked, with ``-dirty`` if it was changed."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
    code = ["--", "src", "tests", "constraints.txt"]
    dirty = subprocess.run([*git, "status", "--porcelain", *code], capture_output=True, text=True)
    return (head.stdout.strip() or "unknown") + ("-dirty" if dirty.stdout.strip() else "")


def write(tally: Tally, path: Path, of: str) -> None:
    """Put the row of an attack into the file, in the place of its last one.

    A shorter form does not replace what a longer one found, unless something did not hold.
    """
    rows: list[list[str]] = []
    if path.exists():
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))[1:]
    row = [tally.attack, str(tally.tried), str(tally.held), tally.detail, of]
    names = [r[0] for r in rows]
    place = names.index(row[0]) if row[0] in names else len(rows)
    before = int(rows[place][1]) if place < len(rows) else 0
    if tally.tried < before and tally.held == tally.tried:
        return
    rows[place : place + 1] = [row]
    lines = [",".join(_quoted(cell) for cell in r) for r in [HEAD, *rows]]
    write_bytes_atomic(path, ("\n".join(lines) + "\n").encode())


def _quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"' if set(cell) & set(',"\n') else cell


def table(rows: list[list[str]]) -> str:
    """What is printed, and what the README quotes: of rows attack, tried, held, detail."""
    lines = ["| attack | tried | held | detail |", "|---|---:|---:|---|"]
    lines += [f"| {a} | {int(tried):,} | {int(held):,} | {d} |" for a, tried, held, d, *_ in rows]
    return "\n".join(lines) + "\n"


def quote(rows: Path, page: Path) -> None:
    """Put the rows, as a table, between the marks of a page."""
    with open(rows, newline="", encoding="utf-8") as file:
        replace_between(page, BEGIN, END, table(list(csv.reader(file))[1:]))


def main() -> int:
    """Run the attacks; exit code 1 if something did not hold."""
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    parser.add_argument("--form", choices=["tiny", "short", "long"], default="short")
    parser.add_argument("--only", nargs="+", choices=list(ATTACKS), metavar="ATTACK")
    parser.add_argument("--tries", type=int, help="instead of the form's own number")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=120.0, help="of the soak's long form")
    parser.add_argument("--rows", type=Path, default=ROWS, help="the file of the rows")
    parser.add_argument("--no-rows", action="store_true", help="print only")
    args = parser.parse_args()
    tallies: list[Tally] = []
    of = commit()
    for name in args.only or ATTACKS:
        if name == "soak" and args.form != "long" and not args.only:
            continue  # minutes of it say nothing
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"lwm-{name}-") as where:
            options = Options(Path(where), args.form, args.seed, args.tries, args.minutes)
            tally = ATTACKS[name](options)
        tallies.append(tally)
        print(f"{tally.attack}: {tally.held} of {tally.tried} held "
              f"({time.monotonic() - began:.0f} s)", file=sys.stderr, flush=True)  # fmt: skip
        for fault in tally.faults[:20]:
            print(f"  {fault}", file=sys.stderr, flush=True)
        if not args.no_rows:
            write(tally, args.rows, of)
            if args.rows == ROWS:
                quote(ROWS, README)
    print(table([[t.attack, str(t.tried), str(t.held), t.detail] for t in tallies]), end="")
    return int(any(t.held < t.tried for t in tallies))


if __name__ == "__main__":
    sys.exit(main())
