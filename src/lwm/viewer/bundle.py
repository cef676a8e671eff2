"""The page, and any view of it as one HTML file that opens without a server.

The export is the same page with its scripts inside, and with the answers that the view would have
asked the server for: scripts look there first.
"""

from __future__ import annotations

import base64
import re
from importlib import resources
from typing import Any, Protocol
from urllib.parse import quote, urlencode

from lwm.errors import BadInput
from lwm.viewer import disk, film

SCRIPTS = ("core", "chart", "runs", "run", "compare", "labyrinth", "images", "episode", "play",
           "start")  # fmt: skip
"""In the order in which the page loads them."""
MAX_BYTES = 200 << 20


class Answers(Protocol):
    """Where the answers come from."""

    def answer(self, what: str, query: dict[str, list[str]]) -> Any:
        """JSON of one address."""

    def pictures(self, query: dict[str, list[str]]) -> bytes:
        """Pictures of an episode."""


def _static(name: str) -> str:
    return resources.files("lwm.viewer").joinpath("static", name).read_text(encoding="utf-8")


def page() -> str:
    """The page as the server gives it."""
    scripts = "".join(f'<script src="static/{name}.js"></script>\n' for name in SCRIPTS)
    style = '<link rel="stylesheet" href="static/style.css">'
    return _static("page.html").replace("<!--style-->", style).replace("<!--scripts-->", scripts)


def bundle(views: Answers, view: str, query: dict[str, list[str]]) -> tuple[str, str]:
    """-> (HTML, name of the file) of one view: ``runs``, ``run``, ``compare`` or ``episode``."""
    asked = {k: v for k, v in query.items() if k not in ("view", "hash", "token")}
    where = (query.get("hash") or ["#/"])[-1]
    if view not in ("runs", "run", "compare", "episode"):
        raise BadInput("there is no such view to export")
    answers: dict[str, Any] = {address(view, asked): views.answer(view, asked)}
    if view == "episode":
        answers |= _pictures(views, asked, answers[address(view, asked)])
    return assembled(answers, where), _name(view, asked)


def address(view: str, query: dict[str, list[str]]) -> str:
    """What the page's scripts call an answer."""
    return f"api/{view}?" + urlencode(sorted(query.items()), doseq=True, quote_via=quote)


def _pictures(views: Answers, query: dict[str, list[str]], told: Any) -> dict[str, str]:
    if told["kind"] != "images":
        return {}
    found, size = {}, 0
    for chunk in range(-(-told["rows"] // film.CHUNK)):
        asked = query | {"chunk": [str(chunk)]}
        data = views.pictures(asked)
        size += len(data)
        if size > MAX_BYTES:
            raise BadInput("this episode is too large for one file")
        found[address("frames", asked)] = base64.b64encode(data).decode()
    return found


def assembled(answers: dict[str, Any], where: str) -> str:
    """The page with everything inside."""
    packed = disk.told({"answers": answers, "hash": where}).decode()
    packed = packed.replace("<", "\\u003c")  # inside a script element only its end needs hiding
    scripts = "".join(f"<script>{_static(name + '.js')}</script>\n" for name in SCRIPTS)
    scripts = f'<script type="application/json" id="exported">{packed}</script>\n{scripts}'
    style = f"<style>{_static('style.css')}</style>"
    return _static("page.html").replace("<!--style-->", style).replace("<!--scripts-->", scripts)


def _name(view: str, query: dict[str, list[str]]) -> str:
    last = re.sub(r"[^A-Za-z0-9._-]+", "-", (query.get("id") or ["all"])[0]).strip("-.")[-80:]
    return f"lwm-{view}-{last or 'run'}.html"
