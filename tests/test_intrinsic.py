"""Bonuses against numbers worked by hand: moments, episode ends, counts, who sees what."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lwm import learner as learner_module
from lwm.agent import td_errors
from lwm.config import Config, load_preset
from lwm.errors import RunFailed
from lwm.intrinsic import (
    CountBonus,
    NoBonus,
    ResidualBonus,
    RunningMoments,
    Window,
    WorldModelBonus,
    build_bonus,
)
from lwm.learner import LearnerState, learn
from lwm.training import Trainer
from lwm.types import Unroll
from lwm.world_model import certain_share


class Constant(nn.Module):
    """A world model that predicts the same number whatever it sees, and counts in its belief."""

    def __init__(self, guess: float = 0.0) -> None:
        super().__init__()
        self.guess = nn.Parameter(torch.tensor([guess]))

    def initial(self, batch: int) -> Tensor:
        return torch.zeros(batch, 1)

    def step(self, z: Tensor, action: Tensor, belief: Tensor) -> tuple[Tensor, Tensor]:
        return self.guess.expand(len(z), 1), belief + 1

    def unroll(self, z: Tensor, action: Tensor, is_first: Tensor | None, belief: Tensor) -> Tensor:
        return self.guess.expand(*z.shape[:2], 1)

    def foretell(self, outputs: Tensor, z: Tensor) -> Tensor:
        return outputs


class ConstantBit(Constant):
    """Its number is the logit of a bit."""

    def foretell(self, outputs: Tensor, z: Tensor) -> Tensor:
        return torch.sigmoid(outputs)


def config(**overrides: Any) -> Config:
    keys = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_preset("debug", {"world_model.learning_rate": 0.0, **keys})


def constant_bonus(
    frozen: bool = True, guess: float = 0.0, kind: type[Constant] = Constant, **overrides: Any
) -> WorldModelBonus:
    """The bonus over ``Constant``; frozen, its moments are mean 0 and deviation 1 for ever."""
    if frozen:
        overrides["intrinsic__momentum"] = 1.0
    bonus = WorldModelBonus(kind(guess), config(**overrides))
    if frozen:
        bonus.moments.updates = 1
    return bonus


# One window.  Row 2 ends an episode, row 3 begins the next.  The prediction is 0, so the error of
# the transition into row t is z_t squared:
#   row       0    1    2    3    4
#   z         1    2    3    4    5
#   error     –    4    9    –   25
def one_window() -> Window:
    return Window(
        z=torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).view(5, 1, 1),
        a_tm1=torch.tensor([0, 1, 2, 0, 3])[:, None],
        is_first=torch.tensor([0, 0, 0, 1, 0]).bool()[:, None],
        is_last=torch.tensor([0, 0, 1, 0, 0]).bool()[:, None],
    )


def test_moments_by_hand() -> None:
    moments = RunningMoments(0.9)
    assert (moments.mean, moments.std) == (0, 1)
    moments.update(torch.tensor([1.0, 3.0]))  # the first batch is taken as it is
    assert moments.mean == pytest.approx(2)
    assert moments.std == pytest.approx(math.sqrt(2))
    moments.update(torch.tensor([10.0, 12.0, 14.0]))  # mean 12, deviation 2
    assert moments.mean == pytest.approx(0.9 * 2 + 0.1 * 12)
    assert moments.std == pytest.approx(0.9 * math.sqrt(2) + 0.1 * 2)


@pytest.mark.parametrize("few", [[], [5.0]])
def test_a_batch_without_a_deviation_is_passed_over(few: list[float]) -> None:
    moments = RunningMoments(0.9)
    moments.update(torch.tensor(few))
    assert (moments.mean, moments.std, moments.updates) == (0, 1, 0)
    moments.update(torch.tensor([1.0, 3.0]))
    assert moments.mean == pytest.approx(2)


def test_normalising_by_hand() -> None:
    moments = RunningMoments(0.9)
    moments.set(2.0, 0.5, 1)
    error = torch.tensor([2.0, 3.0, 1.0, 12.0, -12.0])
    assert moments.normalise(error, 10.0).tolist() == [0, 2, -2, 10, -10]
    assert moments.normalise(error, 0.0).tolist() == [0, 2, -2, 20, -28]
    assert moments.normalise(error, 3.0).tolist() == [0, 2, -2, 3, -3]
    assert moments.normalise(error, 0.5).tolist() == [0, 0.5, -0.5, 0.5, -0.5]


def test_the_deviation_has_a_floor() -> None:
    moments = RunningMoments(0.9)
    moments.update(torch.tensor([4.0, 4.0, 4.0]))
    assert moments.std == 0
    normal = moments.normalise(torch.tensor([4.0, 4.0 + 1e-6, 5.0]), 0.0)
    assert torch.isfinite(normal).all()
    assert normal[0] == 0
    assert normal[2] == pytest.approx(1e6)


@pytest.mark.parametrize(
    ("boundary", "expected"),
    [
        ("terminal", [0, 4, 9, 0, 25]),
        ("mask", [0, 4, 0, 0, 25]),
        ("reset", [0, 4, 16, 0, 25]),  # row 2 against the next first frame, 4
    ],
)
def test_the_bonus_at_an_episode_end(boundary: str, expected: list[float]) -> None:
    bonus = constant_bonus(intrinsic__boundary=boundary, intrinsic__clip=0.0)
    r_in, metrics = bonus.learn(one_window(), burn_in=0)
    assert r_in[:, 0].tolist() == expected
    assert metrics["bonus/last_share"] == pytest.approx(expected[2] / sum(expected))
    assert metrics["bonus/mean"] == pytest.approx(sum(expected) / 5)


def test_the_bonus_is_scaled_and_clipped() -> None:
    r_in, _ = constant_bonus(intrinsic__beta=0.5).learn(one_window(), burn_in=0)
    assert r_in[:, 0].tolist() == [0, 2, 4.5, 0, 5]  # 25 is clipped to 10, then halved


def test_no_bonus_on_first_rows_and_row_zero() -> None:
    # The error is 25 wherever there is one: mean 0, deviation 1, so nothing hides it.
    bonus = constant_bonus(guess=5.0, intrinsic__clip=0.0)
    w = one_window()
    w = w._replace(z=torch.zeros_like(w.z))
    r_in, _ = bonus.learn(w, burn_in=0)
    assert r_in[:, 0].tolist() == [0, 25, 25, 0, 25]
    first = torch.tensor([True, False])
    z, a, belief = torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64), bonus.initial(2)
    r_in, _, prediction = bonus.step(belief, z, a, z, first)
    assert r_in.tolist() == [0, 25]
    assert prediction.tolist() == [[5], [5]]


@pytest.mark.parametrize("burn_in", [0, 2, 3])
def test_the_loss_takes_burn_in_along(burn_in: int) -> None:
    _, metrics = constant_bonus().learn(one_window(), burn_in)
    assert metrics["world_model/loss"] == pytest.approx((4 + 9 + 25) / 3)
    # Of the variance of z = 2, 3, 4, 5: more than 1 is worse than to predict the mean.
    assert metrics["world_model/unexplained"] == pytest.approx((4 + 9 + 25) / 3 / (5 / 4))


def test_the_unexplained_share_is_of_the_variance_over_windows_and_rows() -> None:
    """Goals (1, 3) and (3, 3), predicted as 0: errors 5 and 9, variances 1 and 0."""
    w = Window(
        z=torch.tensor([[[0.0, 0.0], [0.0, 0.0]], [[1.0, 3.0], [3.0, 3.0]]]),
        a_tm1=torch.zeros(2, 2, dtype=torch.int64),
        is_first=torch.zeros(2, 2, dtype=torch.bool),
        is_last=torch.zeros(2, 2, dtype=torch.bool),
    )
    assert constant_bonus().learn(w, 0)[1]["world_model/unexplained"] == pytest.approx(7 / 0.5)
    still = w._replace(z=torch.ones(2, 2, 2))  # no variance at all: large, and a number
    assert constant_bonus().learn(still, 0)[1]["world_model/unexplained"].isfinite()


def test_the_share_of_errors_that_are_certain() -> None:
    """Squares 0.25, 1, 0.64 and 0.9801, which is just not certain; nothing wrong is no share."""
    assert certain_share(torch.tensor([0.5, -1.0, 0.8, 0.99])) == pytest.approx(1 / 2.8701)
    assert certain_share(torch.tensor([1.0, -0.995])) == 1
    assert certain_share(torch.zeros(2, 2)) == 0


def test_the_certain_share_is_of_real_transitions() -> None:
    """Errors of rows 1 to 4 are 1, 0.5, none (a first row) and 0.5."""
    w = one_window()._replace(z=torch.tensor([0.0, 1.0, 0.5, 1.0, 0.5]).view(5, 1, 1))
    metrics = constant_bonus().learn(w, burn_in=2)[1]
    assert metrics["world_model/certain_share"] == pytest.approx(1 / 1.5)
    smooth = constant_bonus(world_model__sigmoid_output=False).learn(w, burn_in=2)[1]
    assert "world_model/certain_share" not in smooth


@pytest.mark.parametrize(
    ("included", "burn_in", "counted"),
    [
        (False, 0, [4, 9, 25]),
        (False, 1, [4, 9, 25]),  # row 0 has no error anyway
        (False, 2, [9, 25]),
        (True, 2, [4, 9, 25]),
    ],
)
def test_rows_in_the_moments(included: bool, burn_in: int, counted: list[float]) -> None:
    bonus = constant_bonus(False, intrinsic__moments_include_burn_in=included)
    bonus.learn(one_window(), burn_in)
    assert bonus.moments.mean == pytest.approx(np.mean(counted), rel=1e-5)
    assert bonus.moments.std == pytest.approx(np.std(counted, ddof=1), rel=1e-5)


def test_moments_move_before_they_normalise() -> None:
    # Burn-in 2 leaves 9 and 25: mean 17, deviation 8 sqrt 2.  (4 - 17) / (8 sqrt 2) = -1.149.
    bonus = constant_bonus(False)
    r_in, metrics = bonus.learn(one_window(), burn_in=2)
    root = math.sqrt(2)
    assert r_in[:, 0].tolist() == pytest.approx([0, -13 / 8 / root, -1 / root, 0, 1 / root])
    assert metrics["world_model/error_mean"] == pytest.approx(17)
    assert metrics["world_model/error_std"] == pytest.approx(8 * root)
    # The second batch has errors 36 and 100, mean 68; momentum 0.99 moves the mean to 17.51.
    w = one_window()
    r_in, _ = bonus.learn(w._replace(z=2 * w.z), burn_in=2)
    deviation = 0.99 * 8 * root + 0.01 * 32 * root
    assert r_in[4, 0].item() == pytest.approx((100 - 17.51) / deviation, rel=1e-5)


def test_bonus_first_then_training() -> None:
    # Adam's first step has the length of the learning rate: the guess goes from 0 to 0.5.
    bonus = constant_bonus(intrinsic__clip=0.0, world_model__learning_rate=0.5)
    r_in, metrics = bonus.learn(one_window(), burn_in=0)
    assert r_in[:, 0].tolist() == [0, 4, 9, 0, 25]
    assert metrics["world_model/loss"] == pytest.approx(38 / 3)
    assert bonus.model.guess.item() == pytest.approx(0.5, rel=1e-4)
    r_in, _ = bonus.learn(one_window(), burn_in=0)
    assert r_in[:, 0].tolist() == pytest.approx([0, 1.5**2, 2.5**2, 0, 4.5**2], rel=1e-3)


@pytest.mark.parametrize(("limit", "applied"), [(0.0, -20 / 3), (1.0, -1.0), (9.0, -20 / 3)])
def test_the_gradient_of_the_world_model_by_hand(limit: float, applied: float) -> None:
    # d/dg of the mean of (g - 2)², (g - 3)² and (g - 5)² at g = 0: -2 (2 + 3 + 5) / 3.
    bonus = constant_bonus(world_model__clip_norm=limit)
    bonus.learn(one_window(), burn_in=0)
    assert bonus.model.guess.grad.item() == pytest.approx(applied, rel=1e-5)


def test_cross_entropy_trains_and_the_squared_error_pays() -> None:
    # The guess is 0.8, of logit log 4; the bits that can be predicted are 1, 0 and 1.
    bonus = constant_bonus(guess=math.log(4), kind=ConstantBit, world_model__loss="bce")
    w = one_window()
    w = w._replace(z=torch.tensor([1.0, 1.0, 0.0, 0.0, 1.0]).view(5, 1, 1))
    r_in, metrics = bonus.learn(w, burn_in=0)
    expected = -(2 * math.log(0.8) + math.log(0.2)) / 3
    assert metrics["world_model/loss"] == pytest.approx(expected, rel=1e-5)
    assert r_in[:, 0].tolist() == pytest.approx([0, 0.04, 0.64, 0, 0.04], abs=1e-6)


@pytest.mark.parametrize(("loss", "gradient"), [("mse", 0.0), ("bce", 1.0)])
def test_only_cross_entropy_unlearns_what_is_certain(loss: str, gradient: float) -> None:
    """A sigmoid of 40 is 1 in float32: the squared error of a bit that is 0 moves it no more."""
    bonus = constant_bonus(guess=40.0, kind=ConstantBit, world_model__loss=loss)
    w = one_window()
    bonus.learn(w._replace(z=torch.zeros_like(w.z)), burn_in=0)
    assert bonus.model.guess.grad.item() == pytest.approx(gradient)


def test_training_leaves_the_impossible_transition_out() -> None:
    # Only the rows 1, 2 and 4 have a goal; whatever stands in row 3 changes no gradient.
    guesses = []
    for z3 in (4.0, 4000.0):
        bonus = constant_bonus(world_model__learning_rate=0.5)
        w = one_window()
        w.z[3] = z3
        _, metrics = bonus.learn(w, burn_in=0)
        guesses.append((bonus.model.guess.item(), metrics["world_model/loss"]))
    assert guesses[0] == guesses[1]


@pytest.mark.parametrize("reset", [True, False])
def test_the_belief_starts_anew_on_a_first_row(reset: bool) -> None:
    bonus = constant_bonus(dqn__reset_state=reset)
    z, a = torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64)
    belief = torch.full((2, 1), 7.0)
    _, belief, _ = bonus.step(belief, z, a, z, torch.tensor([True, False]))
    assert belief[:, 0].tolist() == ([0, 8] if reset else [8, 8])


def test_learning_is_blind_to_the_other_windows_of_a_batch() -> None:
    settings = {"dqn__reset_state": True, "intrinsic__momentum": 1.0}
    whole = LearnerState(config(**settings), 4, 4).bonus
    single = copy.deepcopy(whole)
    whole.moments.updates = single.moments.updates = 1
    rng = torch.Generator().manual_seed(3)
    is_first = torch.rand(9, 3, generator=rng) < 0.3
    w = Window(
        z=torch.randint(2, (9, 3, 4), generator=rng).float(),
        a_tm1=torch.randint(4, (9, 3), generator=rng),
        is_first=is_first,
        is_last=torch.cat([is_first[1:], is_first[:1] & False]),
    )
    r_in, _ = whole.learn(w, 2)
    for b in range(3):
        alone, _ = single.learn(Window(*(v[:, b : b + 1] for v in w[:4])), 2)
        torch.testing.assert_close(alone[:, 0], r_in[:, b])


def test_no_bonus() -> None:
    bonus = build_bonus(config(agent="dqn"), 4, 4)
    assert type(bonus) is NoBonus
    r_in, metrics = bonus.learn(one_window(), 2)
    assert r_in.shape == (5, 1) and (r_in == 0).all() and metrics == {}


# Counts.


def count_bonus(beta: float = 1.0) -> CountBonus:
    return CountBonus(4, 4, beta)


def bits(*rows: int) -> Tensor:
    """Rooms by number, as four door bits each."""
    return torch.tensor([[row >> k & 1 for k in range(4)] for row in rows], dtype=torch.float32)


def observe(bonus: CountBonus, rows: list[int], actions: list[int], first: list[bool]) -> None:
    bonus.observe(bits(*rows), torch.tensor(actions), torch.tensor(first))


def pay(bonus: CountBonus, rows: list[int], actions: list[int], first: list[bool]) -> list[float]:
    args = (bits(*rows), torch.tensor(actions), bits(*rows), torch.tensor(first))
    return bonus.step(bonus.initial(len(rows)), *args)[0].tolist()


def test_counts_by_hand() -> None:
    bonus = count_bonus(beta=2.0)
    observe(bonus, [3, 3, 5], [1, 1, 1], [False, False, False])
    observe(bonus, [3, 3, 5], [1, 2, 1], [False, False, True])  # the last is no transition
    # (3, 1) three times, (3, 2) once, (5, 1) once.
    paid = pay(bonus, [3, 3, 5, 5], [1, 2, 1, 1], [False, False, False, True])
    assert paid == pytest.approx([2 / math.sqrt(3), 2, 2, 0])
    assert bonus.counts.sum() == 5
    for _ in range(4 - 1):
        observe(bonus, [5], [1], [False])
    assert pay(bonus, [5], [1], [False]) == pytest.approx([1])  # 2 / sqrt 4


def test_all_sixteen_rooms_and_four_actions_are_apart() -> None:
    bonus = count_bonus()
    rooms, actions = zip(*((r, a) for r in range(16) for a in range(4)), strict=True)
    observe(bonus, list(rooms), list(actions), [False] * 64)
    assert (bonus.counts == 1).all() and bonus.counts.numel() == 64


def test_learning_reads_present_counts_and_counts_nothing() -> None:
    bonus = count_bonus(beta=3.0)
    # The window: room 1 –a1→ room 2 –a2→ room 3 (last), new episode in room 4 –a3→ room 5.
    w = Window(
        z=bits(1, 2, 3, 4, 5)[:, None],
        a_tm1=torch.tensor([0, 1, 2, 0, 3])[:, None],
        is_first=torch.tensor([0, 0, 0, 1, 0]).bool()[:, None],
        is_last=torch.tensor([0, 0, 1, 0, 0]).bool()[:, None],
    )
    for times, key in ((9, (1, 1)), (4, (2, 2)), (1, (4, 3))):
        for _ in range(times):
            observe(bonus, [key[0]], [key[1]], [False])
    before = bonus.counts.clone()
    for _ in range(3):
        r_in, _ = bonus.learn(w, 2)
        assert r_in[:, 0].tolist() == pytest.approx([0, 1, 1.5, 0, 3])
    assert torch.equal(bonus.counts, before)


def test_training_counts_each_transition_once() -> None:
    trainer = Trainer(config(agent="mbie-eb", env__time_limit=9, loop__actors=3))
    while trainer.frames < 700:
        trainer.cycle()
        # The newest row is counted when the actors see it, at the next cycle.
        newest = int((~trainer.step.is_first).sum())
        assert trainer.learner.bonus.counts.sum() == trainer.frames - newest
    assert trainer.learner.updates > 10


# Who sees the bonus.


def learn_and_look(
    state: LearnerState, unroll: Unroll, monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, dict[str, float]]:
    seen = []

    def spy(online: Any, target: Any, window: Any, *rest: Any) -> Any:
        seen.append(window)
        return td_errors(online, target, window, *rest)

    monkeypatch.setattr(learner_module, "td_errors", spy)
    _, _, metrics = learn(state, unroll, 0.0)
    return seen[0], metrics


def trained(agent: str, leak: bool, frames: int = 700) -> Trainer:
    trainer = Trainer(
        config(
            agent=agent,
            intrinsic__leak_to_baseline=leak,
            env__time_limit=9,
            world_model__learning_rate=5e-4,
            loop__warmup_frames=300,
        )
    )
    for event in trainer.run():
        if event.frames >= frames:
            break
    return trainer


def newest(trainer: Trainer, rows: int) -> Unroll:
    """The newest rows of every environment."""
    first = np.full(8, trainer.replay.count - rows)
    return trainer.replay.windows(first, np.arange(8), rows)


@pytest.mark.parametrize(("agent", "leak"), [("dqn", False), ("dqn", True), ("lwm", False)])
def test_the_baseline_learns_without_a_bonus(
    agent: str, leak: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trained(agent, leak)
    rows = newest(trainer, 40)
    # What the actors saw: a bonus on some row unless there is no world model at all.
    assert bool((rows.r_in != 0).any()) == (agent == "lwm" or leak)
    assert (rows.r_in[rows.is_first] == 0).all()
    unroll = trainer.replay.sample(np.random.default_rng(0), 6, trainer.config.window)
    window, metrics = learn_and_look(trainer.learner, unroll, monkeypatch)
    assert ("world_model/loss" in metrics) == (agent == "lwm" or leak)
    without = torch.from_numpy(unroll.r_t)
    assert torch.equal(window.reward, without) == (agent == "dqn")
    assert torch.equal(window.x[..., -1], without) == (agent == "dqn")


def test_a_leak_changes_no_update() -> None:
    plain = LearnerState(config(agent="dqn"), 4, 4)
    leaky = LearnerState(config(agent="dqn", intrinsic__leak_to_baseline=True), 4, 4)
    trainer = trained("lwm", False, frames=400)
    for seed in range(3):
        unroll = trainer.replay.sample(np.random.default_rng(seed), 4, plain.config.window)
        learn(plain, unroll, 0.0)
        learn(leaky, unroll, 0.0)
    for a, b in zip(plain.dqn.parameters(), leaky.dqn.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("agent", ["lwm", "lwm-ff"])
def test_actors_never_move_the_moments(agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trained(agent, False)
    moments = trainer.learner.bonus.moments
    before = (moments.mean, moments.std, moments.updates)
    weights = [p.clone() for p in trainer.learner.bonus.model.parameters()]
    assert moments.updates == 5 + trainer.learner.updates  # pretraining included
    monkeypatch.setattr(trainer, "_update", lambda: None)
    paid = 0.0
    for _ in range(20):
        trainer.cycle()
        paid += float(np.abs(newest(trainer, 1).r_in).sum())
    assert paid > 0
    assert (moments.mean, moments.std, moments.updates) == before
    for a, b in zip(weights, trainer.learner.bonus.model.parameters(), strict=True):
        assert torch.equal(a, b)


# Where z is an error already (RND).


def residual_bonus(**overrides: Any) -> ResidualBonus:
    """Its moments are mean 0 and deviation 1 for ever."""
    keys = {"intrinsic__momentum": 1.0, "intrinsic__beta": 0.5, "intrinsic__clip": 0.0}
    bonus = ResidualBonus(config(**(keys | overrides)))
    bonus.moments.updates = 1
    return bonus


def residual_window() -> Window:
    """Mean squares 1, 4, 9, 16, 25; row 3 is a first one, row 2 a last one."""
    size = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    z = torch.stack([size, -size], -1)[:, None]
    is_first = torch.tensor([[True], [False], [False], [True], [False]])
    is_last = torch.tensor([[False], [False], [True], [False], [False]])
    return Window(z, torch.zeros(5, 1, dtype=torch.int64), is_first, is_last)


def test_the_size_of_z_pays_by_hand() -> None:
    window = residual_window()
    for boundary, paid in {"terminal": [0, 2, 4.5, 0, 12.5], "mask": [0, 2, 0, 0, 12.5]}.items():
        bonus = residual_bonus(intrinsic__boundary=boundary)
        assert bonus.recompute(window)[:, 0].tolist() == paid
        r_in, metrics = bonus.learn(window, 1)
        assert r_in[:, 0].tolist() == paid
        rest = torch.tensor(paid[1:], dtype=torch.float64)
        assert float(metrics["bonus/mean"]) == pytest.approx(float(rest.mean()))
        assert float(metrics["bonus/std"]) == pytest.approx(float(rest.std()))
    bonus = residual_bonus()
    z = window.z[:3, 0]
    assert bonus.initial(3).shape == (3, 0)
    first = torch.tensor([False, True, False])
    paid_now, belief, prediction = bonus.step(bonus.initial(3), z, z, z, first)
    assert paid_now.tolist() == [0.5, 0, 4.5] and belief.shape == (3, 0) and prediction is None
    assert bonus.step(bonus.initial(3), z, z, z, None)[0].tolist() == [0.5, 2, 4.5]


def test_the_moments_of_sizes_leave_the_impossible_row_out() -> None:
    bonus = residual_bonus(intrinsic__momentum=0.0)
    bonus.learn(residual_window(), 1)
    errors = torch.tensor([4.0, 9.0, 25.0], dtype=torch.float64)
    assert float(bonus.moments.mean) == pytest.approx(float(errors.mean()))
    assert float(bonus.moments.std) == pytest.approx(float(errors.std()))


# What checkpoints save.


def test_moments_and_counts_come_back() -> None:
    bonus = residual_bonus()
    bonus.moments.set(2.0, 3.0, 7)
    tree = bonus.state_tree()
    assert tree == {"mean": 2.0, "std": 3.0, "updates": 7} and bonus.parts() == {}
    other = residual_bonus()
    other.load_tree(tree)
    assert other.state_tree() == tree
    counts = count_bonus()
    observe(counts, [3, 3], [1, 1], [False, False])
    again = count_bonus()
    again.load_tree(counts.state_tree())
    assert torch.equal(again.counts, counts.counts) and int(again.counts.sum()) == 2
    none = NoBonus()
    assert none.parts() == {} and none.state_tree() == {}
    assert set(constant_bonus().parts()) == {"world_model", "world_model_optimiser"}


def test_recomputing_changes_nothing() -> None:
    bonus = constant_bonus(guess=1.0)
    window = one_window()
    before = copy.deepcopy(bonus.state_tree())
    r_in = bonus.recompute(window)
    assert torch.equal(r_in, bonus.learn(window, 0)[0])
    assert bonus.state_tree()["mean"] == before["mean"] and not r_in.requires_grad


def test_a_loss_that_is_not_finite_ends_the_run() -> None:
    bonus = constant_bonus(guess=math.nan)
    with pytest.raises(RunFailed, match="world model's loss"):
        bonus.learn(one_window(), 0)


def test_a_window_without_a_transition_costs_nothing() -> None:
    window = one_window()._replace(is_first=torch.ones(5, 1, dtype=torch.bool))
    r_in, metrics = constant_bonus().learn(window, 0)
    assert float(metrics["world_model/loss"]) == 0 and not r_in.any()


@pytest.mark.parametrize("reset", [True, False])
def test_a_belief_inside_a_window_ends_with_its_episode(reset: bool) -> None:
    """With resets the rows from an episode's first on are paid as in a window of their own."""
    torch.manual_seed(0)
    keys = {"intrinsic__momentum": 1.0, "intrinsic__clip": 0.0, "dqn__reset_state": reset}
    bonus = build_bonus(config(**keys), 1, 4)
    assert isinstance(bonus, WorldModelBonus)
    bonus.moments.updates = 1
    w = one_window()
    behind = Window(*(v[3:] for v in (w.z, w.a_tm1, w.is_first, w.is_last)))
    whole, alone = bonus.recompute(w)[4], bonus.recompute(behind)[1]
    assert torch.allclose(whole, alone, atol=1e-6) == reset
    # Every transition passes through the memory, the one into the window's second row too.
    other = w._replace(z=torch.cat([w.z[:1] + 1, w.z[1:]]))
    assert not torch.allclose(bonus.recompute(other)[1], bonus.recompute(w)[1], atol=1e-6)


def test_only_the_world_model_without_memory_forgets() -> None:
    for agent, remembers in (("lwm", True), ("lwm-ff", False)):
        bonus = build_bonus(config(agent=agent), 4, 4)
        assert isinstance(bonus, WorldModelBonus)
        z, action = torch.ones(1, 4), torch.zeros(1, dtype=torch.int64)
        belief = bonus.initial(1)
        one, _ = bonus.model.step(z, action, belief)
        other, _ = bonus.model.step(z, action, belief + 1)
        assert torch.equal(one, other) != remembers


def test_gradients_of_one_update_do_not_reach_the_next() -> None:
    """Plain descent on (guess - z)^2 by hand: the second step is from the second gradient alone."""
    bonus = constant_bonus(world_model__learning_rate=0.1)
    bonus.optimiser = torch.optim.SGD(bonus.model.parameters(), lr=0.1)  # type: ignore[assignment]
    w = one_window()._replace(z=torch.ones(5, 1, 1))
    guesses = []
    for _ in range(2):
        bonus.learn(w, burn_in=0)
        guesses.append(bonus.model.guess.item())
    assert guesses == pytest.approx([0.2, 0.36])


def test_a_gradient_that_is_not_finite_ends_the_run() -> None:
    bonus = constant_bonus()
    bonus.model.guess.register_hook(lambda grad: grad * math.inf)
    with pytest.raises(RunFailed, match="not finite"):
        bonus.learn(one_window(), burn_in=0)


def test_the_share_of_last_rows_is_of_what_was_paid() -> None:
    bonus = constant_bonus(intrinsic__clip=0.0)
    small = one_window()._replace(z=one_window().z * 1e-3)
    share = bonus.learn(small, burn_in=0)[1]["bonus/last_share"]
    assert share == pytest.approx(9 / 38)  # however little it was
    nothing = one_window()._replace(z=torch.zeros(5, 1, 1))
    assert bonus.learn(nothing, burn_in=0)[1]["bonus/last_share"] == 0


def test_the_mean_of_a_loss_is_over_real_transitions() -> None:
    """One transition, or one among firsts: its error, not half of it."""
    w = Window(
        z=torch.tensor([1.0, 3.0, 5.0]).view(3, 1, 1),
        a_tm1=torch.tensor([0, 1, 2])[:, None],
        is_first=torch.tensor([0, 0, 1]).bool()[:, None],
        is_last=torch.tensor([0, 1, 0]).bool()[:, None],
    )
    assert constant_bonus().learn(w, burn_in=0)[1]["world_model/loss"] == pytest.approx(9)


def test_what_carries_nothing_says_so() -> None:
    sizes = residual_bonus()
    for bonus in (NoBonus(), sizes):
        assert bonus.hidden == 0 and bonus.initial(3).shape == (3, 0)
    assert NoBonus.masks_last is False
    built = build_bonus(
        config(env__tv=True, encoder__representation="rnd", world_model__sigmoid_output=False), 2, 4
    )
    assert isinstance(built, ResidualBonus) and built.moments.mean.device.type == "cpu"


def test_the_size_of_z_is_a_mean_over_its_dimensions() -> None:
    bonus = residual_bonus()
    bonus.moments.set(0.0, 1.0, 1)
    z = torch.tensor([[1.0, 3.0], [2.0, 2.0]])
    action = torch.zeros(2, dtype=torch.int64)
    r_in, _, _ = bonus.step(bonus.initial(2), z, action, z, None)
    assert r_in.tolist() == [2.5, 2.0]  # of 5 and 4, with beta 0.5


def test_counting_adds_one_for_each_transition() -> None:
    bonus = count_bonus()
    observe(bonus, [3, 3, 3], [1, 1, 1], [False, False, False])
    assert bonus.counts.sum() == 3 and bonus.counts.max() == 3


def test_the_mean_of_counted_bonuses_leaves_row_zero_out() -> None:
    bonus = count_bonus()
    window = Window(
        z=bits(1, 2, 4)[:, None],
        a_tm1=torch.tensor([0, 1, 2])[:, None],
        is_first=torch.zeros(3, 1, dtype=torch.bool),
        is_last=torch.zeros(3, 1, dtype=torch.bool),
    )
    observe(bonus, [1] * 4, [1] * 4, [False] * 4)  # the transition into row 1 was seen 4 times
    r_in, metrics = bonus.learn(window, burn_in=0)
    assert r_in[:, 0].tolist() == [0, 0.5, 1]
    assert metrics["bonus/mean"] == pytest.approx(0.75)
