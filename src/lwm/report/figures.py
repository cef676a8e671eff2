"""Pictures under docs/, inside the page."""

from __future__ import annotations

import base64
from pathlib import Path

from lwm import experiments
from lwm.report.page import escape

DOCS = Path("docs")
_TYPES = {".png": "image/png", ".gif": "image/gif", ".svg": "image/svg+xml"}
_LARGEST = 4_000_000

CAPTIONS = {
    "episode": "An evaluation episode on 3×3: map, bonus by room, action values, predicted doors.",
    "quickstart-curve": "Learning curve of make run.",
    "table1": "Labyrinth scores: each dot a seed, lines are the limits, diamonds the paper.",
}


def figures() -> str:
    """Each picture with its caption; those of the paper's figures first."""
    found = [
        p
        for p in DOCS.glob("*")
        if p.suffix in _TYPES
        and p.stat().st_size <= _LARGEST
        and not p.stem.startswith("viewer")  # screenshots are no results
    ]
    found.sort(key=lambda p: (not p.stem.startswith("figure"), p.stem, p.suffix))
    return "".join(_figure(path) for path in found)


def _figure(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    entry = experiments.REGISTRY.get(path.stem)
    moving = " (animated)" if path.suffix == ".gif" else ""
    text = CAPTIONS.get(path.stem, path.stem)
    if path.stem not in CAPTIONS and entry is not None:
        text = f"{path.stem.replace('figure', 'Figure ')}{moving}: {entry.what}."
    source = f"data:{_TYPES[path.suffix]};base64,{data}"
    return (
        f'<figure><img src="{source}" alt="{escape(text)}" loading="lazy">'
        f"<figcaption>{escape(text)}</figcaption></figure>\n"
    )
