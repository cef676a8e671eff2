"""The time diagram of ``types``: actor and learner see the same rows, and the loop keeps its order.

Off by one in time is *the* bug of recurrent Q-learning: it trains, only worse.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from lwm import learner as learner_module
from lwm import training, updates
from lwm.actor import act
from lwm.agent import TDInput, td_errors
from lwm.config import Config, load_preset
from lwm.intrinsic import Window
from lwm.learner import LearnerState, learn
from lwm.replay import Replay
from lwm.training import Trainer
from lwm.types import Step, Unroll

ROWS = 60
ENVS = 4


def config(**overrides: Any) -> Config:
    """Small networks that do not learn and moments that do not move; episodes end often."""
    keys = {key.replace("__", "."): value for key, value in overrides.items()}
    frozen = {
        "dqn.learning_rate": 0.0,
        "world_model.learning_rate": 0.0,
        "intrinsic.momentum": 1.0,
        "loop.actors": ENVS,
        "env.time_limit": 12,
        "replay.burn_in": 0,
        "replay.unroll": ROWS - 1,
        "loop.warmup_frames": 300,
    }
    return load_preset("debug", frozen | keys)


class Played(NamedTuple):
    """What the actors saw and did, [ROWS, ENVS, ...]."""

    steps: list[Step]
    r_in: NDArray[np.float32]
    h: NDArray[np.float32]
    q: Tensor
    replay: Replay
    learner: LearnerState

    def column(self, name: str) -> NDArray[Any]:
        return np.stack([getattr(step, name) for step in self.steps])


def play(c: Config) -> Played:
    """Drive the environments with the actor for ROWS rows; they walk at random."""
    trainer = Trainer(c)
    learner, env, state = trainer.learner, trainer.env, trainer.actors
    if hasattr(learner.bonus, "moments"):
        learner.bonus.moments.set(0.25, 0.02, 1)
    replay = Replay(ROWS, ENVS, (4,), np.int8, c.dqn.hidden, learner.bonus.hidden)
    rng = np.random.default_rng(1)
    step, steps, r_in, h, q = trainer.step, [], [], [], []
    for _ in range(ROWS):
        explore, random_action = np.ones(ENVS, np.bool_), rng.integers(4, size=ENVS)
        acted, state = act(
            learner.dqn, learner.bonus, state, step, explore, random_action, c.dqn.reset_state
        )
        replay.append(step, acted.h, acted.r_in, acted.belief)
        steps.append(step)
        r_in.append(acted.r_in.copy())
        h.append(acted.h.copy())
        q.append(acted.q.clone())
        if not c.dqn.reset_state and len(steps) == 1:
            # No transition led to the first row of all; in a run the warm-up lies before it.
            state = state._replace(belief=learner.bonus.initial(ENVS))
        env.send(acted.action)
        step = env.recv()
    return Played(steps, np.stack(r_in), np.stack(h), torch.stack(q), replay, learner)


def tensor(array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(array)


def close(a: Any, b: Any) -> None:
    torch.testing.assert_close(
        torch.as_tensor(a), torch.as_tensor(b), atol=1e-5, rtol=1e-5, check_dtype=False
    )


def inputs_by_hand(u: Unroll) -> NDArray[np.float32]:
    """[T, B, 4 + 4 + 1]: door bits, previous action, previous reward and bonus."""
    T, B = u.a_tm1.shape
    x = np.zeros((T, B, 9), np.float32)
    for t in range(T):
        for b in range(B):
            x[t, b, :4] = u.obs[t, b]
            if not u.is_first[t, b]:
                x[t, b, 4 + u.a_tm1[t, b]] = 1
                x[t, b, 8] = u.r_t[t, b] + u.r_in[t, b]
    return x


CASES = [
    config(),
    config(dqn__reset_state=False),
    config(agent="lwm-ff"),
    config(agent="lwm-ff", dqn__reset_state=False),
    config(env__size=3, env__time_limit=24, seed=38),
    config(agent="dqn"),
    config(intrinsic__boundary="mask"),
    config(intrinsic__boundary="mask", dqn__reset_state=False),
]


@pytest.mark.parametrize(
    "c",
    CASES,
    ids=lambda c: "-".join(
        map(str, (c.agent, c.env.size, c.dqn.reset_state, c.intrinsic.boundary))
    ),
)
def test_learner_and_actor_agree(c: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    played = play(c)
    is_last, discount = played.column("is_last"), played.column("discount_t")
    assert (discount[is_last] == 0).any() and (discount[is_last] == 1).any()  # both kinds of end
    assert (is_last.sum(0) > 1).all()

    # The whole play as one window per environment; it begins on an episode's first row.
    u = played.replay.windows(np.zeros(ENVS, np.int64), np.arange(ENVS), ROWS)
    assert u.is_first[0].all()
    seen: list[TDInput] = []

    def spy(online: Any, target: Any, window: TDInput, *rest: Any) -> Any:
        seen.append(window)
        return td_errors(online, target, window, *rest)

    monkeypatch.setattr(learner_module, "td_errors", spy)
    learn(played.learner, u, 0.0)

    # Bonuses: what the learner adds to the target and feeds to the network is what the actor saw.
    if c.agent != "dqn":
        assert np.abs(played.r_in).max() > 0.1
    close(seen[0].reward, played.column("r_t") + played.r_in)
    close(seen[0].x, inputs_by_hand(u))
    # Q-values: the same numbers from one unroll as from sixty steps.
    cut = tensor(u.is_first) if c.dqn.reset_state else None
    with torch.no_grad():
        states = played.learner.dqn.states(seen[0].x, cut, tensor(u.h))
        close(played.learner.dqn.head(states), played.q)
    # Stored states: the one that precedes row t + 1 is the one after row t.
    before = states[:-1]
    if c.dqn.reset_state:
        before = before * ~tensor(u.is_first[1:])[..., None]
    close(before, played.h[1:])
    assert (played.h[0] == 0).all()


def test_windows_may_begin_on_any_first_row() -> None:
    played = play(config())
    u = played.replay
    checked = 0
    for env in range(ENVS):
        for first in np.flatnonzero(played.column("is_first")[:, env]):
            length = min(10, ROWS - first)
            if length < 2:
                continue
            w = u.windows(np.array([first]), np.array([env]), int(length))
            assert (w.h == 0).all()
            bonus_window = Window(
                tensor(w.obs.astype(np.float32)),
                tensor(w.a_tm1),
                tensor(w.is_first),
                tensor(w.is_last),
            )
            r_in, _ = played.learner.bonus.learn(bonus_window, 0)
            close(r_in[:, 0], played.r_in[first : first + length, env])
            checked += 1
    assert checked > 12


def test_states_are_stored_where_a_window_may_begin() -> None:
    # From a row in the middle of an episode, the stored state alone gives the actor's Q-values.
    played = play(config())
    dqn = played.learner.dqn
    for first in (7, 23, 41):
        u = played.replay.windows(np.full(ENVS, first), np.arange(ENVS), 9)
        with torch.no_grad():
            x = tensor(inputs_by_hand(u))
            states = dqn.states(x, tensor(u.is_first), tensor(u.h))
            close(dqn.head(states), played.q[first : first + 9])


@pytest.mark.parametrize("reset", [True, False])
def test_beliefs_are_stored_where_a_window_may_begin(reset: bool) -> None:
    # From a row in the middle of an episode, the stored belief alone gives the actor's bonuses;
    # from a belief of zero the first of them is another one.
    c = config(dqn__reset_state=reset)
    played = play(c)
    for first in (7, 23, 41):
        u = played.replay.windows(np.full(ENVS, first), np.arange(ENVS), 9)
        rows = (tensor(u.obs.astype(np.float32)), *map(tensor, (u.a_tm1, u.is_first, u.is_last)))
        r_in, _ = played.learner.bonus.learn(Window(*rows, tensor(u.belief)), 0)
        close(r_in[1:], played.r_in[first + 1 : first + 9])
        without, _ = played.learner.bonus.learn(Window(*rows), 0)
        inside = ~(u.is_first[0] | u.is_first[1])
        assert inside.any() and ((without - r_in)[1].abs().numpy()[inside] > 1e-4).all()


@pytest.mark.parametrize("reset", [True, False])
def test_memory_ends_with_the_episode(reset: bool) -> None:
    # Two plays that differ in row 2 only: after the next first row nothing of it may be left.
    c = config(dqn__reset_state=reset)
    played = play(c)
    u = played.replay.windows(np.zeros(ENVS, np.int64), np.arange(ENVS), ROWS)
    other = u._replace(obs=u.obs.copy())
    other.obs[2] = 1 - other.obs[2]
    bonus, dqn = played.learner.bonus, played.learner.dqn
    q = []
    for rows in (u, other):
        z = tensor(rows.obs.astype(np.float32))
        window = Window(z, tensor(rows.a_tm1), tensor(rows.is_first), tensor(rows.is_last))
        r_in, _ = bonus.learn(window, 0)
        x = dqn.inputs(z, window.a_tm1, tensor(rows.r_t) + r_in, window.is_first)
        with torch.no_grad():
            q.append(dqn.head(dqn.states(x, window.is_first if reset else None, tensor(u.h))))
    for env in range(ENVS):
        again = np.flatnonzero(u.is_first[3:, env])[0] + 3
        assert not torch.equal(q[0][2, env], q[1][2, env])
        assert torch.equal(q[0][again:, env], q[1][again:, env]) == reset


def test_rows_of_the_environment_obey_the_diagram() -> None:
    played = play(config())
    played.replay.check_valid()
    first, last = played.column("is_first"), played.column("is_last")
    assert (last[:-1] == first[1:]).all()
    assert (played.column("r_t")[first] == 0).all()
    assert (played.column("r_t")[~first] == -1).all()
    assert (played.column("a_tm1")[first] == 0).all()
    assert (played.r_in[first] == 0).all()
    assert (played.column("episode_length")[first] == 0).all()
    lengths = played.column("episode_length")[last]
    assert (played.column("episode_return")[last] == -lengths).all()
    truncated = last & (played.column("discount_t") == 1)
    assert (played.column("episode_length")[truncated] == 12).all()
    assert (lengths >= 3).all() and (lengths <= 12).all()  # four rooms take three steps at least


# The loop.


def looped(**overrides: Any) -> Trainer:
    """A trainer of agent lwm whose cycles can be counted: four actors, 64 warm-up frames."""
    return Trainer(
        config(
            replay__burn_in=2,
            replay__unroll=6,
            world_model__pretrain_rows=10,
            loop__warmup_frames=64,
            **overrides,
        )
    )


def tape(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the calls of the loop, in order, from now on."""
    calls: list[str] = []

    def record(owner: Any, attribute: str, name: str) -> None:
        original = getattr(owner, attribute)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, attribute, wrapped)

    record(training, "act", "act")
    record(trainer.replay, "append", "append")
    record(trainer.env, "send", "send")
    record(trainer.replay, "sample", "sample")
    record(updates, "learn", "learn")
    record(trainer.env, "recv", "recv")
    return calls


def test_order_of_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = looped(loop__cycles_per_update=3)
    calls = tape(trainer, monkeypatch)
    while not trainer.warm:
        trainer.cycle()
    assert calls == ["append", "send", "recv"] * trainer.cycles
    calls.clear()
    began = trainer.cycles
    while trainer.cycles < began + 12:
        trainer.cycle()
        update = trainer.cycles % 3 == 0
        learning = ["sample", "learn"] if update else []
        assert calls == ["act", "append", "send", *learning, "recv"]
        calls.clear()
    assert trainer.learner.updates == 4


def test_order_of_the_calls_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    # Warm-up, then all of the pretraining, then training; every cycle asks for one row.
    trainer = looped(world_model__pretrain_iterations=7)
    calls = tape(trainer, monkeypatch)
    kinds = [event.kind for event in trainer.run()]
    trained_from = calls.index("act")
    warm_up, pretraining = calls[: trained_from - 7], calls[trained_from - 7 : trained_from]
    assert warm_up == ["append", "send", "recv"] * (len(warm_up) // 3)
    assert pretraining == ["sample"] * 7
    assert kinds.count("end") == 1 and kinds[-1] == "end"
    assert calls.count("recv") == trainer.cycles == trainer.replay.count
    assert calls.count("learn") == trainer.learner.updates


def test_an_update_sees_the_newest_row(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = looped(loop__cycles_per_update=1)
    while not trainer.warm:
        trainer.cycle()
    newest = []
    original = trainer.replay.sample

    def sample(*args: Any, **kwargs: Any) -> Unroll:
        # The row the actors just acted on is in; the one their actions lead to is not.
        assert trainer.replay.count == trainer.cycles
        u = trainer.replay.windows(np.full(ENVS, trainer.cycles - 1), np.arange(ENVS), 1)
        np.testing.assert_array_equal(u.obs[0], trainer.step.obs)
        np.testing.assert_array_equal(u.is_first[0], trainer.step.is_first)
        drawn = original(*args, **kwargs)
        newest.append(trainer.cycles - (drawn.origin[:, 0].max() + trainer.config.window))
        return drawn

    monkeypatch.setattr(trainer.replay, "sample", sample)
    for _ in range(60):
        trainer.cycle()
    assert min(newest) == 0


def test_frames_are_transitions() -> None:
    trainer = looped()
    received = 0
    for _ in range(80):
        trainer.cycle()
        received += int((~trainer.step.is_first).sum())
        assert trainer.frames == received
    # A cycle of four actors brings four frames, but for the rows that only begin an episode.
    assert trainer.frames < 80 * ENVS
    rows = trainer.replay.windows(np.zeros(ENVS, np.int64), np.arange(ENVS), 80)
    beginnings = rows.is_first.sum() + trainer.step.is_first.sum() - ENVS  # not those of reset()
    assert trainer.frames == 80 * ENVS - beginnings


def test_warm_up_stores_no_state_and_no_bonus() -> None:
    trainer = looped()
    while not trainer.warm:
        trainer.cycle()
    warm = trainer.cycles
    assert trainer.learner.updates == 0
    for _ in range(8):
        trainer.cycle()
    for row in range(warm + 8):
        u = trainer.replay.windows(np.full(ENVS, row), np.arange(ENVS), 1)
        if row <= warm:  # the first acting row still begins from nothing
            assert (u.h == 0).all()
        else:
            assert ((u.h != 0).any(1) == ~u.is_first[0]).all()
        assert ((u.r_in[0] != 0) == (~u.is_first[0] & (row >= warm))).all()


@pytest.mark.parametrize("ratio", [1, 4, 5])
def test_updates_come_every_so_many_cycles_after_the_warm_up(ratio: int) -> None:
    trainer = looped(loop__cycles_per_update=ratio)
    expected = 0
    for _ in range(60):
        learning = trainer.warm
        trainer.cycle()
        expected += learning and trainer.cycles % ratio == 0
        assert trainer.learner.updates == expected
    assert expected >= 8


def test_the_random_agent_learns_nothing_and_stores_nothing() -> None:
    trainer = looped(agent="random")
    for _ in range(60):
        trainer.cycle()
    assert trainer.learner.updates == trainer.replay.count == 0
    assert trainer.frames > 200


def test_exploration_follows_epsilon() -> None:
    # Untrained and always greedy, an actor repeats itself; with epsilon 1 it walks at random.
    def actions(base: float) -> NDArray[np.int64]:
        trainer = looped(dqn__epsilon_base=base)
        while not trainer.warm:
            trainer.cycle()
        rows = []
        for _ in range(200):
            trainer.cycle()
            rows.append(trainer.step.a_tm1[~trainer.step.is_first])
        return np.bincount(np.concatenate(rows), minlength=4)

    random = actions(1.0)
    assert random.min() > 0.2 * random.sum()
    greedy = actions(0.0)
    assert greedy.max() > 0.4 * greedy.sum()
