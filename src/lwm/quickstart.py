"""The first thing to run: train on the 3×3 labyrinth to the paper's score, with table and pictures.

All numbers of ours in the table are read from the run directory; nothing is known beforehand.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from lwm import plots, recording, runs, session
from lwm.config import Config, from_dict, load_preset
from lwm.envs.oracles import BayesExplorer
from lwm.errors import BadInput, RunFailed
from lwm.experiments.runner import cores
from lwm.streams import environment_seeds
from lwm.training import Trainer
from lwm.writing import RunWriter

SIZE = 3
PAPER_SCORE = -10.8
"""Table 1, 3 × 3, recurrent DQN + WM; the mean of 128 episodes after 1M frames."""
PAPER_EPISODES, PAPER_FRAMES = 128, 1_000_000
HURRY = {
    # Fresher rows for every update, of which half as many do; the bonus is gone while the rate is
    # still high.
    "loop.actors": 64,
    "intrinsic.fade_until": 0.5,
    "unroll_precision": "bfloat16",
}
"""What somebody who waits needs beside preset ``best``."""


class Drive(Protocol):
    """Runs a trainer to its end into a run directory, showing progress unless ``quiet``."""

    def __call__(self, writer: RunWriter, trainer: Trainer, quiet: bool) -> dict[str, Any]:
        """Returns the evaluation, which is also in the run directory."""


def settings() -> Config:
    """The run of the quick start: it ends when a validation reaches the paper's score."""
    return load_preset(
        "best",
        {
            "agent": "lwm",
            "env.size": SIZE,
            "loop.total_frames": PAPER_FRAMES,
            **HURRY,
            "unroll_threads": min(cores(), 2),
            "loop.evaluate_every_frames": 25_000,
            "loop.validation_episodes": 1024,
            "loop.stop_at_score": PAPER_SCORE,
        },
    )


def quickstart(out: Path, drive: Drive) -> str:
    """Train into ``out`` unless it holds a finished run; return the table and the pictures' paths.

    An interrupted run in ``out`` is resumed.
    """
    out = Path(out)
    done = _train(out, drive)
    config = from_dict(runs.read_config(out))
    result = runs.read_evaluation(out)
    if result is None:
        raise RunFailed(f"{out} has no evaluation; make one with: lwm evaluate {out}")
    limit = _limits(result["episodes"], config.evaluation.epsilon)
    return "\n".join(
        [done, "", table(config, result, limit, seconds(out)), "", *_pictures(out, limit)]
    )


def _train(out: Path, drive: Drive) -> str:
    """Leave a finished run in ``out``; say what had to be done for it."""
    if not runs.is_run(out):
        config = settings()
        _tell(
            f"training {config.agent} on {SIZE}×{SIZE} into {out}: up to "
            f"{config.loop.total_frames:,} frames, fewer if a validation reaches {PAPER_SCORE}"
        )
        drive(*session.start(config, out), quiet=False)
        return f"Trained into {out}."
    config = from_dict(runs.read_config(out))
    if (config.agent, config.env.size) != ("lwm", SIZE):
        size = config.env.size
        raise BadInput(f"{out} holds another run ({config.agent} on {size}×{size}); choose --out")
    if (runs.read_status(out) or {}).get("state") == "finished":
        return f"{out} holds a finished run: nothing was trained, table and pictures are made anew."
    writer, trainer = session.reopen(out)
    frames = trainer.frames
    _tell(f"resuming the run in {out} at {frames:,} frames")
    drive(writer, trainer, quiet=False)
    return f"Resumed the run in {out} at {frames:,} frames and finished it."


def table(config: Config, result: dict[str, Any], limit: dict[str, float], spent: float) -> str:
    """Ours, the paper's and the limit side by side.

    Args:
        config: of the run.
        result: its evaluation.json.
        limit: ``exact`` and ``played`` scores of the Bayes-optimal explorer.
        spent: seconds of training.
    """
    epsilon = f"ε = {result['epsilon']:g}"
    rows = [
        ("", "ours", "paper", "Bayes-optimal limit"),
        (
            "score",
            f"{result['score']:.2f}  [{result['low']:.2f}, {result['high']:.2f}]",
            f"{PAPER_SCORE}",
            f"{limit['exact']:.2f} exact; {limit['played']:.2f} at {epsilon}",
        ),
        ("score, first 128 episodes", f"{result['score128']:.2f}", f"{PAPER_SCORE}", ""),
        ("solved", f"{result['solved']:.2%}", "", "100%"),
        ("episodes", f"{result['episodes']:,}", f"{PAPER_EPISODES}", "the same as ours"),
        ("training frames", f"{result['frames']:,}", f"{PAPER_FRAMES:,}", "none"),
        ("training seconds", f"{spent:,.0f}", "", ""),
    ]
    widths = [max(len(row[k]) for row in rows) for k in range(4)]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(r, widths, strict=True)) for r in rows]
    lines.insert(1, "  ".join("-" * w for w in widths))
    title = (
        f"{SIZE}×{SIZE} labyrinth, agent {config.agent}, preset {config.preset}, "
        f"seed {config.seed}; test seeds, which training never saw; 95 % interval over episodes"
    )
    verdict = (
        f"ours is {_apart(result['score'], PAPER_SCORE)} the paper's score "
        f"and {_apart(result['score'], limit['played'])} the limit at {epsilon}"
    )
    return "\n".join([title, "", *(line.rstrip() for line in lines), "", verdict])


def _apart(score: float, other: float) -> str:
    return f"{abs(score - other):.2f} {'above' if score >= other else 'below'}"


def seconds(run: Path) -> float:
    """Wall time that training took, over all processes that worked on a run.

    Each process counts its seconds from 0 and its rate from the frame it began at, which tells the
    rows of one process from those of the next.
    """
    by_start: dict[int, float] = {}
    for row in runs.read_timing(run):
        start = round(row["frames"] - row["frames_per_second"] * row["seconds"])
        by_start[start] = max(by_start.get(start, 0.0), row["seconds"])
    return sum(by_start.values())


def _limits(episodes: int, epsilon: float) -> dict[str, float]:
    """The best possible score, exactly, and played with ε in the labyrinths ours was scored on."""
    explorer = BayesExplorer(SIZE)
    first = int(environment_seeds("test", 1)[0])
    played = explorer.simulate(episodes, first, epsilon).mean()
    return {"exact": explorer.value, "played": float(played)}


def _pictures(out: Path, limit: dict[str, float]) -> list[str]:
    """Draw what can be drawn; a line for each picture or for what is missing."""

    def curve(path: Path) -> None:
        lines = {"paper": PAPER_SCORE, "Bayes-optimal limit": limit["exact"]}
        plots.learning_curve([out], path, lines)

    def episode(path: Path) -> None:
        plots.animate_episode(recording.play(session.load(out), 0), path)

    drawings: dict[str, Callable[[Path], None]] = {
        "learning-curve.png": curve,
        "episode.gif": episode,
    }
    lines, missing = [], set()
    for name, draw in drawings.items():
        try:
            draw(out / name)
            lines.append(f"picture: {out / name}")
        except ImportError as error:
            package = (error.name or str(error)).partition(".")[0]
            missing.add({"PIL": "pillow"}.get(package, package))
    if missing:
        what = " and ".join(sorted(missing))
        lines.append(f"not all pictures were drawn: {what} missing; pip install 'lwm[viz]'")
    return lines


def _tell(message: str) -> None:
    print(f"lwm: {message}", file=sys.stderr)
