"""The viewer under attack: a real server, real sockets, hostile run directories, many readers."""

from __future__ import annotations

import http.client
import json
import random
import re
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote, urlsplit

from faults.common import Options, Tally, call, differs, flags, trained
from faults.kills import real_command
from lwm import runs
from lwm.writing import RunWriter

SECRET = "TOP-SECRET-4711"
READERS = 200
HUNG = b"HTTP/1.1 599 no answer"
"""As a fault of the server's, which it is."""
PATHS = (
    "..", "../secret", "..%2fsecret", "%2e%2e/secret", "%252e%252e%252fsecret", "....//secret",
    "/etc/passwd", "//etc/passwd", "a/../../secret", "..\\secret", "%00", "a%00", "~", "~root",
    "%c0%ae%c0%ae/secret", "file:///etc/passwd", "a/episodes/../../../secret", "link", "secret",
    "%ff%fe", "\ud7ff", "a" * 5000, ".", "", " ", "%", "%zz", "CON", "a/.", "a//b", "*", "?",
)  # fmt: skip
ADDRESSES = ("api/run", "api/episode", "api/frames", "api/compare", "api/export", "api/runs",
             "static/", "api/play", "api/", "")  # fmt: skip
DOCUMENTS = {
    "status": ['{"state":"running","frames":NaN}', '{"state":"\\ud800"}', "[" * 900 + "]" * 900],
    "evaluation": ['{"score":NaN,"low":Infinity}', '{"score":{"a":[[[]]]}}', "null"],
    "machine": ['{"cpu":-Infinity}', '{"a":"\\udfff"}'],
    "config": [
        '{"format":1,"config":{"seed":NaN,"agent":"\\ud800","env":{"size":NaN},"workload":["a"]}}',
        '{"format":1,"config":{"env":[],"workload":"atari","atari":{"game":"\\udfff"}}}',
        '{"format":1,"config":' + '{"a":' * 400 + "1" + "}" * 402,
    ],
}


@contextmanager
def served(root: Path, host: str) -> Iterator[tuple[str, int, str]]:
    """A real ``lwm view``: address, port, token."""
    process = real_command(["view", str(root), "--port", "0", "--host", host, "--no-browser"])
    try:
        assert process.stdout is not None
        where = urlsplit(re.search(r"http://\S+", process.stdout.readline())[0])  # type: ignore[index]
        yield "127.0.0.1", where.port or 0, where.query.removeprefix("token=")
    finally:
        process.terminate()
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def place(o: Options) -> Path:
    """Run directories, good and hostile, and a secret beside them."""
    root = o.where / "root"
    trained("labyrinth", root / "a")
    secret = o.where / "secret"
    trained("labyrinth", secret, **{"loop.total_frames": 400})
    for file in ("status.json", "secret.txt"):
        (secret / file).write_text(json.dumps({"state": SECRET, "message": SECRET}))
    (root / "link").symlink_to(secret)
    (root / "a" / "stolen.json").symlink_to(secret / "secret.txt")
    for name, texts in DOCUMENTS.items():
        for number, text in enumerate(texts):
            path = root / f"bad-{name}-{number}"
            with RunWriter.create(path, {"seed": number}, {}) as writer:
                writer.log({"frames": 1, "x": 1.0})
            (path / f"{name}.json").write_text(text)
    bad = root / "bad-logs"
    with RunWriter.create(bad, {}, {}):
        pass
    (bad / "metrics.jsonl").write_text('{"frames":1e999,"x":NaN}\n{"frames":2,"\\ud800":1}\n}\n')
    (bad / "timing.jsonl").unlink()
    (bad / "timing.jsonl").symlink_to(secret / "status.json")
    return root


def request(rng: random.Random, names: list[str]) -> bytes:
    """One request, more or less well formed, as bytes."""
    if rng.random() < 0.3:  # to a real run, so that its files are read
        name, what = quote(rng.choice(names)), rng.choice(["run", "compare", "episode", "export"])
        ask = f"/api/{what}?id={name}" + {"compare": "&key=x", "export": "&view=run"}.get(what, "")
        return f"GET {ask} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
    target = rng.choice(ADDRESSES)
    word = rng.choice([*PATHS, *names])
    raw = word if rng.random() < 0.4 else quote(word, safe="", errors="replace")
    keys = ("id", "n", "chunk", "key", "view", "since", "token", "hash", "version")
    query = "&".join(
        f"{key}={raw if key == 'id' else rng.choice(['0', '1', '-1', '1e9', '9' * 30, 'x', raw])}"
        for key in rng.sample(keys, rng.randint(0, 5))
    )
    path = f"/{target}{raw if rng.random() < 0.4 else ''}" + (f"?{query}" if query else "")
    method = rng.choice(["GET"] * 8 + ["POST"] * 4 + ["HEAD", "PUT", "OPTIONS", "G\x00T", ""])
    body = b""
    headers = {"Host": rng.choice(["127.0.0.1"] * 6 + ["evil.example", "", "[::1", "a" * 300])}
    if method == "POST":
        given = {"id": word, "session": word, "action": rng.choice([0, "x", None, 10**30])}
        body = rng.choice([json.dumps(given).encode("utf-8", "replace"), b"{", b"[" * 3000,
                           b'{"a":' * 900, rng.randbytes(50), b""])  # fmt: skip
        headers["Content-Type"] = rng.choice(["application/json", "text/plain", ""])
        headers["Content-Length"] = rng.choice([str(len(body))] * 5 + ["-1", "x", "99999"])
    if rng.random() < 0.2:
        headers[rng.choice(["Cookie", "Authorization", "Origin", "X-" + "y" * 200])] = rng.choice(
            ["lwm-token=" + "a" * 40, "Bearer x", "http://evil.example", "\x01", "é" * 40]
        )
    lines = [f"{method} {path} HTTP/{rng.choice(['1.1'] * 8 + ['1.0', '9.9', ''])}"]
    lines += [f"{k}: {v}" for k, v in headers.items()]
    text = "\r\n".join([*lines, "Connection: close", "", ""])
    return text.encode("utf-8", "surrogateescape") + body


def send(where: tuple[str, int], data: bytes, seconds: float = 60) -> bytes:
    """What a server answers before it hangs up; nothing if it just hangs up, ``HUNG`` if it does
    neither in time."""
    got = b""
    try:
        with socket.create_connection(where, timeout=seconds) as s, suppress(ConnectionError):
            s.sendall(data)
            if b"99999" in data:  # it waits for the rest, as it should
                s.shutdown(socket.SHUT_WR)
            while part := s.recv(1 << 16):
                got += part
    except TimeoutError:
        return HUNG
    return got


def count_answer(tally: Tally, asked: bytes, got: bytes) -> None:
    """One more answer: it tells nothing from outside, and is no fault of the server's."""
    leaked = SECRET.encode() in got or b"root:x" in got
    tally.count(not leaked and got[9:10] != b"5", f"{asked[:300]!r}: {got[:80]!r}")


def wrong_tokens(where: tuple[str, int], token: str, rng: random.Random, tally: Tally) -> None:
    """With a token that is not the right one nothing is told."""
    close = [token[:-1], token + "x", token.swapcase(), "", "é", "%00", token[::-1], "null"]
    for address in ("api/runs", "", "static/core.js", "api/run?id=a"):
        given = quote(rng.choice(close))
        ask = f"GET /{address}{'&' if '?' in address else '?'}token={given} HTTP/1.1\r\nHost: h\r\n"
        for header in ("", f"Authorization: Bearer {given}\r\n", f"Cookie: lwm-token={given}\r\n"):
            got = send(where, f"{ask}{header}Connection: close\r\n\r\n".encode())
            tally.count(got.startswith(b"HTTP/1.1 401"), f"token {given}: {got[:60]!r}")


def readers(where: tuple[str, int], count: int, statuses: Counter[str]) -> list[threading.Thread]:
    """So many at once, each asks some times."""

    def read() -> None:
        try:
            for address in ("/api/runs", "/api/run?id=live", "/api/compare?id=live&key=x"):
                line = http.client.HTTPConnection(*where, timeout=120)
                line.request("GET", address)
                statuses[str(line.getresponse().status)] += 1
                line.close()
        except OSError as error:
            statuses[type(error).__name__] += 1

    threads = [threading.Thread(target=read) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def viewer(o: Options) -> Tally:
    """Nothing outside the directory, no 5xx, no way round the token; training is unaffected."""
    tally, rng = Tally("viewer"), o.random("viewer")
    root = place(o)
    names = sorted(p.name for p in root.iterdir())
    statuses: Counter[str] = Counter()
    with served(root, "127.0.0.1") as (host, port, _):
        for _ in range(o.count(60, 400, 2000)):
            data = request(rng, names)
            got = send((host, port), data)
            status = got[9:12].decode("ascii", "replace")
            statuses[status[:1] + "xx" if status else "closed"] += 1
            count_answer(tally, data, got)
        count = min(READERS, 10 if o.form == "tiny" else READERS)
        whole, live = o.where / "whole", root / "live"
        trained("labyrinth", whole)
        child = call(flags("labyrinth", live), o.where / "live.log")
        while not runs.is_run(live):
            time.sleep(0.01)
        seen: Counter[str] = Counter()
        for thread in readers((host, port), count, seen):
            thread.join()
        ended = child.wait()
        answered = sum(n for status, n in seen.items() if status in ("200", "404"))
        fine = ended.code == 0 and not differs(live, whole)
        tally.count(fine, f"training: exit code {ended.code} {ended.text[-200:]}")
        tally.count(answered == 3 * count, f"readers were answered with {dict(seen)}")
    with served(root, "0.0.0.0") as (host, port, token):
        wrong_tokens((host, port), token, rng, tally)
        good = send((host, port), f"GET /api/runs HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer "
                    f"{token}\r\nConnection: close\r\n\r\n".encode())  # fmt: skip
        tally.count(good.startswith(b"HTTP/1.1 200"), f"the right token: {good[:60]!r}")
    told = ", ".join(f"{k}: {n}" for k, n in sorted(statuses.items()))
    tally.detail = f"{told}; {count} readers at once while a run trains: bit-identical"
    return tally
