"""The recurrent DQN and its update: Q-values that are written down, targets worked by hand."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lwm import learner as learner_module
from lwm.actor import ladder
from lwm.agent import RecurrentDQN, TDInput, choose, td_errors
from lwm.config import load_preset
from lwm.errors import CheckpointError, RunFailed
from lwm.learner import LearnerState, learn, pretrain
from lwm.networks import DuelingHead
from lwm.sections import DQNConfig
from lwm.training import Trainer
from lwm.types import Unroll

HALF = DQNConfig(gamma=0.5)
SMALL = DQNConfig(features=16, hidden=8, head=16, gamma=0.9)


def h(x: float) -> float:
    """The value rescaling, in plain arithmetic."""
    return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + 0.001 * x


class Table(nn.Module):
    """A network whose Q-values are its input: columns [0, 1] online, columns [2, 3] target."""

    def __init__(self, part: int) -> None:
        super().__init__()
        self.part = part

    def states(self, x: Tensor, is_first: Tensor | None, state: Tensor) -> Tensor:
        return x

    def head(self, states: Tensor) -> Tensor:
        return states[..., 2 * self.part : 2 * self.part + 2]


def exact(values: Any) -> Tensor:
    """In double precision: the inverse of the rescaling loses four digits in single."""
    return torch.tensor(values, dtype=torch.float64)


def window(
    online: list[list[float]],
    target: list[list[float]],
    actions: list[int],
    rewards: list[float],
    last: int | None = None,
    discount: float = 1.0,
) -> TDInput:
    """One window of T rows; row ``last`` ends an episode with ``discount``."""
    T = len(online)
    is_last = torch.zeros(T, 1, dtype=torch.bool)
    is_first = torch.zeros(T, 1, dtype=torch.bool)
    discount_t = torch.ones(T, 1, dtype=torch.float64)
    if last is not None:
        is_last[last] = True
        discount_t[last] = discount
        is_first[last + 1 : last + 2] = True
    return TDInput(
        x=torch.cat([exact(online), exact(target)], -1)[:, None].requires_grad_(),
        a_tm1=torch.tensor(actions)[:, None],
        reward=exact(rewards)[:, None],
        is_first=is_first,
        is_last=is_last,
        discount_t=discount_t,
        h=torch.zeros(1, 1),
    )


def errors(w: TDInput, burn_in: int = 0, config: DQNConfig = HALF) -> tuple[Tensor, Tensor]:
    td = td_errors(Table(0), Table(1), w, burn_in, config)
    return td.delta[:, 0], td.valid[:, 0]


def test_online_chooses_and_target_values() -> None:
    # Row 1: the online network prefers action 1 (5 > 0); the target network values that at 3,
    # though it thinks 99 of the other.  Target: 1 + 3/2.  Action 1 was taken in row 0, Q = 2.
    w = window([[1, 2], [0, 5]], [[7, 7], [h(99), h(3)]], [0, 1], [0.0, 1.0])
    delta, valid = errors(w)
    assert delta.tolist() == pytest.approx([h(2.5) - 2], abs=1e-9)
    assert valid.tolist() == [True]


def test_each_row_is_paired_with_the_action_taken_in_it() -> None:
    # The action that left row t stands in row t + 1.
    q = [[10, 20], [30, 40], [50, 60], [0, 0]]
    w = window(q, [[0, 0]] * 4, [0, 1, 0, 1], [0.0, 0.0, 0.0, 0.0])
    assert errors(w)[0].tolist() == [-20, -30, -60]
    assert errors(w, burn_in=1)[0].tolist() == [-30, -60]


@pytest.mark.parametrize(("discount", "target"), [(0.0, 1.0), (1.0, 2.5)])
def test_termination_drops_the_bootstrap_and_truncation_keeps_it(
    discount: float, target: float
) -> None:
    # Row 1 ends the episode; its value is 3.  Terminated: 1.  Truncated: 1 + 3/2.
    q, v = [[0, 0], [0, 5], [0, 0]], [[0, 0], [0, h(3)], [0, 0]]
    delta, valid = errors(window(q, v, [0, 1, 0], [0.0, 1.0, 0.0], last=1, discount=discount))
    assert delta.tolist() == pytest.approx([h(target), 0], abs=1e-9)
    assert valid.tolist() == [True, False]


def test_three_steps_stop_at_the_episode_end() -> None:
    # Rewards 1, 2 and 4, value 8 everywhere; row 2 truncates.
    # Row 0: 1 + 2/2 + 8/4; row 1: 2 + 8/2; row 2 is last; row 3: 4 + 4/2 + 4/4 + 8/8.
    config = dataclasses.replace(HALF, n_step=3)
    w = window([[0, 0]] * 7, [[h(8), h(8)]] * 7, [0] * 7, [0, 1, 2, 0, 4, 4, 4], last=2)
    delta, valid = errors(w, config=config)
    assert valid.tolist() == [True, True, False, True]
    assert delta.tolist() == pytest.approx([h(4), h(6), 0, h(8)], abs=1e-9)


def test_traced_targets() -> None:
    # Values 3 and 8, trace 1/2.  G1 = 2 + 8/2 = 6;  G0 = 1 + (3/2 + 6/2)/2 = 3.25.
    w = window([[0, 0]] * 3, [[0, 0], [h(3)] * 2, [h(8)] * 2], [0] * 3, [0.0, 1.0, 2.0])
    config = dataclasses.replace(HALF, trace=0.5)
    assert errors(w, config=config)[0].tolist() == pytest.approx([h(3.25), h(6)], abs=1e-9)
    # With n = 2 the window has a row more than it trains.
    config = dataclasses.replace(HALF, trace=0.5, n_step=2)
    assert errors(w, config=config)[0].tolist() == pytest.approx([h(3.25)], abs=1e-9)


def test_gap_lowers_the_targets_of_actions_that_are_not_the_best() -> None:
    # The target network's values in row 0 are 3 and 8, in row 1 both 8.  Action 0 of row 0 is 5
    # worse than action 1: 1 + 8/2 - 5/2.  Action 1 of row 1 is as good as any: 2 + 3/2.
    w = window([[0, 0]] * 3, [[h(3), h(8)], [h(8)] * 2, [h(3)] * 2], [0, 0, 1], [0.0, 1.0, 2.0])
    config = dataclasses.replace(HALF, gap=0.5)
    assert errors(w, config=config)[0].tolist() == pytest.approx([h(2.5), h(3.5)], abs=1e-9)


def test_only_chosen_actions_of_trained_rows_get_a_gradient() -> None:
    q = [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]
    w = window(q, [[1, 1]] * 5, [0, 1, 0, 1, 0], [0, 1, 1, 0, 1], last=2)
    delta, _ = errors(w, burn_in=1)
    delta.square().sum().backward()
    got = w.x.grad[:, 0, :2] != 0
    # Row 0 burns in, row 1 takes action 0, row 2 is last, row 3 takes action 0, row 4 is only
    # bootstrapped from.
    expected = [[False, False], [True, False], [False, False], [True, False], [False, False]]
    assert got.tolist() == expected
    assert (w.x.grad[..., 2:] == 0).all()  # the target network's numbers are constants


def random_window(T: int, B: int, seed: int, last: int | None) -> TDInput:
    rng = torch.Generator().manual_seed(seed)
    is_last = torch.zeros(T, B, dtype=torch.bool)
    is_first = torch.zeros(T, B, dtype=torch.bool)
    if last is not None:
        is_last[last], is_first[last + 1] = True, True
    return TDInput(
        x=torch.randn(T, B, 6, generator=rng).requires_grad_(),
        a_tm1=torch.randint(2, (T, B), generator=rng),
        reward=torch.randn(T, B, generator=rng),
        is_first=is_first,
        is_last=is_last,
        discount_t=torch.ones(T, B),
        h=torch.randn(B, 8, generator=rng),
    )


def networks() -> tuple[RecurrentDQN, RecurrentDQN]:
    torch.manual_seed(5)
    return RecurrentDQN(3, 2, SMALL), RecurrentDQN(3, 2, SMALL).requires_grad_(False)


@pytest.mark.parametrize("reset", [True, False])
def test_gradient_reaches_no_row_it_should_not(reset: bool) -> None:
    online, target = networks()
    w = random_window(9, 3, 0, last=5)
    config = dataclasses.replace(SMALL, reset_state=reset)
    td = td_errors(online, target, w, 3, config)
    delta, valid, q = td.delta, td.valid, td.q
    assert delta.shape == valid.shape == (5, 3) and q.shape == (5, 3, 2)
    assert (delta[2] == 0).all() and not valid[2].any()
    assert (delta[[0, 1, 3, 4]] != 0).all() and valid[[0, 1, 3, 4]].all()
    delta.square().sum().backward()
    touched = (w.x.grad != 0).any(-1).all(-1)
    # Rows 0-2 burn in, row 8 is only bootstrapped from.  Row 5 is last: it is not trained, and only
    # a state that is carried over the episode's end takes a gradient back to it.
    assert touched.tolist() == [False] * 3 + [True, True, not reset, True, True, False]
    assert all(p.grad is None for p in target.parameters())


def test_burn_in_carries_the_state() -> None:
    online, target = networks()
    w = random_window(9, 3, 1, last=1)
    td = td_errors(online, target, w, 4, SMALL)
    states = online.states(w.x, w.is_first, w.h)
    torch.testing.assert_close(td.h, states[4:8])
    torch.testing.assert_close(td.q, online.head(states)[4:8])
    assert torch.equal(td.a_t, w.a_tm1[5:9])
    # Other burn-in rows, other Q-values: the first trained row is no episode's first.
    other = w._replace(x=w.x.detach().clone().index_fill_(0, torch.tensor([3]), 2.0))
    assert (td_errors(online, target, other, 4, SMALL).q[0] != td.q[0]).all()


def test_stepping_is_unrolling() -> None:
    online, _ = networks()
    w = random_window(9, 3, 2, last=4)
    whole = online.states(w.x, w.is_first, w.h)
    state = w.h
    for t in range(9):
        q, state = online.step(w.x[t], state * ~w.is_first[t][:, None])
        torch.testing.assert_close(state, whole[t])
        torch.testing.assert_close(q, online.head(whole[t]))


def test_dueling_removes_the_mean_advantage() -> None:
    torch.manual_seed(0)
    head = DuelingHead(6, 10, 4)
    assert head.advantage.bias is None  # row 19
    x = torch.randn(5, 3, 6)
    q = head(x)
    assert (q.std(-1) > 1e-3).all()
    with torch.no_grad():
        head.advantage.weight += torch.randn(10)  # the same for each action: no preference
    torch.testing.assert_close(head(x), q)
    with torch.no_grad():
        head.advantage.weight.zero_()  # what is left is the value
    torch.testing.assert_close(head(x), q.mean(-1, keepdim=True).expand(5, 3, 4))


def test_inputs_by_hand() -> None:
    dqn = RecurrentDQN(2, 3, SMALL)
    x = dqn.inputs(
        torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
        torch.tensor([1, 2]),
        torch.tensor([2.5, 7.0]),
        torch.tensor([False, True]),
    )
    # Observation, action one-hot, reward; a first row has neither action nor reward.
    assert x.tolist() == [[1, 0, 0, 1, 0, 2.5], [0, 1, 0, 0, 0, 0]]


def test_epsilon_greedy_by_hand() -> None:
    q = torch.tensor([[1.0, 3.0, 2.0], [1.0, 3.0, 2.0], [5.0, 3.0, 2.0]])
    chosen = choose(q, torch.tensor([False, True, False]), torch.tensor([0, 0, 2]))
    assert chosen.tolist() == [1, 0, 0]


def test_exploration_ladder_by_hand() -> None:
    assert ladder(0.4, 1, 8, 8) == pytest.approx([0.4**i for i in range(1, 9)])
    assert ladder(0.01, 1, 1, 3) == pytest.approx([0.01] * 3)
    assert ladder(0.5, 1, 3, 5) == pytest.approx([0.5, 0.5**1.5, 0.25, 0.5**2.5, 0.125])


# The update.  A batch of windows that a labyrinth could have produced, rewards scaled at will.


def make_state(**overrides: Any) -> LearnerState:
    keys = {key.replace("__", "."): value for key, value in overrides.items()}
    return LearnerState(load_preset("debug", {"agent": "dqn", **keys}), 4, 4)


def make_unroll(state: LearnerState, scale: float = 1.0, seed: int = 0) -> Unroll:
    config = state.config
    rng = np.random.default_rng(seed)
    T, B = config.window, config.replay.batch
    is_last = np.zeros((T, B), np.bool_)
    is_last[6] = True
    is_first = np.roll(is_last, 1, 0)
    return Unroll(
        obs=rng.integers(0, 2, (T, B, 4)).astype(np.int8),
        a_tm1=rng.integers(0, 4, (T, B)) * ~is_first,
        r_t=np.where(is_first, 0, -scale).astype(np.float32),
        is_first=is_first,
        is_last=is_last,
        discount_t=np.where(is_last, np.arange(B) % 2, 1).astype(np.float32),
        h=rng.normal(size=(B, config.dqn.hidden)).astype(np.float32),
        belief=rng.normal(size=(B, config.world_model.hidden)).astype(np.float32),
        r_in=np.full((T, B), 77, np.float32),  # stale: the learner must not use it
        origin=np.zeros((B, 2), np.int64),
    )


def weights(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()]).clone()


def seen_by_td(monkeypatch: pytest.MonkeyPatch) -> list[TDInput]:
    """The windows that the learner hands to the TD loss from now on."""
    seen: list[TDInput] = []

    def spy(online: Any, target: Any, window: TDInput, *rest: Any) -> Any:
        seen.append(window)
        return td_errors(online, target, window, *rest)

    monkeypatch.setattr(learner_module, "td_errors", spy)
    return seen


def errors_of_td(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The TD errors [U, B] that the learner trains on from now on."""
    made: list[Tensor] = []

    def spy(*args: Any) -> Any:
        td = td_errors(*args)
        made.append(td.delta.detach().clone())
        return td

    monkeypatch.setattr(learner_module, "td_errors", spy)
    return made


def applied_norm(state: LearnerState, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The norms of the gradients that the optimiser is given from now on."""
    norms: list[float] = []

    def step() -> None:
        grads = [p.grad.flatten() for p in state.dqn.parameters()]
        norms.append(torch.cat(grads).norm().item())

    monkeypatch.setattr(state.optimiser, "step", step)
    return norms


@pytest.mark.parametrize(("clip", "scale"), [(1e-3, 1.0), (40.0, 1e6)])
def test_large_gradients_are_clipped(
    clip: float, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = make_state(dqn__clip_norm=clip)
    norms = applied_norm(state, monkeypatch)
    _, _, metrics = learn(state, make_unroll(state, scale), 0.0)
    assert metrics["dqn/grad_norm"] > 1.5 * clip  # the norm before clipping is logged
    assert norms == [pytest.approx(clip, rel=1e-3)]


@pytest.mark.parametrize("clip", [0.0, 1e9])
def test_gradients_are_left_alone(clip: float, monkeypatch: pytest.MonkeyPatch) -> None:
    state = make_state(dqn__clip_norm=clip)
    norms = applied_norm(state, monkeypatch)
    _, _, metrics = learn(state, make_unroll(state, 1e6), 0.0)
    assert norms == [pytest.approx(float(metrics["dqn/grad_norm"]), rel=1e-5)]
    assert norms[0] > 40


def test_loss_is_the_sum_over_rows_and_the_mean_over_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state, made = make_state(), errors_of_td(monkeypatch)
    _, priority, metrics = learn(state, make_unroll(state), 0.0)
    (delta,) = made
    assert delta.shape == (8, 4)  # debug: 4 burn in, 8 are trained, 4 windows
    assert (delta[2] == 0).all()  # row 6 of the window is last
    assert metrics["dqn/loss"] == pytest.approx(delta.square().sum().item() / 4, rel=1e-5)
    # Row 20: nine parts the largest error, one part the mean of the seven that are trained.
    size = delta.abs()
    expected = 0.9 * size.max(0).values + 0.1 * size.sum(0) / 7
    torch.testing.assert_close(torch.from_numpy(priority), expected)


def test_importance_weights_scale_the_windows_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    state, made = make_state(), errors_of_td(monkeypatch)
    weight = np.array([1.0, 0.5, 0.25, 0.0], np.float32)
    _, _, metrics = learn(state, make_unroll(state), 0.0, weight)
    per_window = made[0].square().sum(0).numpy()
    assert metrics["dqn/loss"] == pytest.approx(float((per_window * weight).mean()), rel=1e-5)


def test_updates_follow_the_optimiser_and_count() -> None:
    state = make_state()
    before = weights(state.dqn)
    same, _, _ = learn(state, make_unroll(state), 0.0)
    assert same is state and state.updates == 1
    assert (weights(state.dqn) != before).any()
    still = make_state(dqn__learning_rate=0.0)
    before = weights(still.dqn)
    learn(still, make_unroll(still), 0.0)
    assert torch.equal(weights(still.dqn), before)


@pytest.mark.parametrize("tau", [0.0, 0.25, 1.0])
def test_the_target_network_follows(tau: float) -> None:
    state = make_state(dqn__tau=tau, dqn__learning_rate=0.1)
    before = weights(state.target)
    assert torch.equal(before, weights(state.dqn))  # it begins as a copy
    learn(state, make_unroll(state), 0.0)
    after = weights(state.dqn)
    torch.testing.assert_close(weights(state.target), before + tau * (after - before))


def test_the_average_begins_with_the_first_update() -> None:
    state = make_state(dqn__average=0.9, dqn__learning_rate=0.01)
    history = []
    for seed in range(3):
        learn(state, make_unroll(state, seed=seed), 0.0)
        history.append(weights(state.dqn))
    # Decay 0.9 looks back ten updates: of three it takes the plain mean.
    torch.testing.assert_close(weights(state.policy), sum(history) / 3)
    assert state.policy is not state.dqn
    assert make_state().policy.features.weight.shape == (8, 9)  # 4 + 4 + 1 -> 8


def test_the_average_sees_vectors_as_the_network_does() -> None:
    config = load_preset("debug", {"gym.env": "CartPole-v1", "dqn.average": 0.9}, "gym")
    trainer = Trainer(config)
    for _ in trainer.run():
        pass
    online, scored = trainer.learner.dqn.normaliser, trainer.learner.policy.normaliser
    assert online is not None and scored is not None and scored is not online
    assert online.count > 0 and scored.count == online.count
    x = torch.randn(5, 4)
    torch.testing.assert_close(scored(x), online(x))


@pytest.mark.parametrize(
    ("progress", "rate"), [(0.0, 5e-4), (0.5, 5e-4), (0.75, 3e-4), (1.0, 1e-4)]
)
def test_the_learning_rate_falls_in_its_last_part(progress: float, rate: float) -> None:
    state = make_state(dqn__final_learning_rate=1e-4, dqn__anneal_share=0.5)
    learn(state, make_unroll(state), progress)
    assert [g["lr"] for g in state.optimiser.param_groups] == [pytest.approx(rate)]


def test_optimisers_are_those_of_the_tables() -> None:
    state = LearnerState(load_preset("paper"), 4, 4)
    for optimiser, eps in ((state.optimiser, 1e-3), (state.bonus.optimiser, 1e-8)):
        assert type(optimiser) is torch.optim.Adam
        (group,) = optimiser.param_groups
        assert (group["lr"], group["eps"], group["betas"]) == (5e-4, eps, (0.9, 0.999))
        assert group["weight_decay"] == 0 and not group["amsgrad"]


@pytest.mark.parametrize("bootstraps", [True, False])
def test_truncation_as_the_switch_says(bootstraps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    state = make_state(dqn__truncation_bootstraps=bootstraps)
    seen = seen_by_td(monkeypatch)
    unroll = make_unroll(state)
    assert unroll.discount_t[6].tolist() == [0, 1, 0, 1]  # terminated and truncated in turn
    learn(state, unroll, 0.0)
    expected = unroll.discount_t.copy()
    if not bootstraps:
        expected[6] = 0
    assert np.array_equal(seen[0].discount_t.numpy(), expected)


@pytest.mark.parametrize("start", ["stored", "zero"])
def test_state_before_the_window(start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    state = make_state(replay__start_state=start)
    seen = seen_by_td(monkeypatch)
    unroll = make_unroll(state)
    learn(state, unroll, 0.0)
    assert np.array_equal(seen[0].h.numpy(), unroll.h * (start == "stored"))


@pytest.mark.parametrize("start", ["stored", "zero"])
def test_belief_before_the_window(start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    state = make_state(agent="lwm", intrinsic__start_belief=start)
    unroll = make_unroll(state)
    seen: list[Any] = []
    original = state.bonus.learn

    def spy(window: Any, burn_in: int) -> Any:
        seen.append((window.belief, burn_in))
        return original(window, burn_in)

    monkeypatch.setattr(state.bonus, "learn", spy)
    learn(state, unroll, 0.0)
    ((belief, burn_in),) = seen
    assert burn_in == 4
    if start == "zero":
        assert belief is None
    else:
        assert np.array_equal(belief.numpy(), unroll.belief)


@pytest.mark.parametrize("progress", [0.0, 0.5, 1.0])
def test_the_bonus_in_the_target_fades_and_in_the_input_stays(
    progress: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = make_state(agent="lwm", intrinsic__beta=2.0, intrinsic__final_beta=0.0)
    seen = seen_by_td(monkeypatch)
    unroll = make_unroll(state)
    bonus = torch.rand(unroll.r_t.shape)
    monkeypatch.setattr(state.bonus, "learn", lambda window, burn_in: (bonus, {}))
    learn(state, unroll, progress)
    r_t = torch.from_numpy(unroll.r_t)
    torch.testing.assert_close(seen[0].reward, r_t + (1 - progress) * bonus)
    kept = ~torch.from_numpy(unroll.is_first)
    torch.testing.assert_close(seen[0].x[..., -1], (r_t + bonus) * kept)


def test_auxiliary_prediction_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    state, made = make_state(dqn__auxiliary=0.5), errors_of_td(monkeypatch)
    plain = make_state()
    assert plain.dqn.guess is None
    with torch.no_grad():
        for p in state.dqn.guess[-1].parameters():
            p.zero_()  # every bit is thought as likely as not: ln 2 a row
    unroll = make_unroll(state)
    before = weights(state.dqn.guess)
    metrics = learn(state, unroll, 0.0)[2]
    # Eight rows are trained but one is last: what follows it is another episode's.
    assert metrics["dqn/auxiliary"] == pytest.approx(7 / 8 * math.log(2), rel=1e-5)
    assert metrics["dqn/loss"] == pytest.approx(made[0].square().sum().item() / 4, rel=1e-5)
    assert (weights(state.dqn.guess) != before).any()
    assert "dqn/auxiliary" not in learn(plain, make_unroll(plain), 0.0)[2]


@pytest.mark.parametrize("auxiliary", [0.0, 0.5])
def test_pretraining_leaves_the_q_values_alone(auxiliary: float) -> None:
    state = make_state(agent="lwm", dqn__auxiliary=auxiliary)
    parts = (state.bonus.model, state.target, state.dqn.head, state.dqn.core)
    before = [weights(part) for part in parts]
    same_state, metrics = pretrain(state, make_unroll(state))
    moved = [not torch.equal(weights(p), w) for p, w in zip(parts, before, strict=True)]
    # The world model learns; of the DQN only the memory, and only if it has something to guess.
    assert moved == [True, False, False, auxiliary > 0]
    assert same_state is state and state.updates == 0
    assert ("dqn/auxiliary" in metrics) == (auxiliary > 0)
    assert state.bonus.moments.updates == 1


def test_data_is_not_changed() -> None:
    state = make_state(agent="lwm", dqn__truncation_bootstraps=False, replay__start_state="zero")
    unroll = make_unroll(state)
    kept = copy.deepcopy(unroll)
    learn(state, unroll, 0.0)
    assert all(np.array_equal(a, b) for a, b in zip(unroll, kept, strict=True))


def test_a_loss_that_is_not_finite_stops_the_run() -> None:
    state = make_state()
    unroll = make_unroll(state)
    learn(state, unroll, 0.0)
    with torch.no_grad():
        next(state.dqn.parameters())[0] = float("nan")
    with pytest.raises(RunFailed, match="not finite after 1 updates"):
        learn(state, unroll, 0.0)


def test_a_gradient_that_is_not_finite_stops_the_run() -> None:
    state = make_state()
    next(state.dqn.parameters()).register_hook(lambda grad: grad * float("inf"))
    with pytest.raises(RunFailed, match="not finite after 0 updates"):
        learn(state, make_unroll(state), 0.0)
    assert torch.isfinite(weights(state.dqn)).all()


def test_pretraining_that_is_not_finite_stops_the_run() -> None:
    state = make_state(agent="lwm")
    with torch.no_grad():
        next(state.bonus.model.parameters())[0] = float("nan")
    with pytest.raises(RunFailed, match="world model's loss or gradient is not finite"):
        pretrain(state, make_unroll(state))


@pytest.mark.parametrize("agent", ["dqn", "lwm", "lwm-ff", "mbie-eb"])
def test_state_goes_into_another_learner(agent: str) -> None:
    state = make_state(agent=agent, dqn__average=0.9)
    for seed in range(3):
        learn(state, make_unroll(state, seed=seed), 0.0)
    other = make_state(agent=agent, dqn__average=0.9, seed=8)
    assert (weights(other.dqn) != weights(state.dqn)).any()
    other.load_tree(copy.deepcopy(state.state_tree()))
    for seed in range(3, 5):
        a, b = (learn(s, make_unroll(s, seed=seed), 0.0)[2] for s in (state, other))
        assert a == b
    assert other.updates == 5
    for part in ("dqn", "target", "average"):
        assert torch.equal(weights(getattr(state, part)), weights(getattr(other, part)))


@pytest.mark.parametrize("other", [{"dqn__hidden": 17}, {"agent": "lwm"}, {"dqn__average": 0.5}])
def test_state_of_another_architecture_is_refused(other: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="does not fit this config"):
        make_state(**other).load_tree(make_state().state_tree())


def test_an_infinite_gradient_of_the_world_model_is_not_applied() -> None:
    state = make_state(agent="lwm")
    next(state.bonus.model.parameters()).register_hook(lambda grad: grad * float("inf"))
    with pytest.raises(RunFailed, match="world model's loss or gradient is not finite"):
        learn(state, make_unroll(state), 0.0)
    assert torch.isfinite(weights(state.bonus.model)).all()


@pytest.mark.parametrize(
    "progress, share", [(0.0, 1.0), (0.4, 1.0), (0.5, 0.75), (0.8, 0.0), (1.0, 0.0)]
)
def test_the_bonus_fades_within_its_part_of_the_run(progress: float, share: float) -> None:
    window = {"intrinsic.fade_from": 0.4, "intrinsic.fade_until": 0.8}
    config = load_preset("debug", {"intrinsic.final_beta": 0.0, **window})
    assert learner_module.beta_share(config, progress) == pytest.approx(share)


def test_the_rate_falls_at_the_end() -> None:
    changes = {"dqn.final_learning_rate": 1e-4, "dqn.anneal_share": 0.5}
    config = load_preset("debug", {"dqn.learning_rate": 1e-3, **changes})
    rates = [learner_module._learning_rate(config, p) for p in (0.0, 0.5, 0.75, 1.0)]
    assert rates == pytest.approx([1e-3, 1e-3, 5.5e-4, 1e-4])
