"""The labyrinth: its layouts, its rules, and one environment against many."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import lwm
from lwm.envs.labyrinth import LabyrinthEnv
from lwm.envs.labyrinth_layouts import (
    CARVE_STARTS,
    _mix,
    _mix_one,
    carve,
    carve_bits,
    carve_one,
    layout_probabilities,
)
from lwm.envs.labyrinth_render import AGENT, UNVISITED, VISITED
from lwm.envs.labyrinth_vector import LabyrinthVectorEnv
from trees import same

UP, DOWN, LEFT, RIGHT = range(4)
ID = "lwm/Labyrinth-v0"


def reachable(doors: np.ndarray, size: int) -> int:
    """Rooms that can be reached from room 0 through doors [size*size, 4]."""
    seen, queue = {0}, [0]
    for room in queue:
        for way, step in enumerate((-size, size, -1, 1)):
            if doors[room, way] and room + step not in seen:
                seen.add(room + step)
                queue.append(room + step)
    return len(seen)


def seed_with(start: int, size: int = 2) -> int:
    """The first seed whose episode 0 begins in a given room."""
    return next(s for s in range(1000) if carve_one(s, 0, size)[1] == start)


def test_the_generator_is_splitmix64() -> None:
    """The published outputs of splitmix64 for seed 1234567."""
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    states = [1234567 + (k + 1) * 0x9E3779B97F4A7C15 for k in range(3)]
    assert [_mix_one(x) for x in states] == known
    wrapped = np.array([x % 2**64 for x in states], np.uint64)
    assert _mix(wrapped).tolist() == known


@pytest.mark.parametrize("carve_start", CARVE_STARTS)
@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 16])
def test_a_layout_is_a_spanning_tree(size: int, carve_start: str) -> None:
    doors, start = carve(np.arange(40), 7, size, carve_start)
    rooms = size * size
    assert doors.shape == (40, rooms, 4) and doors.dtype == np.bool_
    assert ((start >= 0) & (start < rooms)).all()
    grid = doors.reshape(40, size, size, 4)
    assert not grid[:, 0, :, UP].any() and not grid[:, -1, :, DOWN].any()
    assert not grid[:, :, 0, LEFT].any() and not grid[:, :, -1, RIGHT].any()
    assert (grid[:, :-1, :, DOWN] == grid[:, 1:, :, UP]).all()
    assert (grid[:, :, :-1, RIGHT] == grid[:, :, 1:, LEFT]).all()
    assert (doors.sum(axis=(1, 2)) == 2 * (rooms - 1)).all()
    assert [reachable(d, size) for d in doors] == [rooms] * 40


@pytest.mark.parametrize("carve_start", CARVE_STARTS)
@pytest.mark.parametrize("size", [2, 3, 4, 5, 9])
def test_batched_layouts_equal_single_ones(size: int, carve_start: str) -> None:
    seeds = np.array([0, 1, 2, 3, 2**40, 2**62 + 5, 2**63 - 1] * 5)
    episodes = np.arange(35) * 13
    doors, start = carve_bits(seeds, episodes, size, carve_start)
    for i in range(35):
        expected = carve_one(int(seeds[i]), int(episodes[i]), size, carve_start)
        assert (doors[i].tolist(), int(start[i])) == expected


def test_layouts_of_2x2_by_hand() -> None:
    """From room 0 the carver goes right or down and has no choice after that."""
    right_first = (8, 4 + 2, 8, 1 + 4)
    down_first = (2, 2, 1 + 8, 4 + 1)
    expected = {right_first: Fraction(1, 2), down_first: Fraction(1, 2)}
    assert layout_probabilities(2) == expected


@pytest.mark.parametrize(("size", "count"), [(3, 14), (4, 322)])
def test_number_of_layouts_and_sampled_ones_among_them(size: int, count: int) -> None:
    exact = layout_probabilities(size)
    assert len(exact) == count
    assert sum(exact.values()) == 1
    doors, _ = carve_bits(np.arange(3000), 0, size)
    assert {tuple(row) for row in doors.tolist()} <= set(exact)


def test_frequencies_of_3x3_layouts_and_start_rooms() -> None:
    exact = layout_probabilities(3)
    total = 20_000
    doors, start = carve_bits(np.arange(total) % 100, np.arange(total) // 100, 3)
    counts = Counter(tuple(row) for row in doors.tolist())
    assert counts.keys() == exact.keys()
    for layout, chance in exact.items():
        p = float(chance)
        assert abs(counts[layout] - total * p) < 5 * np.sqrt(total * p * (1 - p))
    per_room = np.bincount(start, minlength=9)
    assert np.abs(per_room - total / 9).max() < 5 * np.sqrt(total / 9 * 8 / 9)


def test_a_random_carving_start_makes_other_layouts() -> None:
    doors, _ = carve_bits(np.arange(2000), 0, 3, "random")
    assert len({tuple(row) for row in doors.tolist()}) > 14


def test_a_walk_by_hand() -> None:
    """2x2 is a corridor of four rooms with its ends at room 0 and beside it."""
    seed = seed_with(start=0)
    doors, _ = carve_one(seed, 0, 2)
    first, second, third = (RIGHT, DOWN, LEFT) if doors[0] == 8 else (DOWN, RIGHT, UP)
    env = LabyrinthEnv(2)
    obs, info = env.reset(seed=seed)
    assert info == {} and obs.dtype == np.int8
    assert obs.tolist() == [int(way == first) for way in range(4)]
    same, *rest = env.step(UP)
    assert same.tolist() == obs.tolist() and rest == [-1.0, False, False, {}]
    obs, *rest = env.step(first)
    assert obs.tolist() == [int(way in (first ^ 1, second)) for way in range(4)]
    assert rest == [-1.0, False, False, {}]
    assert env.step(second)[1:4] == (-1.0, False, False)
    obs, *rest = env.step(third)
    assert obs.tolist() == [int(way == third ^ 1) for way in range(4)]
    assert rest == [-1.0, True, False, {}]


@pytest.mark.parametrize("vector", [False, True])
def test_the_time_limit_truncates_unless_the_step_terminates(vector: bool) -> None:
    seed = seed_with(start=0)
    doors, _ = carve_one(seed, 0, 2)
    path = (RIGHT, DOWN, LEFT) if doors[0] == 8 else (DOWN, RIGHT, UP)

    def ends(actions: tuple[int, ...]) -> list[tuple[bool, bool]]:
        if vector:
            many = LabyrinthVectorEnv(1, 2, time_limit=3)
            many.reset(seed=seed)
            steps: list[Any] = [many.step(np.array([a])) for a in actions]
        else:
            one = LabyrinthEnv(2, time_limit=3)
            one.reset(seed=seed)
            steps = [one.step(a) for a in actions]
        return [(bool(s[2]), bool(s[3])) for s in steps]

    goes_on = (False, False)
    assert ends(path) == [goes_on, goes_on, (True, False)]
    assert ends((UP, UP, UP)) == [goes_on, goes_on, (False, True)]


def test_seeds_and_episodes() -> None:
    def first(env: LabyrinthEnv) -> tuple[list[int], int]:
        return env._doors, env._room

    env = LabyrinthEnv(4)
    for seed in (5, 2**62):
        env.reset(seed=seed)
        assert first(env) == carve_one(seed, 0, 4)
        env.reset()
        assert first(env) == carve_one(seed, 1, 4)
    unseeded = set()
    for _ in range(5):
        fresh = LabyrinthEnv(8)
        fresh.reset()
        unseeded.add(tuple(fresh._doors))
    assert len(unseeded) == 5

    many = LabyrinthVectorEnv(3, 4)
    for given, seeds in ((5, [5, 6, 7]), ([9, 9, 2**62], [9, 9, 2**62])):
        many.reset(seed=given)
        assert (many.doors == carve(seeds, 0, 4)[0]).all()
        assert many.room.tolist() == carve(seeds, 0, 4)[1].tolist()
        many.reset()
        assert (many.doors == carve(seeds, 1, 4)[0]).all()
    unseeded_many = LabyrinthVectorEnv(5, 8)
    unseeded_many.reset()
    assert len({d.tobytes() for d in unseeded_many.doors}) == 5


@pytest.mark.parametrize(
    ("lanes", "size", "time_limit", "carve_start", "steps"),
    [
        (3, 2, 6, "corner", 700),  # some 150 episodes per lane, more than the queue holds
        (5, 3, 40, "random", 400),
        (200, 2, 9, "corner", 90),  # a short queue, refilled often
        (2, 6, 1000, "corner", 1500),
    ],
)
def test_many_equal_one(
    lanes: int, size: int, time_limit: int, carve_start: str, steps: int
) -> None:
    """Every lane of the vector environment against its own single one, reset rows included."""
    many = LabyrinthVectorEnv(lanes, size, time_limit, carve_start)
    ones = [LabyrinthEnv(size, time_limit, carve_start) for _ in range(lanes)]
    obs, _ = many.reset(seed=11)
    assert obs.tolist() == [one.reset(seed=11 + i)[0].tolist() for i, one in enumerate(ones)]
    rng = np.random.default_rng(0)
    ended = [False] * lanes
    seen = Counter[str]()
    for _ in range(steps):
        actions = rng.integers(4, size=lanes)
        obs, rewards, terminated, truncated, _ = many.step(actions)
        for i, one in enumerate(ones):
            if ended[i]:
                expected: tuple[Any, ...] = (one.reset()[0], 0.0, False, False)
            else:
                expected = one.step(actions[i])[:4]
            assert obs[i].tolist() == expected[0].tolist()
            assert (rewards[i], terminated[i], truncated[i]) == expected[1:]
            ended[i] = expected[2] or expected[3]
            seen["terminated"] += expected[2]
            seen["truncated"] += expected[3]
            assert many.room[i] == one._room
    assert (many.visited == ~np.array([one._unvisited for one in ones])).all()
    assert seen["truncated"] > 0 and (size > 3 or seen["terminated"] > 0)


def test_gymnasiums_own_vector_environment_agrees() -> None:
    ours = gym.make_vec(ID, num_envs=6, size=3, time_limit=25)
    theirs = gym.make_vec(ID, num_envs=6, size=3, time_limit=25, vectorization_mode="sync")
    assert isinstance(ours, LabyrinthVectorEnv) and isinstance(theirs, SyncVectorEnv)
    assert ours.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    np.testing.assert_array_equal(ours.reset(seed=3)[0], theirs.reset(seed=3)[0])
    ours.action_space.seed(0)
    for _ in range(300):
        actions = ours.action_space.sample()
        for a, b in zip(ours.step(actions)[:4], theirs.step(actions)[:4], strict=True):
            np.testing.assert_array_equal(a, b)
            assert a.dtype == b.dtype
    theirs.close()


def test_gymnasiums_checker_finds_nothing() -> None:
    """Warnings are errors in these tests."""
    for mode in (None, "ansi", "rgb_array"):
        check_env(gym.make(ID, size=4, render_mode=mode).unwrapped)


def play(env: LabyrinthVectorEnv, actions: np.ndarray) -> list[list[Any]]:
    """All that the environment returns for actions [T, N]."""
    return [[x.tolist() for x in env.step(a)[:4]] for a in actions]


def test_going_on_from_a_state_is_exact() -> None:
    actions = np.random.default_rng(1).integers(4, size=(600, 16))
    env = LabyrinthVectorEnv(16, 3, time_limit=50)
    env.reset(seed=2**61)
    step = 0
    while not (step >= 200 and env.get_state()["finished"].any()):
        play(env, actions[step : step + 1])
        step += 1
    state = {name: value.copy() for name, value in env.get_state().items()}
    assert all(value.dtype.kind in "biu" for value in state.values())
    other = LabyrinthVectorEnv(16, 3, time_limit=50)
    other.set_state(state)
    twin = copy.deepcopy(env)
    expected = play(env, actions[step:])
    assert play(other, actions[step:]) == expected
    assert play(twin, actions[step:]) == expected
    assert (other.doors == env.doors).all() and (other.visited == env.visited).all()
    assert env.reset()[0].tolist() == other.reset()[0].tolist()
    with pytest.raises(ValueError, match=r"\(16, 9\)"):
        LabyrinthVectorEnv(16, 4).set_state(state)


@pytest.mark.parametrize("carve_start", CARVE_STARTS)
def test_smaller_labyrinths_in_the_corner_of_a_map(carve_start: str) -> None:
    """The same episodes as on a map of their own size; the map around them is not there."""
    actions = np.random.default_rng(2).integers(4, size=(300, 8))
    small = LabyrinthVectorEnv(8, 3, 40, carve_start)
    large = LabyrinthVectorEnv(8, 5, 40, carve_start)
    large.carved_size = 3
    assert small.reset(seed=5)[0].tolist() == large.reset(seed=5)[0].tolist()
    assert play(small, actions) == play(large, actions)
    doors = large.doors.reshape(8, 5, 5, 4)
    visited = large.visited.reshape(8, 5, 5)
    assert (doors[:, :3, :3].reshape(8, 9, 4) == small.doors).all()
    assert (visited[:, :3, :3].reshape(8, 9) == small.visited).all()
    for around in (np.s_[:, 3:], np.s_[:, :, 3:]):
        assert not doors[around].any() and visited[around].all()


def test_labyrinths_grow_from_the_next_episode_on() -> None:
    actions = np.random.default_rng(3).integers(4, size=(400, 8))
    env = LabyrinthVectorEnv(8, 5, time_limit=30)
    env.carved_size = 3
    env.reset(seed=1)
    play(env, actions[:100])
    before, lanes = env.get_state(), np.arange(8)
    assert set((env.doors.any(axis=2)).sum(axis=1)) == {9}
    env.carved_size = 4
    assert same(env.get_state(), before)  # episodes that have begun keep their size
    twin = LabyrinthVectorEnv(8, 5, time_limit=30)
    twin.set_state(before)
    twin.carved_size = 4
    assert play(env, actions[100:]) == play(twin, actions[100:])
    assert set((env.doors.any(axis=2)).sum(axis=1)) == {16}
    expected, _ = carve(1 + lanes, env.get_state()["episode"], 4)
    assert (env.doors.reshape(8, 5, 5, 4)[:, :4, :4].reshape(8, 16, 4) == expected).all()
    for size in (1, 6):
        with pytest.raises(ValueError, match=r"carved_size lies in 2 \.\. 5"):
            env.carved_size = size


def test_returned_arrays_are_not_reused() -> None:
    env = LabyrinthVectorEnv(4, 3)
    obs, _ = env.reset(seed=0)
    out = [obs, *env.step(np.zeros(4, np.int64))[:4]]
    kept = [x.copy() for x in out]
    state = env.get_state()
    kept_state = {name: value.copy() for name, value in state.items()}
    for way in range(40):
        env.step(np.full(4, way % 4))
    assert all((a == b).all() for a, b in zip(out, kept, strict=True))
    assert all((state[name] == kept_state[name]).all() for name in state)


@pytest.mark.parametrize("cls", [LabyrinthEnv, LabyrinthVectorEnv])
def test_bad_options_are_refused(cls: type[Any]) -> None:
    for bad, words in (
        ({"size": 1}, "at least 2"),
        ({"size": 3.5}, "integers"),
        ({"time_limit": 0}, "at least 1"),
        ({"carve_start": "middle"}, "carve_start"),
    ):
        with pytest.raises(ValueError, match=words):
            cls(**bad)


def test_bad_calls_are_refused() -> None:
    with pytest.raises(ValueError, match="num_envs"):
        LabyrinthVectorEnv(0)
    env, many = LabyrinthEnv(3), LabyrinthVectorEnv(3, 3)
    with pytest.raises(ResetNeeded):
        env.step(0)
    with pytest.raises(ResetNeeded):
        many.step(np.zeros(3, np.int64))
    env.reset(seed=0)
    many.reset(seed=0)
    for bad in (-1, 4):
        with pytest.raises(ValueError, match="0, 1, 2 or 3"):
            env.step(bad)
        with pytest.raises(ValueError, match="0, 1, 2 or 3"):
            many.step(np.array([0, bad, 0]))
    for wrong in (np.zeros(4, np.int64), np.zeros(3)):
        with pytest.raises(ValueError, match="3 integers"):
            many.step(wrong)
    for seed in (-1, [1, 2], 1.5, 2**63 - 1):
        with pytest.raises(ValueError, match="seed"):
            many.reset(seed=seed)  # type: ignore[arg-type]


def test_the_action_after_an_end_is_ignored() -> None:
    env = LabyrinthVectorEnv(2, 4, time_limit=1)
    env.reset(seed=0)
    assert env.step(np.array([0, 0]))[3].all()
    obs, rewards, terminated, truncated, _ = env.step(np.array([-1, 99]))
    doors, start = carve([0, 1], 1, 4)
    assert obs.tolist() == doors[[0, 1], start].astype(int).tolist()
    assert rewards.tolist() == [0, 0] and not terminated.any() and not truncated.any()


def test_pictures() -> None:
    env = LabyrinthEnv(3, render_mode="rgb_array")
    with pytest.raises(ResetNeeded):
        env.render()
    obs, _ = env.reset(seed=0)
    way = int(obs.argmax())
    start = env._room
    env.step(way)
    picture = env.render()
    assert picture.shape == (99, 99, 3) and picture.dtype == np.uint8

    def corner(room: int) -> tuple[int, ...]:
        return tuple(picture[(room // 3) * 32 + 5, (room % 3) * 32 + 5].tolist())

    def middle(room: int) -> tuple[int, ...]:
        return tuple(picture[(room // 3) * 32 + 17, (room % 3) * 32 + 17].tolist())

    seen = {start, start + (-3, 3, -1, 1)[way]}
    for room in range(9):
        assert corner(room) == (VISITED if room in seen else UNVISITED)
        assert (middle(room) == AGENT) == (room == env._room)
    # The wall between two rooms is broken where there is a door and only there.
    doors = env._doors
    for room in range(6):
        wall = tuple(picture[(room // 3 + 1) * 32 + 1, (room % 3) * 32 + 17].tolist())
        assert (wall in (VISITED, UNVISITED)) == bool(doors[room] & 2)

    many = LabyrinthVectorEnv(2, 3, render_mode="rgb_array")
    many.reset(seed=0)
    many.step(np.array([way, 0]))
    pictures = many.render()
    assert len(pictures) == 2 and (pictures[0] == picture).all()
    assert LabyrinthEnv(3).render() is None


def test_text() -> None:
    env = LabyrinthEnv(2, render_mode="ansi")
    env.reset(seed=seed_with(start=0))
    if env._doors[0] == 8:
        expected = "+---+---+\n| @     |\n+---+   +\n|       |\n+---+---+"
    else:
        expected = "+---+---+\n| @ |   |\n+   +   +\n|       |\n+---+---+"
    assert env.render() == expected


def run(code: str) -> None:
    """Run a program of its own, with this source tree."""
    source = str(Path(lwm.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": source},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_made_by_name_without_an_import_and_without_torch() -> None:
    run(
        "import sys, gymnasium as gym\n"
        "env = gym.make('lwm:lwm/Labyrinth-v0', size=4)\n"
        "env.reset(seed=0)\n"
        "assert env.unwrapped.size == 4 and env.spec.max_episode_steps is None\n"
        "assert gym.make_vec('lwm:lwm/Labyrinth-v0', num_envs=2, size=5).size == 5\n"
        "assert 'torch' not in sys.modules\n"
    )


def test_names_of_the_package_are_loaded_when_asked_for() -> None:
    run(
        "import sys, types\n"
        "import lwm\n"
        "assert 'lwm.training' not in sys.modules and 'lwm.config' not in sys.modules\n"
        "sys.modules['lwm.training'] = module = types.ModuleType('lwm.training')\n"
        "module.train = lambda config: config + 1\n"
        "assert lwm.train(1) == 2 and 'train' in dir(lwm)\n"
        "from lwm import train\n"
        "assert train is module.train\n"
        "assert not hasattr(lwm, 'nothing') and lwm.__version__ == '0.1.0'\n"
    )
