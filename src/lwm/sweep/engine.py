"""Ray: started here or found by its address; what cannot work is said before anything runs."""

from __future__ import annotations

import os
import re
import secrets
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lwm import __version__
from lwm.errors import BadInput, reason
from lwm.sweep import attend
from lwm.sweep.policy import RETRIES

REACH_SECONDS = 5.0
"""How long an address may take to answer."""
_PROBE_SECONDS = 60.0
_OBJECTS = 80 << 20
"""Bytes of shared memory for Ray's objects: ours are a few hundred bytes a run."""
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is sent anywhere
    "RAY_USAGE_STATS_PROMPT_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # its coming default; else it warns
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_worker_niceness": "0",  # not 15: a run in a sweep is as urgent as one alone
}


@dataclass(frozen=True)
class Engine:
    """What a sweep asks of Ray."""

    address: str | None = None
    """``host:port`` of a cluster's head, or ``auto``; None: a Ray of our own on this machine."""
    cpus: float = 1.0
    """Cores that Ray reserves for a run."""
    gpus: float = 0.0
    retries: int = RETRIES
    storage: Path = Path("runs")

    def __post_init__(self) -> None:
        if re.match(r"[A-Za-z][\w+.-]+:/", str(self.storage)):
            raise BadInput(
                f"{self.storage} is not a directory: mount it, runs need files that can be locked"
            )


def import_ray() -> Any:
    """The module ``ray``, told to be quiet; BadInput says what to install."""
    os.environ.update(_QUIET)
    try:
        import ray
    except ImportError as error:
        raise BadInput(f"no sweep without {error.name}: pip install 'lwm[sweep]'") from error
    return ray


@contextmanager
def connected(engine: Engine) -> Iterator[Any]:
    """Ray, checked against what the engine asks, inside the block; our own Ray ends with it."""
    if engine.address is not None:
        check_address(engine.address)
    ray = import_ray()
    with warnings.catch_warnings():
        # Ray opens log files that it leaves to the garbage collector, and warns of its own plans.
        for kind in (ResourceWarning, FutureWarning, DeprecationWarning):
            warnings.simplefilter("ignore", kind)
        _start(ray, engine)
        try:
            _check_resources(ray, engine)
            yield ray
        finally:
            ray.shutdown()


def check_address(address: str) -> None:
    """Refuse an address that is none, or where no Ray answers within some seconds."""
    if address == "auto":
        return
    host, colon, port = address.rpartition(":")
    if "://" in address or not colon or not host or not port.isascii() or not port.isdigit():
        raise BadInput(f"{address!r} is not the address of a Ray head: host:port, or auto")
    try:
        with socket.create_connection((host, int(port)), REACH_SECONDS) as connection:
            answers = _speaks_grpc(connection)
    except (OSError, OverflowError, UnicodeError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise BadInput(f"no Ray at {address}: {why}") from error
    if not answers:
        raise BadInput(f"no Ray at {address}: something else answers there")


def _speaks_grpc(connection: socket.socket) -> bool:
    """Whether a greeting in HTTP/2, which gRPC is spoken in, is answered by settings (frame 4)."""
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
    head = b""
    while len(head) < 9 and (more := connection.recv(9 - len(head))):
        head += more
    return len(head) == 9 and head[3] == 4


def _start(ray: Any, engine: Engine) -> None:
    quiet = {"logging_level": "ERROR", "log_to_driver": False}
    try:
        if engine.address is None:
            ray.init("local", include_dashboard=False, object_store_memory=_OBJECTS, **quiet)
        else:
            ray.init(address=engine.address, **quiet)
    except (ray.exceptions.RayError, RuntimeError, ValueError, OSError) as error:
        where = "on this machine" if engine.address is None else f"at {engine.address}"
        raise BadInput(f"no Ray {where}: {str(error).strip().splitlines()[-1]}") from error


def _check_resources(ray: Any, engine: Engine) -> None:
    """One node must hold a run: a run is never spread over nodes."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for what, asked in (("GPU", engine.gpus), ("CPU", engine.cpus)):
        most = max((node.get(what, 0.0) for node in nodes), default=0.0)
        if asked > most:
            raise BadInput(f"{asked:g} {what}s a run asked for; no node has more than {most:g}")
    fits = any(n.get("GPU", 0.0) >= engine.gpus and n.get("CPU", 0.0) >= engine.cpus for n in nodes)
    if not fits:
        raise BadInput(f"no node has {engine.cpus:g} CPUs and {engine.gpus:g} GPUs")


@contextmanager
def marked(storage: Path) -> Iterator[str]:
    """Name of a file in the storage inside the block: by it nodes know that they see the same."""
    marker = f".sweep-{secrets.token_hex(6)}"
    try:
        storage.mkdir(parents=True, exist_ok=True)
        (storage / marker).touch(exist_ok=False)
    except OSError as error:
        raise BadInput(f"cannot write to the storage {storage}: {reason(error)}") from error
    try:
        yield marker
    finally:
        with suppress(OSError):
            (storage / marker).unlink()


def check_nodes(ray: Any, storage: Path, marker: str) -> None:
    """Every node sees the storage and has this version; BadInput names one that does not."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    probe = ray.remote(num_cpus=0, max_retries=0)(attend.check_node)
    asked = {}
    for node in (n for n in ray.nodes() if n["Alive"]):
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ref = probe.options(scheduling_strategy=there).remote(storage, marker, __version__)
        asked[ref] = node["NodeManagerAddress"]
    ready, late = ray.wait(list(asked), num_returns=len(asked), timeout=_PROBE_SECONDS)
    if late:
        raise BadInput(f"node {asked[late[0]]} did not answer within {_PROBE_SECONDS:.0f} s")
    for ref in ready:
        try:
            wrong = ray.get(ref)
        except ray.exceptions.RayError as error:
            first = str(error).strip().splitlines()[-1]
            raise BadInput(f"node {asked[ref]} cannot run lwm: {first}") from error
        if wrong:
            raise BadInput(wrong)
