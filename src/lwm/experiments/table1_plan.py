"""What table 1 is made of: every labyrinth run and its seeds, where time is best spent first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lwm.config import load_preset
from lwm.experiments import campaign, runner


@dataclass(frozen=True)
class Setting:
    """One row of the table before seeds: what is trained."""

    size: int
    agent: str
    preset: str = "paper"
    variant: str = ""
    """``key=value`` settings on top of the preset, separated by blanks."""

    @property
    def id(self) -> str:
        """Name of the row: ``4x4-lwm-paper``."""
        tail = f"-{self.variant.replace(' ', '-')}" if self.variant else ""
        return f"{self.size}x{self.size}-{self.agent}-{self.preset}{tail}"

    def job(self, seed: int) -> runner.Job:
        """The training run of one seed."""
        flags = ("--size", str(self.size), "--agent", self.agent, "--preset", self.preset)
        changes = self.variant.split()
        arguments = ("train", "labyrinth", *flags, "--seed", str(seed), *changes)
        config = load_preset(
            self.preset,
            {"env.size": self.size, "agent": self.agent, "seed": seed}
            | dict(change.split("=", 1) for change in changes),
        )
        return runner.Job(f"table1/{self.id}/seed{seed}", arguments, config)

    def key(self, seed: int) -> tuple[str, ...]:
        """Size, agent, variant, preset and seed, as the cells of its row have them."""
        return (str(self.size), self.agent, self.variant, self.preset, str(seed))

    def rows(self, seed: int) -> list[dict[str, Any]]:
        """The rows of a finished run, from its directory.

        A variant that averages weights is two rows: of the average, and of the last weights, which
        are those of a run without averaging.  So is what the ablations are compared with.
        """
        result, origin = campaign.outcome(self.job(seed))
        scored = {self.variant: result}
        if AVERAGED in self.variant:
            rest = " ".join(change for change in self.variant.split() if change != AVERAGED)
            scored[rest] = result["last_weights"]
        elif self == ablation(""):
            scored[ablation(LAST).variant] = result["last_weights"]
        measured = ("episodes", "score", "score128", "solved", "median_solved")
        return [
            {
                "size": self.size,
                "agent": self.agent,
                "variant": variant,
                "preset": self.preset,
                "seed": seed,
                "frames": result["frames"],
                **origin,
                **{k: found[k] for k in measured},
            }
            for variant, found in scored.items()
        ]


_SWITCHES = (
    "dqn.reset_state=false",
    "intrinsic.boundary=mask",
    "intrinsic.boundary=reset",
    "replay.start_state=zero",
    "intrinsic.moments_include_burn_in=true",
    "dqn.truncation_bootstraps=false",
)

_BITS = "world_model.loss=bce"
"""No switch of the release: squared error through a sigmoid hardly unlearns what is certain."""

_BASELINE_SWITCHES = ("intrinsic.leak_to_baseline=true", "dqn.reset_state=false")

AVERAGED = "dqn.average=0.998"
"""Averaged weights are scored, the last ones beside them.  Training is the same."""

LAST = "dqn.average=0"
"""The last weights are scored, where a preset averages."""

_FULL_SIZE = "env.first_size=0"
"""Labyrinths that do not grow during training."""

_LESS_REPLAY = "replay.capacity_steps=100000"
"""The paper's: batches are drawn from a quarter of the walks."""

_LATER = "intrinsic.fade_from=0.5 intrinsic.fade_until=1"
"""The bonus is gone at the end of the run, not by half of it."""

ROUNDED = "unroll_precision=bfloat16"
"""Products of bfloat16, to save time: where float32 takes more than an hour, and in ablations."""


SHORT = "loop.total_frames=300000"
"""Budget of the ablations of `best`: 4×4 is nearly learned by then, in a third of the time."""

ABLATED = range(1, 3)
"""Seeds of the ablations: `best` was not tuned on them."""

# What `best` changes, taken back one at a time.
WITHOUT = (
    "replay.symmetry_share=0",
    "replay.symmetry_share=0.5",
    "replay.align_starts=0",
    "intrinsic.start_belief=zero",
    "world_model.loss=mse world_model.learning_rate=5e-4",
    "loop.actors=32",
    "dqn.n_step=1",
    "dqn.gap=0",
    "dqn.epsilon_base=0.01 dqn.epsilon_high=1",
    "env.early_steps_per_room=0",
    "intrinsic.final_beta=-1",
    "dqn.final_learning_rate=0",
    LAST,
    "world_model.clip_norm=0",
    "world_model.pretrain_iterations=1000 world_model.pretrain_rows=100",
)


def ablation(without: str) -> Setting:
    """Preset `best` on 4×4 with a third of the frames and some of its changes taken back."""
    return Setting(4, "lwm", "best", f"{SHORT} {ROUNDED} {without}".strip())


def plan() -> list[tuple[Setting, int]]:
    """Every (setting, seed), in the order in which time is best spent."""
    lwm_dqn = ("lwm", "dqn")
    betas = [f"intrinsic.beta={b}" for b in (0.1, 1, 10)]
    blocks: list[tuple[list[Setting], range]] = [
        ([Setting(n, a) for n in (3, 4) for a in lwm_dqn], range(3)),
        ([Setting(5, "lwm", "best")], range(3)),
        ([Setting(n, "lwm", "best") for n in (3, 4)], range(3)),
        ([Setting(5, a) for a in lwm_dqn], range(3)),
        ([Setting(5, "lwm", variant="replay.start_state=zero")], range(1)),
        ([Setting(n, "mbie-eb", variant=b) for n in (3, 4) for b in betas], range(1)),
        ([Setting(3, "lwm-ff")], range(3)),
        ([Setting(n, a, "official") for n in (3, 4, 5) for a in lwm_dqn], range(1)),
        ([Setting(n, "lwm", variant=AVERAGED) for n in (3, 4, 5)], range(3, 5)),
        ([Setting(5, "lwm", variant=f"{_BITS} {AVERAGED}")], range(5)),
        ([Setting(n, "lwm", variant=f"{_BITS} {AVERAGED}") for n in (3, 4)], range(3, 5)),
        ([Setting(4, "lwm", variant=f"{s} {AVERAGED}") for s in _SWITCHES], range(3, 5)),
        ([Setting(n, "lwm", "best") for n in (3, 4, 5)], range(3, 5)),
        ([Setting(4, "dqn", variant=s) for s in _BASELINE_SWITCHES], range(2)),
        ([Setting(4, "dqn", "official", "intrinsic.leak_to_baseline=false")], range(2)),
        ([Setting(4, "lwm", "best", "dqn.epsilon_base=0.01 dqn.epsilon_high=1")], range(1, 3)),
        (
            [Setting(4, "lwm", "best", "dqn.epsilon_base=0.01 dqn.epsilon_high=1 dqn.gap=0")],
            range(1),
        ),
        ([Setting(5, "lwm", "best", "dqn.gap=0")], range(2)),
        ([Setting(5, "lwm", "best", "dqn.gap=0 dqn.symmetric_share=1")], range(3)),
        ([ablation(w) for w in ("", *WITHOUT) if w != LAST], ABLATED),
        ([Setting(6, "lwm", "best", ROUNDED)], range(3)),
        (
            [
                Setting(6, "lwm", "best", f"{ROUNDED} {change}")
                for change in (
                    _LESS_REPLAY,
                    f"env.grow_share=0.3 {_LESS_REPLAY}",
                    f"{_FULL_SIZE} {_LESS_REPLAY}",
                    f"{_FULL_SIZE} {_LESS_REPLAY} {_LATER}",
                )
            ],
            range(1),
        ),
        ([Setting(n, "random") for n in (3, 4, 5)], range(1)),
    ]
    return [(s, seed) for settings, seeds in blocks for seed in seeds for s in settings]
