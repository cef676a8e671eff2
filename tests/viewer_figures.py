"""Measures the viewer's figures: first paint, scrubbing, what watching costs a training run.

Run by hand: ``python tests/viewer_figures.py DIRECTORY [paint|scrub|watch]``; docs/viewer.md has
what it printed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import sync_playwright

from lwm.config import load_preset, to_dict
from lwm.episodes import Episode, episode_path, write_episode
from lwm.runs import read_timing

RUNS, RECORDS, STEPS = 1000, 10_000, 10_000


@contextmanager
def served(root: Path) -> Iterator[tuple[str, int]]:
    """(address, process id) of a viewer over ``root``."""
    command = [sys.executable, "-m", "lwm.cli", "view", str(root), "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().rsplit(" ", 1)[1].strip(), process.pid
        process.terminate()


@contextmanager
def browsed() -> Iterator[Any]:
    """A page of a headless Chromium."""
    with sync_playwright() as api:
        path = shutil.which("chromium")
        browser = api.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.set_default_timeout(300_000)
        yield page
        browser.close()


def make_runs(root: Path) -> None:
    """1,000 runs of 10,000 records each."""
    keys = ("bonus/mean", "bonus/std", "dqn/loss", "dqn/q_mean", "world_model/loss")
    rows, times = [], []
    for k in range(RECORDS):
        row = {"kind": "train", "frames": 100 * k, "episode/return": -1000 / (1 + k / 99)}
        rows.append(json.dumps(row | {key: 1 / (k + 1) for key in keys}))
        times.append(json.dumps({"frames": 100 * k, "seconds": k, "frames_per_second": 99.5}))
    metrics, timing = ("\n".join(lines).encode() + b"\n" for lines in (rows, times))
    for number in range(RUNS):
        path = root / f"group{number // 50:02d}/seed{number}"
        path.mkdir(parents=True)
        config = to_dict(load_preset("paper", {"seed": number, "env.size": 3 + number % 3}))
        document = {"format": 1, "lwm_version": "0", "config": config}
        (path / "config.json").write_text(json.dumps(document))
        (path / "status.json").write_text('{"state": "finished", "frames": 1000000}')
        (path / "metrics.jsonl").write_bytes(metrics)
        (path / "timing.jsonl").write_bytes(timing)


def paint(root: Path) -> None:
    """Milliseconds from asking for the page to rows on the screen; then to the last row."""
    root = root / "many"
    if not root.exists():
        make_runs(root)
    told = """() => new Promise((done) => {
      const look = () => {
        if (!document.querySelector("#runs tbody tr")) { requestAnimationFrame(look); return; }
        done(performance.now());
      };
      look();
    })"""
    with browsed() as page:
        for attempt in range(3):
            with served(root) as (address, pid):
                for kind in ("new server", "again"):
                    began = time.monotonic()
                    page.goto(address, wait_until="commit")
                    first = page.evaluate(told)
                    page.wait_for_selector(f"span[role=status]:has-text('{RUNS} runs')")
                    entries = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
                    print(
                        f"paint {attempt}, {kind}: first paint {page.evaluate(entries):.0f} ms, "
                        f"first rows {first:.0f} ms, all {RUNS} runs known after "
                        f"{time.monotonic() - began:.2f} s; server {_seconds_of(pid):.2f} s of CPU",
                        flush=True,
                    )
                    page.goto("about:blank")


def scrub(root: Path) -> None:
    """Frames per second while every animation frame scrubs to another step of 10,000."""
    run = root / "film/run"
    if not run.exists():
        run.mkdir(parents=True)
        document = {"format": 1, "lwm_version": "0", "config": to_dict(load_preset("paper"))}
        (run / "config.json").write_text(json.dumps(document))
        rng, n = np.random.default_rng(0), STEPS + 1
        obs = np.zeros((n, 84, 84), np.uint8)
        obs[:, 20:60, :] = rng.integers(0, 256, (40, 84))
        for t in range(n):
            obs[t, 30 + t % 20, t % 84] = 255
        fields = {
            "obs": obs, "a_tm1": rng.integers(0, 18, n), "is_last": np.arange(n) % 2000 == 1999,
            "r_t": (rng.random(n) < 0.01).astype(np.float32),
            "r_in": rng.normal(size=n).astype(np.float32),
            "z": np.cumsum(rng.normal(size=(n, 32)), 0).astype(np.float32),
        }  # fmt: skip
        meta = {"environment": "atari", "agent": "lwm", "seed": 0, "score": 0.0}
        write_episode(episode_path(run / "episodes", 0), Episode(fields, meta))
    moved = """() => new Promise((done) => {
      const bar = document.getElementById("scrub"), began = performance.now();
      let frames = 0, drawn = 0, t = 0, before = "";
      const film = document.querySelector("canvas.film");
      const next = (now) => {
        if (film.dataset.step !== before) { drawn++; before = film.dataset.step; }
        frames++;
        if (now - began > 5000) { done([frames, drawn, (now - began) / 1000]); return; }
        t = (t + 37) % 10000; bar.value = t; bar.dispatchEvent(new Event("input"));
        requestAnimationFrame(next);
      };
      requestAnimationFrame(next);
    })"""
    with served(root / "film") as (address, _), browsed() as page:
        began = time.monotonic()
        page.goto(f"{address}#/episode?id=run&n=0")
        page.wait_for_selector("canvas.film[data-step]")
        print(f"scrub: first picture after {time.monotonic() - began:.2f} s", flush=True)
        for attempt in range(4):
            before = _browser_seconds()
            frames, drawn, seconds = page.evaluate(moved)
            used = 1000 * (_browser_seconds() - before) / frames
            print(
                f"scrub {attempt}: {frames / seconds:.1f} frames/s, {drawn / seconds:.1f} new "
                f"pictures/s, {used:.1f} ms of CPU a frame over all of Chromium's processes",
                flush=True,
            )


def _seconds_of(process: int) -> float:
    """CPU time of a process and of those it has waited for."""
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, words[11:13])) / os.sysconf("SC_CLK_TCK")


def _browser_seconds() -> float:
    """CPU time of all descendants of this process."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
    own, total = {os.getpid()}, 0.0
    for _ in range(6):
        own |= {child for child, parent in parents.items() if parent in own}
    for process in own - {os.getpid()}:
        try:
            total += _seconds_of(process)
        except OSError:
            continue
    return total


def watch(root: Path) -> None:
    """One training run, its page open and closed in turn: frames a second, the server's CPU."""
    run = root / "watched/run"
    shutil.rmtree(run.parent, ignore_errors=True)
    command = [sys.executable, "-m", "lwm.cli", "train", "labyrinth", "--size", "4", "--quiet",
               "--frames", "900000", "--out", str(run), "loop.log_every_frames=500"]  # fmt: skip
    sums = {True: [0.0, 0.0, 0.0, 0.0], False: [0.0, 0.0, 0.0, 0.0]}
    with subprocess.Popen(command) as training:
        while not (run / "timing.jsonl").exists() or sum(1 for _ in read_timing(run)) < 60:
            time.sleep(2)
        with served(run.parent) as (address, server), browsed() as page:
            for turn in range(12):
                watched = turn % 2 == 1
                page.goto(f"{address}#/run?id=run" if watched else "about:blank")
                time.sleep(1)
                before = (_frames(run), time.monotonic(), _seconds_of(training.pid),
                          _seconds_of(server))  # fmt: skip
                time.sleep(15)
                after = (_frames(run), time.monotonic(), _seconds_of(training.pid),
                         _seconds_of(server))  # fmt: skip
                for k in range(4):
                    sums[watched][k] += after[k] - before[k]
        training.terminate()
    for watched, (frames, wall, cpu, server_cpu) in sums.items():
        print(
            f"{'watched' if watched else 'unwatched'}: {frames / wall:.1f} frames/s of wall time, "
            f"{frames / cpu:.1f} per CPU second of training; server "
            f"{100 * server_cpu / wall:.2f} % of one core over {wall:.0f} s",
            flush=True,
        )


def _frames(run: Path) -> int:
    return int([row["frames"] for row in read_timing(run)][-1])


if __name__ == "__main__":
    place = Path(sys.argv[1])
    for name in sys.argv[2:] or ["paint", "scrub", "watch"]:
        {"paint": paint, "scrub": scrub, "watch": watch}[name](place)
