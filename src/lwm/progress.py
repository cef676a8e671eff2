"""What a person sees while a run goes on: a progress bar, and TensorBoard where it is installed."""

from __future__ import annotations

import contextlib
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lwm.types import Event, Stage

if TYPE_CHECKING:
    from tqdm import tqdm

_LOG_SECONDS = 30.0
"""Between two lines in a log file."""
_NAMES = {
    "episode/return": "rollout/ep_rew_mean",
    "episode/length": "rollout/ep_len_mean",
    "dqn/loss": "train/loss",
}


class ProgressBar:
    """Frames, frames/s, return, share solved if it is told, time left; in a log file a line now and
    then.  While the run pretrains, a second bar of the terminal shows how far that is."""

    def __init__(self, total_frames: int, frames: int = 0, label: str = "") -> None:
        from tqdm import tqdm

        live = sys.stderr.isatty()
        common = {
            "dynamic_ncols": live,
            "mininterval": 0.5 if live else _LOG_SECONDS,
            "file": sys.stderr,
        }
        self._shown: dict[str, str] = {}
        self._bar = tqdm(
            total=total_frames,
            initial=frames,
            desc=label or None,
            unit="frame",
            unit_scale=True,
            **common,
        )
        self._live, self._due = live, 0.0
        self._new_stage = partial(tqdm, unit="update", leave=False, **common)
        self._stage: tqdm[Any] | None = None
        self._stage_name = ""

    def __call__(self, event: Event, seconds: float) -> None:
        """Show the event's numbers."""
        self._pretraining(event.stage)
        self._bar.update(event.frames - self._bar.n)
        if event.kind == "cycle":
            return
        data = event.data
        if "episode/return" in data:
            self._shown = {"return": f"{data['episode/return']:.1f}"}
            if "episode/solved" in data:
                self._shown["solved"] = f"{data['episode/solved']:.0%}"
        if event.kind == "validation":
            solved = f", {data['solved']:.1%} solved" if "solved" in data else ""
            self._bar.write(
                f"  {event.frames:>9,} frames: score {data['score']:.2f} over "
                f"{data['episodes']:,} validation episodes{solved}",
                file=sys.stderr,
            )
        self._bar.set_postfix(self._shown, refresh=False)

    def _pretraining(self, stage: Stage | None) -> None:
        if self._stage is not None and (stage is None or stage.name != self._stage_name):
            self._stage.close()
            self._stage = None
        if stage is None:
            return
        if not self._live:  # two bars need a terminal
            told = f"pretraining {stage.name} {stage.done:,} of {stage.total:,}"
            due = time.monotonic() >= self._due
            self._bar.set_postfix_str(told, refresh=due)
            if due:
                self._due = time.monotonic() + _LOG_SECONDS
            return
        if self._stage is None:
            self._stage_name = stage.name
            title = f"pretraining {stage.name}"
            self._stage = self._new_stage(total=stage.total, initial=stage.done - 1, desc=title)
        self._stage.update(stage.done - self._stage.n)

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._pretraining(None)
        self._bar.close()


class TensorBoard:
    """The numbers of each event as TensorBoard scalars, under the names people look for."""

    def __init__(self, path: Path, writer_class: Any, frames: int) -> None:
        # Of a resumed run, what lies behind its checkpoint is told again: drop it.
        self._writer: Any = writer_class(str(path / "tensorboard"), purge_step=frames or None)

    def __call__(self, event: Event, seconds: float) -> None:
        """Write the event's scalars at its frame; a full disk ends the curves, not the run."""
        if self._writer is None or event.kind == "cycle":
            return
        try:
            for key, value in event.data.items():
                if isinstance(value, (int, float)):
                    name = _NAMES.get(key, key if "/" in key else f"{event.kind}/{key}")
                    self._writer.add_scalar(name, value, event.frames)
            self._writer.add_scalar("time/seconds", seconds, event.frames)
        except OSError as error:
            print(f"lwm: warning: no more TensorBoard events: {error}", file=sys.stderr)
            self._writer = None

    def close(self) -> None:
        """Flush to disk."""
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.close()


def tensorboard(path: Path, frames: int = 0) -> TensorBoard | None:
    """A TensorBoard writer for the run in ``path``; None where the extra ``tb`` is missing,
    and where the name of the directory is no text."""
    try:
        from torch.utils.tensorboard import SummaryWriter

        str(path).encode()
    except (ImportError, UnicodeEncodeError):  # it takes names of files for text
        return None
    return TensorBoard(path, SummaryWriter, frames)
