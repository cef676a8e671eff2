"""Where the time of real cycles goes: a stopwatch around the parts that ``training`` calls.

Nothing is rebuilt for measuring: the trainer runs as it does in a run, and while a ``Probe`` is on,
the functions below tell when they begin and end.  A function inside another one stops the outer
one's watch, so that stages never overlap; what belongs to none of them stays unexplained.

    act          newest row to actions: bonus, Q-values, append to replay, first priorities
    env          send, receive, episode sums, coverage
    sample       windows, pairs and their random shifts
    encoder      one update of Phi
    world_model  bonus of the windows, and one update of the world model
    target       the target network on the windows
    online       the online network on the windows, TD errors, loss
    backward     gradients of the DQN
    optimiser    clipping, Adam, the moving averages of the weights
    priorities   of the windows, into the sum tree

``learner`` is all of one ``learn`` call, ``cycle`` all of a cycle.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from lwm import learner, updates
from lwm.training import Trainer

LEAVES = (
    "act", "env", "sample", "encoder", "world_model", "target", "online", "backward", "optimiser",
    "priorities",
)  # fmt: skip
STAGES = (*LEAVES, "learner", "cycle")
Clock = Callable[[], float]


class Probe:
    """What each stage took since the last ``take``, in units of ``clock``."""

    def __init__(self, clock: Clock = time.process_time) -> None:
        self.clock = clock
        self._open: list[str] = []
        self._since = 0.0
        self._spent = dict.fromkeys(STAGES, 0.0)

    def take(self) -> dict[str, float]:
        """The sums so far; they begin anew."""
        found, self._spent = self._spent, dict.fromkeys(STAGES, 0.0)
        return found

    def cycle(self, call: Callable[[], object]) -> None:
        """Run one cycle."""
        began = self.clock()
        call()
        self._spent["cycle"] += self.clock() - began

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, telling the watch.  Whatever happens inside ``act`` is acting."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._open and self._open[0] == "act":
                return function(*args, **kwargs)
            self._switch()
            self._open.append(stage)
            try:
                return function(*args, **kwargs)
            finally:
                self._switch()
                self._open.pop()

        return call

    def whole(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its time added to ``stage`` whatever it has inside."""

        def call(*args: Any, **kwargs: Any) -> Any:
            began = self.clock()
            try:
                return function(*args, **kwargs)
            finally:
                self._spent[stage] += self.clock() - began

        return call

    def _switch(self) -> None:
        now = self.clock()
        if self._open:
            self._spent[self._open[-1]] += now - self._since
        self._since = now

    @contextmanager
    def on(self, trainer: Trainer) -> Iterator[Probe]:
        """Watch this trainer's cycles."""
        replaced: list[tuple[Any, str, Any]] = []

        def put(owner: Any, name: str, wrapped: Callable[..., Any]) -> None:
            replaced.append((owner, name, owner.__dict__.get(name, replaced)))
            setattr(owner, name, wrapped)

        def watch(owner: Any, name: str, stage: str) -> None:
            put(owner, name, self.timed(stage, getattr(owner, name)))

        try:
            for owner, name, stage in _places(trainer):
                watch(owner, name, stage)
            put(updates, "learn", self.whole("learner", self.timed("online", updates.learn)))
            put(torch.Tensor, "backward", self._backward(torch.Tensor.backward))
            yield self
        finally:
            for owner, name, old in reversed(replaced):
                if old is replaced:
                    delattr(owner, name)
                else:
                    setattr(owner, name, old)

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The DQN's backward pass is a stage; Phi's and the world model's are part of theirs."""
        timed = self.timed("backward", original)

        def call(*args: Any, **kwargs: Any) -> Any:
            own = bool(self._open) and self._open[-1] == "optimiser"
            return (timed if own else original)(*args, **kwargs)

        return call


def _places(trainer: Trainer) -> list[tuple[Any, str, str]]:
    """(owner, name, stage) of the functions to watch."""
    found: list[tuple[Any, str, str]] = [
        (trainer, "_act", "act"),
        (trainer, "_note_episodes", "env"),
        *((trainer.env, name, "env") for name in ("send", "recv", "set_time_limit")),
        *((trainer.replay, name, "sample") for name in ("sample", "sample_prioritised")),
        (trainer.replay, "sample_pairs", "sample"),
        (trainer.updates, "turned", "sample"),
        (updates, "shift_offsets", "sample"),
        (updates, "learn_encoder", "encoder"),
        (learner, "rewarded", "world_model"),
        (trainer.learner.target, "states", "target"),
        (trainer.learner.target.head, "forward", "target"),
        (learner, "_step", "optimiser"),
        (learner, "_move_towards", "optimiser"),
        (learner, "sequence_priority", "priorities"),
        (trainer.replay, "set_priorities", "priorities"),
    ]
    if trainer.coverage is not None:
        found.append((trainer.coverage, "add", "env"))
    return found
