"""The settings of a run, section by section, with the paper's labyrinth values as defaults.

Every field says what it is, in which unit, and where the number comes from: the paper's table, or a
row of the decisions in ``docs/paper-vs-ours.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lwm.settings import setting


@dataclass(frozen=True)
class EnvConfig:
    """The Partially Observable Labyrinth."""

    size: int = setting(3, "rooms per side", 2, 64, "Sec. 4.1")
    time_limit: int = setting(1000, "agent steps until truncation", 1, 10**6, "POL DQN")
    early_steps_per_room: int = setting(
        0, "early in training, truncate after so many steps per room; 0: as time_limit", 0, 10**6
    )
    early_share: float = setting(0.5, "share of the frames that is the early part", 0, 1)
    first_size: int = setting(
        0, "rooms per side in the first episodes, growing to size; 0: size from the start", 0, 64
    )
    grow_share: float = setting(
        0.6,
        "share of the frames before episodes have the full size, even over the smaller ones",
        0,
        1,
    )
    carve_start: Literal["corner", "random"] = setting(
        "corner", "cell where carving begins; row 36"
    )
    tv: bool = setting(False, "a noisy TV in one room: 8 more bits, and an action that re-tunes")

    def size_at(self, progress: float) -> int:
        """Rooms per side of episodes that begin at this share of the frames."""
        smaller = self.size - self.first_size if self.first_size else 0
        if progress >= self.grow_share:
            return self.size
        return self.size - smaller + int(smaller * progress / self.grow_share)

    def time_limit_at(self, progress: float) -> int:
        """Steps until truncation of episodes that begin at this share of the frames."""
        early = self.early_steps_per_room > 0 and progress < self.early_share
        steps = self.early_steps_per_room * self.size_at(progress) ** 2
        return min(steps, self.time_limit) if early else self.time_limit


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
    tv: bool = setting(False, "a noisy TV of 28 x 28 pixels, and an action that re-tunes")


@dataclass(frozen=True)
class GymConfig:
    """Any Gymnasium environment with discrete actions."""

    env: str = setting("", "id as gymnasium.make takes it; module:ID imports the module first")
    vectorization: Literal["sync", "async", "vector_entry_point"] = setting(
        "sync",
        "how gymnasium.make_vec runs the environments: one after the other, a process each, or "
        "as the environment's own vectorised form",
    )
    time_limit: int = setting(
        0, "agent steps until truncation; 0: as the environment is registered", 0, 10**9
    )
    pixel_unit: float = setting(
        128.0, "pixels enter the networks as x / unit - 1; row 22", 1e-6, 1e6
    )


@dataclass(frozen=True)
class LoopConfig:
    """Algorithm 1: how acting and learning interleave."""

    actors: int = setting(8, "environments stepped together", 1, 4096, "POL DQN: Actors")
    total_frames: int = setting(
        1_000_000, "environment transitions, warm-up included", 1, 10**10, "POL DQN"
    )
    schedule_frames: int = setting(
        0,
        "frames over which schedules (rate, beta, early limit, shares) run; 0: total_frames",
        0,
        10**10,
    )
    warmup_frames: int = setting(
        10_000, "transitions collected at random first", 0, 10**9, "POL DQN"
    )
    policy: Literal["agent", "random"] = setting(
        "agent", "who acts; random: uniform actions, and nothing but the bonus is trained"
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
    gap: float = setting(
        0.0, "share of an action's disadvantage that its target is lowered by; 0: none", 0, 1
    )
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
    error_input: bool = setting(
        True,
        "the reward that the network sees includes the bonus; False: the extrinsic one alone",
        source="Sec. 3.4",
    )
    symmetric_share: float = setting(
        0.0,
        "labyrinth: first share of the frames in which actors, and whoever is scored, see the walk "
        "in its eight orientations at once and act on the mean of the Q-values; 1: to the end; at "
        "most replay.symmetry_share",
        0,
        1,
    )
    average: float = setting(
        0.0,
        "evaluate an EMA of the weights with this decay per update; 0: the weights themselves",
        0,
        1,
    )


@dataclass(frozen=True)
class EncoderConfig:
    """Phi: the encoder of observations, trained with W-MSE on temporal neighbours."""

    representation: Literal["auto", "wmse", "rf", "idf", "pixels", "rnd"] = setting(
        "auto",
        "what z is; wmse: Phi; rf: Phi never trained; idf: Phi of inverse dynamics; pixels: the "
        "observation itself; rnd: Phi minus a fixed random one, paid without a world model; "
        "auto: wmse on images, pixels in the labyrinth",
    )
    hidden: int = setting(
        128,
        "width of the two hidden layers, where observations are vectors; 0: none, Phi is linear",
        0,
        10**5,
    )
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
    freeze_after_pretraining: bool = setting(
        False, "Phi stays as pretraining left it; False: one update a cycle", source="Sec. 3.4"
    )
    temporal_shift: int = setting(2, "largest k of pairs (t, t+k)", 1, 1000, "Phi training: L")
    centre: float = setting(
        0.0, "share of z's mean, which W-MSE does not see, that an update takes out; row 38", 0, 1
    )


@dataclass(frozen=True)
class WorldModelConfig:
    """The latent world model."""

    features: int = setting(32, "FC layer before the RNN", 1, 10**5, "POL LWM: 4 + 4 -> 32")
    hidden: int = setting(128, "GRU state (belief)", 1, 10**5, "POL LWM")
    head: int = setting(128, "hidden FC layer after the RNN", 1, 10**5, "POL LWM")
    sigmoid_output: bool = setting(True, "sigmoid on the prediction", source="POL LWM")
    residual: bool = setting(
        False, "predict the change of z: for raw images, which do not pass through the RNN"
    )
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
    stored_bonus: bool = setting(
        False,
        "the DQN learns from the bonus that the actor saw when it collected a row (0 in the "
        "warm-up); False: recomputed for every batch",
        source="Alg. 1",
    )
    leak_to_baseline: bool = setting(
        False, "agent dqn: actors (not the learner) still see the normalised error; row 3"
    )


@dataclass(frozen=True)
class EvaluationConfig:
    """Scores: fixed parameters, first full episode of each fresh environment."""

    episodes: int = setting(4096, "episodes on test seeds", 1, 10**7)
    epsilon: float = setting(0.01, "random actions while evaluating", 0, 1, "POL DQN")
