"""Any runs side by side: environments × agents × presets × seeds, rows in one file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from lwm.config import AGENTS, PRESETS, check_read, load_preset
from lwm.errors import BadInput
from lwm.experiments import campaign, runner
from lwm.settings import hint

COLUMNS = (
    "env", "agent", "preset", "variant", "seed", "frames", "episodes", "score", "low", "high",
    "command", "commit", "machine",
)  # fmt: skip
KEYS = ("command",)


@dataclass(frozen=True)
class Setting:
    """One row before seeds."""

    env: str
    """``4x4``: a labyrinth; ``atari:freeway``: a game; else the id of a Gymnasium environment."""
    agent: str
    preset: str
    variant: str = ""
    """``key=value`` settings on top of the preset, separated by blanks."""

    @property
    def _world(self) -> tuple[str, str, str, str]:
        """Workload, its flag, the setting behind the flag, and the value."""
        labyrinth = re.fullmatch(r"(\d+)x(\d+)", self.env)
        if labyrinth:
            if labyrinth[1] != labyrinth[2]:
                raise BadInput(f"labyrinths are square: not {self.env}")
            return "labyrinth", "--size", "env.size", labyrinth[1]
        if self.env.startswith("atari:"):
            return "atari", "--game", "atari.game", self.env.removeprefix("atari:")
        return "gym", "--env", "gym.env", self.env

    def job(self, seed: int) -> runner.Job:
        """The training run of one seed."""
        workload, flag, key, value = self._world
        flags = (flag, value, "--agent", self.agent, "--preset", self.preset)
        changes = self.variant.split()
        if self.preset not in PRESETS[workload]:
            raise BadInput(f"{workload} has no preset {self.preset!r}")
        settings: dict[str, Any] = {key: value, "agent": self.agent, "seed": seed}
        own = {name: value for name, _, value in (c.partition("=") for c in changes)}
        for name in own:
            if name in {*settings, "preset", "workload"}:
                raise BadInput(f"{name} is no setting here: a sweep has a flag for it")
        check_read(workload, own)
        config = load_preset(self.preset, settings | own, workload)
        name = re.sub(r"[^\w.=-]+", "_", "-".join([self.env, self.agent, self.preset, *changes]))
        arguments = ("train", workload, *flags, "--seed", str(seed), *changes)
        return runner.Job(f"grid/{name}/seed{seed}", arguments, config)

    def key(self, seed: int) -> tuple[str, ...]:
        """The cells of ``KEYS``."""
        return (self.job(seed).command,)

    def rows(self, seed: int) -> list[dict[str, Any]]:
        """The row of a finished run."""
        result, origin = campaign.outcome(self.job(seed))
        told = {k: result[k] for k in ("frames", "episodes", "score", "low", "high")}
        row = {"env": self.env, "agent": self.agent, "preset": self.preset, "seed": seed}
        return [{**row, "variant": self.variant, **told, **origin}]


def campaign_of(
    envs: Sequence[str],
    agents: Sequence[str],
    presets: Sequence[str],
    changes: Sequence[str],
    seeds: int,
    path: Path,
) -> campaign.Campaign:
    """The cross product, all settings with one seed before the next; rows go to ``path``."""
    for agent in agents:
        if agent not in AGENTS:
            raise BadInput(f"unknown agent {agent!r}{hint(agent, AGENTS)}")
    for change in changes:
        if not re.fullmatch(r"[^=\s]+=\S*", change):
            raise BadInput(f"{change!r} is not of the form key=value, without blanks")
    variant = " ".join(changes)
    cells = product(*(dict.fromkeys(words) for words in (envs, agents, presets)))
    settings = [Setting(env, agent, preset, variant) for env, agent, preset in cells]
    plan = [(s, seed) for seed in range(seeds) for s in settings]
    return campaign.Campaign("grid", plan, path, COLUMNS, KEYS)
