"""The noisy TV: where it stands, who changes its screen, and that it goes on where it was saved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lwm.config import load_preset
from lwm.envs.labyrinth_vector import LabyrinthVectorEnv
from lwm.envs.television import PATCH, ImageTelevision, Television, TelevisionLabyrinth
from lwm.envs.vector import make_env
from lwm.streams import environment_seeds
from lwm.types import Step
from trees import same

RETUNE = TelevisionLabyrinth.RETUNE
LANES = 64


def _code(obs: NDArray[np.int8]) -> NDArray[np.int64]:
    return (obs[:, 4:].astype(np.int64) << np.arange(8)).sum(1)


def test_the_screen_shows_in_its_room_alone_and_changes_by_retuning_there() -> None:
    env = TelevisionLabyrinth(LANES, size=3)
    rng = np.random.default_rng(0)
    obs, _ = env.reset(seed=0)
    ended, changes, still = np.zeros(LANES, np.bool_), 0, 0
    for _ in range(600):
        room, screen, tv = env.room, env.screen.copy(), env.tv_room.copy()
        actions = rng.integers(5, size=LANES)
        obs, reward, terminated, truncated, _ = env.step(actions)
        here = env.room == env.tv_room
        assert obs.shape == (LANES, 12)
        assert np.array_equal(_code(obs), np.where(here, env.screen, 0))
        going = ~ended
        tuned = going & (actions == RETUNE)
        assert np.array_equal(env.room[tuned], room[tuned]), "who re-tunes stays"
        assert np.array_equal(env.tv_room[going], tv[going]), "the TV is not carried about"
        assert (reward[going] == -1).all()
        front = tuned & here
        assert np.array_equal(env.screen[going & ~front], screen[going & ~front])
        assert np.array_equal(env.changed, front & (env.screen != screen))
        changes += int(env.changed.sum())
        still += int((front & ~env.changed).sum())
        ended = terminated | truncated
    assert changes > 200 and still < changes / 50  # one screen in 256 is the same again


def test_rooms_and_screens_are_uniform() -> None:
    env = TelevisionLabyrinth(4096, size=3)
    env.reset(seed=1)
    rooms = np.bincount(env.tv_room, minlength=9)
    bits = (env.screen[:, None] >> np.arange(8) & 1).mean(0)
    # Four standard deviations: of counts sqrt(4096 * 8 / 81) = 20, of means 0.5 / 64.
    assert np.abs(rooms - 4096 / 9).max() < 80 and np.abs(bits - 0.5).max() < 0.032


def test_in_a_smaller_labyrinth_the_tv_stands_inside_it() -> None:
    env = TelevisionLabyrinth(4096, size=4)
    env.carved_size = 2
    env.reset(seed=1)
    rooms, counts = np.unique(env.tv_room, return_counts=True)
    assert rooms.tolist() == [0, 1, 4, 5] and (abs(counts / 4096 - 1 / 4) < 0.03).all()


def test_walking_is_as_without_a_tv() -> None:
    plain, tv = LabyrinthVectorEnv(LANES, size=4), TelevisionLabyrinth(LANES, size=4)
    rng = np.random.default_rng(2)
    assert np.array_equal(plain.reset(seed=3)[0], tv.reset(seed=3)[0][:, :4])
    for _ in range(300):
        actions = rng.integers(4, size=LANES)
        a, b = plain.step(actions), tv.step(actions)
        assert np.array_equal(a[0], b[0][:, :4]) and not tv.changed.any()
        assert all(np.array_equal(x, y) for x, y in zip(a[1:4], b[1:4], strict=True))


def _slowness(x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
    """Autocorrelations, falling, of the linear functions of x_t and y_t = x_{t+1} [N, D]."""
    both = np.concatenate([x, y]).astype(np.float64)
    mean, covariance = both.mean(0), np.cov(both.T)
    cross = (x - mean).T @ (y - mean) / len(x)
    values, vectors = np.linalg.eigh(covariance)
    scale = vectors[:, values > 1e-9] / np.sqrt(values[values > 1e-9])
    found: NDArray[np.float64] = np.linalg.eigvalsh(scale.T @ (cross + cross.T) / 2 @ scale)[::-1]
    return found


def test_eight_features_are_slower_than_the_noise() -> None:
    """What docs/noisy-tv.md explains the embedding sizes with: functions of doors and TV room.

    A screen is seen again after a step if the agent ran into a wall: in a dead end by three of five
    actions, so that no function of the screen can have more than 0.6.
    """
    env = TelevisionLabyrinth(256, size=3)
    rng = np.random.default_rng(0)
    seen, watched, first = [env.reset(seed=0)[0]], [env.watched], []
    ended = np.zeros(256, np.bool_)
    for _ in range(500):
        obs, _, terminated, truncated, _ = env.step(rng.integers(5, size=256))
        seen.append(obs)
        watched.append(env.watched)
        first.append(ended)
        ended = terminated | truncated
    obs, here = np.array(seen), np.array(watched)
    inside = ~np.array(first)
    doors = np.eye(32)[(obs[..., :4] << np.arange(4)).sum(-1) + 16 * here]
    screen = (obs[..., 4:] - 0.5) * here[..., None]
    slow = _slowness(doors[:-1][inside], doors[1:][inside])
    noise = _slowness(screen[:-1][inside], screen[1:][inside])
    assert slow[7] > 0.68 and 0.5 < slow[12] < 0.65
    assert len(noise) == 8 and noise[-1] > 0.35 and noise[0] < 0.6


@pytest.mark.parametrize("actions", [[5] * LANES, [-1] * LANES, [0.5] * LANES, [0]])
def test_wrong_actions_are_refused_and_change_nothing(actions: list[Any]) -> None:
    env = TelevisionLabyrinth(LANES)
    env.reset(seed=0)
    before = env.get_state()
    with pytest.raises(ValueError, match="action"):
        env.step(np.array(actions))
    assert same(before, env.get_state())


class Pictures:
    """Black pictures; environment 0 ends its episode at every third row."""

    num_envs, num_actions = 3, 18
    obs_shape, obs_dtype = (84, 84), np.dtype(np.uint8)
    ram = np.zeros((3, 128), np.uint8)

    def __init__(self) -> None:
        self.count = 0
        self.sent = np.zeros(3, np.int64)

    def reset(self) -> Step:
        self.count = 0
        return self._row()

    def send(self, actions: NDArray[np.int64]) -> None:
        assert actions.max() < 18, "the games know no TV"
        self.sent = actions

    def recv(self) -> Step:
        self.count += 1
        return self._row()

    def _row(self) -> Step:
        first = np.array([self.count % 3 == 0, self.count == 0, self.count == 0])
        last = np.array([self.count % 3 == 2, False, False])
        zero = np.zeros(3, np.float32)
        obs = np.zeros((3, 84, 84), np.uint8)
        length = np.zeros(3, np.int64)
        return Step(obs, self.sent * ~first, zero, first, last, zero + 1, zero, length, last)

    def get_state(self) -> dict[str, Any]:
        return {"count": self.count}

    def set_state(self, state: dict[str, Any]) -> None:
        self.count = state["count"]

    def rejoin(self, step: Step) -> Step:
        return step

    def set_time_limit(self, steps: int) -> None: ...

    def rest(self, lanes: NDArray[np.int64]) -> None: ...

    def close(self) -> None: ...


def _play(env: ImageTelevision, rows: int, seed: int) -> Iterator[tuple[Step, NDArray[np.bool_]]]:
    rng = np.random.default_rng(seed)
    for _ in range(rows):
        env.send(np.where(rng.random(3) < 0.4, 18, rng.integers(18, size=3)))
        step = env.recv()
        yield step, env.changed


def test_the_patch_is_redrawn_by_retuning_alone() -> None:
    env = ImageTelevision(Pictures(), np.arange(3))
    assert env.num_actions == 19
    before = env.reset().obs
    patch = before[:, :PATCH, -PATCH:]
    assert not np.array_equal(patch[0], patch[1])
    assert patch.min() == 0 and patch.max() == 255 and abs(patch.mean() - 127.5) < 6
    seen = 0
    for step, changed in _play(env, 60, 0):
        rest = step.obs.copy()
        rest[:, :PATCH, -PATCH:] = 0
        assert not rest.any(), "the picture beside the patch is the game's"
        differs = (step.obs != before).any((1, 2))
        assert np.array_equal(differs, changed) and np.array_equal(changed, env.watched)
        assert np.array_equal(changed, (step.a_tm1 == 18) & ~step.is_first)
        seen += int(changed.sum())
        before = step.obs
    assert seen > 30


def test_a_tv_over_images_goes_on_where_it_was_saved() -> None:
    env, other = (ImageTelevision(Pictures(), np.arange(3)) for _ in range(2))
    env.reset()
    *_, (step, _) = _play(env, 20, 1)
    other.set_state(env.get_state())
    assert same(other.rejoin(step)._asdict(), step._asdict())
    assert np.array_equal(other.changed, env.changed)
    for (a, _), (b, _) in zip(_play(env, 20, 2), _play(other, 20, 2), strict=True):
        assert same(a._asdict(), b._asdict())


def test_a_labyrinth_with_a_tv_goes_on_where_it_was_saved() -> None:
    config = load_preset("debug", {"env.tv": True})
    envs = [make_env(config, environment_seeds("train", 8)) for _ in range(2)]
    rng = np.random.default_rng(0)
    for env in envs:
        assert isinstance(env, Television) and env.num_actions == 5 and env.obs_shape == (12,)
    env, other = envs
    env.reset()
    for k in range(120):
        if k == 50:
            other.set_state(env.get_state())
        actions = rng.integers(5, size=8)
        steps = []
        for each in envs if k >= 50 else [env]:
            each.send(actions)
            steps.append(each.recv())
            assert isinstance(each, Television)
        if k >= 50:
            assert same(steps[0]._asdict(), steps[1]._asdict())
            assert np.array_equal(env.changed, other.changed)  # type: ignore[attr-defined]
