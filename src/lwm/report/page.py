"""The page around the parts: plain HTML, one style sheet, light and dark, any width."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape as escape

_STYLE = """
:root { color-scheme: light dark; --ink: #222833; --soft: #5f6774; --line: #d9dde4; --ground: #fff;
  --card: #f6f7f9; --link: #005f96; --blue: #0072b2; --orange: #c06a00; --green: #00795a;
  --pink: #a8507f; --heat: #e68c1e; --cold: #2f9bdb; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #a4acb9; --line: #3a414d;
  --ground: #15181e; --card: #1e2229; --link: #7cc4f5; --blue: #56b4e9; --orange: #e69f00;
  --green: #3fc79a; --pink: #e29cc4; --heat: #f0a040; --cold: #56b4e9; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
header, main, footer { max-width: 78rem; margin: 0 auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 1.6rem 0 .3rem; }
h2 { font-size: 1.3rem; margin: 2.6rem 0 .6rem; padding-top: .6rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 1.6rem 0 .4rem; }
p, li { max-width: 46rem; } .soft, footer, figcaption { color: var(--soft); }
a { color: var(--link); } nav ul { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem;
  list-style: none; padding: 0; margin: .8rem 0 0; }
code { font: .86em/1.4 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  overflow-wrap: anywhere; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; }
.scroll:focus-visible, summary:focus-visible, button:focus-visible, input:focus-visible {
  outline: 2px solid var(--link); outline-offset: 2px; }
table { border-collapse: collapse; width: 100%; font-size: .875rem; }
.caption { margin: .6rem 0 .4rem; font-size: .92rem; color: var(--soft); }
th, td { padding: .34rem .55rem; text-align: left; border-top: 1px solid var(--line); }
tbody th, td { white-space: nowrap; }
td.long { white-space: normal; min-width: 11rem; max-width: 17rem; overflow-wrap: break-word; }
thead th { vertical-align: bottom; background: var(--card); border-top: 0; }
th.num, td.num { text-align: right; font-variant-numeric: tabular-nums; }
tbody th { font-weight: 600; } td code { white-space: nowrap; }
figure { margin: 1.4rem 0; } figure img { display: block; max-width: 100%; height: auto;
  background: #fff; border: 1px solid var(--line); border-radius: 6px; }
figcaption { font-size: .92rem; margin-top: .4rem; max-width: 46rem; }
details { margin: .5rem 0; } summary { cursor: pointer; overflow-wrap: anywhere; }
details pre { overflow: auto; max-height: 24rem; padding: .7rem; background: var(--card);
  border-radius: 6px; font: .8rem/1.45 ui-monospace, Menlo, Consolas, monospace; }
svg { display: block; max-width: 100%; height: auto; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; } svg .soft { fill: var(--soft); }
.player { max-width: 30rem; } .controls { display: flex; gap: .7rem; align-items: center;
  margin: .5rem 0; } .controls input { flex: 1; min-width: 0; }
button { font: inherit; padding: .3rem .9rem; min-width: 5.2rem; border-radius: 6px;
  color: var(--ink); background: var(--card); border: 1px solid var(--line); cursor: pointer; }
.keys { display: flex; flex-wrap: wrap; gap: .1rem 1.1rem; padding: 0; margin: .4rem 0 0;
  list-style: none; font-size: .9rem; }
.keys i { display: inline-block; width: 1.1rem; height: .2rem; margin-right: .4rem;
  vertical-align: middle; }
"""

_LINE = 24
"""Letters of a cell from which on it may be broken into lines."""
_HEADINGS = re.compile(r'<h2 id="([^"]+)">(.*?)</h2>')
_NUMBER = re.compile(r"[-−+]?[\d.,]+(e[-+]?\d+)?%?|–|\[.*\]")


def document(body: str, version: str) -> str:
    """The whole page around ``body``, with a list of its sections."""
    links = "".join(
        f'<li><a href="#{key}">{name}</a></li>' for key, name in _HEADINGS.findall(body)
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>lwm: results</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        "<header><h1>Latent world models for exploration: results</h1>\n"
        '<p class="soft">An independent implementation, measured beside the paper. '
        "Made by <code>lwm report</code>; nothing on this page is loaded from elsewhere.</p>"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav></header>\n'
        f"<main>{body}</main>\n<footer><p>{escape(version)}</p></footer>\n</body>\n</html>\n"
    )


def section(title: str, key: str, body: str) -> str:
    """A section with a heading that can be linked to; nothing if the body is empty."""
    if not body:
        return ""
    return (
        f'\n<section aria-labelledby="{key}"><h2 id="{key}">{escape(title)}</h2>\n{body}</section>'
    )


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], caption: str, raw: Sequence[int] = ()
) -> str:
    """A table that scrolls inside its frame; the first column heads its rows.

    Args:
        head: names of the columns.
        rows: cells as text.
        caption: what the table shows.
        raw: columns whose cells are HTML already.
    """
    # A column of numbers is set flush right, its head with it.
    numeric = [k > 0 and all(_NUMBER.fullmatch(row[k]) for row in rows) for k in range(len(head))]
    lines = []
    for row in rows:
        cells = []
        for number, cell in enumerate(row):
            text = cell if number in raw else _inline(cell)
            if number == 0:
                cells.append(f'<th scope="row">{text}</th>')
            elif numeric[number]:
                cells.append(f'<td class="num">{text.replace("-", "−")}</td>')
            else:
                wraps = number not in raw and len(cell) > _LINE
                cells.append(f"<td{' class=long' * wraps}>{text}</td>")
        lines.append("<tr>" + "".join(cells) + "</tr>")
    top = "".join(
        f'<th scope="col"{" class=num" * right}>{_inline(name)}</th>'
        for name, right in zip(head, numeric, strict=True)
    )
    return (
        # The caption stands outside: inside it would scroll away with the table.
        f'<p class="caption">{escape(caption)}</p><div class="scroll" tabindex="0" role="region" '
        f'aria-label="{escape(caption)}"><table><thead><tr>{top}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>\n"
    )


def _inline(text: str) -> str:
    """Text of a cell; what stands between backticks is code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


_COMPARED = re.compile(r"paper|Bayes|blind|full|limit")


def from_markdown(text: str, caption: str) -> str:
    """A table of the form that ``lwm reproduce`` prints; what is compared stands side by side.

    Columns of the paper and of limits move behind our last number of seeds, where there is one.
    """
    lines = [
        # A bar without spaces around it is part of a name: CPC\|Action.
        [
            cell.strip().replace("\\|", "|")
            for cell in re.split(r"(?<=\s)\|(?=\s)", line.strip()[1:-1])
        ]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    head, _, *rows = lines
    order = list(range(len(head)))
    if "seeds" in head:
        start = len(head) - head[::-1].index("seeds")
        order[start:] = sorted(order[start:], key=lambda k: not _COMPARED.search(head[k]))
    moved = [[row[k] for k in order] for row in [head, *rows]]
    return table(moved[0], moved[1:], caption)


def details(summary: str, text: str) -> str:
    """Text that opens on demand."""
    return f"<details><summary>{escape(summary)}</summary><pre>{escape(text)}</pre></details>\n"
