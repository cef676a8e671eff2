"""A person plays, a run watches: the process behind the viewer's play page.

Started by the viewer as ``python -m lwm.playing RUN [GAME]``, never imported by it: this may build
networks and environments, the viewer may not.  It reads a JSON object a line and answers with one:
``{"action": 3}`` with the row that follows, ``{"save": true}`` with the trajectory so far.  It
writes no file, and ends when its input does.
"""

from __future__ import annotations

import base64
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lwm import devices, runs, session
from lwm.actor import Acted, ActorState, act, initial_state
from lwm.config import Config, from_dict, replace
from lwm.coverage import RAM
from lwm.envs.vector import Env, RowEnv, make_env
from lwm.errors import BadInput, LwmError
from lwm.sections import AtariConfig
from lwm.types import Step

WAYS = ("up", "down", "left", "right")
BASIS_STEPS = 128
"""Random steps that decide which two directions of the latent space are drawn."""
MAX_STEPS = 5000
"""Of a trajectory: as ``lwm.experiments.trajectory``."""


@dataclass
class Player:
    """One environment under a person's hands, and what the run makes of each row."""

    run: session.Loaded
    env: Env
    names: tuple[str, ...]
    game: str
    """Empty: the labyrinth."""
    state: ActorState
    places: list[tuple[int, ...]] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)
    steps: int = 0
    over: bool = False
    """A life was lost or the episode ended: the trajectory is complete."""
    mean: NDArray[np.float64] | None = None
    axes: NDArray[np.float64] | None = None

    def see(self, step: Step) -> tuple[Acted, NDArray[np.float64]]:
        """The row's bonus, and its latent position: z, or the world model's belief where z is no
        more than the four doors."""
        learner = self.run.learner
        off, zero = np.zeros(1, np.bool_), np.zeros(1, np.int64)
        acted, self.state = act(
            learner.policy, learner.bonus, self.state, step, off, zero,
            self.run.config.dqn.reset_state, learner.embed,
        )  # fmt: skip
        z = devices.fetch(self.state.z_tm1)[0] if self.game else acted.belief[0]
        return acted, np.asarray(z, np.float64).reshape(-1)

    def row(self, step: Step) -> dict[str, Any]:
        """What the page draws of a row."""
        acted, z = self.see(step)
        flat = np.zeros(2)
        if self.mean is not None and self.axes is not None:
            flat[: self.axes.shape[1]] = (z - self.mean) @ self.axes
        found: dict[str, Any] = {
            "step": self.steps,
            "reward": float(step.r_t[0]),
            "total": float(step.episode_return[0]),
            "bonus": float(acted.r_in[0]),
            "latent": [round(float(np.tanh(v / 2)), 4) for v in flat],
            "lost": bool(step.is_last[0]),
            "end": bool(step.episode_end[0]),
            "kept": len(self.actions),
        }
        if isinstance(self.env, RowEnv):
            room = int(self.env.env.room[0])
            found |= {"room": room, "doors": np.asarray(step.obs[0], np.int64).tolist()}
        else:
            found["picture"] = base64.b64encode(step.obs[0].tobytes()).decode()
        return found

    def act(self, action: int) -> dict[str, Any]:
        """Take a step."""
        if not 0 <= action < len(self.names):
            raise BadInput("there is no such action")
        self.env.send(np.array([action]))
        step = self.env.recv()
        self.steps += 1
        # The step that loses a life is not part of a trajectory: figure3 refuses those.
        ended = bool(step.is_last[0])
        self.over = self.over or (ended and bool(self.game)) or len(self.actions) >= MAX_STEPS
        if not self.over:
            self.actions.append(self.names[action])
            self.note()
        self.over = self.over or ended
        return self.row(step)

    def note(self) -> None:
        """Where the agent is, if the game's RAM tells."""
        if self.game in RAM:
            self.places.append(tuple(int(v) for v in self.env.ram[0][list(RAM[self.game])]))

    def trajectory(self) -> dict[str, Any]:
        """The format of ``lwm.experiments.trajectory``; a labyrinth has its own two keys."""
        if not self.actions:
            raise BadInput("nothing was played yet")
        held: list[list[Any]] = []
        for name in self.actions:
            if held and held[-1][0] == name:
                held[-1][1] += 1
            else:
                held.append([name, 1])
        if not self.game:
            size = self.run.config.env.size
            return {"format": 1, "labyrinth": {"size": size, "seed": 0}, "actions": held}
        end = dict(zip(("room", "x", "y"), self.places[-1], strict=True)) if self.places else None
        return {"format": 1, "game": self.game, "actions": held, "end": end}


def start(path: Path, game: str = "") -> tuple[Player, dict[str, Any]]:
    """A player at the first row, and what the page must know to begin.

    The environment starts without chance, so that what was played can be played again.
    """
    # First of all: what cannot be played is refused before anything of the run is loaded.
    config = _calm(from_dict(runs.read_config(path)), game)
    run = session.load(path, "cpu")
    games: list[str] = []
    if config.workload == "atari":
        from lwm.envs.atari import games as installed

        games = installed()
    basis = _player(run, config)
    basis.mean, basis.axes = _axes(basis)
    basis.env.close()
    player = _player(run, config)
    player.mean, player.axes = basis.mean, basis.axes
    step = player.env.reset()
    player.note()
    hello: dict[str, Any] = {"actions": player.names, "game": player.game, "games": games}
    if isinstance(player.env, RowEnv):
        hello["side"] = config.env.size
    else:
        hello |= {"height": player.env.obs_shape[0], "width": player.env.obs_shape[1]}
    return player, {**hello, "row": player.row(step)}


def _calm(config: Config, game: str) -> Config:
    if config.workload == "labyrinth" and not config.env.tv and not game:
        return config
    if config.workload != "atari":
        raise BadInput("only the labyrinth and Atari games can be played here")
    plain = AtariConfig()
    return replace(
        config,
        {
            "atari.game": game or config.atari.game, "atari.noop_max": 0, "atari.sticky": 0.0,
            "atari.workers": 1, "atari.tv": False, "atari.backend": "own", "atari.coverage": "off",
            "atari.action_repeat": plain.action_repeat, "atari.fire_on_reset": plain.fire_on_reset,
            "atari.life_loss_ends": plain.life_loss_ends,
        },
    )  # fmt: skip


def _player(run: session.Loaded, config: Config) -> Player:
    game = config.atari.game if config.workload == "atari" else ""
    env = make_env(config, np.zeros(1, np.int64), game in RAM)
    names = tuple(getattr(env, "action_names", WAYS))
    learner = run.learner
    if len(names) > learner.policy.num_actions:
        env.close()
        known = learner.policy.num_actions
        raise BadInput(f"{game} has {len(names)} actions, this run knows {known}: choose another")
    state = initial_state(learner.policy, learner.bonus, 1, learner.embedding)
    return Player(run, env, names, game, state)


def _axes(player: Player) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and the two directions of greatest variance (in units of it) over random steps."""
    rng = np.random.default_rng(0)
    step, seen = player.env.reset(), []
    for _ in range(BASIS_STEPS):
        seen.append(player.see(step)[1])
        player.env.send(rng.integers(len(player.names), size=1))
        step = player.env.recv()
    z = np.stack(seen)
    mean = z.mean(0)
    values, axes = np.linalg.eigh(np.cov(z.T).reshape(z.shape[1], z.shape[1]))
    scale = np.sqrt(np.maximum(values[::-1][:2], 1e-12))
    return mean, axes[:, ::-1][:, :2] / scale


def main(arguments: list[str]) -> int:
    """Answer lines until there are no more."""
    try:
        player, hello = start(Path(arguments[0]), arguments[1] if len(arguments) > 1 else "")
    except (LwmError, ImportError) as error:
        text = str(error) if isinstance(error, LwmError) else "this run cannot be played here"
        _tell({"error": text})
        return 2
    try:
        _tell(hello)
        for line in sys.stdin:
            asked = json.loads(line)
            try:
                told = player.trajectory() if asked.get("save") else player.act(asked["action"])
            except LwmError as error:
                told = {"error": str(error)}
            _tell(told)
    finally:
        player.env.close()
    return 0


def _tell(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
