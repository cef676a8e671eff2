"""One frozen config describes a run: a named preset plus overrides.

Every field says what it is, in which unit, and where the number comes from: the paper's table, or a
row of the decisions in ``docs/paper-vs-ours.md``.  Unknown keys and values out of range are errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lwm.errors import BadInput
from lwm.presets import ATARI_SOURCES, GAME_BETA, PRESETS, best_unroll
from lwm.settings import (
    check_ranges,
    difference,
    fields,
    flatten,
    get,
    hint,
    replace,
    setting,
    to_dict,
)

__all__ = [
    "AGENTS",
    "PRESETS",
    "WORKLOADS",
    "Config",
    "difference",
    "fields",
    "from_dict",
    "get",
    "load_preset",
    "replace",
    "source",
    "to_dict",
]

AGENTS = ("random", "dqn", "lwm", "lwm-ff", "mbie-eb")
WORKLOADS = tuple(PRESETS)


@dataclass(frozen=True)
class EnvConfig:
    """The Partially Observable Labyrinth."""

    size: int = setting(3, "rooms per side", 2, 64, "Sec. 4.1")
    time_limit: int = setting(1000, "agent steps until truncation", 1, 10**6, "POL DQN")
    early_steps_per_room: int = setting(
        0, "early in training, truncate after so many steps per room; 0: as time_limit", 0, 10**6
    )
    early_share: float = setting(0.5, "share of the frames that is the early part", 0, 1)
    carve_start: Literal["corner", "random"] = setting(
        "corner", "cell where carving begins; row 36"
    )


@dataclass(frozen=True)
class AtariConfig:
    """Atari games: the supplementary's pre-processing."""

    game: str = setting("montezuma_revenge", "name as ale-py spells it")
    time_limit: int = setting(
        10_000, "agent steps of a whole game until truncation", 1, 10**7, "Atari pre-processing"
    )
    action_repeat: int = setting(4, "emulator frames per agent step", 1, 64, "Atari pre-processing")
    noop_max: int = setting(
        30,
        "1 to so many raw frames of no-op after a reset; 0: none",
        0,
        10**4,
        "Atari pre-processing",
    )
    sticky: float = setting(
        0.0, "probability that the emulator repeats the last action", 0, 1, "Atari pre-processing"
    )
    life_loss_ends: bool = setting(
        True,
        "training episodes end when a life is lost; the game goes on",
        source="Atari pre-processing",
    )
    fire_on_reset: bool = setting(False, "press FIRE after a reset and after every life; row 25")
    full_actions: bool = setting(False, "all 18 actions instead of the game's minimal set")
    coverage: Literal["auto", "on", "off"] = setting(
        "auto", "count positions visited; auto: where the game's RAM tells them"
    )
    backend: Literal["own", "ale-vector"] = setting(
        "own", "who plays: our processes, exactly resumable, or ale-py's threads, which are not"
    )
    workers: int = setting(0, "processes that step the games; 0: one per core", 0, 256)


@dataclass(frozen=True)
class LoopConfig:
    """Algorithm 1: how acting and learning interleave."""

    actors: int = setting(8, "environments stepped together", 1, 4096, "POL DQN: Actors")
    total_frames: int = setting(
        1_000_000, "environment transitions, warm-up included", 1, 10**10, "POL DQN"
    )
    schedule_frames: int = setting(
        0, "frames over which schedules (rate, beta, early limit) run; 0: total_frames", 0, 10**10
    )
    warmup_frames: int = setting(
        10_000, "transitions collected at random first", 0, 10**9, "POL DQN"
    )
    cycles_per_update: int = setting(
        4, "actor cycles per learner update", 1, 10**6, "POL DQN: ratio 4"
    )
    log_every_frames: int = setting(
        10_000, "transitions between records in metrics.jsonl", 1, 10**9
    )
    checkpoint_every_frames: int = setting(100_000, "transitions between checkpoints", 1, 10**9)
    evaluate_every_frames: int = setting(
        0, "transitions between evaluations on validation seeds; 0: never", 0, 10**9
    )
    validation_episodes: int = setting(256, "episodes of such an evaluation", 1, 10**6)
    stop_at_score: float = setting(
        0.0, "stop when a validation reaches this score; 0: never (scores are negative)", None, 0
    )


@dataclass(frozen=True)
class ReplayConfig:
    """The replay buffer and the windows drawn from it."""

    capacity_steps: int = setting(100_000, "rows kept, over all actors", 100, 10**9, "POL DQN")
    batch: int = setting(32, "windows in a learner batch", 1, 10**5, "POL DQN: Batch size")
    burn_in: int = setting(16, "rows before the trained ones", 0, 10**4, "POL DQN: Burn-in")
    unroll: int = setting(32, "trained rows of a window", 1, 10**4, "POL DQN: Unroll")
    start_state: Literal["stored", "zero"] = setting(
        "stored", "DQN state before a window's row 0; row 5"
    )
    align_starts: float = setting(
        0.0, "share of windows whose trained rows begin on an episode's first row", 0, 1
    )
    prioritised: bool = setting(
        False, "windows on a grid of `unroll` rows, drawn by priority; False: any row, uniformly"
    )
    priority_exponent: float = setting(0.9, "of a window's priority", 0, 10, "Atari DQN")
    importance_exponent: float = setting(0.6, "of the weights that undo it", 0, 10, "Atari DQN")
    priority_eta: float = setting(
        0.9, "share of the largest TD error in a priority; the mean has the rest; row 20", 0, 1
    )
    compress: bool = setting(False, "keep observations compressed, without loss")
    symmetry_share: float = setting(
        0.0,
        "labyrinth: first share of the frames in which windows without a past are mirrored and "
        "turned at random",
        0,
        1,
    )


@dataclass(frozen=True)
class DQNConfig:
    """The recurrent dueling double DQN."""

    features: int = setting(32, "FC layer before the RNN", 1, 10**5, "POL DQN: 4 + 4 + 1 -> 32")
    hidden: int = setting(128, "GRU state", 1, 10**5, "POL DQN: RNN hidden size")
    head: int = setting(128, "hidden layer of each dueling stream", 1, 10**5, "POL DQN")
    learning_rate: float = setting(5e-4, "Adam", 0, 1, "POL DQN")
    final_learning_rate: float = setting(
        0.0, "rate reached linearly over anneal_share of the run; 0: constant", 0, 1
    )
    anneal_share: float = setting(1.0, "last share of the frames over which the rate falls", 0, 1)
    adam_epsilon: float = setting(1e-3, "Adam", 0, 1, "POL DQN")
    clip_norm: float = setting(40.0, "gradient norm; 0: never clipped; row 1", 0, 1e9, "POL DQN")
    gamma: float = setting(0.99, "discount", 0, 1, "POL DQN")
    n_step: int = setting(1, "steps of the TD target", 1, 1000, "POL DQN")
    trace: float = setting(0.0, "lambda of Q(lambda) targets; 0: n-step targets", 0, 1)
    tau: float = setting(0.05, "target network's EMA rate per update", 0, 1, "POL DQN")
    epsilon_base: float = setting(
        0.01, "actors' epsilon is base**i", 0, 1, "POL DQN: Training epsilon"
    )
    epsilon_low: float = setting(1.0, "smallest exponent i", 0, 100, "POL DQN")
    epsilon_high: float = setting(1.0, "largest exponent i (last actor)", 0, 100, "POL DQN")
    reset_state: bool = setting(True, "zero the recurrent states at an episode's start; row 2")
    truncation_bootstraps: bool = setting(
        True, "bootstrap where the time limit cut an episode; row 12"
    )
    auxiliary: float = setting(
        0.0, "weight of predicting the next observation's bits from (h, a); 0: no such head", 0, 1e6
    )
    average: float = setting(
        0.0,
        "evaluate an EMA of the weights with this decay per update; 0: the weights themselves",
        0,
        1,
    )


@dataclass(frozen=True)
class EncoderConfig:
    """Phi: the encoder of image observations, trained with W-MSE on temporal neighbours."""

    embedding: int = setting(32, "output dimensions", 1, 10**4, "Phi training")
    learning_rate: float = setting(5e-4, "Adam", 0, 1, "Phi training")
    adam_epsilon: float = setting(1e-8, "Adam; row 31", 0, 1)
    pretrain_iterations: int = setting(
        10_000, "updates after the warm-up", 0, 10**7, "Phi training"
    )
    batch: int = setting(256, "pairs in a batch", 2, 10**6, "Phi training")
    spatial_shift: int = setting(
        4, "random shift in pixels, -s to s; row 13", 0, 42, "Phi training"
    )
    wrap_shift: bool = setting(
        False, "shifted frames wrap around instead of repeating edges; row 13"
    )
    temporal_shift: int = setting(2, "largest k of pairs (t, t+k)", 1, 1000, "Phi training: L")


@dataclass(frozen=True)
class WorldModelConfig:
    """The latent world model."""

    features: int = setting(32, "FC layer before the RNN", 1, 10**5, "POL LWM: 4 + 4 -> 32")
    hidden: int = setting(128, "GRU state (belief)", 1, 10**5, "POL LWM")
    head: int = setting(128, "hidden FC layer after the RNN", 1, 10**5, "POL LWM")
    sigmoid_output: bool = setting(True, "sigmoid on the prediction", source="POL LWM")
    relu_features: bool = setting(True, "ReLU after the FC layer before the RNN; row 18")
    loss: Literal["mse", "bce"] = setting(
        "mse",
        "what trains it; bce: cross-entropy of bits. The bonus is the squared error either way",
    )
    learning_rate: float = setting(5e-4, "Adam", 0, 1, "POL LWM")
    adam_epsilon: float = setting(1e-8, "Adam; row 31", 0, 1)
    clip_norm: float = setting(0.0, "gradient norm; 0: never clipped; row 31", 0, 1e9)
    pretrain_iterations: int = setting(1000, "updates after the warm-up", 0, 10**7, "POL LWM")
    pretrain_batch: int = setting(64, "windows; row 24", 1, 10**5)
    pretrain_rows: int = setting(100, "rows of a pretraining window; row 24", 2, 10**5)


@dataclass(frozen=True)
class IntrinsicConfig:
    """Algorithm 2: from prediction error to bonus."""

    beta: float = setting(1.0, "scale of the bonus", 0, 1e6, "POL LWM")
    final_beta: float = setting(
        -1.0,
        "scale in the learner's target at the end of the run, reached linearly; -1: beta",
        -1,
        1e6,
    )
    fade_from: float = setting(0.0, "share of the frames after which it begins to move", 0, 1)
    fade_until: float = setting(1.0, "share of the frames at which it has arrived", 0, 1)
    start_belief: Literal["zero", "stored"] = setting(
        "zero", "belief before a window's first transition: 0, or as the actor had it; row 5"
    )
    momentum: float = setting(0.99, "EMA of the error's mean and std", 0, 1, "POL LWM")
    clip: float = setting(
        10.0, "bound of the normalised error; 0: none; row 16", 0, 1e9, "Sec. 3.4"
    )
    boundary: Literal["terminal", "mask", "reset"] = setting(
        "terminal", "bonus on an is_last row: real error, 0, or against the next first frame; row 4"
    )
    moments_include_burn_in: bool = setting(False, "burn-in rows enter the moments; row 9")
    leak_to_baseline: bool = setting(
        False, "agent dqn: actors (not the learner) still see the normalised error; row 3"
    )


@dataclass(frozen=True)
class EvaluationConfig:
    """Scores: fixed parameters, first full episode of each fresh environment."""

    episodes: int = setting(4096, "episodes on test seeds", 1, 10**7)
    epsilon: float = setting(0.01, "random actions while evaluating", 0, 1, "POL DQN")


@dataclass(frozen=True)
class Config:
    """A whole run."""

    workload: Literal["labyrinth", "atari"] = setting("labyrinth", "kind of environment")
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
    env: EnvConfig = field(default_factory=EnvConfig)
    atari: AtariConfig = field(default_factory=AtariConfig)
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

    @property
    def sees_images(self) -> bool:
        """Observations are frames, not bits."""
        return self.workload == "atari"

    @property
    def bonus(self) -> str:
        """Which bonus model runs: ``none``, ``lwm``, ``lwm-ff`` or ``mbie-eb``."""
        if self.agent == "dqn" and self.intrinsic.leak_to_baseline:
            return "lwm"
        return "none" if self.agent in ("random", "dqn") else self.agent


def load_preset(
    name: str = "paper",
    overrides: Mapping[str, Any] | None = None,
    workload: str = "labyrinth",
) -> Config:
    """The config of preset ``name`` with dotted overrides, e.g. ``{"env.size": 4}``."""
    if workload not in PRESETS:
        raise BadInput(f"unknown workload {workload!r}{hint(workload, PRESETS)}")
    known = PRESETS[workload]
    if name not in known:
        raise BadInput(f"unknown preset {name!r} of {workload}{hint(name, known)}")
    changes = dict(overrides or {})
    start = {"workload": workload, "preset": name, **known[name]}
    plain = replace(Config(), {**start, **changes})
    # Two values of a preset depend on others that the user may choose.
    follow: dict[str, Any] = {}
    if workload == "atari" and plain.atari.game in GAME_BETA:
        follow["intrinsic.beta"] = GAME_BETA[plain.atari.game]
    if workload == "labyrinth" and name == "best":
        follow["replay.unroll"] = best_unroll(plain.env.size)
    return replace(Config(), {**start, **follow, **changes})


def source(key: str, workload: str) -> str:
    """Where the paper has the value of a setting: its table or section; empty if it has none.

    The fields name the labyrinth's tables ("POL ..."); Atari has one for each of them.
    """
    given: str = dict(fields(Config()))[key].metadata["source"]
    if workload != "atari":
        return given
    return ATARI_SOURCES.get(key, given.replace("POL", "Atari", 1))


def from_dict(data: Mapping[str, Any]) -> Config:
    """The inverse of ``to_dict``; unknown keys and bad values are errors."""
    return replace(Config(), flatten(data))


def check(config: Config) -> None:
    """Raise ``BadInput`` for a value that no run could use."""
    check_ranges(config)
    if config.agent not in AGENTS:
        raise BadInput(f"unknown agent {config.agent!r}{hint(config.agent, AGENTS)}")
    known = PRESETS[config.workload]
    if config.preset not in known:
        raise BadInput(f"unknown preset {config.preset!r}{hint(config.preset, known)}")
    if config.sees_images:
        _check_images(config)
    if config.bonus.startswith("lwm"):
        rows, skipped = config.world_model.pretrain_rows, config.replay.burn_in
        if config.world_model.pretrain_iterations and rows < skipped + 2:
            raise BadInput(
                f"world_model.pretrain_rows={rows} leaves nothing after replay.burn_in={skipped}"
            )
        if config.world_model.loss == "bce" and not config.world_model.sigmoid_output:
            raise BadInput("world_model.loss='bce' needs world_model.sigmoid_output=True")
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


def _check_images(config: Config) -> None:
    """What works on the labyrinth's bits only."""
    if config.agent == "mbie-eb":
        raise BadInput("agent 'mbie-eb' counts the labyrinth's observations; it knows no images")
    only_bits = {
        "intrinsic.start_belief": (config.intrinsic.start_belief, "zero"),
        "dqn.auxiliary": (config.dqn.auxiliary, 0),
        "replay.symmetry_share": (config.replay.symmetry_share, 0),
        "replay.align_starts": (config.replay.align_starts, 0),
        "world_model.loss": (config.world_model.loss, "mse"),
    }
    for key, (value, allowed) in only_bits.items():
        if value != allowed:
            raise BadInput(f"{key}={value} is for the labyrinth; on Atari it must be {allowed}")
    if config.atari.backend == "ale-vector":
        for key, refused in {"coverage": "on", "fire_on_reset": True}.items():
            if getattr(config.atari, key) == refused:
                raise BadInput(f"atari.backend=ale-vector cannot have atari.{key}={refused}")
    if not config.replay.prioritised:
        raise BadInput("replay.prioritised=False is for the labyrinth; on Atari it must be True")
