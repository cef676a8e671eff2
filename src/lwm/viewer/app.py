"""The server's answers: the page, JSON and pictures.  Whatever goes wrong is a short JSON error."""

from __future__ import annotations

import hmac
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from lwm.errors import BadInput, LwmError
from lwm.viewer import disk, facts, film
from lwm.viewer.bundle import bundle, page
from lwm.viewer.listing import Listing
from lwm.viewer.rounds import Rounds
from lwm.viewer.series import Logs

MAX_COMPARED = 200
MAX_SENT = 4096
COOKIE = "lwm-token"
_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_LOCAL = ("127.0.0.1", "localhost", "::1")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: "
    "blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    b"content-security-policy": _POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cache-control": b"no-store",
}

log = logging.getLogger("lwm.viewer")


class Told(JSONResponse):
    """JSON of what files hold, even if they hold what JSON cannot."""

    def render(self, content: Any) -> bytes:
        """The body."""
        return disk.told(content)


class Views:
    """What each address answers with, from the runs below ``root``."""

    def __init__(self, root: Path) -> None:
        self.listing = Listing(root)
        self.logs = Logs()
        self.films = film.Films()
        self.rounds = Rounds(root)

    def answer(self, what: str, query: dict[str, list[str]]) -> Any:
        """JSON of ``/api/<what>``; the export asks for the same."""
        views: dict[str, Callable[[dict[str, list[str]]], Any]] = {
            "runs": self._runs,
            "run": self._run,
            "compare": self._compare,
            "episode": self._episode,
        }
        if what not in views:
            raise BadInput("there is no such page")
        return views[what](query)

    def _runs(self, query: dict[str, list[str]]) -> Any:
        return self.listing.changes(_number(query, "since", 0))

    def _run(self, query: dict[str, list[str]]) -> Any:
        name = _one(query, "id")
        path = self.listing.path(name)
        told = self.logs.curves(path)
        version = f"{told['version']}/{self.listing.version}"
        if query.get("version") == [version]:
            return {"same": True}
        return {**facts.about(path), "row": self.listing.row(name), "log": told, "stamp": version}

    def _compare(self, query: dict[str, list[str]]) -> Any:
        names, key = query.get("id", []), _one(query, "key")
        if not 1 <= len(names) <= MAX_COMPARED:
            raise BadInput(f"compare 1 to {MAX_COMPARED} runs")
        runs: list[dict[str, Any]] = []
        keys: set[str] = set()
        for name in names:
            try:
                told = self.logs.curves(self.listing.path(name), {key})
            except BadInput as error:
                runs.append({"id": name, "error": str(error)})
                continue
            keys |= set(told["keys"])
            row = self.listing.row(name)
            runs.append({"id": name, "row": row, "curve": told["curves"].get(key)})
        return {"runs": runs, "keys": sorted(keys)}

    def _episode(self, query: dict[str, list[str]]) -> Any:
        path = self.listing.path(_one(query, "id"))
        return film.told(self.films.read(path, _number(query, "n", 0)))

    def pictures(self, query: dict[str, list[str]]) -> bytes:
        """A chunk of an episode's pictures, deflated."""
        path = self.listing.path(_one(query, "id"))
        episode = self.films.read(path, _number(query, "n", 0))
        return film.pictures(episode, _number(query, "chunk", 0))

    def played(self, what: str, given: dict[str, Any]) -> Any:
        """What the play page asks for: ``play``, ``step``, ``save``, ``leave``."""
        if what == "play":
            return self.rounds.start(self.listing.path(str(given.get("id"))), given.get("game"))
        if what == "step":
            return self.rounds.step(given.get("session"), given.get("action"))
        if what == "save":
            return self.rounds.save(given.get("session"))
        if what == "leave":
            return self.rounds.leave(given.get("session"))
        raise BadInput("there is no such page")


def make_app(root: Path, token: str | None = None, host: str = "127.0.0.1") -> Starlette:
    """The application over the runs below ``root``.

    ``token``: what every request must carry, if anything; ``host``: the name under which the server
    may be asked, beside this machine's own (any, if there is a token: then that protects it).
    """
    views = Views(root)
    threading.Thread(target=views.listing.look, daemon=True).start()  # before anybody asks
    texts = {
        entry.name: entry.read_bytes()
        for entry in resources.files("lwm.viewer").joinpath("static").iterdir()
        if entry.name.rpartition(".")[2] in _TYPES
    }

    async def index(_: Request) -> Response:
        return Response(page(), media_type="text/html")

    async def static(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in texts:
            raise HTTPException(404)
        return Response(texts[name], media_type=_TYPES[name.rpartition(".")[2]])

    async def api(request: Request) -> Response:
        what, query = request.path_params["what"], _query(request)
        return Told(await run_in_threadpool(views.answer, what, query))

    async def frames(request: Request) -> Response:
        data = await run_in_threadpool(views.pictures, _query(request))
        return Response(data, media_type="application/octet-stream")

    async def export(request: Request) -> Response:
        query = _query(request)
        view = _one(query, "view")
        text, name = await run_in_threadpool(bundle, views, view, query)
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(text, media_type="text/html", headers=headers)

    async def play(request: Request) -> Response:
        what, given = request.path_params["what"], await _document(request)
        return Told(await run_in_threadpool(views.played, what, given))

    @asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        yield
        views.rounds.close()

    routes = [
        Route("/", index),
        Route("/static/{name}", static),
        Route("/api/frames", frames),
        Route("/api/export", export),
        Route("/api/{what}", api, methods=["GET"]),
        Route("/api/{what}", play, methods=["POST"]),
    ]
    app = Starlette(
        routes=routes,
        lifespan=life,
        middleware=[
            Middleware(Guard, token=token, hosts=(*_LOCAL, host)),
            Middleware(GZipMiddleware, minimum_size=2000, compresslevel=1),
        ],
        exception_handlers={
            LwmError: _bad,
            HTTPException: _refused,
            Exception: _broken,
        },
    )
    app.router.redirect_slashes = False
    return app


class Guard:
    """Outermost: host names, the token, and the headers that every answer carries."""

    def __init__(self, app: ASGIApp, token: str | None, hosts: tuple[str, ...]) -> None:
        self.app, self.token, self.hosts = app, token, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through, or answer it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                extra = [(k, v) for k, v in _HEADERS.items() if k not in given]
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        refusal = self._refusal(Request(scope))
        await (refusal or self.app)(scope, receive, guarded)

    def _refusal(self, request: Request) -> Response | None:
        if self.token is None:
            # A page elsewhere can give its own name our address: only ours may ask.
            host = request.headers.get("host", "")
            if _host(host) not in self.hosts:
                return _error(403, "this server answers under its own address only")
        elif not _same(request.cookies.get(COOKIE, ""), self.token):
            bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
            given = request.query_params.get("token", "")
            if not _same(bearer, self.token):
                if not _same(given, self.token):
                    return _error(401, "open the address that lwm view printed: it has the token")
                rest = urlencode([p for p in request.query_params.multi_items() if p[0] != "token"])
                answer = RedirectResponse(request.url.path + (f"?{rest}" if rest else ""), 303)
                answer.set_cookie(COOKIE, self.token, httponly=True, samesite="strict")
                return answer
        origin = request.headers.get("origin")
        foreign = origin is not None and origin.partition("://")[2] != request.headers.get("host")
        if request.method == "POST" and foreign:
            return _error(403, "asked from another page")
        return None


def _host(header: str) -> str:
    """``[::1]:80``, ``localhost:80`` -> the name without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].lower()


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())


def _query(request: Request) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key, value in request.query_params.multi_items():
        found.setdefault(key, []).append(value)
    return found


async def _document(request: Request) -> dict[str, Any]:
    """The JSON object that was sent.  Other pages cannot send one without asking first."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise BadInput("send JSON")
    raw = b""
    async for part in request.stream():
        raw += part
        if len(raw) > MAX_SENT:
            raise BadInput("too long")
    found = disk.parse(raw)
    if found is None:
        raise BadInput("send a JSON object")
    return found


def _one(query: dict[str, list[str]], key: str) -> str:
    values = query.get(key, [])
    if len(values) != 1:
        raise BadInput(f"the address needs one {key}")
    return values[0]


def _number(query: dict[str, list[str]], key: str, default: int) -> int:
    text = query.get(key, [str(default)])[-1]
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise BadInput(f"{key} is not a number")
    return int(text)


def _error(code: int, text: str) -> JSONResponse:
    return Told({"error": text}, code)


async def _bad(_: Request, error: Exception) -> Response:
    return _error(404, str(error))


async def _refused(_: Request, error: Exception) -> Response:
    code = error.status_code if isinstance(error, HTTPException) else 404
    return _error(code, "there is no such page" if code == 404 else "not allowed")


async def _broken(_: Request, error: Exception) -> Response:
    log.error("a request failed: %s", type(error).__name__)
    return _error(500, "this could not be read; the server goes on")
