"""Turned windows are walks through turned labyrinths."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lwm import session
from lwm.actor import ActorState, act, initial_state, narrowed, seen_once
from lwm.config import load_preset
from lwm.envs.vector import make_env
from lwm.errors import BadInput
from lwm.evaluate import evaluate
from lwm.experiments.walks import Walks, trace
from lwm.learner import LearnerState
from lwm.streams import environment_seeds
from lwm.symmetry import GROUP, actions_in_all, bits_in_all, mean_of_all, turned
from lwm.training import Trainer
from lwm.types import Step, Unroll
from trees import same

UP, DOWN, LEFT, RIGHT = range(4)
MOVES = {UP: (-1, 0), DOWN: (1, 0), LEFT: (0, -1), RIGHT: (0, 1)}


def _unroll(obs: np.ndarray, a_tm1: np.ndarray, is_first: np.ndarray, h: np.ndarray) -> Unroll:
    T, B = a_tm1.shape
    zero = np.zeros((T, B), np.float32)
    off = np.zeros((T, B), np.bool_)
    belief, origin = np.zeros((B, 0), np.float32), np.zeros((B, 2), np.int64)
    return Unroll(obs, a_tm1, zero, is_first, off, zero + 1, h, belief, zero, origin)


def test_the_group_is_the_square_s() -> None:
    assert len({tuple(p) for p in GROUP}) == 8
    assert (GROUP[0] == np.arange(4)).all()
    for p in GROUP:
        # Opposite directions stay opposite: no shear, no exchange of axes by halves.
        assert {p[UP], p[DOWN]} in ({UP, DOWN}, {LEFT, RIGHT})
        for q in GROUP:
            assert tuple(p[q]) in {tuple(r) for r in GROUP}


def test_quarter_turn_by_hand() -> None:
    """A room open to the left, then a step to the left, in all orientations."""
    obs = np.zeros((2, 8, 4), np.int8)
    obs[0, :, LEFT] = 1
    obs[1, :, RIGHT] = 1
    a_tm1 = np.stack([np.zeros(8, np.int64), np.full(8, LEFT)])
    is_first = np.array([[True] * 8, [False] * 8])
    got = turned(_unroll(obs, a_tm1, is_first, np.zeros((8, 3), np.float32)), np.arange(8))
    for k in range(8):
        to = int(GROUP[k][LEFT])
        dy, dx = MOVES[to]
        back = next(d for d, move in MOVES.items() if move == (-dy, -dx))
        assert got.obs[0, k].tolist() == [int(d == to) for d in range(4)]
        assert got.obs[1, k].tolist() == [int(d == back) for d in range(4)]
        assert got.a_tm1[:, k].tolist() == [0, to]
    assert {int(a) for a in got.a_tm1[1]} == {UP, DOWN, LEFT, RIGHT}


def test_a_window_with_a_past_stays() -> None:
    rng = np.random.default_rng(0)
    obs = rng.integers(2, size=(5, 3, 4)).astype(np.int8)
    a_tm1 = rng.integers(4, size=(5, 3))
    is_first = np.zeros((5, 3), np.bool_)
    is_first[0, 1] = True
    h = np.zeros((3, 2), np.float32)
    h[:2] = 1  # window 0 has a past; 1 too, but it begins with an episode; 2 has none
    a_tm1[0, 1] = 0
    before = _unroll(obs, a_tm1, is_first, h)
    got = turned(before, np.full(3, 2))
    assert (got.obs[:, 0] == obs[:, 0]).all() and (got.a_tm1[:, 0] == a_tm1[:, 0]).all()
    assert (got.obs[:, 1:].sum(-1) == obs[:, 1:].sum(-1)).all()
    assert (got.a_tm1[1:, 1:] == GROUP[2][a_tm1[1:, 1:]]).all()
    assert got.a_tm1[0, 1] == 0


def test_a_turn_and_its_inverse_give_the_window_back() -> None:
    rng = np.random.default_rng(1)
    obs = rng.integers(2, size=(6, 8, 4)).astype(np.int8)
    a_tm1 = rng.integers(4, size=(6, 8))
    is_first = rng.random((6, 8)) < 0.3
    a_tm1[is_first] = 0
    before = _unroll(obs, a_tm1, is_first, np.zeros((8, 2), np.float32))
    inverse = np.array(
        [next(k for k in range(8) if (GROUP[k][p] == range(4)).all()) for p in GROUP]
    )
    back = turned(turned(before, np.arange(8)), inverse)
    assert (back.obs == obs).all() and (back.a_tm1 == a_tm1).all()


def _turn(step: Step, k: int) -> Step:
    """A row as it is in orientation ``k``, written without the module's own helpers."""
    obs = np.zeros_like(step.obs)
    for d in range(4):
        obs[:, GROUP[k][d]] = step.obs[:, d]
    return step._replace(obs=obs, a_tm1=GROUP[k][step.a_tm1])


def _learner(symmetric: bool) -> LearnerState:
    share = {"dqn.symmetric_share": 1.0, "replay.symmetry_share": 1.0} if symmetric else {}
    config = load_preset("debug", {"env.size": 3, **share})
    return LearnerState(config, 4, 4)


def _rows(count: int, envs: int = 5) -> list[Step]:
    """Rows of random walks that end within them."""
    config = load_preset("debug", {"env.size": 2})
    env = make_env(config, environment_seeds("train", envs, 0))
    rng = np.random.default_rng(3)
    step, rows = env.reset(), []
    for _ in range(count):
        rows.append(Step._make(np.array(v) for v in step))
        env.send(rng.integers(4, size=envs))
        step = env.recv()
    assert any(row.is_first.any() for row in rows[1:])
    return rows


def _follow(
    learner: LearnerState, rows: list[Step], reset_state: bool = True
) -> tuple[list[SimpleNamespace], ActorState]:
    B = len(rows[0].r_t)
    off, zero = np.zeros(B, np.bool_), np.zeros(B, np.int64)
    state = initial_state(learner.dqn, learner.bonus, B, learner.embedding)
    found = []
    for step in rows:
        acted, state = act(learner.dqn, learner.bonus, state, step, off, zero, reset_state)
        found.append(SimpleNamespace(**acted._asdict()))
    return found, state


def test_bits_and_actions_in_all_orientations_by_hand() -> None:
    bits = torch.tensor([[1, 0, 0, 0], [0, 1, 1, 0]])
    every = bits_in_all(bits).view(8, 2, 4)
    moves = actions_in_all(torch.tensor([UP, LEFT])).view(8, 2)
    for k, to in enumerate(GROUP):
        assert every[k, 0].tolist() == [int(d == to[UP]) for d in range(4)]
        assert every[k, 1].tolist() == [int(d in (to[DOWN], to[LEFT])) for d in range(4)]
        assert moves[k].tolist() == [to[UP], to[LEFT]]


def test_the_mean_is_turned_back() -> None:
    """In each orientation the action that means `left` has value 7, the others their own."""
    q = torch.zeros(8, 1, 4)
    for k, to in enumerate(GROUP):
        q[k, 0, to[LEFT]] = 7
        q[k, 0, to[UP]] = k
    assert mean_of_all(q.view(8, 4)).tolist() == [[3.5, 0.0, 7.0, 0.0]]


def test_a_symmetric_actor_is_eight_actors() -> None:
    rows = _rows(40)
    plain, symmetric = _learner(False), _learner(True)
    together, _ = _follow(symmetric, rows)
    alone = [_follow(plain, [_turn(step, k) for step in rows])[0] for k in range(8)]
    for t, got in enumerate(together):
        want = torch.stack([alone[k][t].q[:, GROUP[k]] for k in range(8)]).mean(0)
        torch.testing.assert_close(got.q, want)
        assert (got.action == want.argmax(-1).numpy()).all()
        for name in ("h", "belief", "r_in", "prediction"):  # what replay stores is the walk's own
            own = torch.as_tensor(getattr(alone[0][t], name))
            torch.testing.assert_close(torch.as_tensor(getattr(got, name)), own)
    assert any((a.action != b.action).any() for a, b in zip(together, alone[0], strict=True))


def test_a_symmetric_actor_turns_with_its_labyrinth() -> None:
    rows, learner = _rows(25), _learner(True)
    base, _ = _follow(learner, rows)
    for k in range(8):
        got, _ = _follow(learner, [_turn(step, k) for step in rows])
        for t, acted in enumerate(got):
            torch.testing.assert_close(acted.q[:, GROUP[k]], base[t].q)


def test_narrowing_keeps_all_orientations() -> None:
    rows, learner = _rows(12), _learner(True)
    keep = np.array([True, False, False, True, True])
    _, state = _follow(learner, rows[:6])
    _, fewer = _follow(learner, [Step._make(v[keep] for v in step) for step in rows[:6]])
    torch.testing.assert_close(tuple(narrowed(state, torch.from_numpy(keep))), tuple(fewer))


def test_one_orientation_goes_on_as_the_walk_is() -> None:
    rows = _rows(14)
    _, all_of_them = _follow(_learner(True), rows)
    _, plain = _follow(_learner(False), rows)
    torch.testing.assert_close(tuple(seen_once(all_of_them, 5)), tuple(plain))


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_symmetric_agent_trains_resumes_and_is_scored(share: float) -> None:
    """A run is a part of it, a restored state, and the rest: also across the change to one view."""
    config = load_preset(
        "debug",
        {"dqn.symmetric_share": share, "dqn.average": 0.9, "replay.symmetry_share": share},
    )
    total = config.loop.total_frames
    whole, first, second = Trainer(config), Trainer(config), Trainer(config)
    for trainer, until in ((whole, total), (first, 0.4 * total)):
        for _ in trainer.run():
            views = 8 if trainer.frames < share * total or share == 1 else 1
            assert trainer.learner.dqn.views == trainer.learner.policy.views == views
            assert len(trainer.actors.h) == views * config.loop.actors
            if trainer.frames >= until:
                break
    second.set_state(first.get_state())
    for _ in second.run():
        pass
    assert same(second.get_state(), whole.get_state())
    scores = evaluate(config, whole.learner, 16)
    assert len(scores.returns) == 16 and (scores.lengths > 0).all()


def test_shares_of_one_last_longer_than_the_schedules() -> None:
    """Windows are turned as long as the actors see all orientations."""
    shares = {"dqn.symmetric_share": 1.0, "replay.symmetry_share": 1.0}
    config = load_preset("paper", {**shares, "loop.schedule_frames": 1000})
    assert config.progress(5000) == 1
    assert config.within(1.0, config.dqn.symmetric_share)
    assert config.within(1.0, config.replay.symmetry_share)
    assert config.within(0.49, 0.5) and not config.within(0.5, 0.5) and not config.within(0.0, 0.0)


def test_which_sizes_are_learned_in_all_orientations_and_with_a_gap() -> None:
    best = [load_preset("best", {"env.size": n}) for n in (2, 3, 4, 5, 6)]
    assert [c.replay.symmetry_share for c in best] == [0, 0, 1, 1, 1]
    assert [c.dqn.gap for c in best] == [0, 0, 0.7, 0.7, 0.7]
    assert [c.dqn.epsilon_base for c in best] == [0.1, 0.1, 0.1, 0.01, 0.01]
    assert {c.dqn.symmetric_share for c in best} == {0}


def test_masked_ends_and_states_that_go_on_in_all_orientations() -> None:
    """Row 4's mask and row 2's switch, which are applied to each orientation."""
    rows = _rows(30)
    assert any(row.is_last.any() for row in rows)
    for changes in ({"intrinsic.boundary": "mask"}, {"dqn.reset_state": False}):
        share = {"dqn.symmetric_share": 1.0, "replay.symmetry_share": 1.0}
        alone, views = (
            LearnerState(load_preset("debug", {**changes, **more}), 4, 4) for more in ({}, share)
        )
        for learner in (alone, views):
            learner.bonus.moments.set(0.1, 0.2, 1)
        reset = alone.config.dqn.reset_state
        one, _ = _follow(alone, rows, reset)
        many, _ = _follow(views, rows, reset)
        for a, b, row in zip(one, many, rows, strict=True):
            torch.testing.assert_close(torch.from_numpy(b.r_in), torch.from_numpy(a.r_in))
            torch.testing.assert_close(torch.from_numpy(b.h), torch.from_numpy(a.h))
            if "intrinsic.boundary" in changes:
                assert (b.r_in[row.is_last] == 0).all()


def test_traces_are_of_the_walk_as_it_is() -> None:
    played = Walks(_rows(12), np.zeros((12, 5)), np.zeros((12, 5, 4), np.bool_))
    many, plain = (trace(_learner(symmetric), played) for symmetric in (True, False))
    for a, b in zip(many, plain, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_a_run_on_disk_is_scored_with_the_views_of_its_frames(tmp_path: Path) -> None:
    for share, views in ((0.5, 1), (1.0, 8)):
        run = tmp_path / str(views)
        config = load_preset("debug", {"dqn.symmetric_share": share, "replay.symmetry_share": 1.0})
        writer, trainer = session.start(config, run)
        try:
            session.run(writer, trainer)
        finally:
            writer.close()
        assert session.load(run).learner.policy.views == views


@pytest.mark.parametrize(
    ("workload", "more"),
    [
        ("labyrinth", {}),
        ("labyrinth", {"env.tv": True}),
        ("labyrinth", {"agent": "mbie-eb", "replay.symmetry_share": 1.0}),
        (
            "labyrinth",
            {
                "encoder.representation": "wmse",
                "world_model.sigmoid_output": False,
                "replay.symmetry_share": 1.0,
            },
        ),
        ("labyrinth", {"replay.symmetry_share": 0.5}),
        ("atari", {}),
        ("gym", {"gym.env": "CartPole-v1"}),
    ],
)
def test_who_cannot_act_on_all_orientations(workload: str, more: dict[str, object]) -> None:
    load_preset("debug", more, workload=workload)
    with pytest.raises(BadInput, match=r"dqn\.symmetric_share=1"):
        load_preset("debug", {**more, "dqn.symmetric_share": 1.0}, workload=workload)
