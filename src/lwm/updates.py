"""From replay to learner: what each update is made of, and the priorities that come back."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lwm.config import Config
from lwm.devices import Metrics
from lwm.encoder import EncoderLearner
from lwm.errors import RunFailed
from lwm.learner import (
    LearnerState,
    learn,
    learn_encoder,
    learn_features,
    pretrain,
    priorities,
)
from lwm.ranking import Ranking
from lwm.replay import Replay
from lwm.symmetry import GROUP, turned
from lwm.types import Unroll
from lwm.vision import shift_offsets


class Updates:
    """Draws rows from replay and trains the learner on them; ``rng`` decides which."""

    def __init__(
        self, config: Config, learner: LearnerState, replay: Replay, rng: np.random.Generator
    ) -> None:
        self.config, self.learner, self.replay, self.rng = config, learner, replay, rng

    def all(self, progress: float) -> list[Metrics]:
        """Phi, world model and (unless actions are random) DQN, each once (a fixed Phi: not at
        all); ``progress``: share of the schedules."""
        phi = self.learner.encoder is not None and self.config.updates_encoder
        found = [self.encoder()] if phi else []
        alone = self.config.loop.policy == "random"
        return [*found, self.world_model(progress) if alone else self.agent(progress)]

    def encoder(self) -> Metrics:
        """One update of Phi."""
        c = self.config.encoder
        if not isinstance(self.learner.encoder, EncoderLearner):
            unroll = self.replay.sample(self.rng, c.batch, 2)
            self.learner, metrics = learn_features(self.learner, unroll)
            return metrics
        pairs = self.replay.sample_pairs(self.rng, c.batch, c.temporal_shift)
        offsets = shift_offsets(self.rng, 2 * c.batch, c.spatial_shift)
        self.learner, metrics = learn_encoder(self.learner, pairs, offsets)
        return metrics

    def agent(self, progress: float) -> Metrics:
        """One update of world model and DQN, on the same windows."""
        c = self.config
        if c.replay.prioritised:
            unroll, weight = self.replay.sample_prioritised(self.rng, c.replay.batch)
            self.learner, priority, metrics = learn(self.learner, unroll, progress, weight)
            self.replay.set_priorities(unroll.origin, _finite(priority))
            metrics["replay/priority"] = float(priority.mean())
            metrics["replay/priority_max"] = float(priority.max())
        else:
            align = (c.replay.align_starts, c.replay.burn_in)
            unroll = self.replay.sample(self.rng, c.replay.batch, c.window, align)
            self.learner, _, metrics = learn(self.learner, self.turned(unroll, progress), progress)
        return metrics

    def pretraining(self) -> tuple[int, int]:
        """Updates of Phi, and of Phi and world model together, before training (row 24)."""
        c = self.config
        learns = self.learner.encoder is not None and c.pretrains_encoder
        phi = c.encoder.pretrain_iterations if learns else 0
        rest = c.bonus not in ("none", "mbie-eb") or c.dqn.auxiliary > 0
        return phi, phi + (c.world_model.pretrain_iterations if rest else 0)

    def world_model(self, progress: float) -> Metrics:
        """One update of the world model alone."""
        c = self.config.world_model
        unroll = self.replay.sample(self.rng, c.pretrain_batch, c.pretrain_rows)
        self.learner, metrics = pretrain(self.learner, self.turned(unroll, progress))
        return metrics

    def turned(self, unroll: Unroll, progress: float) -> Unroll:
        """The windows in random orientations, as long as the config asks for it."""
        if not self.config.within(progress, self.config.replay.symmetry_share):
            return unroll
        return turned(unroll, self.rng.integers(len(GROUP), size=len(unroll.h)))

    def rank(self, ranking: Ranking | None, progress: float) -> int:
        """Give complete windows their first priorities; how many still wait for theirs.

        ``ranking`` knows those of the windows that end with the newest row, if the actors have come
        that far.  Others begin in the warm-up, where no one knew a Q-value: the learner ranks a
        batch of them at a time, so that no cycle is held up.
        """
        origin = self.replay.new_windows()
        if not len(origin):
            return 0
        known = ranking.priorities() if ranking is not None else None
        if known is not None:
            newest = origin[:, 0] == self.replay.count - self.config.window
            fresh, origin = origin[newest], origin[~newest]
            if len(fresh):
                self.replay.set_priorities(fresh, _finite(known[fresh[:, 1]]))
        some = origin[: self.config.replay.batch]
        if len(some):
            unroll = self.replay.windows(some[:, 0], some[:, 1], self.config.window)
            self.replay.set_priorities(some, _finite(priorities(self.learner, unroll, progress)))
        return len(origin) - len(some)


def _finite(priority: NDArray[np.floating]) -> NDArray[np.floating]:
    """The priorities, unless rewards or networks have left the range of numbers."""
    if not np.isfinite(priority).all():
        raise RunFailed("a TD error is not finite: rewards or networks are out of range")
    return priority
