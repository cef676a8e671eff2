"""``lwm view``: listen, print the address, open the browser, serve until interrupted."""

from __future__ import annotations

import ipaddress
import secrets
import socket
import threading
import webbrowser
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lwm.errors import BadInput, RunFailed, reason

PORT = 8642
TRIES = 20
"""Ports tried after the usual one, if nobody asked for a certain one."""


def serve(root: Path, host: str = "127.0.0.1", port: int | None = None, browse: bool = True) -> int:
    """Serve the runs below ``root`` until interrupted."""
    if not root.is_dir():
        raise BadInput(f"{root} is not a directory")
    try:
        import uvicorn

        from lwm.viewer.app import make_app
    except ImportError as error:
        raise BadInput("lwm view needs the extra: pip install 'lwm[viewer]'") from error
    token = None if is_loopback(host) else secrets.token_urlsafe(24)
    listening = listen(host, port)
    where = address(listening, host, token)
    app = make_app(root, token, host)
    config = uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=5,  # a game that is left takes up to 3 s to end
    )
    server = uvicorn.Server(config)
    print(f"runs in {root}: {where}", flush=True)
    if token is not None:
        print("anybody who has this address can read these runs; ", end="")
    print("stop with Ctrl-C", flush=True)
    if browse:
        threading.Timer(0.3, _open, [where]).start()
    try:
        server.run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        listening.close()
    return 0


def is_loopback(host: str) -> bool:
    """Only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int | None) -> socket.socket:
    """A listening socket; a port that was asked for and is in use is ``BadInput``."""
    wanted = [port] if port is not None else [*range(PORT, PORT + TRIES), 0]
    last: OSError | None = None
    for number in wanted:
        try:
            family, kind, _, _, where = socket.getaddrinfo(
                host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
        except (OSError, UnicodeError):
            raise BadInput(f"{host!r} is no address of this machine") from None
        made = socket.socket(family, kind)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind(where)
            made.listen(128)
            return made
        except OSError as error:
            made.close()
            last = error
    assert last is not None
    if port is not None:
        raise BadInput(f"cannot listen on {host} port {port}: {reason(last)}")
    raise RunFailed(f"cannot listen on {host}: {reason(last)}")


def address(listening: socket.socket, host: str, token: str | None) -> str:
    """What to open in a browser."""
    port = listening.getsockname()[1]
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/" + (f"?token={quote(token)}" if token else "")


def _open(where: str) -> Any:
    """In a browser, if there is one: without one the printed address is enough."""
    try:
        webbrowser.open(where)
    except Exception:
        return None
