"""What a run will cost on this machine, told before it starts: memory by sum, time by trial."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import numpy as np
import torch

from lwm.actor import act, initial_state
from lwm.config import Config
from lwm.encoder import EncoderLearner
from lwm.envs.television import PATCH
from lwm.envs.vector import make_env
from lwm.errors import BadInput
from lwm.learner import LearnerState, learn, learn_encoder, learn_features, pretrain
from lwm.machine import available_bytes
from lwm.streams import environment_seeds
from lwm.types import Pairs, Step, Unroll
from lwm.vision import SIDE, shift_offsets

_PIXELS = SIDE * SIDE
_COMPRESSED_FRAME = 1100
"""Bytes to reckon with per compressed frame (360 to 800 were measured on the paper's games)."""
_REST_OF_ROW = 8 + 4 + 4 + 4 + 1 + 1
_PROCESS = 900 << 20
"""Libraries, networks, optimisers and the arrays of an update, about (818 MiB were measured)."""
_WORKER = 120 << 20
_LONGEST = 1.0
"""Seconds after which a stage is not tried once more: somebody waits for the first frame."""


def replay_bytes(config: Config) -> int:
    """Memory of a full replay buffer of frames."""
    c = config.replay
    noise = PATCH**2 if config.television else 0  # does not compress
    frame = _COMPRESSED_FRAME + noise if c.compress else _PIXELS
    states = c.capacity_steps // (c.unroll if c.prioritised else 1)
    return c.capacity_steps * (frame + _REST_OF_ROW) + states * 4 * config.dqn.hidden


def memory_bytes(config: Config) -> int:
    """Memory of the whole run, worker processes included: at its end those of training and of
    the evaluation live side by side."""
    return replay_bytes(config) + _PROCESS + 2 * workers(config) * _WORKER


def workers(config: Config) -> int:
    """Processes that will step the games."""
    return min(config.atari.workers or len(os.sched_getaffinity(0)), config.loop.actors)


def check_memory(config: Config) -> None:
    """Refuse a run that this machine cannot hold, with the sum."""
    if not config.sees_images:
        return
    need, replay = memory_bytes(config), replay_bytes(config)
    _check(config, need, replay, available_bytes(), ", replay.compress=true")


def check_replay(config: Config, replay: int, have: int | None) -> None:
    """The same for a run whose observations are known now: ``replay`` bytes when it is full, and
    ``have`` bytes were available before it was made."""
    _check(config, replay + _PROCESS, replay, have)


def _check(config: Config, need: int, replay: int, have: int | None, also: str = "") -> None:
    if have is not None and need > have:
        raise BadInput(
            f"this run needs about {_gib(need)}, of which {_gib(replay)} for "
            f"replay.capacity_steps={config.replay.capacity_steps}; {_gib(have)} are available "
            f"(smaller: replay.capacity_steps{also})"
        )


def describe(config: Config) -> str:
    """One line: memory, and time from a trial of each stage on noise (some seconds)."""
    each = seconds_each(config)
    hours = sum(n * each[name] for name, n in calls(config).items()) / 3600
    loop = config.loop
    frames = loop.total_frames * config.atari.action_repeat
    return (
        f"{frames:,} emulator frames ({loop.total_frames:,} agent steps): about {_time(hours)} on "
        f"this machine ({each['cycle']:.2f} s a cycle of {loop.actors} actors) and "
        f"{_gib(memory_bytes(config))} of memory"
    )


def calls(config: Config) -> dict[str, float]:
    """How often a run does what its phases are made of: warm-up, pretraining, training."""
    loop = config.loop
    warm = loop.warmup_frames / loop.actors
    lwm = config.bonus.startswith("lwm")
    phi = lwm and config.pretrains_encoder
    return {
        "warmup": warm,
        "encoder": config.encoder.pretrain_iterations if phi else 0,
        "world_model": config.world_model.pretrain_iterations if lwm else 0,
        "cycle": loop.total_frames / loop.actors - warm,
    }


def seconds_each(config: Config) -> dict[str, float]:
    """Seconds of one of each of ``calls``, by a trial of the stages."""
    stage = trial(config)
    # With a core to spare, games are played while the learner works.
    overlap = len(os.sched_getaffinity(0)) > 1
    phi = stage["encoder"] if config.updates_encoder else 0.0
    update = (phi + stage["learner"]) / config.loop.cycles_per_update
    return {
        "warmup": stage["env"],
        "encoder": stage["encoder"],
        "world_model": stage["world_model"],
        "cycle": stage["act"] + (max(stage["env"], update) if overlap else stage["env"] + update),
    }


def trial(config: Config) -> dict[str, float]:
    """Seconds of one call of each stage, the best of up to four: other work only adds."""
    torch.set_num_threads(config.threads)
    rng = np.random.default_rng(0)
    few = min(8, config.loop.actors)
    env = make_env(config, environment_seeds("validation", few))
    try:
        env.reset()
        actions = rng.integers(env.num_actions, size=(20, few))

        def play() -> None:
            for a in actions:
                env.send(a)
                env.recv()

        share = config.loop.actors / few / len(actions)
        took = {"env": _seconds(play) * share}
        return took | _learner_trial(config, env.num_actions, rng)
    finally:
        env.close()


def _learner_trial(config: Config, num_actions: int, rng: np.random.Generator) -> dict[str, float]:
    state = LearnerState(config, _PIXELS, num_actions)
    B, K = config.replay.batch, config.loop.actors
    unroll = _windows(config, num_actions, rng, config.window, B)
    flags, none = np.zeros(K, np.bool_), np.zeros(K, np.float32)
    actions = np.zeros(K, np.int64)
    step = Step(_noise(rng, K), actions, none, flags, flags, none + 1, none, actions, flags)
    actors = initial_state(state.dqn, state.bonus, K, state.embedding)
    took = {
        "learner": _seconds(lambda: learn(state, unroll, 0.0, np.ones(B, np.float32))),
        "act": _seconds(
            lambda: act(state.dqn, state.bonus, actors, step, flags, actions, True, state.embed)
        ),
        "encoder": 0.0,
        "world_model": 0.0,
    }
    if config.bonus.startswith("lwm"):
        c = config.world_model
        before = _windows(config, num_actions, rng, c.pretrain_rows, c.pretrain_batch)
        took["world_model"] = _seconds(lambda: pretrain(state, before))
    n = config.encoder.batch
    if isinstance(state.encoder, EncoderLearner):
        pairs = Pairs(_noise(rng, n), _noise(rng, n))
        offsets = shift_offsets(rng, 2 * n, config.encoder.spatial_shift)
        took["encoder"] = _seconds(lambda: learn_encoder(state, pairs, offsets))
    elif state.encoder is not None and config.representation != "rf":
        rows = _windows(config, num_actions, rng, 2, n)
        took["encoder"] = _seconds(lambda: learn_features(state, rows))
    return took


def _windows(config: Config, num_actions: int, rng: np.random.Generator, T: int, B: int) -> Unroll:
    """Windows [T, B] of noise."""
    zero, off = np.zeros((T, B), np.float32), np.zeros((T, B), np.bool_)
    return Unroll(
        obs=_noise(rng, T, B),
        a_tm1=rng.integers(num_actions, size=(T, B)),
        r_t=zero,
        is_first=off,
        is_last=off,
        discount_t=zero + 1,
        h=np.zeros((B, config.dqn.hidden), np.float32),
        belief=np.zeros((B, 0), np.float32),
        r_in=zero,
        origin=np.zeros((B, 2), np.int64),
    )


def device_bytes(config: Config, num_actions: int = 18) -> int:
    """Memory that an update takes where the networks are, by doing one on this machine's CPU.

    Counted are the networks, their targets, gradients and optimisers, the batch as numbers, and
    what backpropagation keeps; not what a GPU's libraries take for themselves.
    """
    rng = np.random.default_rng(0)
    state = LearnerState(config, _PIXELS, num_actions)
    unroll = _windows(config, num_actions, rng, config.window, config.replay.batch)
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        learn(state, unroll, 0.0, np.ones(config.replay.batch, np.float32))
    # In the tree: weights, targets and both moments of Adam; gradients are a quarter more at most.
    fixed = _tree_bytes(state.state_tree()) * 5 // 4
    return fixed + unroll.obs.size * 4 + sum(kept.values())


def _tree_bytes(tree: object) -> int:
    if isinstance(tree, dict):
        return sum(_tree_bytes(item) for item in tree.values())
    if isinstance(tree, list | tuple):
        return sum(_tree_bytes(item) for item in tree)
    return int(getattr(tree, "nbytes", 0))


def _noise(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(256, size=(*shape, SIDE, SIDE), dtype=np.uint8)


def _seconds(call: Callable[[], object]) -> float:
    times: list[float] = []
    while len(times) < 2 or (len(times) < 4 and sum(times) < _LONGEST):
        began = time.perf_counter()
        call()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return min(times)


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def _time(hours: float) -> str:
    return f"{hours:.1f} hours" if hours >= 2 else f"{hours * 60:.0f} minutes"
