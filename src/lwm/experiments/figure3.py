"""Figure 3: what four representations make of a random agent's frames, drawn and measured."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from importlib.util import find_spec
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import numpy as np

from lwm.errors import BadInput, RunFailed, one_line, reason
from lwm.experiments import rows, runner
from lwm.experiments import trajectory as scripts
from lwm.experiments.options import Options
from lwm.files import replace_between, write_bytes_atomic
from lwm.machine import machine_facts
from lwm.statistics import interval

PATH = rows.RESULTS / "figure3.csv"
COLUMNS = ("representation", "metric", "value", "scale", "seed", "commit")
OBSERVATIONS = 400_000
LEAST = 2048
"""Observations at the smallest scales: sequences and pairs must fit."""
SEEDS = 3
REPRESENTATIONS = {"rf": "RF", "idf": "IDF", "cpc": "CPC|Action", "wmse": "W-MSE"}
METRICS = {
    "rank_correlation": "rank correlation with time, lags 1–64",
    "rank_correlation_random": "… random episodes",
    "rank_correlation_scripted": "… scripted episodes",
    "probe_x": "linear probe of x, R²",
    "probe_y": "linear probe of y, R²",
    "probe_room": "linear probe of the room, accuracy",
    "predictability": "predictability in one step, R²",
    "predictability_random": "… random episodes",
    "predictability_scripted": "… scripted episodes",
    "effective_rank": "effective rank, of 32",
    "action_accuracy": "accuracy of the inverse model (chance 6 %)",
}
PICTURE, PAGE = Path("docs/figure3.png"), Path("docs/figure3.md")

_ORDER = ("wmse", "idf", "cpc", "rf")  # long parts first: two processes end together
_MARKS = ("<!-- figure3: written by `lwm reproduce figure3` -->", "<!-- figure3 end -->")


def status() -> str:
    """Which scales have rows."""
    have = {(r["scale"], r["representation"], r["seed"]) for r in _read() if _is_raw(r)}
    scales = sorted({scale for scale, _, _ in have}, key=float)
    counts = [f"{sum(s == scale for s, _, _ in have)} of 12 at scale {scale}" for scale in scales]
    return "parts: " + (", ".join(counts) or "none")


def main(options: Options) -> int:
    """Run the parts that are missing (unless ``show``), then print the table and draw."""
    options.allow("figure3", "only", "seeds", "jobs", "show", "scale", "trajectory")
    size = 1.0 if options.scale is None else options.scale
    if options.show and options.scale is None:
        size = float(_largest_scale() or max((r["scale"] for r in _read()), key=float, default=1))
    parts = _chosen(options.only, options.seeds)
    given = options.trajectory
    script = scripts.read(given or scripts.COMMITTED)
    directory = folder(size)
    drawn = directory / f"{given.stem if given else 'figure3'}.png"
    if given is not None or not options.show:
        scripts.replay(script)  # one that does not fit is refused before hours of training
    if not options.show:
        check_extras()
        _run_missing(directory, size, parts, options.jobs)
    rows.there("figure3", PATH, (r for r in _read() if float(r["scale"]) == size))
    print(markdown(f"{size:g}"))
    print(f"scale {size:g}: {_observations(size):,} of {OBSERVATIONS:,} observations")
    if _drawable(directory):
        from lwm.experiments import figure3_picture

        files = {t: weights_file(directory, name, 0) for name, t in REPRESENTATIONS.items()}
        figure3_picture.draw(files, scripts.replay(script), drawn)
        print(f"picture: {drawn}")
    else:
        print(f"no picture: not all weights of seed 0 are in {directory}")
    if given is None and f"{size:g}" == _largest_scale():
        _put_in_page(f"{size:g}", drawn)
    return 0


def _observations(scale: float) -> int:
    return max(round(OBSERVATIONS * scale), LEAST)


def check_extras() -> None:
    """``BadInput`` if the picture could not be drawn in the end."""
    for module, extra in (("ale_py", "atari"), ("matplotlib", "viz"), ("sklearn", "figures")):
        if find_spec(module) is None:
            raise BadInput(f"figure3 needs the extra: pip install 'lwm[{extra}]'")


def folder(scale: float) -> Path:
    """Where data, weights and the picture of a scale are kept."""
    return Path("runs") / "figure3" / f"scale-{scale:g}"


def weights_file(directory: Path, representation: str, seed: int) -> Path:
    """Where a part's Φ is kept."""
    return directory / f"{representation}-seed{seed}.safetensors"


def _chosen(only: list[str], seeds: int | None) -> list[tuple[str, int]]:
    """The (representation, seed) asked for, in the order in which they are run."""
    every = [(name, seed) for seed in range(min(seeds or SEEDS, SEEDS)) for name in _ORDER]
    chosen = [(n, s) for n, s in every if all(w in f"figure3/{n}/seed{s}" for w in only)]
    if not chosen:
        raise BadInput(f"no part of figure3 has {' and '.join(only)} in its id")
    return chosen


def _run_missing(
    directory: Path, scale: float, parts: list[tuple[str, int]], jobs: int | None
) -> None:
    """Run the parts that have no rows; those of seed 0 also if their weights are gone, as the
    picture needs them."""
    from lwm.experiments import figure3_data

    have = {(r["representation"], int(r["seed"])) for r in _read() if float(r["scale"]) == scale}
    todo = [
        (name, seed)
        for name, seed in parts
        if (name, seed) not in have
        or (seed == 0 and not weights_file(directory, name, seed).exists())
    ]
    if not todo:
        return
    data = directory / "data"
    if not data.exists():
        print(f"collecting {_observations(scale):,} observations", flush=True)
    figure3_data.prepare(data, _observations(scale))
    failed: list[str] = []
    context = get_context("spawn")  # torch's threads do not survive a fork
    workers = min(jobs or runner.cores(), len(todo))
    with runner.ended_by_sigterm(), ProcessPoolExecutor(workers, context) as pool:
        try:
            waiting = {
                pool.submit(run_part, directory, name, scale, seed, os.getpid()): (name, seed)
                for name, seed in todo
            }
            for future in as_completed(waiting):
                name, seed = waiting[future]
                failed += _finish(future, name, seed, scale, (name, seed) in have)
        except BaseException:  # asked to end: parts that run now would take minutes
            pool.shutdown(wait=False, cancel_futures=True)
            for process in active_children():
                process.terminate()
            raise
    if failed:
        raise RunFailed(f"{len(failed)} of {len(todo)} parts failed, e.g. {failed[0]}")


def _finish(
    future: Future[list[dict[str, Any]]], name: str, seed: int, scale: float, known: bool
) -> list[str]:
    """Write the rows of a part that ended; its name and fault if it failed."""
    try:
        found = future.result()
    except Exception as error:
        print(f"failed   figure3/{name}/seed{seed}: {one_line(str(error))}", flush=True)
        return [f"figure3/{name}/seed{seed}: {error}"]
    if not known:
        rows.append_all(PATH, COLUMNS, [{**row, "scale": f"{scale:g}"} for row in found])
    values = {row["metric"]: row["value"] for row in found if row["representation"] == name}
    told = ", ".join(f"{m} {values[m]:.3f}" for m in ("rank_correlation", "predictability"))
    print(f"finished figure3/{name}/seed{seed}: {told}", flush=True)
    return []


def run_part(
    directory: Path, representation: str, scale: float, seed: int, parent: int
) -> list[dict[str, Any]]:
    """In a process of its own: train, keep the weights, measure; -> rows without their scale."""
    import safetensors.torch
    import torch

    from lwm.experiments import figure3_parts

    def check() -> None:
        if os.getppid() != parent:  # nobody is left to take the result
            os._exit(1)  # an exception would only bring the process back to its queue

    torch.set_num_threads(1)
    encoder, numbers = figure3_parts.run(directory / "data", representation, scale, seed, check)
    state = {name: value.contiguous() for name, value in encoder.state_dict().items()}
    file = weights_file(directory, representation, seed)
    write_bytes_atomic(file, safetensors.torch.save(state))
    commit = machine_facts()["commit"]
    check()
    return [
        {
            "representation": representation + "-whitened" * number.whitened,
            "metric": number.metric,
            "value": number.value,
            "seed": seed,
            "commit": commit,
        }
        for number in numbers
    ]


def _read() -> list[dict[str, str]]:
    return rows.read(PATH, COLUMNS, _fault)


def _fault(row: Mapping[str, str]) -> str:
    scale = row["scale"]
    return "" if 0 < float(scale) <= 1 else f"scale {scale!r} is not a fraction in (0, 1]"


def _is_raw(row: dict[str, str]) -> bool:
    return row["representation"] in REPRESENTATIONS


def _largest_scale() -> str | None:
    """The largest scale of which every representation has a row."""
    found: dict[str, set[str]] = {}
    for row in filter(_is_raw, _read()):
        found.setdefault(row["scale"], set()).add(row["representation"])
    whole = [scale for scale, names in found.items() if len(names) == len(REPRESENTATIONS)]
    return max(whole, key=float, default=None)


def markdown(scale: str | None = None) -> str:
    """The table of one scale (the largest) from the rows: mean over seeds, and 95 % interval."""
    scale = scale or _largest_scale() or "1"
    told = (r for r in _read() if float(r["scale"]) == float(scale) and r["value"])
    groups = rows.grouped(PATH, told, lambda r: (r["representation"], r["metric"]))
    found = {key: [float(row["value"]) for row in group] for key, group in groups.items()}
    names = (name.replace("|", "\\|") for name in REPRESENTATIONS.values())
    head = f"| metric, at scale {float(scale):g} | "
    lines = [head + " | ".join(names) + " |", "|---|" + "---|" * 4]
    for suffix, title in (("", ""), ("-whitened", ", whitened")):
        for metric, meaning in METRICS.items():
            cells = [_cell(found.get((name + suffix, metric))) for name in REPRESENTATIONS]
            # A metric that nothing has is shown once: that it could not be measured is a result.
            if any(cell != "–" for cell in cells) or (metric == "probe_room" and not suffix):
                lines.append(f"| {meaning}{title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(values: list[float] | None) -> str:
    if not values:
        return "–"
    array = np.array(values)
    return f"{array.mean():.3f}" + (f" {interval(array, 3)}" if len(array) > 1 else "")


def _drawable(directory: Path) -> bool:
    """Whether the Φ of seed 0 are all there."""
    return all(weights_file(directory, name, 0).exists() for name in REPRESENTATIONS)


def _put_in_page(scale: str, drawn: Path) -> None:
    """Put table and picture where the documents show them, if this is a source tree."""
    body = f"\n\nScale {scale}, mean over seeds [95 % interval].\n\n{markdown(scale)}\n\n"
    if replace_between(PAGE, *_MARKS, body) and drawn.exists():
        try:
            shutil.copyfile(drawn, PICTURE)
        except OSError as error:
            raise RunFailed(f"cannot write {PICTURE}: {reason(error)}") from error
