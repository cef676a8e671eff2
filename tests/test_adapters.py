"""The bonus in Gymnasium and Stable-Baselines3: the right transitions, whatever resets when."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from lwm import Bonus
from lwm.adapters.gymnasium import LWMVectorReward, _final
from lwm.adapters.stream import Stream
from trees import same

LENGTHS = (3, 5, 2)
STREAM = {"capacity": 600, "every": 20, "warmup": 40, "batch": 4, "length": 8}


class Walk(gym.Env[Any, int]):
    """Episodes of ``length`` steps along numbers that nobody can mistake: lane, episode, step."""

    def __init__(self, lane: int, length: int, kind: str = "vector") -> None:
        self.lane, self.length, self.kind = lane, length, kind
        vector = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        image = spaces.Box(0, 255, (7, 7), np.uint8)
        both = spaces.Dict({"image": image, "step": spaces.Discrete(9)})
        known: dict[str, spaces.Space[Any]] = {"vector": vector, "dict": both}
        self.observation_space = known.get(kind, spaces.Discrete(9))
        self.action_space = spaces.Discrete(3)
        self.episode, self.at = -1, 0

    def _seen(self) -> Any:
        if self.kind == "vector":
            return np.array([self.lane, self.episode, self.at], np.float32)
        if self.kind == "dict":
            return {"image": np.full((7, 7), 10 * self.at, np.uint8), "step": self.at}
        return self.at

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.at = self.episode + 1, 0
        return self._seen(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at += 1
        over = self.at == self.length
        odd = self.episode % 2 == 1  # every other episode is truncated
        return self._seen(), float(over), over and not odd, over and odd, {}


class Recorder(Bonus):
    """A bonus that remembers the transitions it was shown."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.seen: list[tuple[Any, ...]] = []

    def step_rows(
        self, begun: NDArray[Any], action: Any, after: NDArray[Any], first: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        self.seen.append((begun.copy(), np.array(action), after.copy(), first.copy()))
        return super().step_rows(begun, action, after, first)


def make_bonus(kind: str = "vector", **settings: Any) -> Recorder:
    env = Walk(0, 3, kind)
    settings = {"settle": 0, **settings}
    return Recorder(env.observation_space, env.action_space, 3, "debug", **settings)


def vector_env(mode: AutoresetMode, kind: str = "vector", many: type = SyncVectorEnv) -> Any:
    makers = [lambda i=i, n=n: Walk(i, n, kind) for i, n in enumerate(LENGTHS)]
    return many(makers, autoreset_mode=mode)


class Script:
    """The same actions for the same lane, episode and step, in every mode."""

    def __init__(self) -> None:
        self.table = np.random.default_rng(0).integers(3, size=(3, 200, 9))
        self.episode, self.at = [0] * 3, [0] * 3

    def action(self, lane: int) -> int:
        return int(self.table[lane, self.episode[lane], self.at[lane]])

    def took(self, lane: int, over: bool) -> None:
        self.at[lane] += 1
        if over:
            self.episode[lane], self.at[lane] = self.episode[lane] + 1, 0


def play(env: LWMVectorReward, steps: int) -> dict[tuple[int, int, int], float]:
    """(lane, episode, step) -> bonus, with resets as the mode wants them."""
    script, paid = Script(), {}
    env.reset(seed=0)
    idle = np.zeros(3, np.bool_)
    for _ in range(steps):
        actions = np.array([script.action(i) for i in range(3)])
        _, reward, terminated, truncated, info = env.step(actions)
        assert np.allclose(reward, info["reward_ext"] + env.scale * info["reward_int"])
        over = terminated | truncated
        for i in range(3):
            if idle[i]:
                assert info["reward_int"][i] == 0 and not over[i]
                continue
            paid[i, script.episode[i], script.at[i]] = float(info["reward_int"][i])
            script.took(i, bool(over[i]))
        if env.mode == AutoresetMode.NEXT_STEP:
            idle = over
        elif env.mode == AutoresetMode.DISABLED and over.any():
            env.reset(options={"reset_mask": over})
    return paid


def trained(kind: str, tmp_path: Path) -> Path:
    """A saved bonus that pays."""
    bonus = make_bonus(kind)
    env = LWMVectorReward(vector_env(AutoresetMode.SAME_STEP, kind), bonus, **STREAM)
    play(env, 40)
    assert bonus.updates
    bonus.save(tmp_path / kind)
    return tmp_path / kind


@pytest.mark.parametrize("kind", ["vector", "dict", "discrete"])
def test_every_autoreset_mode_pays_the_same(kind: str, tmp_path: Path) -> None:
    saved = trained(kind, tmp_path)
    told, transitions = [], []
    for mode in AutoresetMode:
        bonus = make_bonus(kind)
        bonus.load(saved)
        bonus.known[:] = False
        # Nothing is learned here: modes see the same transitions, but not at the same time.
        env = LWMVectorReward(vector_env(mode, kind), bonus, 0.5, **{**STREAM, "warmup": 10**6})
        told.append(play(env, 40))
        transitions.append(env.stream.transitions)
        env.close()
    assert transitions[0] < transitions[1] == transitions[2] == 120  # the first is NEXT_STEP
    for other in told[1:]:
        for key in told[0]:
            assert told[0][key] == pytest.approx(other[key], rel=1e-4, abs=1e-5), key
    assert any(told[0].values()) and len({k[1] for k in told[0]}) > 5


def test_processes_of_their_own(tmp_path: Path) -> None:
    saved = trained("vector", tmp_path)
    told = []
    for many in (SyncVectorEnv, AsyncVectorEnv):
        bonus = make_bonus()
        bonus.load(saved)
        env = LWMVectorReward(vector_env(AutoresetMode.SAME_STEP, many=many), bonus, **STREAM)
        told.append(play(env, 10))
        env.close()
    assert told[0] == told[1]


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_only_what_happened_is_remembered(mode: AutoresetMode) -> None:
    """Rows of the ring: episodes whole, one after the other, final observations included."""
    env = LWMVectorReward(vector_env(mode), make_bonus(), **STREAM)
    play(env, 12)
    stream = env.stream
    for lane, length in enumerate(LENGTHS):
        count = int(stream._count[lane])
        rows = stream._rows[:count, lane]
        expected = [(lane, episode, at) for episode in range(20) for at in range(length + 1)][
            :count
        ]
        assert rows.astype(int).tolist() == [list(e) for e in expected]
        assert np.array_equal(stream._first[:count, lane], rows[:, 2] == 0)
        script = Script().table[lane]
        wanted = [0 if at == 0 else script[episode, at - 1] for _, episode, at in expected]
        assert stream._action[:count, lane].tolist() == wanted
    env.close()


def test_reset_in_the_middle_begins_anew() -> None:
    env = LWMVectorReward(vector_env(AutoresetMode.NEXT_STEP), make_bonus(), **STREAM)
    with pytest.raises(gym.error.ResetNeeded, match="reset"):
        env.step(np.zeros(3, int))
    env.reset(seed=0)
    env.step(np.zeros(3, int))
    env.reset()
    env.step(np.zeros(3, int))
    begun = env.bonus.seen[-1][0]  # type: ignore[attr-defined]
    assert begun.tolist() == [[0, 1, 0], [1, 1, 0], [2, 1, 0]]
    env.close()


def test_a_bonus_for_another_number_of_environments() -> None:
    env = vector_env(AutoresetMode.NEXT_STEP)
    bonus = Bonus(env.single_observation_space, env.single_action_space, 2, "debug")
    with pytest.raises(ValueError, match="expected a bonus for 3 environments, got one for 2"):
        LWMVectorReward(env, bonus)
    env.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"capacity": 100, "length": 32}, "expected a capacity of at least 192 .*, got 100"),
        ({"every": 0}, "expected every of at least 1, got 0"),
        ({"batch": 0}, "expected batch of at least 1, got 0"),
        ({"length": 0}, "expected length of at least 1, got 0"),
    ],
)
def test_bad_streams(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Stream(make_bonus(), **settings)


def test_the_stream_learns_when_it_is_told_to() -> None:
    bonus = make_bonus()
    stream = Stream(bonus, capacity=60, every=30, warmup=60, batch=4, length=8)
    script = Script()
    obs = np.zeros((3, 3), np.float32)
    first = np.ones(3, np.bool_)
    for i in range(60):  # 3 transitions a step; far more than the ring holds
        after = obs + 1
        stream.step(obs, script.table[:, i % 200, 0], after, first)
        obs, first = after, np.zeros(3, np.bool_)
    # 60 transitions are warm-up; the step that completes it counts.
    assert bonus.updates == (180 - 60 + 3) // 30 and stream.transitions == 180
    assert np.isfinite(list(stream.metrics.values())).all()


def test_the_stream_settles_at_once() -> None:
    """As a run pretrains after its warm-up: from there on the bonus pays."""
    bonus = make_bonus(settle=7)
    stream = Stream(bonus, capacity=60, every=30, warmup=60, batch=4, length=8)
    obs, first = np.zeros((3, 3), np.float32), np.ones(3, np.bool_)
    for i in range(22):
        after = obs + 1
        paid = stream.step(obs, np.zeros(3, np.int64), after, first)
        assert bonus.updates == (0 if i < 19 else 8) and paid.any() == (i > 19)
        obs, first = after, np.zeros(3, np.bool_)


def test_a_stream_that_does_not_train_remembers_nothing() -> None:
    bonus = make_bonus()
    stream = Stream(bonus, capacity=60, every=6, warmup=6, batch=4, length=2)

    def walk(start: int, steps: int, first: bool) -> list[NDArray[np.float32]]:
        paid = []
        for i in range(start, start + steps):
            obs = np.full((3, 3), i, np.float32)
            paid.append(
                stream.step(obs, np.zeros(3, int), obs + 1, np.full(3, first and i == start))
            )
        return paid

    walk(0, 5, True)
    updates, transitions = bonus.updates, stream.transitions
    stream.learning = False
    paid = walk(100, 5, True)
    assert all(p.any() for p in paid), "it still pays"
    assert (bonus.updates, stream.transitions) == (updates, transitions) and updates
    stream.learning = True
    walk(105, 2, False)  # in the middle of an episode
    assert stream.transitions == transitions + 6
    held, first = stream._rows[:9, 0, 0], stream._first[:9, 0]
    assert held.tolist() == [0, 1, 2, 3, 4, 5, 105, 106, 107], "no row leads across the gap"
    assert np.flatnonzero(first).tolist() == [0, 6]


def sb3() -> Any:
    """The adapter, if Stable-Baselines3 is there."""
    pytest.importorskip("stable_baselines3", reason="needs the extra lwm[sb3]")
    from lwm.adapters import sb3

    return sb3


def dummy(kind: str = "vector") -> Any:
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    return DummyVecEnv([lambda i=i, n=n: Monitor(Walk(i, n, kind)) for i, n in enumerate(LENGTHS)])


@pytest.mark.parametrize("kind", ["vector", "dict", "discrete"])
def test_sb3_sees_the_same_transitions(kind: str, tmp_path: Path) -> None:
    """SB3 resets at once and hands the final observation over in an info."""
    module = sb3()
    saved = trained(kind, tmp_path)
    bonus = make_bonus(kind)
    bonus.load(saved)
    bonus.known[:] = False
    quiet = {**STREAM, "warmup": 10**6}
    env = LWMVectorReward(vector_env(AutoresetMode.SAME_STEP, kind), bonus, **quiet)
    expected = play(env, 20)
    other = make_bonus(kind)
    other.load(saved)
    venv = module.LWMRewardWrapper(dummy(kind), other, scale=0.5, stream=quiet)
    script, paid = Script(), {}
    venv.reset()
    for _ in range(20):
        _, reward, ended, infos = venv.step(np.array([script.action(i) for i in range(3)]))
        for i, info in enumerate(infos):
            assert reward[i] == pytest.approx(info["reward_ext"] + 0.5 * info["reward_int"])
            assert info["reward_ext"] == float(ended[i])
            assert info["reward_int"] == venv.paid[i]
            paid[i, script.episode[i], script.at[i]] = info["reward_int"]
            script.took(i, bool(ended[i]))
    assert paid == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert all(same(a, b) for a, b in zip(bonus.seen, other.seen, strict=True))
    # The reward that a Monitor inside reports is the environment's own.
    assert all(info["episode"]["r"] == 1 for info in infos if "episode" in info)


def test_sb3_bad_wrappers() -> None:
    module = sb3()
    with pytest.raises(ValueError, match="expected a bonus or its settings, got both"):
        module.LWMRewardWrapper(dummy(), make_bonus(), kind="rnd")
    env = Walk(0, 3)
    few = Bonus(env.observation_space, env.action_space, 2, "debug")
    with pytest.raises(ValueError, match="expected a bonus for 3 environments, got one for 2"):
        module.LWMRewardWrapper(dummy(), few)


def rows_of(logger: Any) -> set[str]:
    return set(logger.name_to_value)


def test_sb3_ppo_logs_saves_and_loads(tmp_path: Path) -> None:
    module = sb3()
    from stable_baselines3 import PPO

    venv = module.LWMRewardWrapper(dummy(), preset="debug", stream=STREAM)
    model = PPO("MlpPolicy", venv, n_steps=32, batch_size=32, n_epochs=1, seed=0, device="cpu")
    written: set[str] = set()
    model.set_logger(_Remembering(written))
    model.learn(200, callback=module.LWMCallback())
    assert {"lwm/reward_int", "lwm/world_model_loss", "lwm/encoder_loss"} <= written
    assert module.bonus_of(model) is venv.bonus and venv.bonus.updates
    module.save(model, tmp_path / "model.v1.zip")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.v1-bonus", "model.v1.zip"]
    fresh = module.LWMRewardWrapper(dummy(), preset="debug", seed=5)
    loaded = PPO.load(tmp_path / "model.v1.zip", env=fresh, device="cpu")
    module.load_bonus(loaded, tmp_path / "model.v1.zip")
    assert same(fresh.bonus._novelty.state_tree(), venv.bonus._novelty.state_tree())
    plain = PPO.load(tmp_path / "model.v1.zip", env=dummy(), device="cpu")
    with pytest.raises(ValueError, match="neither a LWMRewardWrapper nor a LWMReplayBuffer"):
        module.bonus_of(plain)
    plain.set_logger(_Remembering(set()))
    plain.learn(3, callback=module.LWMCallback())  # there is nothing to tell, and no error


def test_sb3_the_scale_fades_within_its_shares_of_the_training() -> None:
    module = sb3()
    from stable_baselines3 import PPO

    told: dict[int, float] = {}

    class Watch(module.LWMCallback):  # type: ignore[misc, name-defined]
        def _on_step(self) -> bool:
            super()._on_step()
            told[self.num_timesteps] = venv.scale
            return True

    venv = module.LWMRewardWrapper(dummy(), scale=0.5, preset="debug", stream=STREAM)
    model = PPO("MlpPolicy", venv, n_steps=32, batch_size=32, n_epochs=1, seed=0, device="cpu")
    fading = Watch(fade=(0.25, 0.75))
    model.learn(192, callback=fading)  # two rollouts of three environments
    assert [told[n] for n in (3, 48, 96, 120, 144, 192)] == [0.5, 0.5, 0.25, 0.125, 0.0, 0.0]
    assert venv.scale == 0.5  # a second training begins with the full scale
    told.clear()
    model.learn(192, callback=Watch(fade=(0.25, 0.75)), reset_num_timesteps=False)
    assert [told[192 + n] for n in (3, 48, 96, 192)] == [0.5, 0.5, 0.25, 0.0]
    assert venv.scale == 0.5
    for bad in ((0.5, 0.5), (-0.1, 1.0), (0.2, 1.1)):
        with pytest.raises(ValueError, match="expected fade as two growing shares"):
            module.LWMCallback(fade=bad)


def _Remembering(written: set[str]) -> Any:
    from stable_baselines3.common.logger import Logger

    class Remembering(Logger):
        """A logger that keeps the names it was given."""

        def record(self, key: str, value: Any, exclude: Any = None) -> None:
            written.add(key)

        def record_mean(self, key: str, value: Any, exclude: Any = None) -> None:
            written.add(key)

    return Remembering(None, [])


def filled(kind: str, size: int, steps: int, resets: tuple[int, ...] = (), **settings: Any) -> Any:
    """A buffer of ``size`` rows for each of 3 lanes, after ``steps`` steps of all of them.

    Before the steps ``resets`` all are reset, as ``learn`` does.
    """
    env, module = Walk(0, 3, kind), sb3()
    given = {
        "preset": "debug",
        "settle": 0,
        "burn_in": 4,
        "update_length": 6,
        "update_batch": 4,
        **settings,
    }
    made = module.LWMDictReplayBuffer if kind == "dict" else module.LWMReplayBuffer
    buffer = made(3 * size, env.observation_space, env.action_space, "cpu", 3, **given)
    venv, script = dummy(kind), Script()
    obs = venv.reset()
    for step in range(steps):
        if step and step in resets:
            obs = venv.reset()
            for i in range(3):
                if script.at[i]:
                    script.took(i, True)
        actions = np.array([script.action(i) for i in range(3)])
        after, reward, ended, infos = venv.step(actions)
        reached = module._with_terminal(after, ended, infos)
        for i in range(3):
            script.took(i, bool(ended[i]))
        # SB3 reshapes the entries of the dicts that it is given.
        buffer.add(module._copied(obs), module._copied(reached), actions, reward, ended, infos)
        obs = after
    return buffer


@pytest.mark.parametrize(("size", "steps"), [(40, 17), (10, 10), (10, 17)])
def test_sequences_of_a_buffer(size: int, steps: int) -> None:
    """Row by row against a plain loop; the ring has wrapped around in the last case."""
    buffer = filled("vector", size, steps)
    held = min(size, steps)
    for t in range(steps - held, steps):
        for lane, length in enumerate(LENGTHS):
            # All rows of the lane since the oldest transition held, final ones included.
            told: list[tuple[list[int], bool]] = []
            for step in range(steps - held, t + 1):
                episode, at = divmod(step, length)
                told.append(([lane, episode, at], at == 0 or step == steps - held))
                if at == length - 1 or step == t:
                    told.append(([lane, episode, at + 1], False))
            told = told[-6:]  # burn-in 4, the transition, and where it leads
            seq = buffer._sequences(np.array([t % size]), np.array([lane]), 4)
            n = len(told)
            assert seq.obs.shape == (6, 1, 3) and seq.action.shape == (5, 1)
            assert seq.obs[-n:, 0].astype(int).tolist() == [row for row, _ in told]
            assert seq.is_first[-n:, 0].tolist() == [first for _, first in told]
            # What is older than the oldest is cut off from it.
            assert seq.is_first[: 6 - n].all()
            script = Script().table[lane]
            for i in range(6 - n, 5):
                if not seq.is_first[i + 1, 0]:
                    _, episode, at = seq.obs[i, 0].astype(int)
                    assert seq.action[i, 0] == script[episode, at]


@pytest.mark.parametrize("kind", ["vector", "discrete"])
def test_the_bonus_of_a_stored_transition_follows_the_model(kind: str) -> None:
    buffer = filled(kind, 40, 30)
    where = np.arange(30).repeat(3), np.tile(np.arange(3), 30)
    assert not buffer.bonuses(*where).any()
    buffer.update()
    before = buffer.bonuses(*where)
    assert np.array_equal(before, buffer.bonuses(*where)) and before.any()
    stored = [np.array(v) for v in (buffer.rewards, buffer.observations, buffer.dones)]
    buffer.update()
    after = buffer.bonuses(*where)
    assert not np.isclose(before, after).all()
    assert same(stored, [buffer.rewards, buffer.observations, buffer.dones])
    assert buffer.metrics


def test_samples_have_both_rewards() -> None:
    buffer = filled("vector", 40, 30, scale=0.5, update_every=10**6)
    buffer.update()
    np.random.seed(0)
    got = buffer.sample(64)
    np.random.seed(0)
    t = np.random.randint(0, 30, size=64)
    lane = np.random.randint(3, size=64)
    r_in = buffer.bonuses(t, lane)
    expected = buffer.rewards[t, lane] + 0.5 * r_in
    assert np.allclose(got.rewards[:, 0].numpy(), expected, rtol=1e-4, atol=1e-5)
    assert np.array_equal(got.observations.numpy(), buffer.observations[t, lane])
    assert np.array_equal(got.next_observations.numpy(), buffer.next_observations[t, lane])
    # Every other episode was truncated: such ends are no terminations.
    ended = buffer.dones[t, lane] * (1 - buffer.timeouts[t, lane])
    assert np.array_equal(got.dones[:, 0].numpy(), ended) and ended.sum() > 0
    assert ended.sum() < buffer.dones[t, lane].sum()


def test_sampling_trains_the_bonus() -> None:
    buffer = filled("vector", 40, 30, update_every=3)
    for _ in range(7):
        buffer.sample(8)
    assert buffer.bonus.updates == 2
    tiny = filled("vector", 40, 1, update_every=1)
    tiny.sample(4)
    assert tiny.bonus.updates == 0  # one transition is no sequence


def test_sb3_dqn_saves_and_loads(tmp_path: Path) -> None:
    module = sb3()
    from stable_baselines3 import DQN

    settings = {"preset": "debug", "burn_in": 2, "update_length": 6}
    model = DQN(
        "MlpPolicy",
        dummy("discrete"),
        replay_buffer_class=module.LWMReplayBuffer,
        replay_buffer_kwargs=settings,
        buffer_size=300,
        learning_starts=30,
        batch_size=8,
        seed=0,
        device="cpu",
    )
    written: set[str] = set()
    model.set_logger(_Remembering(written))
    model.learn(90, callback=module.LWMCallback())
    assert "lwm/world_model_loss" in written and model.replay_buffer.bonus.updates
    module.save(model, tmp_path / "model")
    model.save_replay_buffer(tmp_path / "rows.pkl")
    loaded = DQN.load(tmp_path / "model.zip", env=dummy("discrete"), device="cpu")
    module.load_bonus(loaded, tmp_path / "model")
    ours, theirs = (m.replay_buffer.bonus._novelty.state_tree() for m in (model, loaded))
    assert same(ours, theirs)
    loaded.load_replay_buffer(tmp_path / "rows.pkl")
    where = np.arange(20), np.zeros(20, np.int64)
    assert np.array_equal(loaded.replay_buffer.bonuses(*where), model.replay_buffer.bonuses(*where))
    loaded.learn(30)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimize_memory_usage": True}, "expected optimize_memory_usage=False, got True"),
        ({"burn_in": -1}, "expected burn_in of at least 0, got -1"),
        ({"update_every": 0}, "expected update_every of at least 1, got 0"),
        ({"update_length": 1}, "expected update_length of at least 2, got 1"),
    ],
)
def test_bad_buffers(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        filled("vector", 10, 0, **settings)


def test_buffers_and_dicts() -> None:
    module = sb3()
    for cls, kind in ((module.LWMReplayBuffer, "dict"), (module.LWMDictReplayBuffer, "vector")):
        env = Walk(0, 3, kind)
        with pytest.raises(ValueError, match=rf"expected .* a Dict .* for {cls.__name__}$"):
            cls(30, env.observation_space, env.action_space, "cpu", 3, preset="debug")


@pytest.mark.parametrize("size", [40, 12])
def test_a_reset_without_an_end_is_no_transition(size: int) -> None:
    """Every second ``learn`` begins so; in the smaller ring the rows have wrapped around."""
    steps, resets = 16, (7, 10)
    buffer = filled("vector", size, steps, resets)
    held = min(size, steps)
    for t in range(steps - held, steps):
        for lane in range(3):
            seq = buffer._sequences(np.array([t % size]), np.array([lane]), 4)
            rows = seq.obs[:, 0].astype(int)
            real = ~seq.is_first[1:, 0]
            assert real[-1]  # the transition itself
            # Within an episode, one step further.
            assert (rows[1:][real] - rows[:-1][real] == [0, 0, 1]).all()
    # Episodes have 3, 5 and 2 steps: which were cut off in the middle, before steps 7 and 10?
    cuts = filled("vector", 40, steps, resets).cuts
    assert [np.flatnonzero(lane).tolist() for lane in cuts.T] == [[6], [6, 9], [6, 9]]
    again = pickle.loads(pickle.dumps(buffer))
    assert np.array_equal(again.cuts, buffer.cuts) and buffer.cuts.any()


def test_learning_twice_invents_nothing(tmp_path: Path) -> None:
    module = sb3()
    from stable_baselines3 import DQN

    def model() -> Any:
        return DQN(
            "MlpPolicy",
            dummy(),
            replay_buffer_class=module.LWMReplayBuffer,
            replay_buffer_kwargs={"preset": "debug", "burn_in": 2, "update_length": 6},
            buffer_size=300,
            learning_starts=10**6,
            train_freq=1,
            seed=0,
            device="cpu",
        )

    first = model()
    first.learn(21)  # 7 steps of each lane
    first.learn(21)
    assert first.replay_buffer.cuts[6].tolist() == [True, True, True]
    first.save_replay_buffer(tmp_path / "rows.pkl")
    second = model()
    second.load_replay_buffer(tmp_path / "rows.pkl")
    second.learn(9)
    buffer = second.replay_buffer
    assert buffer.pos == 17 and buffer.cuts[[6, 13]].all() and buffer.cuts.sum() == 6


def test_a_buffer_of_dicts_pays_what_the_model_says() -> None:
    buffer = filled("dict", 40, 30, scale=0.5, update_every=10**6)
    buffer.update()
    np.random.seed(0)
    got = buffer.sample(64)
    np.random.seed(0)
    t, lane = np.random.randint(0, 30, size=64), np.random.randint(3, size=64)
    r_in = buffer.bonuses(t, lane)
    assert r_in.any()
    expected = buffer.rewards[t, lane] + 0.5 * r_in
    assert np.allclose(got.rewards[:, 0].numpy(), expected, rtol=1e-4, atol=1e-5)
    for key in ("image", "step"):
        assert np.array_equal(got.observations[key].numpy(), buffer.observations[key][t, lane])
        reached = buffer.next_observations[key][t, lane]
        assert np.array_equal(got.next_observations[key].numpy(), reached)
    seq = buffer._sequences(np.array([4]), np.array([0]), 4)  # episodes of 3 steps
    assert seq.obs["step"][:, 0].tolist() == [1, 2, 3, 0, 1, 2]
    assert seq.obs["image"][:, 0, 0, 0].tolist() == [10, 20, 30, 0, 10, 20]
    assert seq.is_first[:, 0].tolist() == [False, False, False, True, False, False]


def test_sb3_evaluation_leaves_the_bonus_alone() -> None:
    module = sb3()
    from stable_baselines3 import PPO
    from stable_baselines3.common.evaluation import evaluate_policy

    settings = {"preset": "debug", "settle": 0, "stream": {"warmup": 6, "every": 6, "length": 2}}
    venv = module.LWMRewardWrapper(dummy(), **settings)
    model = PPO("MlpPolicy", venv, n_steps=8, batch_size=8, n_epochs=1, seed=0, device="cpu")
    model.learn(24)
    before = venv.bonus.updates
    venv.stream.learning = False
    evaluate_policy(model, venv, 4)
    assert venv.bonus.updates == before > 0 and not venv.stream.learning
    venv.stream.learning = True
    evaluate_policy(model, venv, 4)
    assert venv.bonus.updates > before


def test_sb3_dqn_pays_once_it_has_seen_enough() -> None:
    module = sb3()
    from stable_baselines3 import DQN

    model = DQN(
        "MlpPolicy",
        dummy(),
        replay_buffer_class=module.LWMReplayBuffer,
        replay_buffer_kwargs={"preset": "debug", "settle": 50, "warmup": 60, "burn_in": 2},
        buffer_size=600,
        train_freq=1,
        learning_starts=30,
        batch_size=8,
        seed=0,
        device="cpu",
    )
    paid: list[tuple[int, float]] = []

    class Watch(module.LWMCallback):  # type: ignore[misc, name-defined]
        def _on_step(self) -> bool:
            buffer = self.model.replay_buffer
            if len(buffer.paid):
                paid.append((buffer.size() * 3, float(np.abs(buffer.paid).max())))
            return bool(super()._on_step())

    written: set[str] = set()
    model.set_logger(_Remembering(written))
    model.learn(150, callback=Watch())
    assert {"lwm/reward_int", "lwm/settled"} <= written
    assert all((most > 0) == (seen >= 60) for seen, most in paid) and paid[0][0] < 60 < paid[-1][0]


def test_sb3_dqn_takes_dicts() -> None:
    module = sb3()
    from stable_baselines3 import DQN

    model = DQN(
        "MultiInputPolicy",
        dummy("dict"),
        replay_buffer_class=module.LWMDictReplayBuffer,
        replay_buffer_kwargs={"preset": "debug", "settle": 0, "burn_in": 2, "update_length": 6},
        buffer_size=300,
        train_freq=1,
        learning_starts=30,
        batch_size=8,
        seed=0,
        device="cpu",
    )
    model.learn(60, callback=module.LWMCallback())
    assert module.bonus_of(model).updates and np.isfinite(model.replay_buffer.metrics["bonus/mean"])


def test_a_device_for_the_bonus_alone() -> None:
    assert filled("vector", 10, 0, bonus_device="cpu").bonus.config.device == "cpu"
    with pytest.raises(ValueError, match="device=cuda"):
        filled("vector", 10, 0, bonus_device="cuda")


def test_models_with_like_names_have_bonuses_of_their_own() -> None:
    beside = sb3()._beside
    assert beside("a/run.1").name == "run.1-bonus" and beside("a/run_1").name == "run_1-bonus"
    assert beside("a/run.zip") == beside("a/run") == Path("a/run-bonus")


def test_a_final_observation_that_is_missing() -> None:
    obs, ended = np.zeros((3, 3), np.float32), np.array([False, True, False])
    with pytest.raises(ValueError, match=r"environment 1 ended: expected .*'terminal_observation'"):
        sb3()._with_terminal(obs, ended, [{}, {"TimeLimit.truncated": True}, {}])
    given = [np.zeros(3), None, None]
    for info, got in (({"episode": 1}, r"\['episode'\]"), ({"final_obs": given}, "None for one")):
        with pytest.raises(ValueError, match=rf"expected .*info\['final_obs'\].*, got {got}"):
            _final(info, ended)
    assert _final({"final_obs": given}, np.array([True, False, False])) is given


def test_large_images_take_less_room() -> None:
    """The default of 50 000 rows would be 5 GB of colour pictures of 210 x 160."""
    bonus = Bonus(spaces.Box(0, 255, (210, 160, 3), np.uint8), spaces.Discrete(3), 2, "debug")
    assert Stream(bonus)._rows.shape[0] == 2**30 // (210 * 160 * 3) // 2
    assert Stream(bonus, length=4000)._rows.shape[0] == 8000  # two windows each, whatever they take
    assert Stream(make_bonus())._rows.shape[0] == 50_000 // 3
