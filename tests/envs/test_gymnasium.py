"""Any Gymnasium environment as rows: the time law in every autoreset mode; what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import lwm
from lwm import episodes, recording, session
from lwm.config import load_preset
from lwm.envs.gymnasium import GymEnv
from lwm.envs.vector import make_env
from lwm.errors import BadInput, RunFailed
from lwm.sections import GymConfig
from lwm.streams import environment_seeds
from lwm.training import Trainer
from lwm.types import Step


class Counter(gym.Env[np.ndarray, int]):
    """Shows (its seed, episode, step); action 1 ends it from step 3 on, the sixth truncates."""

    observation_space = gym.spaces.Box(-1, 1e9, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)
    fails_at = 10**9

    def __init__(self) -> None:
        self.number, self.episode, self.t = -1, -1, 0

    def _obs(self) -> np.ndarray:
        return np.array([self.number, self.episode, self.t], np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.number = seed % 100
        self.episode, self.t = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        if self.t >= self.fails_at:
            raise KeyError("the door is stuck")
        return self._obs(), float(self.t), bool(action == 1 and self.t >= 3), self.t >= 6, {}


class Broken(Counter):
    fails_at = 5


class Large(Counter):
    """210 x 160 x 3 bytes an observation."""

    observation_space = gym.spaces.Box(0, 255, (210, 160, 3), np.uint8)  # type: ignore[assignment]

    def _obs(self) -> np.ndarray:
        return np.zeros((210, 160, 3), np.uint8)


class Wordy(Counter):
    observation_space = gym.spaces.Text(5)  # type: ignore[assignment]


class Steering(Counter):
    action_space = gym.spaces.Box(-1, 1, (2,))  # type: ignore[assignment]


class Drawn(Counter):
    """Draws itself: 200 x 400, red is twice the step."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode

    def render(self) -> Any:
        assert self.render_mode == "rgb_array"
        frame = np.zeros((200, 400, 3), np.uint8)
        frame[..., 0] = 2 * self.t
        return frame


def _vector(mode: AutoresetMode) -> Any:
    return lambda num_envs, **_: SyncVectorEnv([Counter] * num_envs, autoreset_mode=mode)


IDS = {
    "test/Counter-v0": (Counter, None),
    "test/Same-v0": (Counter, AutoresetMode.SAME_STEP),
    "test/Disabled-v0": (Counter, AutoresetMode.DISABLED),
    "test/Broken-v0": (Broken, None),
    "test/Large-v0": (Large, None),
    "test/Wordy-v0": (Wordy, None),
    "test/Steering-v0": (Steering, None),
    "test/Drawn-v0": (Drawn, None),
}


@pytest.fixture(autouse=True, scope="module")
def registered() -> Iterator[None]:
    for name, (entry, mode) in IDS.items():
        vector = {} if mode is None else {"vector_entry_point": _vector(mode)}
        gym.register(name, entry, disable_env_checker=True, order_enforce=False, **vector)
    yield
    for name in IDS:
        del gym.registry[name]


def walk(env: GymEnv, steps: int, seed: int = 0) -> list[Step]:
    """Rows of a walk with random actions."""
    rng = np.random.default_rng(seed)
    rows = [env.reset()]
    for _ in range(steps):
        env.send(rng.integers(2, size=env.num_envs))
        rows.append(env.recv())
    return rows


def open_env(name: str, count: int = 3) -> GymEnv:
    mode = "sync" if IDS[name][1] is None else "vector_entry_point"
    return GymEnv(GymConfig(env=name, vectorization=mode), np.arange(count))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["test/Counter-v0", "test/Same-v0", "test/Disabled-v0"])
def test_rows_obey_the_time_law(name: str) -> None:
    rows = walk(open_env(name), 60)
    wanted = 0 if name == "test/Counter-v0" else 1  # else the first action is drawn at random
    ends = 0
    numbers = rows[0].obs[:, 0]
    assert len(set(numbers.tolist())) == 3  # of their seeds: every lane has its own
    for lane in range(3):
        for before, row in pairwise(rows):
            number, episode, t = row.obs[lane]
            assert row.is_first[lane] == before.is_last[lane]
            if row.is_first[lane]:
                assert t == wanted and row.r_t[lane] == 0 and row.a_tm1[lane] == 0
                assert episode == before.obs[lane, 1] + 1 and row.discount_t[lane] == 1
                assert row.episode_length[lane] == 0 and not row.is_last[lane]
                continue
            # One step of the same episode, paid what the environment pays, the final one included.
            assert number == numbers[lane]
            assert (episode, t) == (before.obs[lane, 1], before.obs[lane, 2] + 1)
            assert row.r_t[lane] == t
            terminated = row.a_tm1[lane] == 1 and t >= 3
            assert row.is_last[lane] == (terminated or t >= 6)
            assert row.discount_t[lane] == (not terminated)
            assert row.episode_length[lane] == t - (wanted if episode else 0)
            ends += row.is_last[lane]
    assert ends > 20


def test_the_same_seeds_give_the_same_episodes_in_processes() -> None:
    cart = "CartPole-v1"
    rows = {
        mode: walk(GymEnv(GymConfig(env=cart, vectorization=mode), np.arange(4)), 40)  # type: ignore[arg-type]
        for mode in ("sync", "async")
    }
    for a, b in zip(rows["sync"], rows["async"], strict=True):
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    assert len(np.unique(rows["sync"][0].obs, axis=0)) == 4


def test_training_validation_and_test_begin_differently() -> None:
    """Our seeds tell their purpose in bits that most environments do not take."""
    seeds = {purpose: environment_seeds(purpose, 16) for purpose in ("train", "validation", "test")}
    begun = [GymEnv(GymConfig(env="CartPole-v1"), found).reset().obs for found in seeds.values()]
    assert len(np.unique(np.concatenate(begun), axis=0)) == 3 * 16


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"env": ""}, "no environment; give --env ID"),
        ({"env": "Nowhere-v0"}, "environment Nowhere-v0, make: NameNotFound"),
        ({"env": "no_such_module:X-v0"}, "ModuleNotFoundError"),
        ({"env": "test/Wordy-v0"}, "test/Wordy-v0: no encoder for the observation space Text"),
        ({"env": "test/Steering-v0"}, "test/Steering-v0 has the action space Box"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_in_one_line(
    settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadInput) as caught:
        GymEnv(GymConfig(**settings), np.arange(2))
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_run_stops_with_the_environments_error_and_its_checkpoint_is_good(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Broken, "fails_at", 10**9)
    changes = {"gym.env": "test/Broken-v0", "loop.total_frames": 400}
    writer, trainer = session.start(load_preset("debug", changes, "gym"), tmp_path / "run")
    original = trainer.cycle

    def cycle() -> None:
        if trainer.frames > 250:
            monkeypatch.setattr(Broken, "fails_at", 0)
        original()

    monkeypatch.setattr(trainer, "cycle", cycle)
    where = r"\(test_gymnasium\.py, line \d+, in step\)"
    with pytest.raises(RunFailed, match=rf"test/Broken-v0, step: KeyError.*door is stuck' {where}"):
        session.run(writer, trainer)
    monkeypatch.setattr(Broken, "fails_at", 10**9)
    writer, again = session.reopen(tmp_path / "run")
    assert 200 <= again.frames <= 250
    result = session.run(writer, again)
    assert result["frames"] >= 400


def test_a_module_that_is_not_found_is_told_with_a_way_to_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadInput, match=r"No module named 'not_here'.*PYTHONPATH=\. lwm"):
        GymEnv(GymConfig(env="not_here.envs:E-v0"), np.arange(2))
    (tmp_path / "needy.py").write_text("import not_here")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(BadInput, match="No module named 'not_here'") as caught:
        GymEnv(GymConfig(env="needy:E-v0"), np.arange(2))
    assert "PYTHONPATH" not in str(caught.value), "it was found, and needs another"


def test_more_replay_than_memory_is_refused_with_the_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "available_bytes", lambda: 2 << 30)
    changes = {"gym.env": "test/Large-v0", "replay.capacity_steps": 30_000}
    message = r"needs about 3\.7 GiB, of which 2\.8 GiB for replay\.capacity_steps=30000; 2\.0 GiB"
    with pytest.raises(BadInput, match=message):
        session.start(load_preset("debug", changes, "gym"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("agent", ["lwm", "lwm-ff", "lwm-rf", "rnd", "icm", "dqn", "random"])
def test_each_agent_trains_on_vectors(agent: str) -> None:
    config = load_preset("debug", {"gym.env": "CartPole-v1", "agent": agent}, "gym")
    events = list(lwm.train(config))
    assert events[-1].kind == "end" and events[-1].frames >= 260
    trained = [e.data for e in events if e.kind == "train" and e.data["updates"]]
    assert all(np.isfinite(v) for data in trained for v in data.values())
    assert (agent == "random") == (not trained)


def test_the_same_seed_gives_the_same_run() -> None:
    config = load_preset("debug", {"gym.env": "CartPole-v1"}, "gym")
    a, b = (list(lwm.train(config)) for _ in range(2))
    assert a == b


def test_what_follows_from_the_observations() -> None:
    bits = load_preset("debug", {"gym.env": "lwm:lwm/Labyrinth-v0"}, "gym")
    trainer = Trainer(bits)
    assert trainer.config.world_model.sigmoid_output and trainer.learner.encoder is None
    trainer.close()
    vector = Trainer(load_preset("debug", {"gym.env": "CartPole-v1"}, "gym"))
    assert not vector.config.world_model.sigmoid_output and vector.config.encoder.spatial_shift == 0
    assert vector.learner.encoder is not None and vector.learner.dqn.normaliser is not None
    vector.close()


def test_minigrid_is_seen_as_image_and_direction() -> None:
    pytest.importorskip("minigrid", reason="the extra minigrid is not installed")
    config = load_preset("debug", {"gym.env": "MiniGrid-DoorKey-5x5-v0"}, "gym")
    env = make_env(config, environment_seeds("train", 2))
    assert isinstance(env, GymEnv) and str(env.sense) == "7×7 image of 3 channels and 4 bits"
    assert env.reset().obs.shape == (2, 7 * 7 * 3 + 4)
    env.close()
    assert list(lwm.train(config))[-1].kind == "end"


def test_an_episode_can_be_recorded(tmp_path: Any) -> None:
    config = load_preset("debug", {"gym.env": "CartPole-v1"}, "gym")
    writer, trainer = session.start(config, tmp_path / "run")
    session.run(writer, trainer)
    (path,) = recording.record(session.load(tmp_path / "run"), tmp_path / "run", 1)
    episode = episodes.read_episode(path)
    assert episode.meta["environment"] == "CartPole-v1"
    rows = len(episode.fields["obs"])
    assert episode.fields["obs"].shape == (rows, 4) and episode.meta["score"] == rows - 1


def test_environments_that_draw_are_recorded_as_pictures(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_preset("debug", {"gym.env": "test/Drawn-v0"}, "gym")
    trainer = Trainer(config)
    assert isinstance(trainer.env, GymEnv) and trainer.env.picture() is None  # nobody asked
    episode = recording.play(trainer, 0)
    frames = episode.fields["picture"]  # blocks of 3 x 3 pixels: the least that gives 160
    assert frames.shape == (episode.rows, 66, 133, 3) and frames.dtype == np.uint8
    # What is drawn in a row is the state that its observation tells of.
    steps = episode.fields["obs"][:, 2]
    assert steps[-1] >= 3 and (frames[..., 0] == 2 * steps[:, None, None]).all()
    assert not frames[..., 1:].any()
    monkeypatch.setattr(recording, "MAX_PICTURE_BYTES", frames.nbytes - 1)
    assert "picture" not in recording.play(trainer, 0).fields
    trainer.close()
