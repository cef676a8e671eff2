"""A scripted trajectory: a list of actions in a file, and what a game makes of it.

A trajectory file is a JSON object::

    {
      "format": 1,
      "game": "montezuma_revenge",                  name as ale-py spells it
      "actions": [["DOWN", 8], ["RIGHTFIRE", 1]],   the emulator's name of each action, and for how
                                                    many agent steps (of 4 frames) it is held
      "end": {"room": 1, "x": 16, "y": 205}         where the agent is after the last action (RAM)
    }

The game starts without no-op frames and without sticky actions, so a script always plays the same.
``end`` makes a script for another version of the game, or another game, fail at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lwm.coverage import RAM
from lwm.errors import BadInput
from lwm.files import read_json
from lwm.sections import AtariConfig

FORMAT = 1
MAX_STEPS = 5000
COMMITTED = Path(__file__).with_name("montezuma_key.json")
"""Through the first room of Montezuma's Revenge to the key."""

_KEYS = {"format", "game", "actions", "end"}
_MAX_BYTES = 1 << 20


class Trajectory(NamedTuple):
    """What a trajectory file says."""

    game: str
    actions: tuple[str, ...]
    """[T] the name of every step's action."""
    end: tuple[int, int, int]
    """Room, x and y after the last action."""


class Replayed(NamedTuple):
    """A trajectory as it was played: T + 1 rows."""

    obs: NDArray[np.uint8]
    """[T+1, 84, 84] what the agent sees."""
    place: NDArray[np.int64]
    """[T+1, 3] room, x, y from RAM."""
    actions: NDArray[np.int64]
    """[T] indices of the actions."""


def read(path: Path) -> Trajectory:
    """The trajectory in a file; ``BadInput`` if it is not one."""
    document = read_json(path, _MAX_BYTES, links=True)  # an installer may link its own file
    if document is None:
        raise BadInput(f"there is no trajectory file {path}")
    try:
        return _parse(document)
    except ValueError as error:
        raise BadInput(f"{path} is not a trajectory: {error}") from None


def _parse(document: dict[str, Any]) -> Trajectory:
    if missing := sorted(_KEYS - document.keys()):
        raise ValueError(f"it has no {missing[0]!r}")
    if unknown := sorted(document.keys() - _KEYS):
        raise ValueError(f"it has an unknown key {unknown[0]!r}")
    if document["format"] != FORMAT:
        raise ValueError(f"its format is {document['format']!r}, not {FORMAT}")
    game = document["game"]
    if not isinstance(game, str) or game not in RAM:
        raise ValueError(f"game {game!r} has no known position in RAM (known: {', '.join(RAM)})")
    end = document["end"]
    if not isinstance(end, dict) or set(end) != {"room", "x", "y"}:
        raise ValueError("'end' must have room, x and y")
    if not all(type(v) is int and 0 <= v < 256 for v in end.values()):
        raise ValueError("'end' must hold whole numbers from 0 to 255")
    actions = _actions(document["actions"])
    return Trajectory(game, actions, (end["room"], end["x"], end["y"]))


def _actions(runs: Any) -> tuple[str, ...]:
    """The list of [name, steps] as one name a step."""
    if not isinstance(runs, list) or not runs:
        raise ValueError("'actions' must be a list of [name, steps]")
    found: list[str] = []
    for number, run in enumerate(runs, 1):
        fits = isinstance(run, list) and len(run) == 2
        if not fits or not isinstance(run[0], str) or type(run[1]) is not int or run[1] < 1:
            raise ValueError(f"entry {number} of 'actions' is not [name, steps]")
        if len(found) + run[1] > MAX_STEPS:
            raise ValueError(f"it has more than {MAX_STEPS} steps")
        found += [run[0]] * run[1]
    return tuple(found)


def replay(trajectory: Trajectory) -> Replayed:
    """Play a trajectory to its end; ``BadInput`` if it does not fit the game."""
    with script_env(trajectory, 1) as env:
        actions = indices(trajectory, env.action_names)
        step = env.reset()
        obs, ram = [step.obs[0]], [env.ram[0]]
        for number, action in enumerate(actions, 1):
            env.send(np.array([action]))
            step = env.recv()
            obs.append(step.obs[0])
            ram.append(env.ram[0])
            if step.is_last[0]:
                fault = f"a life is lost at step {number}"
                raise BadInput(f"the trajectory does not fit {trajectory.game}: {fault}")
    place = np.stack(ram)[:, list(RAM[trajectory.game])].astype(np.int64)
    if tuple(place[-1].tolist()) != trajectory.end:
        raise BadInput(
            f"the trajectory does not fit {trajectory.game}: it ends at room, x, y = "
            f"{tuple(place[-1].tolist())}, not {trajectory.end}"
        )
    return Replayed(np.stack(obs), place, actions)


def script_env(trajectory: Trajectory, count: int) -> Any:
    """``count`` games that all start the same: no no-op frames, no sticky actions."""
    from lwm.envs.atari import AtariEnv

    config = AtariConfig(game=trajectory.game, noop_max=0, sticky=0.0, workers=1)
    return AtariEnv(config, np.zeros(count, np.int64), ram=True)


def indices(trajectory: Trajectory, names: tuple[str, ...]) -> NDArray[np.int64]:
    """[T] the actions as the environment numbers them."""
    number = {name: i for i, name in enumerate(names)}
    for name in trajectory.actions:
        if name not in number:
            raise BadInput(f"{trajectory.game} has no action {name!r}; it has {', '.join(names)}")
    return np.array([number[name] for name in trajectory.actions], np.int64)


def screenshot(game: str) -> NDArray[np.uint8]:
    """[210, 160, 3] the first frame of a game in colour."""
    from lwm.envs.atari import rom_of
    from lwm.envs.atari_game import load

    ale = load(rom_of(game), 0, 0.0)
    ale.reset_game()
    return np.array(ale.getScreenRGB())


def pixels(place: NDArray[np.int64]) -> NDArray[np.float64]:
    """Room, x, y [T, 3] -> column and row [T, 2] of the agent's middle on the 160 x 210 screen."""
    return np.stack([place[:, 1] + 3.5, 318.0 - place[:, 2]], axis=1)
