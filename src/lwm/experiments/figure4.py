"""Figure 4: the labyrinth from above, and the little that the agent sees of it on "left, up"."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lwm.envs.labyrinth import LabyrinthEnv
from lwm.envs.labyrinth_vector import LabyrinthVectorEnv
from lwm.experiments.options import Options, missing_viz

SIZE = 4
LEFT, UP = 2, 0
ACTIONS = {"left": LEFT, "up": UP}


class Walk(NamedTuple):
    """What happened, from the environment itself."""

    seed: int
    doors: NDArray[np.bool_]
    """[rooms, 4] up, down, left, right."""
    rooms: list[int]
    """Where the agent was: before the first action and after each."""
    observations: list[NDArray[np.int8]]
    """[4] each: what it saw there."""


def walk(size: int = SIZE) -> Walk:
    """ "left, up" in the first labyrinth (by seed) where both doors are there."""
    seed = 0
    while True:
        world = LabyrinthVectorEnv(num_envs=1, size=size)
        seen, _ = world.reset(seed=[seed])
        rooms, observations = [int(world.room[0])], [seen[0].copy()]
        for action in ACTIONS.values():
            seen = world.step(np.array([action]))[0]
            rooms.append(int(world.room[0]))
            observations.append(seen[0].copy())
        if len(set(rooms)) == len(rooms) and len({bytes(o) for o in observations}) == len(rooms):
            return Walk(seed, world.doors[0].copy(), rooms, observations)
        seed += 1


def check(found: Walk, size: int = SIZE) -> bool:
    """Whether the single environment, another implementation, sees the same."""
    env = LabyrinthEnv(size=size)
    seen = [env.reset(seed=found.seed)[0]]
    seen += [env.step(action)[0] for action in ACTIONS.values()]
    return all(map(np.array_equal, seen, found.observations))


def status() -> str:
    """Whether the picture is there."""
    path = Options().pictures / "figure4.png"
    return str(path) if path.is_file() else "not drawn yet"


def main(options: Options) -> int:
    """Walk and draw."""
    options.allow("figure4", "scale", "out")
    found = walk()
    from lwm.plots import rooms

    out = options.pictures / "figure4.png"
    try:
        rooms.map_and_views(found.doors, found.rooms, found.observations, list(ACTIONS), out)
    except ImportError as error:
        raise missing_viz(error) from error
    told = ", ".join("".join(map(str, map(int, o))) for o in found.observations)
    print(
        f"figure4 at scale 1 (nothing is trained): {SIZE}×{SIZE}, seed {found.seed}, seen: {told}"
    )
    print(f"picture: {out}")
    return 0
