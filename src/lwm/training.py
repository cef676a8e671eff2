"""Algorithm 1, line for line.  The loop yields events; it writes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from lwm import devices
from lwm.actor import ActorState, act, initial_state, ladder, seen_once
from lwm.config import Config
from lwm.coverage import coverage_in
from lwm.devices import Metrics
from lwm.envs.rows import RowEnv
from lwm.envs.television import Television
from lwm.envs.vector import make_env, sense_in
from lwm.errors import CheckpointError
from lwm.learner import LearnerState, beta_share
from lwm.novelty import fitted
from lwm.ranking import Ranking
from lwm.replay import Replay
from lwm.streams import environment_seeds, generator, generator_state, restore_generator
from lwm.types import Event, Stage, Step
from lwm.updates import Updates
from lwm.viewing import Viewing


class Trainer:
    """One run: owns the environments, the actors' state, replay and the learner's state."""

    def __init__(self, config: Config) -> None:
        devices.pick(config.device)  # first: to load the games takes a while
        torch.set_num_threads(config.threads)
        devices.keep_freed_memory()
        self.config = config
        actors = config.loop.actors
        self.coverage = coverage_in(config)
        seeds = environment_seeds("train", actors, config.seed)
        self.env = make_env(config, seeds, self.coverage is not None)
        sense = sense_in(self.env)
        if sense is not None:
            self.config = config = fitted(config, sense)
        inputs = int(np.prod(self.env.obs_shape))
        self.learner = LearnerState(config, inputs, self.env.num_actions, sense)
        self.actors = self._new_actors()
        self.replay = Replay(
            rows=config.replay.capacity_steps // actors,
            envs=actors,
            obs_shape=self.env.obs_shape,
            obs_dtype=self.env.obs_dtype,
            hidden=config.dqn.hidden,
            belief=self.learner.bonus.hidden if self._keeps_belief else 0,
            compress=config.replay.compress,
            state_every=config.replay.unroll if config.replay.prioritised else 1,
            window=config.window if config.replay.prioritised else None,
            alpha=config.replay.priority_exponent,
            beta=config.replay.importance_exponent,
        )
        ranked = config.replay.prioritised and config.loop.policy != "random"
        self.ranking = Ranking(config) if ranked else None
        self.replay_rng = generator(config.seed, "replay")
        self.updates = Updates(config, self.learner, self.replay, self.replay_rng)
        self.epsilon = ladder(
            config.dqn.epsilon_base, config.dqn.epsilon_low, config.dqn.epsilon_high, actors
        )
        if config.acts_at_random:
            self.epsilon = np.ones(actors)
        self.viewing = Viewing() if config.television else None
        self.act_rng = generator(config.seed, "actor")
        self.frames = 0
        self.cycles = 0
        self.pretrained = 0
        self.acted = 0
        self._set_episodes()
        self.step: Step = self.env.reset()
        if self.coverage is not None:
            self.coverage.add(self.env.ram)
        self._phase = "warmup"
        self._sums: dict[str, list[float | torch.Tensor]] = {}
        self._next_log = config.loop.log_every_frames

    def _new_actors(self) -> ActorState:
        learner = self.learner
        actors = self.config.loop.actors
        return initial_state(learner.dqn, learner.bonus, actors, learner.embedding)

    @property
    def _keeps_belief(self) -> bool:
        return self.config.intrinsic.start_belief == "stored"

    @property
    def warm(self) -> bool:
        """The warm-up is over: actors use the DQN."""
        return self.frames >= self.config.loop.warmup_frames

    @property
    def progress(self) -> float:
        """How far the schedules have come."""
        return self.config.progress(self.frames)

    def _set_episodes(self) -> None:
        """What the schedules say of episodes that begin from now on."""
        if self.config.workload == "atari":
            self.env.set_time_limit(self.config.atari.time_limit)
            return
        labyrinth = self.config.env
        self.env.set_time_limit(labyrinth.time_limit_at(self.progress))
        if isinstance(self.env, RowEnv):
            self.env.set_size(labyrinth.size_at(self.progress))

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

    def close(self) -> None:
        """Release the environments."""
        self.env.close()

    def cycle(self) -> None:
        """Act -> append -> send -> update -> receive: the one order of spec.md."""
        self._phase = "train" if self.warm else "warmup"
        learning = self.warm and self.config.agent != "random"
        if learning:
            action = self._act()
        else:
            action = self._act_at_random()
        self.env.send(action)
        self.cycles += 1
        if learning and self.cycles % self.config.loop.cycles_per_update == 0:
            self._update()
        self._set_episodes()
        self.step = self.env.recv()
        self.frames += self.step.transitions
        self._look()
        if self.coverage is not None:
            self.coverage.add(self.env.ram)
        self._note_episodes()

    def _look(self) -> None:
        before = self.learner.dqn.views
        self.learner.look(self.progress)
        if self.learner.dqn.views != before:
            self.actors = seen_once(self.actors, self.config.loop.actors)

    def _act(self) -> np.ndarray:
        B = self.config.loop.actors
        explore = self.act_rng.random(B) < self.epsilon
        random_action = self.act_rng.integers(self.env.num_actions, size=B)
        self._observe()
        if self.learner.encoder is not None and self.acted == 0 and self.replay.count:
            # Phi has only now learned to see: the row before is embedded as it would be today.
            before = self.replay.get_rows(self.replay.count - 1, self.replay.count)["obs"][0]
            self.actors = self.actors._replace(z_tm1=self.learner.embed(before))
        self.acted += 1
        acted, self.actors = act(
            self.learner.dqn,
            self.learner.bonus,
            self.actors,
            self.step,
            explore,
            random_action,
            self.config.dqn.reset_state,
            self.learner.embed,
        )
        if self.viewing is not None:
            assert isinstance(self.env, Television)
            self.viewing.note(self.env, ~self.step.is_first, acted.r_in)
        belief = acted.belief if self._keeps_belief else None
        self.replay.append(self.step, acted.h, acted.r_in, belief)
        if self.ranking is not None:
            self.ranking.note(self.step, acted, beta_share(self.config, self.progress))
            self.updates.rank(self.ranking, self.progress)
        return acted.action

    def _act_at_random(self) -> np.ndarray:
        """Warm-up: uniform actions, stored state 0 (row 20)."""
        B = self.config.loop.actors
        self._observe()
        if self.learner.encoder is None:
            self.actors = self.actors._replace(z_tm1=self.learner.embed(self.step.obs))
        if self.config.agent != "random":
            zeros = np.zeros((B, self.config.dqn.hidden), np.float32)
            self.replay.append(self.step, zeros, np.zeros(B, np.float32))
        return self.act_rng.integers(self.env.num_actions, size=B)

    def _observe(self) -> None:
        device = self.learner.device
        a_tm1 = devices.put(self.step.a_tm1, device)
        is_first = devices.put(self.step.is_first, device)
        self.learner.bonus.observe(self.actors.z_tm1, a_tm1, is_first)

    def _update(self) -> None:
        for metrics in self.updates.all(self.progress):
            self._add(metrics)

    def _pretrain(self) -> Iterator[Event]:
        """On warm-up rows (row 24): Phi, then what predicts in its space, then first priorities."""
        phi, total = self.updates.pretraining()
        while self.pretrained < total:
            first = self.pretrained < phi
            metrics = self.updates.encoder() if first else self.updates.world_model(self.progress)
            self.pretrained += 1
            told = self.pretrained % 100 == 0 or self.pretrained in (phi, total)
            data = {"iteration": self.pretrained, **devices.floats(metrics)} if told else {}
            stage = Stage("Φ", self.pretrained, phi)
            if not first:
                stage = Stage("world model", self.pretrained - phi, total - phi)
            yield Event("pretrain" if told else "cycle", self.frames, data, stage)
        if self.ranking is not None and self.acted == 0:
            while self.updates.rank(None, self.progress):
                yield Event("cycle", self.frames)

    def _add(self, metrics: Metrics) -> None:
        for key, value in metrics.items():
            self._sums.setdefault(key, []).append(value)

    def _note_episodes(self) -> None:
        step, atari = self.step, self.config.workload == "atari"
        for i in np.flatnonzero(step.episode_end):
            told: Metrics = {
                "episode/return": float(step.episode_return[i]),
                "episode/length": float(step.episode_length[i]),
            }
            if self.config.workload == "gym":
                told["episode/success"] = float(step.episode_return[i] > 0)
            elif not atari:  # a game is not solved, it ends
                told["episode/solved"] = float(step.discount_t[i] == 0)
            elif i == step.episode_end.size - 1:  # row 27: the lowest epsilon gives the curve
                told["episode/return_last_actor"] = told["episode/return"]
            self._add(told)

    def _report(self) -> Event:
        if self.frames < self._next_log:
            return Event("cycle", self.frames)
        self._next_log += self.config.loop.log_every_frames
        sums = sorted(devices.read(self._sums).items())
        data: dict[str, Any] = {k: float(np.mean(v)) for k, v in sums}
        data["episodes"] = len(self._sums.get("episode/return", []))
        data["updates"] = self.learner.updates
        if self.coverage is not None:
            data["coverage/rooms"] = self.coverage.rooms
            data["coverage/positions"] = self.coverage.positions
        if self.viewing is not None:
            data |= self.viewing.totals
        self._sums = {}
        return Event(self._phase, self.frames, data)

    def get_state(self, rows: bool = True) -> dict[str, Any]:
        """Everything that the rest of the run depends on; ``rows``: with those of replay."""
        return {
            "learner": self.learner.state_tree(),
            "replay": self.replay.get_state() if rows else self.replay.get_index(),
            "env": self.env.get_state(),
            "actors": {k: devices.fetch(v) for k, v in self.actors._asdict().items()},
            "step": dict(self.step._asdict()),
            "streams": {
                "actor": generator_state(self.act_rng),
                "replay": generator_state(self.replay_rng),
            },
            "counters": {
                "frames": self.frames,
                "cycles": self.cycles,
                "pretrained": self.pretrained,
                "acted": self.acted,
                "next_log": self._next_log,
            },
            "sums": {k: np.array(v) for k, v in devices.read(self._sums).items()},
            **({} if self.ranking is None else {"ranking": self.ranking.get_state()}),
            **({} if self.coverage is None else {"coverage": self.coverage.seen}),
            **({} if self.viewing is None else {"viewing": dict(self.viewing.totals)}),
        }

    def set_state(
        self,
        state: dict[str, Any],
        blocks: Iterable[tuple[int, dict[str, np.ndarray]]] = (),
    ) -> None:
        """Inverse of ``get_state``; a state of another config is an error.

        ``blocks``: the rows, where the state is without them (``Replay.set_blocks``).
        """
        try:
            self.learner.load_tree(state["learner"])
            counters = state["counters"]
            self.frames, self.cycles = int(counters["frames"]), int(counters["cycles"])
            if "obs" in state["replay"]:
                self.replay.set_state(state["replay"])
            else:
                self.replay.set_blocks(state["replay"], blocks)
            self.env.set_state(state["env"])
            there = self.learner.device
            actors = ActorState(
                **{k: devices.put(np.array(v), there) for k, v in state["actors"].items()}
            )
            self.learner.look(self.progress)
            if [v.shape for v in actors] != [v.shape for v in self._new_actors()]:
                raise ValueError("the actors' states are of another shape")
            self.actors = actors
            saved = Step(**{k: np.array(v) for k, v in state["step"].items()})
            self.step = self.env.rejoin(saved)
            restore_generator(self.act_rng, state["streams"]["actor"])
            restore_generator(self.replay_rng, state["streams"]["replay"])
            self.pretrained = int(counters["pretrained"])
            self.acted = int(counters["acted"])
            self._next_log = int(counters["next_log"])
            self._sums = {k: v.tolist() for k, v in state["sums"].items()}
            if self.ranking is not None:
                self.ranking.set_state(state["ranking"])
            if self.coverage is not None:
                self.coverage.seen[:] = state["coverage"]
            if self.viewing is not None:
                self.viewing.totals = {k: state["viewing"][k] for k in self.viewing.totals}
        except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as e:
            raise CheckpointError(f"the checkpoint does not fit this config: {e}") from None


def train(config: Config) -> Iterator[Event]:
    """Train as ``config`` says; yields an ``Event`` per log interval and an ``end`` event.

    The events are what ``lwm train`` writes to ``metrics.jsonl``; nothing is written here.  Leaving
    the loop early closes the environments.

    >>> import lwm
    >>> for event in lwm.train(lwm.load_preset("debug")):
    ...     print(event.frames, event.data.get("episode/return"))
    """
    trainer = Trainer(config)
    try:
        yield from (event for event in trainer.run() if event.kind != "cycle")
    finally:
        trainer.close()
