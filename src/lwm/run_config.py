"""``Config``: a whole run, and which of its settings go together.

The sections are in ``sections``; a config that no run could use cannot be made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lwm.errors import BadInput
from lwm.presets import PRESETS
from lwm.sections import (
    AtariConfig,
    DQNConfig,
    EncoderConfig,
    EnvConfig,
    EvaluationConfig,
    GymConfig,
    IntrinsicConfig,
    LoopConfig,
    ReplayConfig,
    WorldModelConfig,
)
from lwm.settings import check_ranges, get, hint, setting

AGENTS = ("random", "dqn", "lwm", "lwm-ff", "lwm-rf", "mbie-eb", "rnd", "icm")


@dataclass(frozen=True)
class Config:
    """A whole run."""

    workload: Literal["labyrinth", "atari", "gym"] = setting("labyrinth", "kind of environment")
    preset: str = setting("paper", "the preset that the other values started from")
    agent: str = setting("lwm", "one of " + ", ".join(AGENTS))
    seed: int = setting(0, "drives every random stream of the run", 0, 2**28 - 1)
    threads: int = setting(1, "BLAS threads of the process", 1, 256)
    device: Literal["auto", "cpu", "cuda"] = setting(
        "cpu", "where the networks compute; auto: a GPU if there is one"
    )
    precision: Literal["auto", "float32", "bfloat16"] = setting(
        "auto", "arithmetic of the convolutions; auto: bfloat16 where the device has it; row 17"
    )
    unroll_precision: Literal["float32", "bfloat16"] = setting(
        "float32",
        "products of windows in the GRUs and the layers behind them, while learning; bfloat16: "
        "rounded before they are multiplied, where the processor has it, sums in float32",
    )
    unroll_threads: int = setting(
        1, "with unroll_precision=bfloat16: threads that share the windows of a batch", 1, 64
    )
    env: EnvConfig = field(default_factory=EnvConfig)
    atari: AtariConfig = field(default_factory=AtariConfig)
    gym: GymConfig = field(default_factory=GymConfig)
    loop: LoopConfig = field(default_factory=LoopConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    dqn: DQNConfig = field(default_factory=DQNConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    world_model: WorldModelConfig = field(default_factory=WorldModelConfig)
    intrinsic: IntrinsicConfig = field(default_factory=IntrinsicConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        check(self)

    @property
    def window(self) -> int:
        """Rows of a learner window: burn-in, trained rows, and the rows their targets reach."""
        return self.replay.burn_in + self.replay.unroll + self.dqn.n_step

    @staticmethod
    def within(progress: float, share: float) -> bool:
        """Whether what holds for the first ``share`` of the run still does; 1: to the end."""
        return progress < share or share == 1

    def progress(self, frames: int) -> float:
        """How far schedules have come: share of the frame budget, or of schedule_frames."""
        return min(frames / (self.loop.schedule_frames or self.loop.total_frames), 1.0)

    @property
    def sees_images(self) -> bool:
        """Observations are frames, not bits."""
        return self.workload == "atari"

    @property
    def representation(self) -> str:
        """What the bonus sees: ``wmse``, ``rf``, ``idf``, ``rnd``, or ``pixels``, which stands for
        any observation as it is."""
        chosen = self.encoder.representation
        if self.agent == "lwm-rf":  # row 34: the same model, on a Phi that never learns
            return "rf"
        if chosen == "auto":
            return "pixels" if self.workload == "labyrinth" else "wmse"
        return chosen

    @property
    def acts_at_random(self) -> bool:
        """No network is asked what to do."""
        return self.agent == "random" or self.loop.policy == "random"

    @property
    def television(self) -> bool:
        """The environments have a noisy TV."""
        return self.atari.tv if self.sees_images else self.env.tv

    @property
    def bonus(self) -> str:
        """Which bonus model runs: ``none``, ``lwm``, ``lwm-ff`` or ``mbie-eb``."""
        if self.agent == "dqn" and self.intrinsic.leak_to_baseline:
            return "lwm"
        if self.agent == "lwm-rf":  # row 34: the same model, on a Phi that never learns
            return "lwm"
        return "none" if self.agent in ("random", "dqn") else self.agent

    @property
    def pretrains_encoder(self) -> bool:
        """Phi, where there is one, learns from the warm-up."""
        return self.representation != "rf"

    @property
    def updates_encoder(self) -> bool:
        """Phi, where there is one, goes on learning beside the agent."""
        return self.pretrains_encoder and not self.encoder.freeze_after_pretraining


def check(config: Config) -> None:
    """Raise ``BadInput`` for a value that no run could use."""
    check_ranges(config)
    if config.agent not in AGENTS:
        raise BadInput(f"unknown agent {config.agent!r}{hint(config.agent, AGENTS)}")
    if config.agent in ("rnd", "icm"):
        if config.workload != "gym":
            raise BadInput(f"agent {config.agent!r} is for workload gym, not {config.workload}")
        if config.intrinsic.boundary != "terminal":
            raise BadInput(f"agent {config.agent!r} has no other intrinsic.boundary than terminal")
    known = PRESETS[config.workload]
    if config.preset not in known:
        raise BadInput(f"unknown preset {config.preset!r}{hint(config.preset, known)}")
    if config.agent == "mbie-eb" and config.workload != "labyrinth":
        raise BadInput("agent 'mbie-eb' counts the labyrinth's observations; it knows no others")
    if config.sees_images:
        _check_images(config)
    if config.workload == "gym":
        _check_gym(config)
    if config.agent == "lwm-rf" and config.workload == "labyrinth":
        raise BadInput("agent 'lwm-rf' is for images; the labyrinth's observations need no encoder")
    _check_representation(config)
    _check_orientations(config)
    _check_rounding(config)
    if config.bonus.startswith("lwm"):
        rows, skipped = config.world_model.pretrain_rows, config.replay.burn_in
        if config.world_model.pretrain_iterations and rows < skipped + 2:
            raise BadInput(
                f"world_model.pretrain_rows={rows} leaves nothing after replay.burn_in={skipped}"
            )
        if config.world_model.loss == "bce" and not config.world_model.sigmoid_output:
            raise BadInput("world_model.loss='bce' needs world_model.sigmoid_output=True")
        if config.world_model.residual and config.world_model.sigmoid_output:
            raise BadInput("world_model.residual=True needs world_model.sigmoid_output=False")
    if config.replay.prioritised:
        _check_prioritised(config)
    _check_growth(config)
    if config.env.tv and config.workload != "labyrinth":
        raise BadInput("env.tv=True is for the labyrinth; Atari has atari.tv")
    if config.intrinsic.fade_from > config.intrinsic.fade_until:
        raise BadInput("intrinsic.fade_from comes after intrinsic.fade_until")
    loop = config.loop
    if config.agent != "random" and loop.total_frames <= loop.warmup_frames:
        raise BadInput(
            f"loop.total_frames={loop.total_frames} ends within "
            f"loop.warmup_frames={loop.warmup_frames}: nothing would be learned"
        )
    if loop.stop_at_score < 0 and not loop.evaluate_every_frames:
        raise BadInput("loop.stop_at_score needs loop.evaluate_every_frames")
    rows = config.replay.capacity_steps // config.loop.actors
    longest = config.window
    if config.bonus.startswith("lwm"):
        longest = max(longest, config.world_model.pretrain_rows)
    if rows <= longest:
        raise BadInput(
            f"replay.capacity_steps={config.replay.capacity_steps} holds {rows} rows per actor, "
            f"but a window takes {longest}"
        )
    warm = config.loop.warmup_frames // config.loop.actors
    if config.agent != "random" and warm <= longest:
        raise BadInput(
            f"loop.warmup_frames={config.loop.warmup_frames} gives {warm} rows per actor, "
            f"but a window takes {longest}"
        )


_FROM_ANY_ROW = {
    "intrinsic.start_belief": "zero",
    "dqn.auxiliary": 0,
    "replay.align_starts": 0,
    "replay.symmetry_share": 0,
}
_OF_LABYRINTH = {
    "dqn.auxiliary": 0,
    "replay.symmetry_share": 0,
    "world_model.loss": "mse",
    "env.first_size": 0,
}
"""What is for the labyrinth -> how it must stand elsewhere."""


def _check_no_labyrinth(config: Config, off: Mapping[str, Any], where: str) -> None:
    for key, allowed in off.items():
        if (value := get(config, key)) != allowed:
            raise BadInput(f"{key}={value} is for the labyrinth; {where} it must be {allowed}")


def _check_growth(config: Config) -> None:
    first, size = config.env.first_size, config.env.size
    if first == 1:
        raise BadInput("env.first_size=1 is no labyrinth: 2 or more, or 0 for env.size throughout")
    if first > size:
        raise BadInput(f"env.first_size={first} is more than env.size={size}: labyrinths grow")


def _check_prioritised(config: Config) -> None:
    """What needs windows that begin on any row: those on the grid have states in replay, others
    have none."""
    for key, allowed in _FROM_ANY_ROW.items():
        if get(config, key) != allowed:
            raise BadInput(f"{key}={get(config, key)} needs replay.prioritised=False")


def _check_gym(config: Config) -> None:
    """What works on the labyrinth only."""
    _check_no_labyrinth(config, _OF_LABYRINTH, "here")


def _check_representation(config: Config) -> None:
    """What needs the labyrinth's four bits as they are."""
    if config.env.tv and config.replay.symmetry_share:
        raise BadInput("env.tv=True has no symmetries: replay.symmetry_share must be 0")
    if config.workload != "labyrinth" or config.representation == "pixels":
        return
    for key, value in (
        ("agent", config.agent == "mbie-eb" and config.agent),
        ("dqn.auxiliary", config.dqn.auxiliary),
        ("world_model.sigmoid_output", config.world_model.sigmoid_output),
    ):
        if value:
            kind = config.representation
            raise BadInput(f"{key}={value} is for bits: not with encoder.representation={kind}")


def _check_orientations(config: Config) -> None:
    """Who acts on all orientations must have learned from them; counts are of the walk as it is."""
    share, learned = config.dqn.symmetric_share, config.replay.symmetry_share
    if share and config.workload != "labyrinth":
        raise BadInput(f"dqn.symmetric_share={share} is for the labyrinth; here it must be 0")
    if share > learned:
        raise BadInput(f"dqn.symmetric_share={share} needs replay.symmetry_share={share} or more")
    if share and (config.agent == "mbie-eb" or config.representation != "pixels"):
        what = config.agent if config.agent == "mbie-eb" else f"z by {config.representation}"
        raise BadInput(f"dqn.symmetric_share={share}: {what} has no orientations; it must be 0")


def _check_rounding(config: Config) -> None:
    """Rounded products are for whole vectors of a CPU; nothing else is shared by threads."""
    if config.unroll_precision == "float32":
        if (threads := config.unroll_threads) > 1:
            raise BadInput(f"unroll_threads={threads} needs unroll_precision=bfloat16")
        return
    if config.device == "cuda":
        raise BadInput("unroll_precision=bfloat16 is for CPUs; device=cuda has precision")
    for key in ("dqn.hidden", "world_model.hidden"):
        if (width := get(config, key)) % 16:
            raise BadInput(f"unroll_precision=bfloat16 needs a multiple of 16: {key}={width}")


def _check_images(config: Config) -> None:
    """What works on the labyrinth's bits only."""
    _check_no_labyrinth(config, {**_FROM_ANY_ROW, **_OF_LABYRINTH}, "on Atari")
    if config.atari.backend == "ale-vector":
        for key, refused in {"coverage": "on", "fire_on_reset": True}.items():
            if getattr(config.atari, key) == refused:
                raise BadInput(f"atari.backend=ale-vector cannot have atari.{key}={refused}")
    if not config.replay.prioritised:
        raise BadInput("replay.prioritised=False is for the labyrinth; on Atari it must be True")
