"""First priorities of windows (row 20) against plain loops, alone and in a running trainer."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lwm import updates
from lwm.actor import Acted
from lwm.config import Config, load_preset
from lwm.intrinsic import Window
from lwm.ranking import Ranking
from lwm.training import Trainer
from lwm.types import Step, Unroll

ACTIONS = 3


def config(**overrides: Any) -> Config:
    """Windows of 3 + 7 + 2 rows of 4 actors."""
    keys = {key.replace("__", "."): value for key, value in overrides.items()}
    small = {
        "loop.actors": 4,
        "replay.burn_in": 3,
        "replay.unroll": 7,
        "dqn.n_step": 2,
        "dqn.gamma": 0.9,
        "replay.capacity_steps": 400,
    }
    return load_preset("debug", small | keys, "atari")


class Row(NamedTuple):
    """One row of one actor."""

    taken: float
    """Q-value of the action taken here."""
    value: float
    """What this row is worth to bootstrap from, in the units of rewards."""
    reward: float
    """What arriving here paid, bonus included."""
    discount: float
    is_last: bool


def h(x: float) -> float:
    """R2D2's value rescaling."""
    return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + 0.001 * x


def h_inverse(y: float) -> float:
    """By bisection, so that it owes nothing to the closed form."""
    low, high = -1e6, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if h(middle) < y else (low, middle)
    return low


def slow_priority(rows: list[Row], c: Config) -> float:
    """Row 20, line by line, for the ``c.window`` rows of one window."""
    assert len(rows) == c.window
    errors = []
    for t in range(c.replay.burn_in, c.replay.burn_in + c.replay.unroll):
        if rows[t].is_last:
            continue  # never trained as t
        target, scale, at = 0.0, 1.0, t
        for _ in range(c.dqn.n_step):
            at += 1
            target += scale * rows[at].reward
            scale *= c.dqn.gamma
            if rows[at].is_last:
                break
        bootstraps = c.dqn.truncation_bootstraps or not rows[at].is_last
        target += scale * rows[at].discount * bootstraps * rows[at].value
        errors.append(abs(h(target) - rows[t].taken))
    eta = c.replay.priority_eta
    return eta * max(errors) + (1 - eta) * sum(errors) / len(errors)


class Tape:
    """Rows as a game gives them, [B] at a time: rewards, lost lives, time limits; no game at all.

    Endings are dense, so that every window has some, with n-step sums that run into them.
    """

    def __init__(self, c: Config, seed: int) -> None:
        self.c, self.rng = c, np.random.default_rng(seed)
        self.last = np.ones(c.loop.actors, np.bool_)
        self.rows: list[list[Row]] = []

    def next(self) -> tuple[Step, Acted]:
        B, rng = self.c.loop.actors, self.rng
        first = self.last
        self.last = ~first & (rng.random(B) < 0.25)
        over = self.last & (rng.random(B) < 0.6)  # a game or a life; else the time limit
        r_t = rng.normal(0, 3, B).astype(np.float32) * ~first
        r_in = rng.normal(0, 1, B).astype(np.float32) * ~first
        q = rng.normal(0, 2, (B, ACTIONS)).astype(np.float32)
        action = rng.integers(ACTIONS, size=B)
        zero = np.zeros(B, np.float32)
        step = Step(
            obs=np.zeros((B, 84, 84), np.uint8),
            a_tm1=np.zeros(B, np.int64),
            r_t=r_t,
            is_first=first,
            is_last=self.last,
            discount_t=(~over).astype(np.float32),
            episode_return=zero,
            episode_length=np.zeros(B, np.int64),
            episode_end=np.zeros(B, np.bool_),
        )
        none = np.zeros((B, 0), np.float32)
        self.rows.append(
            [
                Row(
                    taken=float(q[b, action[b]]),
                    value=h_inverse(float(q[b].max())),
                    reward=float(r_t[b]) + float(r_in[b]),
                    discount=float(not over[b]),
                    is_last=bool(self.last[b]),
                )
                for b in range(B)
            ]
        )
        return step, Acted(action, none, none, r_in, torch.from_numpy(q), None)

    def priorities(self) -> list[float]:
        """Of the windows that end with the newest row."""
        newest = self.rows[-self.c.window :]
        return [slow_priority([row[b] for row in newest], self.c) for b in range(len(newest[0]))]


def test_value_rescaling_of_the_reference() -> None:
    assert h(3) == pytest.approx(1.003) and h(-8) == pytest.approx(-2.008)
    for x in (-40.0, -0.3, 0.0, 2.5, 1000.0):
        assert h_inverse(h(x)) == pytest.approx(x, abs=1e-6)


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"dqn__n_step": 1},
        {"dqn__n_step": 5},
        {"replay__burn_in": 0, "replay__unroll": 1},
        {"replay__priority_eta": 0.0},
        {"replay__priority_eta": 1.0},
        {"replay__priority_eta": 0.4, "dqn__gamma": 0.5},
        {"dqn__truncation_bootstraps": False},
    ],
    ids=str,
)
def test_against_plain_loops_round_and_round_the_ring(overrides: dict[str, Any]) -> None:
    c = config(**overrides)
    ranking, tape = Ranking(c), Tape(c, seed=len(overrides))
    for noted in range(1, 4 * c.window + 5):
        ranking.note(*tape.next())
        found = ranking.priorities()
        if noted < c.window:
            assert found is None
        elif c.replay.unroll == 1 and any(row.is_last for row in tape.rows[-1 - c.dqn.n_step]):
            continue  # a window whose one row is not trained has no error to speak of
        else:
            assert found is not None and found.shape == (4,)
            np.testing.assert_allclose(found, tape.priorities(), rtol=1e-4, atol=1e-5)
    last = np.array([[row.is_last for row in rows] for rows in tape.rows])
    discount = np.array([[row.discount for row in rows] for rows in tape.rows])
    assert (last & (discount == 0)).any() and (last & (discount == 1)).any()


def worth(
    c: Config,
    taken: list[float],
    rewards: list[float],
    last: dict[int, float] | None = None,
    best: dict[int, float] | None = None,
) -> float:
    """Priority of one window; ``last``: rows that end an episode, with their discount; ``best``:
    largest Q-values, 0 elsewhere."""
    ranking = Ranking(c)
    ends, values = last or {}, best or {}
    for t in range(c.window):
        q = np.full((1, ACTIONS), min(0.0, values.get(t, 0.0), taken[t]) - 1, np.float32)
        q[0, 0], q[0, 1] = taken[t], values.get(t, 0.0)
        assert q.max() == max(values.get(t, 0.0), taken[t])
        none = np.zeros((1, 0), np.float32)
        r = np.array([rewards[t]], np.float32)
        step = Step(
            obs=np.zeros((1, 84, 84), np.uint8),
            a_tm1=np.zeros(1, np.int64),
            r_t=r,
            is_first=np.array([t - 1 in ends]),
            is_last=np.array([t in ends]),
            discount_t=np.array([ends.get(t, 1.0)], np.float32),
            episode_return=r,
            episode_length=np.zeros(1, np.int64),
            episode_end=np.zeros(1, np.bool_),
        )
        bonus = np.zeros(1, np.float32)
        ranking.note(step, Acted(np.zeros(1, np.int64), none, none, bonus, torch.tensor(q), None))
    found = ranking.priorities()
    assert found is not None
    return float(found[0])


def test_by_hand() -> None:
    # One row of burn-in, two trained, two more for their targets; gamma 1/2, so that a reward of 8
    # two rows ahead is worth 4 and h(3) = 1.003, h(4) = sqrt(5) - 0.996, h(8) = 2.008.
    c = config(
        loop__actors=1, replay__burn_in=1, replay__unroll=2, dqn__n_step=2, dqn__gamma=0.5,
        replay__priority_eta=0.9,
    )  # fmt: skip
    assert c.window == 5

    def mixed(*errors: float) -> float:
        return 0.9 * max(errors) + 0.1 * sum(errors) / len(errors)

    near = {"rel": 1e-4}
    zero = [0.0] * 5
    h4 = math.sqrt(5) - 1 + 0.004
    # Rewards of rows 2 and 3 enter row 1's target, those of rows 3 and 4 row 2's; row 1's own does
    # not, nor anything of the burn-in.
    assert worth(c, zero, [7, 7, 3, 0, 0]) == pytest.approx(mixed(1.003, 0), **near)
    assert worth(c, zero, [0, 0, 0, 8, 0]) == pytest.approx(mixed(h4, 2.008), **near)
    assert worth(c, zero, [0, 0, 0, 0, 8]) == pytest.approx(mixed(0, h4), **near)
    # Value 12 = h^-1(q) in the window's very last row, a quarter of it in row 2's target.
    top = h(12)
    assert worth(c, zero, zero, best={4: top}) == pytest.approx(mixed(0, 1.003), **near)
    # A termination in row 3 ends both sums: the reward behind it is another episode's.
    assert worth(c, zero, [0, 0, 0, 8, 9], last={3: 0.0}) == pytest.approx(mixed(h4, 2.008), **near)
    assert worth(c, zero, zero, last={3: 0.0}, best={3: top}) == pytest.approx(0, abs=1e-5)
    # A time limit there bootstraps from its own row: a quarter of 12 for row 1, half for row 2.
    cut = worth(c, zero, zero, last={3: 1.0}, best={3: top})
    assert cut == pytest.approx(mixed(1.003, h(6)), **near)
    # In row 2 it makes that row no row to train: one error is left, after a single step.
    assert worth(c, [0, 0, 100, 0, 0], [0, 0, 8, 0, 0], last={2: 0.0}) == pytest.approx(
        2.008, **near
    )
    # What was taken is subtracted from what should have been expected.
    assert worth(c, [5, -2, 0, 0, 0], zero, best={0: 9.0}) == pytest.approx(mixed(2, 0), **near)


def test_state_round_trip() -> None:
    c = config()
    for noted in (0, 5, c.window, 3 * c.window + 2):
        tape = Tape(c, seed=noted)
        ranking = Ranking(c)
        for _ in range(noted):
            ranking.note(*tape.next())
        saved = copy.deepcopy(ranking.get_state())
        restored = Ranking(c)
        restored.set_state(saved)
        for _ in range(2 * c.window):
            row = tape.next()
            ranking.note(*row)
            restored.note(*row)
            a, b = ranking.priorities(), restored.priorities()
            assert (a is None) == (b is None)
            if a is not None and b is not None:
                np.testing.assert_array_equal(a, b)
        # Nobody keeps another's buffer.
        again, before = Ranking(c), copy.deepcopy(saved)
        again.set_state(saved)
        assert again.noted == noted
        again.note(*tape.next())
        assert saved.keys() == before.keys()
        assert all(np.array_equal(saved[key], before[key]) for key in saved)


# In a running trainer.

GAME = "breakout"  # its lives are short


class Seen(NamedTuple):
    """What a trainer did with priorities, row numbers counted since the run began."""

    trainer: Trainer
    noted: dict[int, tuple[Step, Acted]]
    """Rows that were acted on with the DQN."""
    new: list[tuple[int, NDArray[np.int64], NDArray[np.floating], Unroll, NDArray[np.float32]]]
    """First priorities: rows in replay, names, values, these windows, what the learner says."""
    updated: list[tuple[NDArray[np.int64], NDArray[np.floating], NDArray[np.floating]]]
    """Priorities after an update: the names that were set, their values, what the update said."""


@pytest.fixture(scope="module")
def seen() -> Iterator[Seen]:
    pytest.importorskip("ale_py", reason="playing Atari games needs the extra: pip install ale-py")
    c = config(
        atari__game=GAME,
        atari__time_limit=45,
        loop__actors=3,
        loop__total_frames=500,
        loop__cycles_per_update=5,
        replay__burn_in=4,
        replay__unroll=8,
        replay__capacity_steps=180,  # the ring goes round
        dqn__n_step=3,
        dqn__epsilon_base=1.0,  # all at random: lives are lost soon
        precision="float32",
    )
    trainer = Trainer(c)
    found = Seen(trainer, {}, [], [])
    patch = pytest.MonkeyPatch()
    ranking, replay = trainer.ranking, trainer.replay
    assert ranking is not None
    note, set_priorities, learn = ranking.note, replay.set_priorities, updates.learn
    said: list[tuple[NDArray[np.int64], NDArray[np.floating]]] = []

    def on_note(step: Step, acted: Acted, share: float) -> None:
        found.noted[replay.count - 1] = copy.deepcopy((step, acted))
        note(step, acted, share)

    def on_learn(state: Any, unroll: Unroll, *rest: Any) -> Any:
        result = learn(state, unroll, *rest)
        said.append((unroll.origin, result[1]))
        return result

    def on_set(origin: NDArray[np.int64], p: NDArray[np.floating]) -> None:
        if said:
            drawn, priority = said.pop()
            np.testing.assert_array_equal(origin, drawn)
            found.updated.append((origin.copy(), p.copy(), priority.copy()))
        else:
            windows = replay.windows(origin[:, 0], origin[:, 1], c.window)
            learned = by_learner(trainer, windows)
            found.new.append((replay.count, origin.copy(), p.copy(), windows, learned))
        set_priorities(origin, p)

    patch.setattr(ranking, "note", on_note)
    patch.setattr(replay, "set_priorities", on_set)
    patch.setattr(updates, "learn", on_learn)
    try:
        for event in trainer.run():
            if event.kind == "cycle":
                replay.check_valid()
        yield found
    finally:
        patch.undo()
        trainer.close()


def by_learner(trainer: Trainer, u: Unroll) -> NDArray[np.float32]:
    """The learner's priorities of windows, targets and all by plain loops."""
    learner, c = trainer.learner, trainer.config
    z = learner.embed(u.obs)
    a_tm1, r_t, is_first, is_last = (
        torch.from_numpy(v) for v in (u.a_tm1, u.r_t, u.is_first, u.is_last)
    )
    with torch.no_grad():
        r_in = learner.bonus.recompute(Window(z, a_tm1, is_first, is_last))
        x = learner.dqn.inputs(torch.from_numpy(u.obs), a_tm1, r_t + r_in, is_first)
        q, valued = (
            net.head(net.states(x, is_first, torch.from_numpy(u.h))).numpy()
            for net in (learner.dqn, learner.target)
        )
    reward = (r_t + r_in).numpy()
    T, B = u.a_tm1.shape
    found = []
    for b in range(B):
        rows = [
            Row(
                taken=float(q[t, b, u.a_tm1[t + 1, b]]) if t + 1 < T else math.nan,
                value=h_inverse(float(valued[t, b, q[t, b].argmax()])),
                reward=float(reward[t, b]),
                discount=float(u.discount_t[t, b]),
                is_last=bool(u.is_last[t, b]),
            )
            for t in range(T)
        ]
        found.append(slow_priority(rows, c))
    return np.array(found, np.float32)


def test_windows_are_ranked_as_they_become_complete(seen: Seen) -> None:
    c = seen.trainer.config
    w, every, B = c.window, c.replay.unroll, c.loop.actors
    names = [origin for _, origin, _, _, _ in seen.new]
    # All that the warm-up left behind before the first row that is acted on, in batches.
    first_time, began = seen.new[0][0], min(seen.noted)
    assert first_time == began
    early = np.concatenate([o for (count, o, *_) in seen.new if count == first_time]).tolist()
    complete = (first_time - w) // every + 1
    assert early == [[k * every, b] for k in range(complete) for b in range(B)]
    # Then a window of every actor each time the next one is whole.
    later = [(count, origin) for count, origin, *_ in seen.new if count > first_time]
    waiting = complete
    for count, origin in later:
        first = waiting * every
        # What reaches out of the warm-up is ranked by the learner, two windows in a cycle.
        late = int(origin[0, 1]) // 2 if first < began else 0
        assert (origin[:, 0] == first).all() and count == first + w + late
        waiting += origin[-1, 1] == B - 1
    assert waiting == (seen.trainer.replay.count - w) // every + 1
    together = np.concatenate(names)
    assert len(np.unique(together, axis=0)) == len(together) == waiting * B
    assert len(seen.trainer.replay.new_windows()) == 0


def test_the_priority_of_a_window_is_that_of_its_own_rows(seen: Seen) -> None:
    # The rows are those of replay, the Q-values those that the actors had in these rows.
    c, began = seen.trainer.config, min(seen.noted)
    checked = 0
    kinds = {"termination": 0, "time limit": 0, "bonus": 0}
    for _, origin, p, u, _ in seen.new:
        if origin[0, 0] < began:
            continue
        assert (origin[:, 1] == np.arange(c.loop.actors)).all()
        for b, (first, env) in enumerate(origin.tolist()):
            rows = []
            for t in range(c.window):
                _, acted = seen.noted[first + t]
                q = acted.q[env].numpy()
                ends = t + 1 == c.window
                assert u.r_in[t, b] == acted.r_in[env]
                rows.append(
                    Row(
                        taken=math.nan if ends else float(q[u.a_tm1[t + 1, b]]),
                        value=h_inverse(float(q.max())),
                        reward=float(u.r_t[t, b] + u.r_in[t, b]),
                        discount=float(u.discount_t[t, b]),
                        is_last=bool(u.is_last[t, b]),
                    )
                )
            assert p[b] == pytest.approx(slow_priority(rows, c), rel=1e-4, abs=1e-5)
            checked += 1
            ended = [row.discount for row in rows[c.replay.burn_in :] if row.is_last]
            kinds["termination"] += 0.0 in ended
            kinds["time limit"] += 1.0 in ended
            kinds["bonus"] += abs(u.r_in[c.replay.burn_in :, b]).max() > 0.1
    assert checked >= 30
    assert kinds["termination"] >= 3 and kinds["time limit"] >= 3 and kinds["bonus"] == checked


def test_windows_that_begin_in_the_warm_up_are_ranked_by_the_learner(seen: Seen) -> None:
    c, began = seen.trainer.config, min(seen.noted)
    checked = 0
    for _, origin, p, u, learned in seen.new:
        if origin[0, 0] < began:
            assert (u.h == 0).all()  # stored state 0
            np.testing.assert_allclose(p, learned, rtol=1e-4, atol=1e-5)
            checked += len(origin)
    assert checked >= 2 * c.loop.actors
    # Those of the warm-up proper and those that reach out of it.
    reach = {int(origin[0, 0]) + c.window > began + 1 for _, origin, *_ in seen.new}
    assert reach == {True, False}


def test_an_update_returns_the_priorities_of_the_windows_it_drew(seen: Seen) -> None:
    assert len(seen.updated) == seen.trainer.learner.updates >= 20
    for origin, given, said in seen.updated:
        assert origin.shape == (seen.trainer.config.replay.batch, 2)
        np.testing.assert_array_equal(given, said)
        assert (given > 0).all()


def test_a_bonus_that_fades_counts_as_little_as_in_the_targets() -> None:
    c = config()
    rankings = {share: Ranking(c) for share in (1.0, 0.25)}
    tape = Tape(c, seed=3)
    for _ in range(c.window):
        step, acted = tape.next()
        rankings[0.25].note(step, acted, 0.25)
        rankings[1.0].note(step, acted._replace(r_in=0.25 * acted.r_in))
    a, b = (ranking.priorities() for ranking in rankings.values())
    assert a is not None and b is not None
    np.testing.assert_array_equal(a, b)
