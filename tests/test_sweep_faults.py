"""Sweeps on a real Ray cluster of several raylets: nodes and workers die, nothing is lost."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from clusters import Cluster, cluster, descendants, kill_tree, wait_for
from lwm import runs
from lwm.experiments import campaign, grid, runner
from lwm.experiments.options import Options
from lwm.sweep import fence
from trees import same

pytest.importorskip("ray", reason="needs the extra lwm[sweep]")

FRAMES = 6000


def sweep_of(agents: list[str], seeds: int, folder: Path) -> tuple[list[str], campaign.Campaign]:
    """Arguments of ``lwm sweep`` for short labyrinth runs in ``folder``; the same as a value."""
    change = f"loop.total_frames={FRAMES}"
    flags = ["--env", "2x2", "--agent", *agents, "--preset", "debug", change]
    of = grid.campaign_of(["2x2"], agents, ["debug"], [change], seeds, folder / "grid" / "rows.csv")
    return [*flags, "--seeds", str(seeds), "--storage", str(folder)], of


def start(arguments: list[str], made: Cluster, log: Path) -> subprocess.Popen[bytes]:
    """``lwm sweep`` on a cluster, as a user starts it."""
    command = [sys.executable, "-m", "lwm.cli", "sweep", *arguments, "--address", made.address]
    with open(log, "wb") as file:
        return subprocess.Popen(command, env=made.environment, stdout=file, stderr=file)


def serial(of: campaign.Campaign, folder: Path) -> list[dict[str, str]]:
    """The same runs one after the other on this machine; their rows."""
    path = folder / "grid" / "rows.csv"
    with runner.stored_in(folder):
        alone = campaign.Campaign(of.name, of.plan, path, of.columns, of.keys)
        campaign.run([alone], Options(jobs=1))
    return rows(path)


def rows(path: Path) -> list[dict[str, str]]:
    """Rows of a file in the order of their commands."""
    with open(path, newline="", encoding="utf-8") as file:
        return sorted(csv.DictReader(file), key=lambda row: row["command"])


def run_on(node: subprocess.Popen[bytes], directories: list[Path]) -> Path | None:
    """The run that a node attends, once it has a checkpoint and is not near its end."""
    pids = descendants(node.pid)
    for directory in directories:
        frames = (
            (runs.read_status(directory) or {}).get("frames", 0) if runs.is_run(directory) else 0
        )
        if fence.read(directory).get("pid") in pids and 0 < frames < FRAMES / 2:
            return directory
    return None


def assert_same_runs(directories: list[Path], mine: Path, other: Path) -> None:
    """Weights (all of the last checkpoint) and metrics.jsonl bit for bit."""
    for directory in directories:
        alone = other / directory.relative_to(mine)
        assert (directory / "metrics.jsonl").read_bytes() == (alone / "metrics.jsonl").read_bytes()
        assert same(runs.load_checkpoint(directory).state, runs.load_checkpoint(alone).state)


def test_a_node_dies_and_nothing_is_lost(tmp_path: Path) -> None:
    """The short form: 2 nodes, 3 runs, one node killed."""
    shared, log = tmp_path / "shared", tmp_path / "sweep.log"
    arguments, of = sweep_of(["lwm", "dqn", "lwm-ff"], 1, shared)
    with runner.stored_in(shared):
        directories = [setting.job(seed).directory for setting, seed in of.plan]
    with cluster(2, tmp_path) as made:
        greedy = start([*arguments, "--gpus-per-run", "2"], made, log)
        assert greedy.wait(60) == 2
        assert log.read_text().endswith("2 GPUs a run asked for; no node has more than 0\n")
        process = start(arguments, made, log)
        victim = made.nodes[0]
        wait_for("checkpoint", lambda: process.poll() is not None or run_on(victim, directories))
        lost = run_on(victim, directories)
        kill_tree(victim.pid)
        assert process.wait(300) == 0, log.read_text()
    told = log.read_text()
    assert lost is not None and "died" in told and told.count("finished grid/") == 3
    assert f"started  {lost.relative_to(shared)} on" in told and "attempt 2" in told
    assert rows(of.path) == serial(of, tmp_path / "alone")
    assert_same_runs(directories, shared, tmp_path / "alone")
    assert not list(shared.rglob("*.claim")) and not list(shared.glob(".sweep-*"))


@pytest.mark.long
def test_twelve_runs_survive_a_node_and_a_worker(tmp_path: Path) -> None:
    """12 runs on 3 nodes: one node killed, one worker killed with SIGKILL, a node joins."""
    shared, log = tmp_path / "shared", tmp_path / "sweep.log"
    arguments, of = sweep_of(["lwm", "dqn", "lwm-ff", "random"], 3, shared)
    with runner.stored_in(shared):
        directories = [setting.job(seed).directory for setting, seed in of.plan]
    with cluster(3, tmp_path) as made:
        process = start(arguments, made, log)
        victim = made.nodes[0]
        wait_for("checkpoint", lambda: process.poll() is not None or run_on(victim, directories))
        kill_tree(victim.pid)
        # The claim of the dead node still lies there: only workers of a living one count.
        alive = made.nodes[1]
        wait_for("worker", lambda: process.poll() is not None or run_on(alive, directories))
        shot = run_on(alive, directories)
        assert shot is not None, log.read_text()
        worker = fence.read(shot)["pid"]
        assert "attend" in Path(f"/proc/{worker}/cmdline").read_text()  # Ray names it by its task
        os.kill(worker, signal.SIGKILL)
        made.add_node()
        assert process.wait(1500) == 0, log.read_text()
    told = log.read_text()
    print(told)
    assert told.count("again    ") == 2 and told.count("finished grid/") == 12
    assert f"again    {shot.relative_to(shared)}: its worker or node died" in told
    found = rows(of.path)
    assert len(found) == len({row["command"] for row in found}) == 12
    assert found == serial(of, tmp_path / "alone")
    assert_same_runs(directories, shared, tmp_path / "alone")


@pytest.mark.long
def test_two_hundred_runs_and_the_driver_does_not_grow(tmp_path: Path) -> None:
    """Resident memory of the driver, from the tenth finished run to the last."""
    log = tmp_path / "sweep.log"
    flags = ["--env", "2x2", "--agent", "random", "--preset", "debug", "--seeds", "200"]
    tiny = ["loop.total_frames=500", "evaluation.episodes=4"]
    command = [sys.executable, "-m", "lwm.cli", "sweep", *flags, *tiny, "--storage", str(tmp_path)]
    with open(log, "wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    seen: dict[int, float] = {}

    def look() -> bool:
        seen[log.read_text().count("finished grid/")] = resident(process.pid)
        return process.poll() is not None

    wait_for("end of the sweep", look, 3600)
    assert process.wait() == 0, log.read_text()[-2000:]
    seen = {count: size for count, size in seen.items() if size}
    print({count: round(size, 1) for count, size in seen.items() if count % 20 == 0})
    late = [size for count, size in seen.items() if count >= 150]
    early = [size for count, size in seen.items() if 10 <= count < 60]
    assert max(late) - max(early) < 2.0, "MiB that the driver has grown by"


def resident(pid: int) -> float:
    """MiB of memory of a process; 0 if it has ended."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    sizes = [line.split()[1] for line in text.splitlines() if line.startswith("VmRSS:")]
    return int(sizes[0]) / 1024 if sizes else 0.0
