"""Exploration coverage: positions counted by hand, and what a run and an evaluation count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lwm import evaluate as evaluate_module
from lwm import session
from lwm.config import load_preset
from lwm.coverage import RAM, Coverage, coverage_of
from lwm.envs.vector import make_env
from lwm.errors import BadInput
from lwm.training import Trainer

GAME = "montezuma_revenge"


def ram(*places: tuple[int, int, int]) -> NDArray[np.uint8]:
    """[B, 128] of games at (room, x, y); all other bytes hold what must not be read."""
    memory = np.full((len(places), 128), 0xAA, np.uint8)
    memory[:, 3], memory[:, 42], memory[:, 43] = np.array(places, np.uint8).reshape(-1, 3).T
    return memory


def counted(*places: tuple[int, int, int]) -> tuple[int, int]:
    """Rooms and positions after seeing the places one by one."""
    coverage = Coverage(GAME)
    for place in places:
        coverage.add(ram(place))
    return coverage.rooms, coverage.positions


def test_addresses() -> None:
    assert RAM[GAME] == (3, 42, 43)


def test_nothing_is_seen_at_first() -> None:
    assert counted() == (0, 0)


@pytest.mark.parametrize(
    ("places", "rooms", "positions"),
    [
        ([(1, 77, 235)], 1, 1),
        ([(1, 72, 232), (1, 79, 239)], 1, 1),  # x div 8 = 9, y div 8 = 29: one cell's corners
        ([(1, 71, 232), (1, 72, 232)], 1, 2),  # x div 8 = 8 and 9
        ([(1, 72, 231), (1, 72, 232)], 1, 2),  # y div 8 = 28 and 29
        ([(1, 8, 16), (1, 16, 8)], 1, 2),  # x and y are not one another
        ([(1, 77, 235), (2, 77, 235)], 2, 2),  # the same place of two rooms
        ([(0, 0, 0), (255, 255, 255)], 2, 2),  # every byte is possible
        ([(1, 0, 0), (1, 9, 0), (4, 9, 0), (1, 0, 0), (1, 1, 1), (4, 200, 0)], 2, 4),
    ],
)
def test_by_hand(places: list[tuple[int, int, int]], rooms: int, positions: int) -> None:
    assert counted(*places) == (rooms, positions)
    assert counted(*reversed(places)) == (rooms, positions)
    assert counted(*places, *places) == (rooms, positions)  # seen once, seen for ever
    together = Coverage(GAME)
    together.add(ram(*places))  # all actors at once
    assert (together.rooms, together.positions) == (rooms, positions)


def test_against_a_set() -> None:
    rng = np.random.default_rng(0)
    coverage, seen = Coverage(GAME), set()
    for _ in range(50):
        places = rng.integers((0, 60, 200), (5, 120, 256), size=(8, 3)).tolist()
        coverage.add(ram(*places))
        seen |= {(room, x // 8, y // 8) for room, x, y in places}
        assert coverage.positions == len(seen)
        assert coverage.rooms == len({room for room, _, _ in seen})


def test_adding_changes_no_argument() -> None:
    memory = ram((1, 77, 235), (2, 10, 10))
    before = memory.copy()
    Coverage(GAME).add(memory)
    np.testing.assert_array_equal(memory, before)


def test_who_gets_a_counter() -> None:
    assert coverage_of(GAME, "auto") is not None and coverage_of(GAME, "on") is not None
    assert coverage_of(GAME, "off") is None
    assert coverage_of("pong", "auto") is None and coverage_of("pong", "off") is None
    words = r"^coverage needs the game's RAM map; pong has none \(known: montezuma_revenge\)$"
    with pytest.raises(BadInput, match=words):
        coverage_of("pong", "on")


# In a run.


def trainer(**overrides: Any) -> Trainer:
    pytest.importorskip("ale_py", reason="playing Atari games needs the extra: pip install ale-py")
    keys = {key.replace("__", "."): value for key, value in overrides.items()}
    settings = {
        "atari.game": GAME,
        "atari.time_limit": 40,
        "agent": "random",
        "loop.total_frames": 200,
        "loop.log_every_frames": 60,
        "evaluation.episodes": 2,
    }
    return Trainer(load_preset("debug", settings | keys, "atari"))


def cells(memory: NDArray[np.uint8]) -> set[tuple[int, int, int]]:
    return {(int(m[3]), int(m[42]) // 8, int(m[43]) // 8) for m in memory}


def noted(coverage: Coverage) -> set[tuple[int, ...]]:
    return {tuple(cell) for cell in np.argwhere(coverage.seen).tolist()}


def test_a_run_counts_every_row_of_every_actor() -> None:
    t = trainer()
    assert t.coverage is not None
    try:
        start, seen = cells(t.env.ram), set()  # where games begin may count, or not
        at_log: list[tuple[int, int]] = []
        for event in t.run():
            if event.kind == "end":
                break
            seen |= cells(t.env.ram)
            assert seen <= noted(t.coverage) <= seen | start
            if event.data:
                at_log.append((event.data["coverage/rooms"], event.data["coverage/positions"]))
                assert at_log[-1] == (t.coverage.rooms, t.coverage.positions)
        # It is never forgotten: the counts are of the whole run, not of what was logged since.
        assert at_log == sorted(at_log) and len(at_log) == 3
        assert at_log[0][1] > 3 and at_log[-1][1] > at_log[0][1]
        other = trainer()
        try:
            other.set_state(t.get_state())
            assert other.coverage is not None
            np.testing.assert_array_equal(other.coverage.seen, t.coverage.seen)
        finally:
            other.close()
    finally:
        t.close()


def test_a_game_without_a_map_is_not_counted() -> None:
    t = trainer(atari__game="freeway", loop__total_frames=80)
    try:
        assert t.coverage is None
        for event in t.run():
            assert not any(key.startswith("coverage/") for key in event.data)
        assert "coverage" not in t.get_state()
        assert not {"rooms", "positions"} & set(session.score(t))
        with pytest.raises(RuntimeError, match="without ram"):
            _ = t.env.ram
    finally:
        t.close()


def test_an_evaluation_counts_its_own_games(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two games; the second is cut short after 10 steps, and what it does later does not count.
    t = trainer()
    assert t.coverage is not None
    try:
        before = t.coverage.seen.copy()
        start, expected, later = set(), set(), set()
        steps = 0
        own: list[Coverage] = []

        def counter(*args: Any) -> Coverage:
            own.append(Coverage(GAME))
            return own[0]

        class Watched:
            """The environments, with the second game reported as over after step 10."""

            def __init__(self, *args: Any) -> None:
                self.env = make_env(*args)

            def __getattr__(self, name: str) -> Any:
                return getattr(self.env, name)

            def rest(self, lanes: Any) -> None:
                """The game that was over goes on: it must not count even so."""

            def reset(self) -> Any:
                step = self.env.reset()
                start.update(cells(self.env.ram))
                return step

            def recv(self) -> Any:
                nonlocal steps
                step = self.env.recv()
                steps += 1
                playing = 2 if steps <= 10 else 1
                expected.update(cells(self.env.ram[:playing]))
                later.update(cells(self.env.ram[playing:]))
                end = step.episode_end | (np.arange(2) == (1 if steps == 10 else -1))
                return step._replace(episode_end=end)

        monkeypatch.setattr(evaluate_module, "make_env", Watched)
        monkeypatch.setattr("lwm.coverage.coverage_of", counter)
        result = session.score(t)
        assert steps >= t.config.atari.time_limit and len(expected) > 3
        assert later - expected - start  # the game that was over went on elsewhere
        assert expected <= noted(own[0]) <= expected | start
        assert (result["rooms"], result["positions"]) == (own[0].rooms, own[0].positions)
        np.testing.assert_array_equal(t.coverage.seen, before)  # separate from the run's
    finally:
        t.close()
