"""The noisy TV experiment: what is counted, what each bonus sees, runs that become rows."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lwm import session
from lwm.config import Config, load_preset, replace
from lwm.encoder import Encoder, EncoderLearner, PhiLearner
from lwm.envs.television import Television
from lwm.errors import BadInput
from lwm.experiments import noisy_tv, rows, runner
from lwm.experiments.options import Options
from lwm.intrinsic import ResidualBonus, Window, WorldModelBonus
from lwm.representations import DistillationLearner, InverseLearner
from lwm.sections import EncoderConfig
from lwm.training import Trainer
from lwm.viewing import Viewing, between
from lwm.vision import Normaliser, VectorTrunk
from lwm.world_model import WorldModel
from trees import same


def vector_encoder(inputs: int, embedding: int, hidden: int, normalise: bool = False) -> Encoder:
    return Encoder(embedding, trunk=VectorTrunk(inputs, hidden, normalise))


LEARNED = ("wmse", "rf", "idf", "rnd")


def config(representation: str, **changes: Any) -> Config:
    keys = {"env.tv": True, "encoder.representation": representation}
    if representation != "pixels":
        keys |= {"world_model.sigmoid_output": False, "encoder.embedding": 3}
    small = {"encoder.hidden": 16, "encoder.batch": 32, "encoder.pretrain_iterations": 6}
    return load_preset(
        "debug", keys | small | {k.replace("__", "."): v for k, v in changes.items()}
    )


def test_sums_by_hand() -> None:
    tv, viewing = Television(), Viewing()
    tv.changed = np.array([True, True, False, False])
    tv.watched = np.array([True, True, True, False])
    real = np.array([True, False, True, True])
    viewing.note(tv, real, np.array([4, 99, 1, 3], np.float32))
    before = dict(viewing.totals)
    assert between(Viewing().totals, before) == (4.0, 2.0, 2 / 3)
    viewing.note(tv, ~real, np.array([7, -2, 7, 7], np.float32))
    # One more step, which changed the screen: nothing was paid elsewhere.
    assert between(before, viewing.totals) == (-2.0, None, 1.0)
    assert between(before, before) == (None, None, 0.0)


@pytest.mark.parametrize("representation", ["pixels", *LEARNED])
def test_each_bonus_sees_what_its_name_says(representation: str) -> None:
    trainer = Trainer(config(representation))
    learner = trainer.learner
    kinds = {"wmse": EncoderLearner, "idf": InverseLearner, "rnd": DistillationLearner}
    obs = np.random.default_rng(0).integers(2, size=(5, 2, 12)).astype(np.int8)
    z = learner.embed(obs)
    if representation == "pixels":
        assert learner.encoder is None and np.array_equal(z.numpy(), obs.astype(np.float32))
    else:
        assert type(learner.encoder) is kinds.get(representation, PhiLearner)
        assert z.shape == (5, 2, 3)
    expected = ResidualBonus if representation == "rnd" else WorldModelBonus
    assert isinstance(learner.bonus, expected)
    # Whatever the bonus sees, the agent sees the observation.
    off = torch.zeros(5, 2)
    x = learner.dqn.inputs(torch.from_numpy(obs), off.long(), off, None)
    assert isinstance(x, torch.Tensor)
    assert np.array_equal(x[..., : obs.shape[-1]].numpy(), obs.astype(np.float32))


@pytest.mark.parametrize("representation", ["pixels", *LEARNED])
@pytest.mark.parametrize("policy", ["agent", "random"])
def test_what_a_run_trains(representation: str, policy: str) -> None:
    trainer = Trainer(config(representation, loop__policy=policy))
    phi = trainer.learner.encoder

    def weights() -> dict[str, Any]:
        parts = trainer.learner.state_tree()
        return {k: deepcopy(parts[k]) for k in ("dqn", "world_model", "encoder") if k in parts}

    before = weights()
    data = [e.data for e in trainer.run() if e.kind == "train"]
    after = weights()
    assert same(before["dqn"], after["dqn"]) == (policy == "random")
    if representation not in ("rnd",):
        assert not same(before["world_model"], after["world_model"])
    if phi is not None:
        trained = not same(before["encoder"]["encoder"], after["encoder"]["encoder"])
        assert trained == (representation != "rf")
        assert ("encoder/loss" in data[-1]) == (representation != "rf")
    if representation == "rnd":
        assert same(before["encoder"]["heads"], after["encoder"]["heads"]), "it is fixed"
    found = between(Viewing().totals, data[-1])
    assert data[-1]["tv/steps"] > 1000 and found.bonus_tv is not None
    assert np.isfinite(found.bonus_tv) and 0 < found.time_share < 1


@pytest.mark.parametrize("representation", ["pixels", *LEARNED])
def test_a_tv_over_a_game(representation: str) -> None:
    pytest.importorskip("ale_py")
    changes = {"atari.tv": True, "encoder.representation": representation, "loop.policy": "random"}
    trainer = Trainer(load_preset("debug", changes, "atari"))
    try:
        data = [e.data for e in trainer.run() if e.kind == "train"]
        learner, obs = trainer.learner, trainer.step.obs
        z = learner.embed(obs)
        assert trainer.env.num_actions == 4, "Freeway has three actions"
        if representation == "pixels":
            assert np.array_equal(z.numpy(), obs.reshape(2, -1).astype(np.float32) / 128 - 1)
        else:
            assert z.shape == (2, 8)
        steps, changed = data[-1]["tv/steps"], data[-1]["tv/changed"]
        assert 0 < changed == data[-1]["tv/watched"] < steps
        half = Trainer(trainer.config)
        half.set_state(trainer.get_state())
        assert same(half.get_state(), trainer.get_state())
        half.close()
    finally:
        trainer.close()


def test_a_random_policy_acts_uniformly() -> None:
    trainer = Trainer(config("pixels", loop__policy="random"))
    for _ in trainer.run():
        pass
    kept = trainer.replay.get_rows(trainer.replay.oldest, trainer.replay.count)
    taken = np.bincount(kept["a_tm1"][~kept["is_first"]], minlength=5)
    share = taken / taken.sum()  # of about 1,000: five standard deviations are 0.063
    assert np.abs(share - 0.2).max() < 0.063


@pytest.mark.parametrize("representation", LEARNED)
def test_half_a_run_and_the_other_half(representation: str) -> None:
    whole, first, second = (Trainer(config(representation)) for _ in range(3))
    for _ in whole.run():
        pass
    for _ in first.run():
        if first.frames > 1200:
            break
    second.set_state(first.get_state())
    for _ in second.run():
        pass
    assert same(second.get_state(), whole.get_state())


def test_the_residual_bonus_by_hand() -> None:
    bonus = ResidualBonus(load_preset("debug", {"intrinsic.momentum": 0.5}))
    z = torch.tensor([[[9.0, 9.0]], [[1.0, 1.0]], [[3.0, 1.0]], [[0.0, 4.0]]])  # errors -, 1, 5, 8
    none = torch.zeros(4, 1, dtype=torch.bool)
    is_first = none.clone()
    is_first[3] = True
    window = Window(z, torch.zeros(4, 1, dtype=torch.int64), is_first, none)
    r_in, _ = bonus.learn(window, 0)
    assert (bonus.moments.mean.item(), bonus.moments.updates) == (3.0, 1)
    std = 8**0.5
    assert r_in[:, 0].tolist() == pytest.approx([0, -2 / std, 2 / std, 0])
    assert torch.equal(bonus.recompute(window), r_in)
    step, belief, _ = bonus.step(bonus.initial(1), z[1], window.a_tm1[2], z[2], None)
    assert step.item() == pytest.approx(2 / std) and belief.shape == (1, 0)


def test_distillation_learns_what_it_sees_and_is_wrong_about_the_rest() -> None:
    torch.manual_seed(0)
    c = EncoderConfig(embedding=4, hidden=32)
    learner = DistillationLearner(vector_encoder(12, 4, 32), vector_encoder(12, 4, 32), c)
    seen, new = torch.eye(12)[:6], torch.eye(12)[6:]
    before = learner.embed(seen).square().mean().item()
    for _ in range(300):
        learner.learn(seen)
    after, other = (learner.embed(x).square().mean().item() for x in (seen, new))
    assert after < before / 20 and other > 5 * after


def test_every_phi_of_vectors_takes_them_normalised() -> None:
    """A rare value must weigh as much in one representation as in another."""
    torch.manual_seed(0)
    c = EncoderConfig(embedding=4, hidden=32)

    def network() -> Encoder:
        return vector_encoder(3, 4, 32, normalise=True)

    x, y = torch.tensor([[0, 0, 1], [1, 0, 1]]), torch.tensor([[1, 0, 1], [1, 0, 1]])
    inverse = InverseLearner(network(), 5, c)
    inverse.learn(x, y, torch.tensor([1, 2]))
    distilled = DistillationLearner(network(), network(), c)
    distilled.learn(torch.cat([x, y]))
    whitened = EncoderLearner(network(), c)
    whitened.learn(x, y, torch.zeros(4, 2).long())
    networks = (inverse.encoder, distilled.encoder, distilled.fixed, whitened.encoder)
    for phi in networks:
        normaliser = phi.trunk.normaliser
        assert isinstance(normaliser, Normaliser) and normaliser.count == 4
        assert normaliser.mean.tolist() == [0.75, 0, 1]


@pytest.mark.parametrize(("hidden", "weights"), [(32, 32 * 8 + 32 + 32 * 32 + 32 + 33), (0, 9)])
def test_whitening_finds_the_slow_feature_of_vectors_and_forgets_the_noise(
    hidden: int, weights: int
) -> None:
    """Bit 0 stays, seven bits are drawn anew: one dimension is enough for the one slow feature."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    c = EncoderConfig(embedding=1, hidden=hidden, learning_rate=2e-3)
    learner = EncoderLearner(vector_encoder(8, 1, hidden), c)
    assert sum(p.numel() for p in learner.encoder.parameters()) == weights
    for _ in range(300):
        x, y = rng.integers(2, size=(2, 128, 8)).astype(np.int8)
        y[:, 0] = x[:, 0]
        loss = learner.learn(x, y, torch.zeros(256, 2).long())["encoder/loss"]
    assert float(loss) < 0.1  # of two independent draws it would be 2
    x = rng.integers(2, size=(512, 8)).astype(np.int8)
    z = learner.embed(x)[:, 0].numpy()
    slow, noise = (np.corrcoef(z, x[:, i])[0, 1] ** 2 for i in (0, 5))
    assert slow > 0.95 and noise < 0.05


def test_a_residual_model_predicts_what_stays_from_the_start() -> None:
    config = load_preset("debug", {"world_model.sigmoid_output": False})
    changed = replace(config, {"world_model.residual": True})
    models = []
    for c in (config, changed):
        torch.manual_seed(0)
        models.append(WorldModel(3, 2, c.world_model))
    z, action = torch.randn(4, 5, 3), torch.zeros(4, 5, dtype=torch.int64)
    plain, residual = (m.foretell(m.unroll(z, action, None, m.initial(5)), z) for m in models)
    assert torch.allclose(residual, z + plain)
    step = models[1].step(z[0], action[0], models[1].initial(5))[0]
    assert torch.allclose(step, residual[0], atol=1e-6)
    with pytest.raises(BadInput, match=r"needs world_model\.sigmoid_output=False"):
        load_preset("debug", {"world_model.residual": True})


def test_settings_that_need_bits_are_refused() -> None:
    with pytest.raises(BadInput, match=r"sigmoid_output=True is for bits"):
        load_preset("debug", {"encoder.representation": "wmse"})
    with pytest.raises(BadInput, match=r"agent=mbie-eb is for bits"):
        config("wmse", agent="mbie-eb")
    with pytest.raises(BadInput, match=r"env\.tv=True has no symmetries"):
        load_preset("best", {"env.tv": True})


def test_the_plan_is_the_issues() -> None:
    plan = noisy_tv.plan()
    jobs = [s.job(seed) for s, seed in plan]
    assert len({j.id for j in jobs}) == len({j.command for j in jobs}) == len(jobs)
    seeds: dict[tuple[str, str], set[int]] = {}
    for setting, seed in plan:
        seeds.setdefault((setting.env, setting.policy), set()).add(seed)
        assert setting.job(seed).config.television
    assert seeds["labyrinth", "agent"] == {0, 1, 2}
    assert seeds["montezuma_revenge", "agent"] == {0}
    for place in seeds:
        some = {(s.bonus, s.embedding) for s, _ in plan if (s.env, s.policy) == place}
        assert {b for b, _ in some} == set(noisy_tv.BONUSES)
        sizes = {d for b, d in some if b == "wmse"}
        images = {4, 8, 32} if place[1] == "random" else {32}
        assert sizes == ({2, 4, 8, 32} if place[0] == "labyrinth" else images)
    half = noisy_tv.plan(0.5)[-1][0]
    assert half.steps == 125_000 and noisy_tv.plan(1e-6)[-1][0].steps == 50_000


def test_a_finished_run_becomes_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = config("wmse", loop__policy="random")
    setting = noisy_tv.Setting("labyrinth", "random", "wmse", 3, 20_000)
    job = setting.job(0)
    monkeypatch.setattr(
        noisy_tv.Setting, "job", lambda self, seed: runner.Job(job.id, job.arguments, small)
    )
    session.run(*session.start(small, job.directory))
    monkeypatch.setattr(noisy_tv, "plan", lambda scale=None: [(setting, 0)])
    assert noisy_tv.main(Options(jobs=1)) == 0
    (row,) = rows.read(noisy_tv.PATH, noisy_tv.COLUMNS)
    issue = "env,policy,bonus,embedding,seed,frames,bonus_tv,bonus_elsewhere,time_share,commit"
    assert ",".join(noisy_tv.COLUMNS).startswith(issue)
    told = noisy_tv.numbers(job.directory, int(row["frames"]))
    assert float(row["bonus_tv"]) == pytest.approx(told.bonus_tv, rel=1e-5)
    assert noisy_tv.status() == "1 of 1 runs"
    assert "| W-MSE + LWM | 3 |" in noisy_tv.markdown()
    noisy_tv.main(Options(jobs=1))  # nothing is left to run
    assert len(rows.read(noisy_tv.PATH, noisy_tv.COLUMNS)) == 1


def test_rows_of_other_settings_stay_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noisy_tv, "PATH", tmp_path / "tv.csv")

    def add(seed: int, drop: str = "", further: str = "") -> None:
        setting = noisy_tv.Setting("labyrinth", "agent", "wmse", 4, 1000)
        words = [w for w in setting.job(seed).command.split() if not drop or drop not in w]
        cells = dict.fromkeys(noisy_tv.COLUMNS, 0) | {"env": "labyrinth", "policy": "agent"}
        cells |= {"bonus": "wmse", "embedding": 4, "seed": seed, "score": seed}
        row = {**cells, "command": " ".join([*words, further])}
        rows.append(noisy_tv.PATH, noisy_tv.COLUMNS, row)

    monkeypatch.setattr(noisy_tv, "load_preset", lambda *_: load_preset("debug"))
    add(0)
    add(1)
    add(2, further="dqn.gamma=0.5")
    add(3, drop="encoder.pretrain_iterations")
    found = {policy: [r["seed"] for r in g] for (_, policy, *_), g in noisy_tv.grouped().items()}
    assert found == {
        "agent": ["0", "1"],
        "agent, dqn.gamma=0.5": ["2"],
        "agent, without encoder.pretrain_iterations": ["3"],
    }
    assert "| labyrinth | agent | 1,000 | W-MSE + LWM | 4 |" in noisy_tv.markdown()
    add(4, further="encoder.hidden=0")
    assert noisy_tv.panels() == {  # rows of further settings stand in the table only
        "labyrinth, agents trained with the bonus": [
            ("W-MSE + LWM, 4, 1,000 steps", 0, 0),
            ("W-MSE + LWM, 4, linear Φ, 1,000 steps", 0, 0),
        ]
    }
    add(1)
    with pytest.raises(BadInput, match="two rows of one run and seed"):
        noisy_tv.markdown()


def test_useless_options_are_refused() -> None:
    with pytest.raises(BadInput, match="noisy-tv does not take --runs"):
        noisy_tv.main(Options(runs=[Path("x")]))
    with pytest.raises(BadInput, match="no run of noisy-tv has nothing"):
        noisy_tv.main(Options(only=["nothing"]))
