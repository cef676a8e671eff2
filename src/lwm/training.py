"""Algorithm 1, line for line.  The loop yields events; it writes nothing."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from lwm.actor import ActorState, act, embed, initial_state, ladder
from lwm.config import Config
from lwm.envs.vector import make_env
from lwm.errors import CheckpointError
from lwm.intrinsic import WorldModelBonus
from lwm.learner import LearnerState, learn, pretrain
from lwm.replay import Replay
from lwm.streams import environment_seeds, generator, generator_state, restore_generator
from lwm.symmetry import GROUP, turned
from lwm.types import Event, Step, Unroll


class Trainer:
    """One run: owns the environments, the actors' state, replay and the learner's state."""

    def __init__(self, config: Config) -> None:
        torch.set_num_threads(config.threads)
        keep_freed_memory()
        self.config = config
        actors = config.loop.actors
        self.env = make_env(config.env, environment_seeds("train", actors, config.seed))
        self.embedding = int(np.prod(self.env.obs_shape))
        self.learner = LearnerState(config, self.embedding, self.env.num_actions)
        self.actors = self._new_actors()
        self.replay = Replay(
            rows=config.replay.capacity_steps // actors,
            envs=actors,
            obs_shape=self.env.obs_shape,
            obs_dtype=self.env.obs_dtype,
            hidden=config.dqn.hidden,
            belief=self.learner.bonus.hidden if self._keeps_belief else 0,
        )
        self.epsilon = ladder(
            config.dqn.epsilon_base, config.dqn.epsilon_low, config.dqn.epsilon_high, actors
        )
        self.act_rng = generator(config.seed, "actor")
        self.replay_rng = generator(config.seed, "replay")
        self.frames = 0
        self.cycles = 0
        self.pretrained = 0
        self.env.set_time_limit(self._time_limit())
        self.step: Step = self.env.reset()
        self._sums: dict[str, list[float]] = {}
        self._next_log = config.loop.log_every_frames

    def _new_actors(self) -> ActorState:
        learner = self.learner
        return initial_state(learner.dqn, learner.bonus, self.config.loop.actors, self.embedding)

    @property
    def _keeps_belief(self) -> bool:
        return self.config.intrinsic.start_belief == "stored"

    @property
    def warm(self) -> bool:
        """The warm-up is over: actors use the DQN."""
        return self.frames >= self.config.loop.warmup_frames

    @property
    def progress(self) -> float:
        """How far the schedules have come: share of the frame budget, or of schedule_frames."""
        loop = self.config.loop
        return min(self.frames / (loop.schedule_frames or loop.total_frames), 1.0)

    def _time_limit(self) -> int:
        c = self.config.env
        early = c.early_steps_per_room > 0 and self.progress < c.early_share
        return min(c.early_steps_per_room * c.size**2, c.time_limit) if early else c.time_limit

    def run(self) -> Iterator[Event]:
        """Warm up, pretrain, then train until the frame budget is spent.

        Control comes back after every cycle (kind ``cycle``, no data): there, and at every other
        event, the trainer's state is whole and may be saved.
        """
        while self.frames < self.config.loop.total_frames:
            if self.warm and self.config.agent != "random":
                yield from self._pretrain()
            self.cycle()
            yield self._report()
        yield Event("end", self.frames, {"updates": self.learner.updates})

    def cycle(self) -> None:
        """Act -> append -> send -> update -> receive: the one order of spec.md."""
        learning = self.warm and self.config.agent != "random"
        if learning:
            action = self._act()
        else:
            action = self._act_at_random()
        self.env.send(action)
        self.cycles += 1
        if learning and self.cycles % self.config.loop.cycles_per_update == 0:
            self._update()
        self.env.set_time_limit(self._time_limit())
        self.step = self.env.recv()
        self.frames += self.step.transitions
        self._note_episodes()

    def _act(self) -> np.ndarray:
        B = self.config.loop.actors
        explore = self.act_rng.random(B) < self.epsilon
        random_action = self.act_rng.integers(self.env.num_actions, size=B)
        self._observe()
        acted, self.actors = act(
            self.learner.dqn,
            self.learner.bonus,
            self.actors,
            self.step,
            explore,
            random_action,
            self.config.dqn.reset_state,
        )
        belief = acted.belief if self._keeps_belief else None
        self.replay.append(self.step, acted.h, acted.r_in, belief)
        return acted.action

    def _act_at_random(self) -> np.ndarray:
        """Warm-up: uniform actions, stored state 0 (row 20)."""
        B = self.config.loop.actors
        self._observe()
        self.actors = self.actors._replace(z_tm1=embed(self.step.obs))
        if self.config.agent != "random":
            zeros = np.zeros((B, self.config.dqn.hidden), np.float32)
            self.replay.append(self.step, zeros, np.zeros(B, np.float32))
        return self.act_rng.integers(self.env.num_actions, size=B)

    def _observe(self) -> None:
        a_tm1, is_first = torch.from_numpy(self.step.a_tm1), torch.from_numpy(self.step.is_first)
        self.learner.bonus.observe(self.actors.z_tm1, a_tm1, is_first)

    def _update(self) -> None:
        c = self.config
        align = (c.replay.align_starts, c.replay.burn_in)
        unroll = self._turned(self.replay.sample(self.replay_rng, c.replay.batch, c.window, align))
        self.learner, _, metrics = learn(self.learner, unroll, self.progress)
        self._add(metrics)

    def _turned(self, unroll: Unroll) -> Unroll:
        if not self.config.replay.symmetry:
            return unroll
        return turned(unroll, self.replay_rng.integers(len(GROUP), size=len(unroll.h)))

    def _pretrain(self) -> Iterator[Event]:
        """Pretraining on warm-up windows (row 24)."""
        c = self.config.world_model
        if not isinstance(self.learner.bonus, WorldModelBonus) and not self.config.dqn.auxiliary:
            return
        while self.pretrained < c.pretrain_iterations:
            unroll = self._turned(
                self.replay.sample(self.replay_rng, c.pretrain_batch, c.pretrain_rows)
            )
            self.learner, metrics = pretrain(self.learner, unroll)
            self.pretrained += 1
            told = self.pretrained % 100 == 0 or self.pretrained == c.pretrain_iterations
            data = {"iteration": self.pretrained, **metrics} if told else {}
            yield Event("pretrain" if told else "cycle", self.frames, data)

    def _add(self, metrics: dict[str, float]) -> None:
        for key, value in metrics.items():
            self._sums.setdefault(key, []).append(value)

    def _note_episodes(self) -> None:
        ended = self.step.episode_end
        if ended.any():
            for i in np.flatnonzero(ended):
                self._add(
                    {
                        "episode/return": float(self.step.episode_return[i]),
                        "episode/length": float(self.step.episode_length[i]),
                        "episode/solved": float(self.step.discount_t[i] == 0),
                    }
                )

    def _report(self) -> Event:
        if self.frames < self._next_log:
            return Event("cycle", self.frames)
        self._next_log += self.config.loop.log_every_frames
        data: dict[str, Any] = {k: float(np.mean(v)) for k, v in sorted(self._sums.items())}
        data["episodes"] = len(self._sums.get("episode/return", []))
        data["updates"] = self.learner.updates
        self._sums = {}
        return Event("train" if self.warm else "warmup", self.frames, data)

    def get_state(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on."""
        return {
            "learner": self.learner.state_tree(),
            "replay": self.replay.get_state(),
            "env": self.env.get_state(),
            "actors": {k: v.numpy() for k, v in self.actors._asdict().items()},
            "step": dict(self.step._asdict()),
            "streams": {
                "actor": generator_state(self.act_rng),
                "replay": generator_state(self.replay_rng),
            },
            "counters": {
                "frames": self.frames,
                "cycles": self.cycles,
                "pretrained": self.pretrained,
                "next_log": self._next_log,
            },
            "sums": {k: np.array(v) for k, v in self._sums.items()},
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Inverse of ``get_state``; a state of another config is an error."""
        try:
            self.learner.load_tree(state["learner"])
            counters = state["counters"]
            self.frames, self.cycles = int(counters["frames"]), int(counters["cycles"])
            self.replay.set_state(state["replay"])
            self.env.set_state(state["env"])
            actors = ActorState(
                **{k: torch.from_numpy(np.array(v)) for k, v in state["actors"].items()}
            )
            if [v.shape for v in actors] != [v.shape for v in self.actors]:
                raise ValueError("the actors' states are of another shape")
            self.actors = actors
            self.step = Step(**{k: np.array(v) for k, v in state["step"].items()})
            restore_generator(self.act_rng, state["streams"]["actor"])
            restore_generator(self.replay_rng, state["streams"]["replay"])
            self.pretrained = int(counters["pretrained"])
            self._next_log = int(counters["next_log"])
            self._sums = {k: v.tolist() for k, v in state["sums"].items()}
        except (KeyError, ValueError, TypeError, AttributeError) as e:
            raise CheckpointError(f"the checkpoint does not fit this config: {e}") from None


def keep_freed_memory() -> None:
    """Let glibc keep freed memory: a learner step else asks the kernel for 700 pages anew.

    Changes no result.  Does nothing where the C library is another one.
    """
    mmap_threshold, trim_threshold, top_pad = -3, -1, -2
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(mmap_threshold, 1 << 25)
        mallopt(trim_threshold, 1 << 30)
        mallopt(top_pad, 1 << 26)
    except (OSError, AttributeError):
        pass


def train(config: Config) -> Iterator[Event]:
    """Train as ``config`` says; yields an ``Event`` per log interval and an ``end`` event.

    >>> import lwm
    >>> for event in lwm.train(lwm.load_preset("debug")):
    ...     print(event.frames, event.data.get("episode/return"))
    """
    yield from (event for event in Trainer(config).run() if event.kind != "cycle")
