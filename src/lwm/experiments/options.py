"""What the command line may ask of an experiment."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from lwm.errors import BadInput, RunFailed
from lwm.experiments import runner

PAPER_ATARI_FRAMES = 50_000_000
"""Emulator frames of the paper's Atari runs."""
PAPER_LABYRINTH_FRAMES = 1_000_000


@dataclass(frozen=True)
class Options:
    """The flags of ``lwm reproduce``; an experiment refuses those that mean nothing to it."""

    only: list[str] = field(default_factory=list)
    seeds: int | None = None
    jobs: int | None = None
    show: bool = False
    scale: float | None = None
    """Fraction of the paper's budget, in (0, 1]; None: what the experiment does by itself."""
    runs: list[Path] = field(default_factory=list)
    """Run directories to read."""
    out: Path | None = None
    """Where pictures go; None: docs."""
    game: list[str] = field(default_factory=list)
    """Atari games to run instead of the experiment's own."""
    preset: str | None = None
    """Preset of the runs instead of the experiment's own."""
    trajectory: Path | None = None
    """A script of actions to draw instead of the committed one."""
    run: runner.Runner = runner.run_all
    """Who runs the jobs: processes of this machine, or a cluster."""

    def __post_init__(self) -> None:
        if self.scale is not None and not 0 < self.scale <= 1:
            raise BadInput(
                f"--scale {self.scale:g} is not a fraction of the paper's budget: (0, 1]"
            )
        if self.show and (self.only or self.seeds or self.jobs):
            raise BadInput("--show runs nothing, so there is nothing to choose: leave out --only, "
                           "--seeds and --jobs")  # fmt: skip

    @property
    def pictures(self) -> Path:
        """Where pictures go."""
        return self.out or Path("docs")

    def allow(self, name: str, *flags: str) -> None:
        """Refuse every flag that was given and is not among ``flags``."""
        every = ("only", "seeds", "jobs", "show", "scale", "runs", "out", "game", "preset")
        for flag in (f for f in (*every, "trajectory") if getattr(self, f)):
            if flag not in flags:
                takes = " and ".join(f"--{f}" for f in flags) or "no option"
                raise BadInput(f"{name} does not take --{flag}: it takes {takes}")

    def share(self, full: int, least: int = 1) -> int:
        """``scale`` of a whole number, at least ``least``."""
        return max(least, round(full * (1.0 if self.scale is None else self.scale)))


def missing_viz(error: ImportError) -> RunFailed:
    """What to say when a drawing library is not there."""
    return RunFailed(f"no picture without {error.name or error}: pip install 'lwm[viz]'")
