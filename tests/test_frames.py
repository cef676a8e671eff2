"""Stores of observations: compressed equals raw, bit for bit, in less memory."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lwm.frames import CompressedFrames, Frames, RawFrames

SHAPES = [((84, 84), np.uint8), ((4,), np.int8), ((2, 3), np.float32), ((), np.int64)]
GIB = 2**30


def both(rows: int, envs: int, shape: tuple[int, ...], dtype: Any) -> tuple[Frames, Frames]:
    return RawFrames(rows, envs, shape, dtype), CompressedFrames(rows, envs, shape, dtype)


def noise(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    return rng.integers(-100, 100, shape).astype(dtype)


def filled(stores: tuple[Frames, ...], rows: int, envs: int, shape: tuple[int, ...]) -> None:
    """Two and a half times around the ring, sometimes with a frame that hardly shrinks."""
    rng = np.random.default_rng(0)
    for k in range(5 * rows // 2):
        obs = noise(rng, (envs, *shape), np.int64) * (rng.random((envs, *[1] * len(shape))) < 0.5)
        for store in stores:
            store.put(k % rows, obs.astype(np.uint8))


@pytest.mark.parametrize(("shape", "dtype"), SHAPES)
def test_compressed_equals_raw(shape: tuple[int, ...], dtype: Any) -> None:
    raw, compressed = both(7, 3, shape, dtype)
    filled((raw, compressed), 7, 3, shape)
    rng = np.random.default_rng(1)
    windows = rng.integers(7, size=(5, 20)), rng.integers(3, size=20)
    frames = rng.integers(7, size=30), rng.integers(3, size=30)
    for (slots, envs), expected in ((windows, (5, 20)), (frames, (30,))):
        a, b = raw.get(slots, envs), compressed.get(slots, envs)
        assert a.shape == b.shape == (*expected, *shape)
        assert a.dtype == b.dtype == dtype
        assert a.tobytes() == b.tobytes()
    compressed.check_valid(np.arange(7))


@pytest.mark.parametrize("kind", [0, 1])
def test_what_is_handed_out_is_a_copy_that_may_be_written(kind: int) -> None:
    store = both(2, 1, (3,), np.uint8)[kind]
    store.put(0, np.array([[1, 2, 3]]))
    store.get(np.array([0]), np.array([0]))[:] = 9
    np.testing.assert_array_equal(store.get(np.array([0]), np.array([0])), [[1, 2, 3]])


@pytest.mark.parametrize("kind", [0, 1])
def test_observations_of_another_shape_are_refused(kind: int) -> None:
    store = both(2, 4, (3,), np.uint8)[kind]
    with pytest.raises(ValueError, match=r"shape \(3,\), expected \(4, 3\)"):
        store.put(0, np.zeros(3))


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("used", [0, 4, 7])
def test_state_goes_into_another_store(kind: int, used: int) -> None:
    old, new = (both(7, 3, (5,), np.uint8)[kind] for _ in range(2))
    filled((old,), 7, 3, (5,))
    new.set_state(used, copy.deepcopy(old.get_state(used)))
    slots, envs = np.arange(used)[:, None], np.arange(3)
    np.testing.assert_array_equal(new.get(slots, envs), old.get(slots, envs))
    # What comes later does not change what was saved.
    saved = old.get_state(used)
    new.set_state(used, saved)
    new.put(0, np.full((3, 5), 77))
    if used:
        assert (old.get(np.zeros(1, np.int64), np.arange(1)) != 77).any()


def test_damaged_states_are_refused() -> None:
    raw, compressed = both(7, 3, (50,), np.uint8)
    filled((raw, compressed), 7, 3, (50,))
    good = compressed.get_state(7)
    assert isinstance(good, dict)
    other = CompressedFrames(7, 3, (60,), np.uint8)
    filled((other,), 7, 3, (60,))
    for bad, message in [
        (raw.get_state(7), "are not compressed"),
        (good | {"blobs": good["blobs"][:-1]}, "are not as many as their lengths say"),
        (good | {"lengths": good["lengths"][:, :2]}, "expected"),
        (good | {"blobs": good["blobs"][::-1]}, "is not of 50 bytes"),
        (good | {"lengths": np.roll(good["lengths"], 1)}, "is not of 50 bytes"),
        (other.get_state(7), "is not of 50 bytes"),
    ]:
        with pytest.raises(ValueError, match=message):
            CompressedFrames(7, 3, (50,), np.uint8).set_state(7, bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="are compressed"):
        raw.set_state(7, good)
    with pytest.raises(ValueError, match="expected"):
        raw.set_state(7, np.zeros((7, 1, 50)))


def test_a_row_that_lost_bytes_is_found() -> None:
    store = CompressedFrames(2, 3, (5,), np.uint8)
    filled((store,), 2, 3, (5,))
    store._blobs[1] = store._blobs[1][:-1]
    store.check_valid(np.array([0]))
    with pytest.raises(ValueError, match="slot 1 do not fill their row"):
        store.check_valid(np.array([0, 1]))


def area(size: int, to: int) -> NDArray[np.float64]:
    """[to, size] matrix that averages ``size`` points into ``to`` of equal width."""
    edges = np.linspace(0, size, to + 1)
    low, high = (
        np.maximum(edges[:-1, None], np.arange(size)),
        np.minimum(edges[1:, None], np.arange(size) + 1),
    )
    return np.maximum(high - low, 0) * to / size


def shrunk(screens: NDArray[Any]) -> NDArray[np.uint8]:
    """Screens [N, 210, 160] as frames [N, 84, 84]."""
    return np.rint(area(210, 84) @ screens @ area(160, 84).T).astype(np.uint8)


def drawn_screens(n: int) -> NDArray[np.float64]:
    """Screens [n, 210, 160] somewhat busier than Montezuma's Revenge: a room with brick platforms,
    ladders and a score, and sprites that move."""
    rng = np.random.default_rng(0)
    room = np.zeros((210, 160))
    for left in range(56, 104, 8):
        room[6:14, left : left + 6] = rng.choice([0, 210], (4, 3)).repeat(2, 0).repeat(2, 1)
    bricks = rng.choice([60, 110], (3, 4)).repeat(4, 0).repeat(4, 1)
    for top, left, width in [
        (93, 0, 60),
        (93, 104, 56),
        (134, 40, 80),
        (180, 0, 160),
        (47, 0, 160),
    ]:
        room[top : top + 12, left : left + width] = np.tile(bricks, (1, 10))[:, :width]
    for left in (16, 76, 132):
        room[105:180:4, left : left + 9] = 140
    screens = np.repeat(room[None], n, axis=0)
    sprites = rng.choice([0, 100, 180, 220], (4, 20, 8), p=[0.4, 0.2, 0.2, 0.2])
    for screen in screens:
        for sprite in sprites:
            y, x = rng.integers(50, 180), rng.integers(0, 150)
            screen[y : y + 20, x : x + 8] = sprite
    return screens


def played_screens(n: int) -> NDArray[np.uint8]:
    """Screens [n, 210, 160] of the game itself, played at random."""
    ale_py = pytest.importorskip("ale_py")
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setInt("random_seed", 1)
    ale.loadROM(ale_py.roms.get_rom_path("montezuma_revenge"))
    rng, actions, screens = np.random.default_rng(0), ale.getMinimalActionSet(), []
    for action in rng.choice(actions, n):
        for _ in range(4):
            ale.act(action)
        screens.append(ale.getScreenGrayscale().reshape(210, 160))
        if ale.game_over():
            ale.reset_game()
    return np.stack(screens)


@pytest.mark.parametrize("screens", [drawn_screens, played_screens])
def test_a_million_frames_fit_into_1_2_gib(screens: Any) -> None:
    frames = np.concatenate([shrunk(part) for part in np.array_split(screens(2000), 8)])
    store = CompressedFrames(125, 16, (84, 84), np.uint8)
    for slot, obs in enumerate(frames.reshape(125, 16, 84, 84)):
        store.put(slot, obs)
    back = store.get(np.arange(125)[:, None], np.arange(16))
    np.testing.assert_array_equal(back.reshape(2000, 84, 84), frames)
    assert store.nbytes * 500 < 1.2 * GIB  # 6.6 GiB raw
    # What is reported is at least what is there, and the bookkeeping is small.
    blobs = store.get_state(125)["blobs"].nbytes
    assert blobs < store.nbytes < 1.02 * blobs
