"""lwm.Bonus: step and compute agree, update learns, save and load are exact, bad input is named."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from lwm import Bonus, Sequences, Stream, checkpoint, files
from lwm.config import PRESETS, replace
from lwm.errors import BadInput, CheckpointError, RunFailed
from lwm.intrinsic import RunningMoments
from lwm.novelty import KINDS
from lwm.rivals import ICMBonus, RNDBonus
from trees import same

ACTIONS = spaces.Discrete(3)
SPACES: dict[str, spaces.Space[Any]] = {
    "frame": spaces.Box(0, 255, (84, 84, 1), np.uint8),
    "image": spaces.Box(0, 255, (9, 9, 3), np.uint8),
    "vector": spaces.Box(-np.inf, np.inf, (4,), np.float32),
    "bits": spaces.MultiBinary(4),
    "discrete": spaces.Discrete(6),
    "dict": spaces.Dict(
        {"direction": spaces.Discrete(4), "image": spaces.Box(0, 255, (7, 7, 3), np.uint8)}
    ),
}


def make(space: str = "vector", envs: int = 3, **settings: Any) -> Bonus:
    """A small bonus for a space by name, that pays after its first update."""
    settings = {"preset": "debug", "settle": 0, **settings}
    return Bonus(SPACES[space], ACTIONS, envs, **settings)


def sequences(space: str, T: int, B: int, seed: int = 0) -> Sequences:
    """Random ones, with an episode's start here and there and at row 0."""
    rng = np.random.default_rng(seed)
    own = SPACES[space]
    own.seed(seed)
    samples = [own.sample() for _ in range((T + 1) * B)]
    if isinstance(own, spaces.Dict):
        obs: Any = {
            k: np.stack([s[k] for s in samples]).reshape(T + 1, B, *own[k].shape) for k in own
        }
    else:
        obs = np.stack(samples).reshape(T + 1, B, *own.shape or ())
    first = rng.random((T + 1, B)) < 0.25
    first[0] = True
    return Sequences(obs, rng.integers(3, size=(T, B)), first)


def rows(obs: Any, i: int) -> Any:
    """Row i of observations."""
    return {k: v[i] for k, v in obs.items()} if isinstance(obs, dict) else obs[i]


def state(bonus: Bonus) -> dict[str, Any]:
    """All that a bonus is."""
    return {
        "novelty": bonus._novelty.state_tree(),
        "belief": bonus._belief.numpy(),
        "z": bonus._z.numpy(),
        "rng": dict(bonus._rng.bit_generator.state),
        "known": bonus.known,
        "updates": bonus.updates,
        "settle": bonus.settle,
    }


every_kind = pytest.mark.parametrize("kind", KINDS)
every_space = pytest.mark.parametrize("space", [s for s in SPACES if s != "frame"])


@every_kind
@every_space
def test_step_and_compute_agree(kind: str, space: str) -> None:
    T, B = 12, 3
    bonus, seq = make(space, B, kind=kind), sequences(space, T, B)
    metrics = bonus.update(seq)
    assert metrics and all(np.isfinite(v) for v in metrics.values())
    r_in = bonus.compute(*seq)
    assert r_in.shape == (T, B) and r_in.dtype == np.float32
    assert np.isfinite(r_in).all() and r_in.any()
    assert not r_in[seq.is_first[1:]].any()
    for i in range(T):
        # At an end the next observation of an actor is the final one; here that is not known, so
        # the entry is left out, and what follows must not depend on it.
        paid = bonus.step(rows(seq.obs, i), seq.action[i], rows(seq.obs, i + 1), seq.is_first[i])
        assert paid.shape == (B,) and paid.dtype == np.float32
        real = ~seq.is_first[i + 1]
        assert np.allclose(paid[real], r_in[i, real], rtol=1e-4, atol=1e-5)


def test_frames_of_the_papers_size() -> None:
    bonus, seq = make("frame", 2), sequences("frame", 4, 2)
    bonus.update(seq)
    r_in = bonus.compute(*seq)
    paid = bonus.step(seq.obs[0], seq.action[0], seq.obs[1], seq.is_first[0])
    assert np.allclose(paid, np.where(seq.is_first[1], paid, r_in[0]), rtol=1e-4, atol=1e-5)


@every_kind
def test_nothing_is_paid_before_the_first_update(kind: str) -> None:
    bonus, seq = make(kind=kind), sequences("vector", 5, 3)
    assert not bonus.compute(*seq).any()
    for i in range(5):
        assert not bonus.step(seq.obs[i], seq.action[i], seq.obs[i + 1], seq.is_first[i]).any()
    bonus.update(seq)
    assert bonus.compute(*seq).any()


@every_kind
def test_it_settles_first(kind: str, tmp_path: Path) -> None:
    """Three updates that only train; the fourth sets the moments, as if it were the first."""
    bonus = make(kind=kind, settle=3)
    batches = [sequences("vector", 8, 3, seed) for seed in range(5)]
    errors = []
    for n, seq in enumerate(batches):
        assert bonus.settled == (n > 3) and bonus.compute(*seq).any() == (n > 3)
        first = seq.is_first[0]
        paid = bonus.step(seq.obs[0], seq.action[0], seq.obs[1], first)
        assert paid.any() == (n > 3)
        metrics = bonus.update(seq)
        errors.append(metrics.get("world_model/error_mean", metrics.get("bonus/return_std")))
        if n == 1:  # it goes on as it was, also where another number was asked for
            bonus.save(tmp_path / "bonus")
            bonus = make(kind=kind, settle=99)
            bonus.load(tmp_path / "bonus")
            assert bonus.settle == 3
    whole = make(kind=kind)
    told = []
    for seq in batches:
        whole._measure().updates = 0  # every batch is taken whole
        metrics = whole.update(seq)
        told.append(metrics.get("world_model/error_mean", metrics.get("bonus/return_std")))
    assert errors[:4] == told[:4]
    assert errors[4] == pytest.approx(0.99 * told[3] + 0.01 * told[4], rel=1e-9)


@pytest.mark.parametrize(
    ("settings", "settle"),
    [
        ({"preset": "default"}, 100),
        ({"preset": "minigrid"}, 100),
        ({"preset": "debug"}, 4),
        ({"overrides": {"world_model.pretrain_iterations": 0}}, 0),
        ({"kind": "lwm-ff"}, 4),
        ({"kind": "rnd"}, 0),
        ({"kind": "icm"}, 0),
        ({"kind": "rnd", "settle": 5}, 5),
    ],
)
def test_how_long_it_settles(settings: dict[str, Any], settle: int) -> None:
    assert make(**{"settle": None, **settings}).settle == settle


def test_the_errors_of_an_untrained_model_set_no_moments() -> None:
    """Without settling the bonus of numbered places is far below 0 for hundreds of updates."""
    fast = {"world_model.learning_rate": 5e-3}
    paid: dict[int | None, list[NDArray[Any]]] = {}
    for settle in (0, 30):
        bonus, rng = make("discrete", 8, settle=settle, overrides=fast), np.random.default_rng(0)
        paid[settle] = []
        for _ in range(60):
            bonus.update(walk("discrete", 8, 8, rng))
            if bonus.updates > 30:
                paid[settle].append(bonus.compute(*walk("discrete", 8, 8, rng)))
    assert np.mean(paid[0]) < -3
    assert abs(np.mean(paid[30][1:])) < 1 and np.abs(paid[30][1:]).max() < 10


@every_kind
def test_burn_in_is_the_same_everywhere(kind: str) -> None:
    """What ``compute`` leaves out does not enter what errors are divided by, and all else does."""
    seq = sequences("vector", 6, 3)
    seq = seq._replace(is_first=np.zeros_like(seq.is_first))
    bonus = make(kind=kind)
    error = errors_of(bonus, seq)
    bonus.update(seq, burn_in=2)
    if kind in ("rnd", "icm"):
        sums = np.zeros((7, 3))
        for i in reversed(range(6)):
            sums[i] = error[i] + 0.99 * sums[i + 1]
        assert float(bonus._measure().std) == pytest.approx(sums[2:6].std(ddof=1), rel=1e-4)
    else:
        moments = bonus._measure()
        assert isinstance(moments, RunningMoments)
        assert float(moments.mean) == pytest.approx(error[2:].mean(), rel=1e-4)
        assert float(moments.std) == pytest.approx(error[2:].std(ddof=1), rel=1e-4)


def errors_of(bonus: Bonus, seq: Sequences) -> NDArray[Any]:
    """The errors [T, B] by which an update normalises: Φ and input normalisers learn first."""
    twin = copy.deepcopy(bonus)
    twin.config = replace(twin.config, {"intrinsic.moments_include_burn_in": True})
    kept: list[NDArray[Any]] = []
    own = twin._measure()
    update = own.update

    def remember(error: Any, *more: Any) -> None:
        kept.append(error.detach().numpy().reshape(*seq.action.shape))
        update(error, *more)

    own.update = remember  # type: ignore[method-assign]
    twin.update(seq, burn_in=2)
    return kept[0]


@every_kind
def test_compute_changes_nothing(kind: str) -> None:
    bonus, seq = make(kind=kind), sequences("vector", 5, 3)
    bonus.update(seq)
    bonus.step(seq.obs[0], seq.action[0], seq.obs[1], seq.is_first[0])
    before = bonus._novelty.state_tree()
    before = {k: _copied(v) for k, v in before.items()}
    given = [np.array(v) for v in seq]
    assert np.array_equal(bonus.compute(*seq), bonus.compute(*seq))
    assert same(before, bonus._novelty.state_tree())
    assert same(given, list(seq))


def _copied(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {k: _copied(v) for k, v in tree.items()}
    return tree.copy() if isinstance(tree, np.ndarray) else tree


def test_an_episode_does_not_know_the_one_before() -> None:
    bonus, seq = make(), sequences("vector", 10, 3)
    bonus.update(seq)
    first = np.zeros((11, 3), np.bool_)
    first[5] = True
    cut = bonus.compute(seq.obs, seq.action, first)
    alone = bonus.compute(seq.obs[5:], seq.action[5:], first[5:])
    assert np.allclose(cut[5:], alone, rtol=1e-4, atol=1e-5) and not cut[4].any()
    joined = bonus.compute(seq.obs, seq.action, np.zeros_like(first))
    assert not np.allclose(joined[5:], alone, rtol=1e-3, atol=1e-3)


def test_burn_in_warms_the_belief_up() -> None:
    bonus, seq = make(), sequences("vector", 10, 3)
    bonus.update(seq)
    seq = seq._replace(is_first=np.zeros_like(seq.is_first))
    whole, warmed = bonus.compute(*seq), bonus.compute(*seq, burn_in=6)
    assert not warmed[:6].any() and np.array_equal(warmed[6:], whole[6:])
    cold = bonus.compute(seq.obs[6:], seq.action[6:], seq.is_first[6:])
    assert not np.allclose(cold, whole[6:], atol=1e-3)
    metrics = bonus.update(seq, burn_in=6)
    assert np.isfinite(list(metrics.values())).all()


def test_an_environment_that_is_new_begins_an_episode() -> None:
    """Whatever ``is_first`` says on the first call: there is nothing to go on from."""
    told, silent, seq = make(), make(), sequences("vector", 3, 3)
    for bonus in (told, silent):
        bonus.update(seq)
    none = np.zeros(3, np.bool_)
    first = told.step(seq.obs[0], seq.action[0], seq.obs[1], ~none)
    assert np.array_equal(silent.step(seq.obs[0], seq.action[0], seq.obs[1], none), first)
    # From then on the observation before is remembered, and ``obs`` is not looked at.
    later = [
        b.step(obs, seq.action[1], seq.obs[2], none)
        for b, obs in ((told, seq.obs[1]), (silent, 0 * seq.obs[1]))
    ]
    assert np.array_equal(*later)


@every_kind
@pytest.mark.parametrize(("T", "B"), [(1, 1), (1, 3), (2, 1)])
def test_the_smallest_sequences(kind: str, T: int, B: int) -> None:
    bonus, seq = make(kind=kind), sequences("vector", T, B)
    for first in (np.zeros_like(seq.is_first), np.ones_like(seq.is_first), seq.is_first):
        metrics = bonus.update(seq._replace(is_first=first))
        assert np.isfinite(list(metrics.values())).all()
        assert np.isfinite(bonus.compute(seq.obs, seq.action, first)).all()


def walk(space: str, T: int, B: int, rng: np.random.Generator) -> Sequences:
    """Walks round a ring of 6 places, by the action: what comes next can be learned."""
    action = rng.integers(3, size=(T, B))
    start = rng.integers(6, size=(1, B))
    place = np.concatenate([start, start + np.cumsum(action - 1, 0)]) % 6
    first = np.zeros((T + 1, B), np.bool_)
    first[0] = True
    return Sequences(seen(space, place), action, first)


def seen(space: str, place: NDArray[np.int64]) -> Any:
    """What each place looks like."""
    if space == "discrete":
        return place
    if space == "bits":
        return np.stack([(place >> 1) % 2, place % 2, place // 3, place % 3 // 2], -1)
    if space == "vector":
        angle = place * np.pi / 3
        return np.stack([np.sin(angle), np.cos(angle), 9 * place, 0 * angle], -1).astype("f4")
    looks = np.random.default_rng(5).integers(0, 255, (6, 9, 9, 3)).astype(np.uint8)
    return looks[place]


@every_kind
@pytest.mark.parametrize("space", ["discrete", "vector", "image"])
def test_update_learns_what_can_be_predicted(
    kind: str, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lwm.rivals.RATE", 2e-3)
    fast = {"encoder.learning_rate": 2e-3, "world_model.learning_rate": 5e-3}
    bonus = make(space, 8, kind=kind, overrides=fast)
    rng = np.random.default_rng(0)
    losses = []
    for _ in range(60):
        seq = walk(space, 8, 8, rng)
        metrics = bonus.update(seq)
        if kind in ("rnd", "icm"):
            losses.append(metrics["bonus/loss"])
        else:  # the scale of z is Φ's to choose
            z = bonus._novelty.embed(bonus.sense.rows(seq.obs))
            losses.append(metrics["world_model/loss"] / float(z.flatten(0, 1).var(0).mean()))
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:3])
    assert bonus.updates == 60


@pytest.mark.parametrize("kind", ["lwm", "lwm-ff", "rnd"])
def test_what_was_never_seen_is_paid_more(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A corridor of which the first half is walked, again and again."""
    monkeypatch.setattr("lwm.rivals.RATE", 2e-3)
    fast = {"world_model.learning_rate": 1e-2}
    bonus = make("discrete", 8, kind=kind, overrides=fast)
    rng = np.random.default_rng(0)
    for _ in range(120):
        action = rng.integers(2, size=(10, 8)) * 2
        place = np.zeros((11, 8), np.int64)
        for i in range(10):
            place[i + 1] = np.clip(place[i] + action[i] - 1, 0, 3)
        first = np.zeros((11, 8), np.bool_)
        first[0] = True
        bonus.update(Sequences(place, action, first))
    known = np.array([0, 1, 2, 3])[:, None]
    new = np.array([0, 1, 2, 3, 4])[:, None]
    first = np.array([True, False, False, False, False])[:, None]
    paid = bonus.compute(new, np.full((4, 1), 2), first)[:, 0]
    assert paid[3] > paid[:3].max() + (0.1 if kind == "rnd" else 5)
    assert np.allclose(bonus.compute(known, np.full((3, 1), 2), first[:4])[:, 0], paid[:3])


def test_random_features_take_normalised_vectors_too() -> None:
    """Φ that stays random would see nothing of inputs far from 0, which are clipped."""
    bonus = make(kind="lwm-rf")
    seq = sequences("vector", 10, 3)
    far = seq._replace(obs=seq.obs + 1000)
    bonus.update(far)
    z = bonus._novelty.embed(far.obs).numpy()
    assert z.reshape(33, -1).std(0).min() > 1e-3


@pytest.mark.parametrize(
    ("kind", "part"), [("rnd", "target"), ("rnd", "predictor"), ("icm", "features")]
)
def test_rivals_see_images_of_mean_0(kind: str, part: str) -> None:
    """They are normalised already: nothing is subtracted once more."""
    bonus, seq = make("image", kind=kind), sequences("image", 30, 3)
    bonus.update(seq)
    rival = bonus._novelty.bonus
    assert isinstance(rival, RNDBonus | ICMBonus)
    (layer,) = (m for m in rival.networks[part].modules() if getattr(m, "in_channels", 0) == 3)
    seen: list[float] = []
    layer.register_forward_pre_hook(lambda _, given: seen.append(float(given[0].mean())))
    bonus.compute(*seq)
    assert seen and np.abs(seen).max() < 0.05


@every_kind
def test_the_same_seed_gives_the_same_numbers(kind: str) -> None:
    told = []
    for seed in (0, 0, 1):
        bonus, seq = make(kind=kind, seed=seed), sequences("vector", 8, 3)
        bonus.update(seq)
        told.append(bonus.compute(*seq))
    assert np.array_equal(told[0], told[1]) and not np.array_equal(told[0], told[2])


@every_kind
@every_space
def test_save_and_load(kind: str, space: str, tmp_path: Path) -> None:
    seq = sequences(space, 8, 3)
    bonus, other = make(space, kind=kind), make(space, kind=kind, seed=1)
    bonus.update(seq)
    first = seq.is_first[0]
    bonus.step(rows(seq.obs, 0), seq.action[0], rows(seq.obs, 1), first)
    bonus.save(tmp_path / "bonus")
    other.load(tmp_path / "bonus")
    assert same(state(bonus), state(other))
    for b in (bonus, other):
        b.step(rows(seq.obs, 1), seq.action[1], rows(seq.obs, 2), ~first)
        b.update(seq)
    assert same(state(bonus), state(other))
    bonus.save(tmp_path / "bonus")  # over the older one
    other.load(tmp_path / "bonus")


def test_saving_touches_nothing_else(tmp_path: Path) -> None:
    """Not what a run would prune: lower steps, temporary directories, rows without a checkpoint."""
    bonus, folder = make(), tmp_path / "ck"
    folder.mkdir()
    (folder / "rows").mkdir()
    (folder / "rows" / "mine.zst").write_text("mine")
    for name in ("notes.tmp-1", "step-500.old-7", f"step-100.tmp-{os.getpid()}"):
        (folder / name).write_text("mine")
    before = {p.name for p in folder.iterdir()}
    names = ["step-100", "step-200", "step-300", "step-400", "model.v1", "step-200", "ä b"]
    for name in names:
        bonus.save(folder / name)
    assert {p.name for p in folder.iterdir()} == before | set(names)
    assert (folder / "rows" / "mine.zst").read_text() == "mine"
    for name in names:
        make(seed=1).load(folder / name)


def test_saving_over_what_is_no_bonus(tmp_path: Path) -> None:
    bonus = make()
    mine = tmp_path / "mine"
    mine.mkdir()
    bonus.save(mine)  # nothing is lost with an empty directory
    (mine / "notes.txt").write_text("dear diary")
    with pytest.raises(ValueError, match=r"expected .* a saved bonus .*mine; got .*notes\.txt"):
        bonus.save(mine)
    (mine / "notes.txt").unlink()
    bonus.save(mine)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(mine)
    checkpoint.save(tmp_path, "step-1", {"kind": "lwm"})
    for name, got in (
        ("file", "not a checkpoint directory"),
        ("link", "not a checkpoint directory"),
        ("step-1", "a checkpoint of something else"),
    ):
        with pytest.raises(ValueError, match=rf"expected no file, .*{name}; got .*{got}"):
            bonus.save(tmp_path / name)
    assert (tmp_path / "file").read_text() == "mine" and (tmp_path / "link").is_symlink()
    for path in ("", ".", "..", tmp_path / ".."):
        with pytest.raises(ValueError, match="expected a path that ends with a name, got"):
            bonus.save(path)
    assert {p.name for p in tmp_path.iterdir()} == {"mine", "file", "link", "step-1"}


@pytest.mark.parametrize("error", [OSError("no"), KeyboardInterrupt()])
@pytest.mark.parametrize("calls", [0, 1])
def test_a_save_that_fails_leaves_the_older_one(
    error: BaseException, calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bonus, seq = make(), sequences("vector", 4, 3)
    bonus.save(tmp_path / "bonus")
    bonus.update(seq)
    left = iter([None] * calls)

    def rename(source: Path, target: Path) -> None:
        try:
            next(left)
        except StopIteration:
            raise error from None
        os.rename(source, target)

    monkeypatch.setattr(files, "rename", rename)
    with pytest.raises(RunFailed if isinstance(error, OSError) else KeyboardInterrupt):
        bonus.save(tmp_path / "bonus")
    assert [p.name for p in tmp_path.iterdir()] == ["bonus"]
    older = make()
    older.load(tmp_path / "bonus")
    assert older.updates == 0


def test_load_for_another_number_of_environments(tmp_path: Path) -> None:
    bonus, seq = make(), sequences("vector", 8, 3)
    bonus.update(seq)
    bonus.step(seq.obs[0], seq.action[0], seq.obs[1], seq.is_first[0])
    bonus.save(tmp_path / "bonus")
    two = make(envs=2)
    two.step(seq.obs[5, :2], seq.action[5, :2], seq.obs[6, :2], seq.is_first[0, :2])
    two.load(tmp_path / "bonus")
    assert np.array_equal(two.compute(*seq), bonus.compute(*seq))
    # Their episodes are others: the belief begins anew, with ``obs``.
    paid = two.step(seq.obs[0, :2], seq.action[0, :2], seq.obs[1, :2], np.zeros(2, np.bool_))
    expected = bonus.compute(seq.obs[:2], seq.action[:1], np.zeros((2, 3), np.bool_))[0, :2]
    assert np.allclose(paid, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: make("image"), r"expected observation space Box\(.*uint8\), got Box\(.*float32\)"),
        (
            lambda: Bonus(SPACES["vector"], spaces.Discrete(4), 3, "debug"),
            r"expected action space Discrete\(4\), got Discrete\(3\)",
        ),
        (lambda: make(kind="rnd"), "expected kind rnd, got lwm"),
        (
            lambda: make(overrides={"world_model.hidden": 17}),
            r"expected world_model\.hidden 17, got 16",
        ),
        (
            lambda: make(overrides={"encoder.representation": "rf"}),
            r"expected encoder\.representation rf, got wmse",
        ),
        (
            lambda: make(overrides={"world_model.residual": True}),
            r"expected world_model\.residual True, got False",
        ),
        (lambda: make(preset="default"), r"expected encoder\.embedding 16, got 4"),
    ],
)
def test_a_bonus_for_something_else(
    other: Callable[[], Bonus], message: str, tmp_path: Path
) -> None:
    make().save(tmp_path / "bonus")
    bonus = other()
    before = _copied(state(bonus))
    with pytest.raises(ValueError, match=message):
        bonus.load(tmp_path / "bonus")
    assert same(before, state(bonus))


def test_what_auto_stands_for_is_the_same(tmp_path: Path) -> None:
    make().save(tmp_path / "bonus")
    make(overrides={"encoder.representation": "wmse"}).load(tmp_path / "bonus")


def test_a_damaged_file(tmp_path: Path) -> None:
    bonus = make()
    bonus.save(tmp_path / "bonus")
    target = tmp_path / "bonus" / "arrays.safetensors"
    data = bytearray(target.read_bytes())
    data[-1] ^= 1
    target.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match="bonus"):
        bonus.load(tmp_path / "bonus")
    with pytest.raises(CheckpointError, match="absent"):
        bonus.load(tmp_path / "absent")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "lvm"}, "unknown kind of bonus 'lvm'.*lwm"),
        ({"envs": 0}, "expected num_envs of at least 1, got 0"),
        ({"settle": -1}, "expected settle of at least 0, got -1"),
        ({"settle": 0.5}, r"expected settle of at least 0, got 0\.5"),
        ({"preset": "absent"}, "unknown preset 'absent' of gym"),
        ({"overrides": {"encoder.embeding": 4}}, "unknown setting 'encoder.embeding'"),
        ({"device": "cuda"}, "device=cuda"),
        ({"envs": 2.0}, r"expected num_envs of at least 1, got 2\.0"),
        (
            {"overrides": {"encoder.representation": "idf"}},
            r"expected encoder\.representation wmse, rf or pixels, got idf",
        ),
        (
            {"overrides": {"intrinsic.boundary": "mask"}},
            r"expected intrinsic\.boundary=terminal, got mask",
        ),
        ({"overrides": {"dqn.reset_state": False}}, r"expected dqn\.reset_state=True, got False"),
        ({"overrides": {"dqn.n_step": 3}}, r"expected settings of encoder, .*, got 'dqn\.n_step'"),
        ({"overrides": {"agent": "dqn"}}, "expected settings of encoder, .*, got 'agent'"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**settings)


@pytest.mark.parametrize("preset", PRESETS["gym"])
@pytest.mark.parametrize("kind", ["lwm", "rnd"])
def test_it_pays_alike_in_every_preset(preset: str, kind: str) -> None:
    """A preset's β is for its own agent; the device may be one of torch."""
    bonus = make("image", preset=preset, kind=kind, device=torch.device("cpu"))
    seq = sequences("image", 20, 8)
    bonus.update(seq)
    paid = bonus.compute(*seq)
    assert 0.1 < paid.std() < 3
    half = make("image", preset=preset, kind=kind, overrides={"intrinsic.beta": 0.5})
    half.update(seq)
    assert np.allclose(half.compute(*seq), paid / 2, atol=1e-5)


def test_a_frozen_encoder_learns_in_the_first_updates_only() -> None:
    fixed = {"encoder.freeze_after_pretraining": True, "encoder.pretrain_iterations": 2}
    frozen, free = make("image", overrides=fixed), make("image")
    seq = sequences("image", 9, 4)
    told = [("encoder/rank" in frozen.update(seq), "encoder/rank" in free.update(seq))
            for _ in range(4)]  # fmt: skip
    assert told == [(True, True), (True, True), (False, True), (False, True)]


def test_bad_spaces_and_presets() -> None:
    with pytest.raises(ValueError, match=r"expected a Discrete action space, got Box"):
        Bonus(SPACES["vector"], spaces.Box(0, 1, (2,)), 3)
    with pytest.raises(ValueError, match="no encoder for the observation space"):
        Bonus(spaces.Box(0, 1, (3, 3)), ACTIONS, 3)
    with pytest.raises(BadInput, match="unknown preset"):
        make(preset="absent")
    with pytest.raises(BadInput, match="device=cuda"):
        make(device="cuda")


BAD_STEPS: list[tuple[str, Any, str]] = [
    ("obs", np.zeros((3, 5), "f4"), r"obs: expected observation of shape \[\.\.\., 4\], got"),
    ("obs", np.zeros((2, 4), "f4"), r"obs: expected a batch of \[3\], got \[2\]"),
    ("next_obs", np.zeros((3, 1, 4), "f4"), r"next_obs: expected a batch of \[3\], got \[3, 1\]"),
    ("next_obs", np.full((3, 4), np.nan, "f4"), "next_obs: expected finite .*, got NaN"),
    ("action", [0, 1, 3], r"action: expected values of Discrete\(3\), got 0 to 3"),
    ("action", [0, 1, -1], r"action: expected values of Discrete\(3\), got -1 to 1"),
    ("action", [0.0, 1.0, 2.0], r"action: expected integers \[3\], got float64 \[3\]"),
    ("action", [[0], [1], [2]], r"action: expected integers \[3\], got int64 \[3, 1\]"),
    ("is_first", [0.0, 0.0, 1.0], r"is_first: expected bool \[3\], got float64 \[3\]"),
    ("is_first", [True], r"is_first: expected bool \[3\], got bool \[1\]"),
]


@pytest.mark.parametrize(("name", "value", "message"), BAD_STEPS)
def test_bad_steps(name: str, value: Any, message: str) -> None:
    bonus, seq = make(), sequences("vector", 1, 3)
    given = {
        "obs": seq.obs[0],
        "action": seq.action[0],
        "next_obs": seq.obs[1],
        "is_first": seq.is_first[0],
    }
    before, stream = _copied(state(bonus)), Stream(bonus)
    for step in (bonus.step, stream.step):
        with pytest.raises(ValueError, match=message):
            step(**{**given, name: value})
    assert same(before, state(bonus)) and stream.transitions == 0
    bonus.step(**given)


@pytest.mark.parametrize("real", [[True, False], [1.0, 0.0, 1.0], True])
def test_bad_word_of_what_was_real(real: Any) -> None:
    seq = sequences("vector", 1, 3)
    with pytest.raises(ValueError, match=r"real: expected bool \[3\], got"):
        Stream(make()).step(seq.obs[0], seq.action[0], seq.obs[1], seq.is_first[0], real)


BAD_SEQUENCES: list[tuple[dict[str, Any], str]] = [
    ({"action": np.zeros((0, 3), int)}, r"at least two observations .*got actions .*\(0, 3\)"),
    ({"action": np.zeros(4, int)}, r"at least two observations .*got actions .*\(4,\)"),
    ({"action": np.zeros((5, 3), int)}, r"obs: expected a batch of \[6, 3\], got \[5, 3\]"),
    ({"action": np.full((4, 3), 3)}, r"action: expected values of Discrete\(3\), got 3 to 3"),
    ({"action": np.zeros((4, 3))}, r"action: expected integers \[4, 3\], got float64 \[4, 3\]"),
    ({"obs": np.full((5, 3, 4), np.nan)}, "obs: expected finite observations, got NaN"),
    ({"obs": np.zeros((5, 3, 6))}, r"obs: expected observation of shape \[\.\.\., 4\], got"),
    ({"is_first": np.zeros((4, 3), bool)}, r"is_first: expected bool \[5, 3\], got bool \[4, 3\]"),
    ({"burn_in": 4}, "expected a burn_in of 0 to 3, got 4"),
    ({"burn_in": -1}, "expected a burn_in of 0 to 3, got -1"),
    ({"burn_in": 1.5}, r"expected a burn_in of 0 to 3, got 1\.5"),
    ({"burn_in": None}, "expected a burn_in of 0 to 3, got None"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_SEQUENCES)
def test_bad_sequences(changes: dict[str, Any], message: str) -> None:
    bonus, seq = make(), sequences("vector", 4, 3)
    given = {**seq._asdict(), "burn_in": 0, **changes}
    before = _copied(state(bonus))
    with pytest.raises(ValueError, match=message):
        bonus.compute(**given)
    with pytest.raises(ValueError, match=message):
        bonus.update(Sequences(*(given[k] for k in Sequences._fields)), given["burn_in"])
    assert same(before, state(bonus))


def test_what_is_no_sequences() -> None:
    for wrong in (None, (1, 2), {1, 2, 3}):
        with pytest.raises(ValueError, match=r"expected Sequences \(obs, action, is_first\)"):
            make().update(wrong)  # type: ignore[arg-type]


def test_actions_may_begin_elsewhere() -> None:
    shifted = Bonus(SPACES["vector"], spaces.Discrete(3, start=-1), 3, "debug", settle=0)
    plain, seq = make(), sequences("vector", 6, 3)
    plain.update(seq)
    shifted.update(seq._replace(action=seq.action - 1))
    assert np.array_equal(
        plain.compute(*seq), shifted.compute(seq.obs, seq.action - 1, seq.is_first)
    )
    with pytest.raises(ValueError, match=r"expected values of Discrete\(3, start=-1\), got"):
        shifted.compute(*seq)


@pytest.mark.parametrize(
    ("space", "kind", "text"),
    [
        (
            "frame",
            "lwm",
            "Bonus(lwm: 84×84 image of 1 channel -> CNN + W-MSE, 4 dimensions, 3 environments)",
        ),
        ("vector", "lwm", "Bonus(lwm: 4 numbers -> MLP + W-MSE, 4 dimensions, 3 environments)"),
        ("bits", "lwm", "Bonus(lwm: 4 bits -> the bits themselves, 3 environments)"),
        ("vector", "rnd", "Bonus(rnd: 4 numbers -> RND, 3 environments)"),
    ],
)
def test_it_says_what_it_is(space: str, kind: str, text: str) -> None:
    assert repr(make(space, kind=kind)) == text
