"""The bonus as a library: LWM, or what it is compared with, for any agent and any replay.

>>> import gymnasium as gym, lwm
>>> envs = gym.make_vec("CartPole-v1", 8)
>>> bonus = lwm.Bonus(envs.single_observation_space, envs.single_action_space, num_envs=8)

While acting, ``step`` gives each environment's bonus and carries the belief state.  For sequences
from a replay ``compute`` gives the bonus anew, with the parameters of this moment; ``update``
trains on them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from lwm import arguments, bonus_saved, checkpoint, devices
from lwm.config import load_preset
from lwm.encoder import EncoderLearner
from lwm.errors import BadInput, BadSetting
from lwm.intrinsic import ErrorBonus, RunningMoments, Window
from lwm.novelty import KINDS, Novelty, fitted
from lwm.pairs import draw_pairs
from lwm.rivals import ICMBonus, ReturnScale, RNDBonus
from lwm.senses import sense_of
from lwm.settings import get, hint, to_dict
from lwm.streams import generator, generator_state, restore_generator, torch_seeded
from lwm.transitions import Sequences
from lwm.vision import shift_offsets

SETTLE = 100
"""Updates after which errors have stopped falling fast: on FrozenLake, CartPole and small images
the mean bonus was then within 1, and -10 before."""
_FIXED = {"intrinsic.boundary": "terminal", "dqn.reset_state": True}
"""``next_obs`` is the true next observation, and a belief ends with its episode."""
_OWN = {"intrinsic.beta": 1.0, "intrinsic.final_beta": -1.0}
"""A preset's β is for its own agent's rewards: who adds the bonus to a reward has a scale."""
_READ = ("encoder.", "world_model.", "intrinsic.", "gym.pixel_unit", "precision", *_FIXED)
"""Beginnings of the settings that a bonus reads."""


class Bonus:
    """An intrinsic reward that anyone can add to a reward.

    ``kind``: ``lwm`` (the paper's), ``lwm-ff`` (its world model without memory), ``lwm-rf`` (its Φ
    left random), ``rnd`` or ``icm``.  ``preset`` and ``overrides`` are those of ``lwm train gym``
    (``lwm config --workload gym`` lists all settings; those of an agent are refused), but that β is
    1 in every preset and does not fade.  Where Φ is frozen after pretraining
    (``encoder.freeze_after_pretraining``: preset ``minigrid``), the first
    ``encoder.pretrain_iterations`` updates train it and no later one.

    The first ``settle`` updates only train: until one more is done every bonus is 0, and then the
    errors are normalised afresh.  Those of an untrained model fall much faster than their running
    mean follows.  None: 100, or ``world_model.pretrain_iterations`` if that is less; 0 for RND and
    ICM, which divide their errors and subtract nothing.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        num_envs: int,
        preset: str = "default",
        *,
        kind: str = "lwm",
        seed: int = 0,
        device: str | torch.device = "cpu",
        overrides: Mapping[str, Any] | None = None,
        settle: int | None = None,
    ) -> None:
        if kind not in KINDS:
            raise ValueError(f"unknown kind of bonus {kind!r}{hint(kind, KINDS)}")
        if not isinstance(action_space, spaces.Discrete):
            raise ValueError(f"expected a Discrete action space, got {action_space}")
        if not isinstance(num_envs, int | np.integer) or num_envs < 1:
            raise ValueError(f"expected num_envs of at least 1, got {num_envs!r}")
        if settle is not None and (not isinstance(settle, int | np.integer) or settle < 0):
            raise ValueError(f"expected settle of at least 0, got {settle!r}")
        self.observation_space, self.action_space = observation_space, action_space
        self.num_envs, self.kind = int(num_envs), kind
        self.sense = sense_of(observation_space)
        for key in overrides or {}:
            if not str(key).startswith(_READ):
                raise ValueError(
                    "overrides: expected settings of encoder, world_model or intrinsic, or "
                    f"precision, got {key!r}"
                )
        given = {"seed": seed, "device": str(device), "agent": kind, **_OWN, **(overrides or {})}
        try:
            self.config = fitted(load_preset(preset, given, "gym"), self.sense)
            self._device = devices.pick(self.config.device)
        except BadInput as e:
            raise BadSetting(str(e)) from None
        for key, value in _FIXED.items():
            if get(self.config, key) != value:
                raise ValueError(f"expected {key}={value}, got {get(self.config, key)}")
        representation = self.config.encoder.representation
        if representation in ("idf", "rnd"):
            raise ValueError(
                f"expected encoder.representation wmse, rf or pixels, got {representation}: "
                "`update` trains no other Φ"
            )
        with torch_seeded(seed, "init"):
            self._novelty = Novelty(self.config, self.sense, int(action_space.n), self._device)
        self._belief = self._novelty.bonus.initial(num_envs)
        self._z = torch.zeros(num_envs, self._novelty.size, device=self._device)
        self.known = np.zeros(num_envs, np.bool_)
        """[B] the latest observation of the environment was seen; else the next ``obs`` counts as
        a first one, whatever ``is_first`` says."""
        self._rng = generator(seed, "bonus")
        self.updates = 0
        """Calls of ``update``."""
        if settle is None:
            rival = kind in ("rnd", "icm")
            settle = 0 if rival else min(SETTLE, self.config.world_model.pretrain_iterations)
        self.settle = int(settle)
        """Updates that only train."""

    def __repr__(self) -> str:
        return f"Bonus({self.kind}: {self.sense} -> {self._novelty}, {self.num_envs} environments)"

    @property
    def settled(self) -> bool:
        """Whether it pays: see ``settle``."""
        return self.updates > self.settle

    @torch.no_grad()
    def step(
        self,
        obs: Any,
        action: NDArray[np.integer],
        next_obs: Any,
        is_first: NDArray[np.bool_],
    ) -> NDArray[np.float32]:
        """The bonus [B] of one transition of each environment, in the order of time.

        ``is_first`` [B] refers to ``obs``: there the belief starts anew.  ``next_obs`` is the true
        next observation, the final one at an episode's end (not the reset that follows).  Where
        ``obs`` is not a first one it is taken to be the ``next_obs`` of the call before.
        """
        first = arguments.flags(is_first, (self.num_envs,), "is_first") | ~self.known
        after = self.rows(next_obs, "next_obs")
        begun = self.rows(obs, "obs")[first] if first.any() else after[:0]
        return self.step_rows(begun, action, after, first)

    @torch.no_grad()
    def step_rows(
        self,
        begun: NDArray[Any],
        action: NDArray[np.integer],
        after: NDArray[Any],
        first: NDArray[np.bool_],
    ) -> NDArray[np.float32]:
        """``step`` for one who has made rows of the observations already (``rows``).

        ``after`` [B, ...]: of ``next_obs``; ``begun`` [n, ...]: of ``obs``, of the n environments
        where ``first`` [B] is set, which those must be that are not ``known``.
        """
        index = arguments.actions(action, (self.num_envs,), self.action_space)
        taken = devices.put(index, self._device)
        z = self._novelty.embed(after)
        if len(begun):
            mask = devices.put(first, self._device)
            self._z = self._z.clone()
            self._z[mask] = self._novelty.embed(begun)
            self._belief = self._belief * ~mask[:, None]
        r_in, self._belief, _ = self._novelty.bonus.step(self._belief, self._z, taken, z, None)
        self._z = z
        self.known[:] = True
        return self._told(r_in)

    def compute(
        self,
        obs: Any,
        action: NDArray[np.integer],
        is_first: NDArray[np.bool_],
        burn_in: int = 0,
    ) -> NDArray[np.float32]:
        """The bonus [T, B] of sequences from any replay, with the present parameters.

        Shapes as in ``Sequences``.  Entry i is of the transition i -> i+1; 0 where
        ``is_first[i+1]``.  The belief starts at 0: give earlier rows as ``burn_in``, whose
        entries are 0 in the result.  Changes nothing.
        """
        seq = Sequences(obs, action, is_first)
        rows, index, first = arguments.sequences(seq, burn_in, self.sense, self.action_space)
        window = self._framed(index, first)._replace(z=self._novelty.embed(rows))
        r_in = self._novelty.bonus.recompute(window)[1:]
        r_in[:burn_in] = 0
        return self._told(r_in)

    def update(self, sequences: Sequences, burn_in: int = 0) -> dict[str, float]:
        """Train Φ and the world model on sequences, each with one step; -> metrics.

        The first ``burn_in`` transitions warm the belief up: as in ``compute`` they count for
        nothing that errors are normalised by (unless ``intrinsic.moments_include_burn_in``).
        """
        if not isinstance(sequences, tuple | list) or len(sequences) != 3:
            raise ValueError(f"expected Sequences (obs, action, is_first), got {type(sequences)}")
        seq = Sequences(*sequences)
        rows, index, first = arguments.sequences(seq, burn_in, self.sense, self.action_space)
        return self._learn(self._framed(index, first), rows, first, burn_in)

    def update_rows(
        self,
        rows: NDArray[Any],
        action: NDArray[np.int64],
        is_first: NDArray[np.bool_],
        burn_in: int = 0,
    ) -> dict[str, float]:
        """``update`` for one who stores observations as ``sense.rows`` gives them."""
        index = arguments.actions(action, action.shape, self.action_space)
        return self._learn(self._framed(index, is_first), rows, is_first, burn_in)

    def _learn(
        self, window: Window, rows: NDArray[Any], first: NDArray[np.bool_], burn_in: int
    ) -> dict[str, float]:
        metrics: dict[str, float | Tensor] = {}
        encoder = self._novelty.encoder
        self._novelty.observe(devices.put(rows, self._device))
        c = self.config.encoder
        frozen = c.freeze_after_pretraining and self.updates >= c.pretrain_iterations
        if isinstance(encoder, EncoderLearner) and not first[1:].all() and not frozen:
            reach = min(c.temporal_shift, len(first) - 1)
            t, env, k = draw_pairs(self._rng, first, len(first), c.batch, reach)
            offsets = shift_offsets(self._rng, 2 * c.batch, c.spatial_shift)
            metrics |= encoder.learn(rows[t, env], rows[t + k, env], offsets)
        unpaid = 0 if self.config.intrinsic.moments_include_burn_in else burn_in
        window = window._replace(z=self._novelty.embed(rows), unpaid=unpaid)
        if not self.settled:
            self._measure().updates = 0  # this batch is taken whole
        _, told = self._novelty.bonus.learn(window, burn_in)
        self.updates += 1
        return devices.floats({**metrics, **told})

    def _measure(self) -> RunningMoments | ReturnScale:
        """What errors are normalised by."""
        bonus = self._novelty.bonus
        if isinstance(bonus, RNDBonus | ICMBonus):
            return bonus.scale
        assert isinstance(bonus, ErrorBonus)
        return bonus.moments

    def rows(
        self, obs: Any, what: str = "obs", ahead: tuple[int, ...] | None = None
    ) -> NDArray[Any]:
        """Observations of the space as rows of numbers [*ahead, ...]; ValueError if they are not.

        ``ahead``: the axes before those of an observation (None: [B]); ``what``: their name.
        """
        ahead = (self.num_envs,) if ahead is None else ahead
        return arguments.rows(obs, ahead, self.sense, what)

    def save(self, path: str | Path) -> None:
        """Write everything to the directory ``path``: atomic, checksummed, no pickle.

        Replaces a bonus that was saved there or an empty directory; ValueError if anything else
        has that name.  Nothing beside it is touched.
        """
        path = Path(path)
        bonus_saved.check_target(path)
        state = {
            **self._identity(),
            "novelty": self._novelty.state_tree(),
            "belief": devices.fetch(self._belief),
            "z": devices.fetch(self._z),
            "known": self.known,
            "rng": generator_state(self._rng),
            "updates": self.updates,
            "settle": self.settle,
        }
        checkpoint.save_alone(path, state)

    def load(self, path: str | Path) -> None:
        """Go on from what ``save`` wrote; ValueError if it is of another space, kind or config.

        The belief states are taken over if there are as many environments, else they start anew.
        """
        state = checkpoint.load(Path(path))
        try:
            bonus_saved.check_fits(path, state, self._identity())
            before = copy.deepcopy(self._novelty.state_tree())
            try:
                self._novelty.load_tree(state["novelty"])
                restore_generator(self._rng, state["rng"])
            except Exception:
                self._novelty.load_tree(before)
                raise
            same = state["belief"].shape == tuple(self._belief.shape)
            if same:
                self._belief = devices.put(state["belief"], self._device)
                self._z = devices.put(state["z"], self._device)
            self.known = state["known"].copy() if same else np.zeros_like(self.known)
            self.updates, self.settle = int(state["updates"]), int(state["settle"])
        except (KeyError, RuntimeError, TypeError, AttributeError) as e:
            why = " ".join(str(e).split())
            raise ValueError(f"{path} does not fit this bonus: {why}") from None

    def _identity(self) -> dict[str, Any]:
        """What it is, beside what it has learned."""
        spaces = {"observation space": self.observation_space, "action space": self.action_space}
        return {
            "kind": self.kind,
            "config": to_dict(self.config),
            "spaces": {name: str(space) for name, space in spaces.items()},
            "representation": self._novelty.representation,
        }

    def _framed(self, index: NDArray[np.int64], first: NDArray[np.bool_]) -> Window:
        """A window without its embeddings: row i + 1 is where action i led."""
        taken = devices.put(index, self._device)
        a_tm1 = torch.cat([torch.zeros_like(taken[:1]), taken])
        last = np.concatenate([first[1:], np.zeros_like(first[:1])])
        begins, ends = (devices.put(v, self._device) for v in (first, last))
        return Window(torch.zeros(0), a_tm1, begins, ends)

    def _told(self, r_in: Tensor) -> NDArray[np.float32]:
        if not self.settled:
            return np.zeros(tuple(r_in.shape), np.float32)
        return devices.fetch(r_in).astype(np.float32)
