"""What a table of Atari runs will cost on machines that nobody has rented yet.

Hours on CPUs and the part of a run that no GPU takes over come from the committed measurements
(results/bench.json); memory is summed up, or measured by one update on this CPU.  **No GPU was
measured**: hours on one are the paper's own figure unless ``--hours-per-run`` gives another.
Deaths are played with the rules of real sweeps (``policy.Ledger``).
"""

from __future__ import annotations

import heapq
import json
from argparse import Namespace
from dataclasses import dataclass

import numpy as np

from lwm import plan
from lwm.config import Config, load_preset
from lwm.errors import BadInput
from lwm.experiments import atari, rows, table2, table3
from lwm.sweep.policy import RETRIES, Ledger

PAPER_HOURS = 7.5
"""Hours of a run of 50M frames on one T4: the paper's statement, not a measurement of ours."""
SUITE = 57 * 5
"""Games of the whole benchmark × seeds."""
_RESTART = 0.05
"""Hours from a death to the first new frame: noticing it, a free place, reading the checkpoint."""
_STAY = ("env", "sample", "priorities")
"""Stages of a cycle that stay on the CPU."""


@dataclass(frozen=True)
class Outcome:
    """Means over sweeps that were played."""

    hours: float
    low: float
    high: float
    """2.5 and 97.5 percent of the makespans."""
    retries: float
    lost_hours: float
    """Work done twice, over all runs."""
    given_up: float
    """Runs that died more often than a run may."""


def simulate(
    runs: int,
    places: int,
    hours: float,
    failure_rate: float,
    saved_every: float,
    retries: int = RETRIES,
    sweeps: int = 200,
    seed: int = 0,
) -> Outcome:
    """Play sweeps of equal runs on ``places`` slots; ``failure_rate``: deaths per hour of a run.

    A death loses what came after the last checkpoint, of which there is one every ``saved_every``
    hours of work.
    """
    rng = np.random.default_rng(seed)
    played = [
        _play(rng, runs, places, hours, failure_rate, saved_every, retries) for _ in range(sweeps)
    ]
    ends, tries, lost, given_up = np.array(played).T
    low, high = np.percentile(ends, [2.5, 97.5])
    return Outcome(ends.mean(), low, high, tries.mean(), lost.mean(), given_up.mean())


def _play(
    rng: np.random.Generator,
    runs: int,
    places: int,
    hours: float,
    rate: float,
    saved_every: float,
    retries: int,
) -> tuple[float, int, float, int]:
    """One sweep: its end, restarts, hours lost, runs given up."""
    ledger = Ledger((str(i) for i in range(runs)), retries)
    saved = dict.fromkeys(ledger.runs, 0.0)
    under_way: list[tuple[float, str, bool]] = []
    now = lost = 0.0
    tries = 0
    while ledger.open():
        while len(under_way) < places and (run := ledger.next(now)) is not None:
            left = hours - saved[run.id]
            begins = now + (_RESTART if run.attempts > 1 else 0.0)
            alive = rng.exponential(1 / rate) if rate else np.inf
            dies = alive < left
            heapq.heappush(under_way, (begins + min(alive, left), run.id, dies))
            if dies:
                done = saved[run.id] + alive
                kept = max(saved[run.id], done // saved_every * saved_every)
                lost, saved[run.id] = lost + done - kept, kept
        now, name, died = heapq.heappop(under_way)
        if died:
            tries += ledger.died(name, "died", now)
        else:
            ledger.finished(name)
    return now, tries, lost, ledger.counts()["failed"]


def describe(args: Namespace) -> str:
    """The answer of ``lwm plan table2 --gpus 8``."""
    config, runs, what = _asked(args)
    on_gpu = args.gpus is not None
    hours, source = _hours(config, args)
    places = args.gpus or args.cores or 1
    device = "GPU" if on_gpu else "core"
    rate, retries = args.failure_rate or 0.0, RETRIES if args.retries is None else args.retries
    every = hours * config.loop.checkpoint_every_frames / config.loop.total_frames
    calm = simulate(runs, places, hours, 0.0, every, sweeps=1)
    ram = plan.memory_bytes(config)
    lines = [
        f"{what}: {runs} runs of {config.loop.total_frames * config.atari.action_repeat:,} frames "
        f"on {places} {device}s, one run each",
        f"hours    {hours:.1f} a run ({source}); {runs * hours:,.0f} {device} hours",
        f"makespan {calm.hours:,.1f} hours ({calm.hours / 24:.1f} days) if nothing dies",
        _with_deaths(simulate(runs, places, hours, rate, every, retries), rate, every, retries),
        f"memory   {_gib(ram)} of RAM a run, of which replay {_gib(plan.replay_bytes(config))}; "
        f"{_gib(places * ram)} for {places} at once",
    ]
    if on_gpu:
        lines += _gpu_lines(config)
    return "\n".join(line for line in lines if line)


def _with_deaths(found: Outcome, rate: float, every: float, retries: int) -> str:
    if not rate:
        return ""
    return (
        f"         {found.hours:,.1f} hours [{found.low:,.1f}, {found.high:,.1f}] if a run dies "
        f"{rate:g} times an hour: {found.retries:.1f} restarts, {found.lost_hours:.1f} hours done "
        f"twice (a checkpoint every {every * 60:.0f} minutes), {found.given_up:.2f} runs given up "
        f"after {retries} restarts (200 sweeps played by the rules of lwm sweep)"
    )


def _gpu_lines(config: Config) -> list[str]:
    lines = [
        f"VRAM     {_gib(plan.device_bytes(config))} a run: networks, batch and what an update "
        "keeps, measured on this CPU; a GPU's libraries come on top",
        "no GPU was measured: hours on one are as told above, and nobody has run this there",
    ]
    stay = _stage_ms(_STAY)
    if stay is not None:
        cycles = config.loop.total_frames / config.loop.actors
        lines.insert(
            0,
            f"CPU      games, sampling and priorities stay there: {stay:.0f} ms a cycle, at least "
            f"{stay * cycles / 3.6e6:.1f} core hours a run (results/bench.json, one core)",
        )
    return lines


def _asked(args: Namespace) -> tuple[Config, int, str]:
    """Config of a run, how many runs there are, and what they are called."""
    seeds = args.seeds
    preset = args.preset or ("single-gpu" if args.gpus is not None else "paper")
    # What is measured is measured here, whatever the preset asks for.
    config = load_preset(preset, {"atari.game": "montezuma_revenge", "device": "cpu"}, "atari")
    if args.workload == "suite":
        each = SUITE // 5 * (seeds or 5)
        return config, each, f"57 games × {seeds or 5} seeds, lwm"
    table = {"table2": table2, "table3": table3}[args.workload]
    agents, usual = len(table.AGENTS), {"table2": table2.SEEDS, "table3": 1}[args.workload]
    games = len(atari.PAPER)
    told = f"{args.workload}: {games} games × {agents} agents × {seeds or usual} seeds"
    return config, games * agents * (seeds or usual), told


def _hours(config: Config, args: Namespace) -> tuple[float, str]:
    if args.hours_per_run is not None:
        return args.hours_per_run, "as given"
    millions = config.loop.total_frames * config.atari.action_repeat / 1e6
    if args.gpus is not None:
        return PAPER_HOURS * millions / 50, "the paper's own figure for a T4, not measured by us"
    each = table2.hours_per_million()
    if each is None:
        raise BadInput("results/bench.json has no Atari cycle: run lwm bench atari first")
    return each * millions, "measured on one core, results/bench.json"


def _stage_ms(stages: tuple[str, ...]) -> float | None:
    try:
        found = json.loads((rows.RESULTS / "bench.json").read_text(encoding="utf-8"))
        of_one = [r for r in found if (r["workload"], r["cores"]) == ("atari", 1)]
        times = {row["stage"]: float(row["ms"]) for row in of_one}
        return sum(times[stage] for stage in stages)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
