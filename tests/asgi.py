"""Requests to an ASGI application in this process, byte for byte as a server would pass them on."""

from __future__ import annotations

import asyncio
import gzip
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes, urlencode


@dataclass(frozen=True)
class Answer:
    """Status, headers (lower case) and body."""

    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.content.decode()

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.content)


class Client:
    """Asks ``app``, under the name ``host``."""

    def __init__(self, app: Any, host: str = "127.0.0.1:1", **headers: str) -> None:
        self.app, self.headers = app, {"host": host, **headers}

    def get(self, address: str, params: dict[str, Any] | None = None, **headers: str) -> Answer:
        """GET ``address``, with ``params`` behind it."""
        if params:
            address += "?" + urlencode(params, doseq=True)
        return self.ask("GET", address, b"", headers)

    def post(self, address: str, document: Any, **headers: str) -> Answer:
        """POST ``document`` as JSON (bytes as they are)."""
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        return self.ask("POST", address, body, {"content-type": "application/json", **headers})

    def ask(self, method: str, address: str, body: bytes, headers: dict[str, str]) -> Answer:
        """One request."""
        path, _, query = address.partition("?")
        given = {**self.headers, "accept-encoding": "gzip", **headers}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote_to_bytes(path).decode("utf-8", "replace"),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(k.encode(), v.encode()) for k, v in given.items()],
            "client": ("127.0.0.1", 2),
            "server": ("127.0.0.1", 1),
        }
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        async def run() -> None:
            try:
                await self.app(scope, receive, send)
            except Exception:
                # A server logs what comes after the answer; without an answer it is a fault.
                assert sent, "no answer"

        asyncio.run(run())
        found = {k.decode().lower(): v.decode() for k, v in sent[0]["headers"]}
        content = b"".join(message.get("body", b"") for message in sent[1:])
        if found.get("content-encoding") == "gzip":
            content = gzip.decompress(content)
        return Answer(sent[0]["status"], found, content)
