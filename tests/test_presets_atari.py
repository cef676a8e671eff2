"""Preset paper of Atari is the paper's tables line by line; the others differ where they say so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lwm.actor import ladder
from lwm.cli import main
from lwm.config import PRESETS, Config, difference, fields, get, load_preset, source
from lwm.learner import LearnerState

# Every setting that an Atari run reads, its value in preset paper, and where that value stands: a
# line of a table of the supplementary ("table: line"), a row of the decisions, or a choice of ours.
PHI, PP, DQN, LWM = "Phi training", "Atari pre-processing", "Atari DQN", "Atari LWM"
OFF = "not in the paper: off"
OURS = "ours: changes no result"
PAPER: list[tuple[str, Any, str]] = [
    ("workload", "atari", "the command line"),
    ("preset", "paper", "the command line"),
    ("agent", "lwm", "the paper's method"),
    ("seed", 0, "row 29"),
    ("threads", 1, "row 29"),
    ("device", "cpu", OURS),
    ("precision", "auto", "row 17"),
    ("unroll_precision", "float32", "row 17: what is behind the CNNs"),
    ("unroll_threads", 1, OURS),
    # Table "Atari pre-processing".  Frame stack, pooling, grey, 84 x 84 and unclipped rewards are
    # no settings: the environment knows nothing else.
    ("atari.game", "montezuma_revenge", "Sec. 4.2: one of six"),
    ("atari.time_limit", 10_000, f"{PP}: Max episode length"),
    ("atari.action_repeat", 4, f"{PP}: Action repeats"),
    ("atari.noop_max", 30, f"{PP}: Random noops range"),
    ("atari.sticky", 0.0, f"{PP}: Sticky actions"),
    ("atari.life_loss_ends", True, f"{PP}: End episode on life loss"),
    ("atari.fire_on_reset", False, "row 25"),
    ("atari.full_actions", False, "issue 3: the minimal set"),
    ("atari.coverage", "auto", OURS),
    ("atari.backend", "own", "ours: ale-vector differs as its module says"),
    ("atari.workers", 0, OURS),
    # Table "Atari DQN".
    ("loop.actors", 128, f"{DQN}: Actors"),
    ("loop.total_frames", 50_000_000 // 4, f"{DQN}: Total environment frames, row 23"),
    ("loop.warmup_frames", 400_000, f"{DQN}: Replay warm-up, row 23"),
    ("loop.cycles_per_update", 1, "row 23"),
    ("loop.schedule_frames", 0, OFF),
    ("loop.log_every_frames", 50_000, OURS),
    ("loop.checkpoint_every_frames", 500_000, OURS),
    ("loop.evaluate_every_frames", 0, OFF),
    ("loop.validation_episodes", 256, OURS),
    ("loop.stop_at_score", 0.0, OFF),
    ("replay.capacity_steps", 1_000_000, f"{DQN}: Replay buffer size"),
    ("replay.batch", 16, f"{DQN}: Batch size"),
    ("replay.burn_in", 40, f"{DQN}: Burn-in"),
    ("replay.unroll", 80, f"{DQN}: Unroll"),
    ("replay.start_state", "stored", "row 5"),
    ("replay.align_starts", 0.0, OFF),
    ("replay.prioritised", True, f"{DQN}: Replay priority exponent"),
    ("replay.priority_exponent", 0.9, f"{DQN}: Replay priority exponent"),
    ("replay.importance_exponent", 0.6, f"{DQN}: Importance sampling exponent"),
    ("replay.priority_eta", 0.9, "row 20"),
    ("replay.compress", True, OURS),
    ("replay.symmetry_share", 0.0, OFF),
    ("dqn.features", 512, f"{DQN}: CNN output size"),
    ("dqn.hidden", 512, f"{DQN}: RNN hidden size"),
    ("dqn.head", 512, f"{DQN}: Advantage and value FC layers"),
    ("dqn.learning_rate", 1e-4, f"{DQN}: Learning rate"),
    ("dqn.final_learning_rate", 0.0, OFF),
    ("dqn.anneal_share", 1.0, OFF),
    ("dqn.adam_epsilon", 1e-3, f"{DQN}: Adam epsilon"),
    ("dqn.clip_norm", 40.0, f"{DQN}: Clip gradient norm"),
    ("dqn.gamma", 0.99, f"{DQN}: Discount"),
    ("dqn.n_step", 5, f"{DQN}: N-step"),
    ("dqn.trace", 0.0, OFF),
    ("dqn.gap", 0.0, OFF),
    ("dqn.tau", 0.005, f"{DQN}: Target Q-network tau"),
    ("dqn.symmetric_share", 0.0, OFF),
    ("dqn.epsilon_base", 0.4, f"{DQN}: Training epsilon 0.4^i"),
    ("dqn.epsilon_low", 1.0, f"{DQN}: i in [1, 8], row 27"),
    ("dqn.epsilon_high", 8.0, f"{DQN}: i in [1, 8], row 27"),
    ("dqn.reset_state", True, "row 2"),
    ("dqn.truncation_bootstraps", True, "row 12"),
    ("dqn.auxiliary", 0.0, OFF),
    ("dqn.average", 0.0, OFF),
    ("evaluation.epsilon", 0.001, f"{DQN}: Evaluation epsilon"),
    ("evaluation.episodes", 128, "Sec. 4.2: averaged over 128 episodes"),
    # Table "Phi training with W-MSE loss".
    ("encoder.learning_rate", 5e-4, f"{PHI}: Learning rate"),
    ("encoder.adam_epsilon", 1e-8, "row 31"),
    ("encoder.pretrain_iterations", 10_000, f"{PHI}: Pretrain iterations"),
    ("encoder.batch", 256, f"{PHI}: Batch size"),
    ("encoder.embedding", 32, f"{PHI}: Output embedding size"),
    ("encoder.spatial_shift", 4, f"{PHI}: Max spatial shift"),
    ("encoder.wrap_shift", False, "row 13"),
    ("encoder.temporal_shift", 2, f"{PHI}: Max temporal shift L"),
    # Table "Atari LWM".
    ("world_model.learning_rate", 5e-4, f"{LWM}: Learning rate"),
    ("world_model.adam_epsilon", 1e-8, "row 31"),
    ("world_model.clip_norm", 0.0, "row 31"),
    ("world_model.pretrain_iterations", 5_000, f"{LWM}: Pretrain iterations"),
    ("world_model.pretrain_batch", 16, "row 24"),
    ("world_model.pretrain_rows", 100, "row 24"),
    ("world_model.features", 128, f"{LWM}: FC layer before RNN"),
    ("world_model.relu_features", False, "row 18"),
    ("world_model.hidden", 256, f"{LWM}: RNN hidden size"),
    ("world_model.head", 256, f"{LWM}: FC layers"),
    ("world_model.sigmoid_output", False, "POL LWM alone has a sigmoid"),
    ("world_model.loss", "mse", "row 10"),
    ("intrinsic.momentum", 0.999, f"{LWM}: Mean and std momentum"),
    ("intrinsic.beta", 1.0, "Sec. 4.2: 0.01 Freeway, 1 others; row 8"),
    ("intrinsic.final_beta", -1.0, OFF),
    ("intrinsic.fade_from", 0.0, OFF),
    ("intrinsic.fade_until", 1.0, OFF),
    ("intrinsic.start_belief", "zero", "row 5"),
    ("intrinsic.clip", 10.0, "Sec. 3.4"),
    ("intrinsic.boundary", "terminal", "row 4"),
    ("intrinsic.moments_include_burn_in", False, "row 9"),
    ("intrinsic.leak_to_baseline", False, "row 3"),
    # What undoes the method, or measures it: off.
    ("atari.tv", False, OFF),
    ("loop.policy", "agent", OFF),
    ("dqn.error_input", True, "Sec. 3.4"),
    ("encoder.representation", "auto", "W-MSE, where observations are images"),
    ("encoder.freeze_after_pretraining", False, "Sec. 3.4"),
    ("encoder.centre", 0.0, "ours: row 38, off in every preset but laptop"),
    ("world_model.residual", False, OFF),
    ("intrinsic.stored_bonus", False, "Alg. 1"),
    ("encoder.hidden", 128, "of vectors: images have no such layer"),
]

# Column "official" of the decisions; the rows that are not here are not reproduced, are the same,
# or concern the labyrinth alone (docs/paper-vs-ours.md).
OFFICIAL = {
    "dqn.clip_norm": 0.0,  # 1
    "intrinsic.boundary": "reset",  # 4
    "intrinsic.moments_include_burn_in": True,  # 9
    "dqn.truncation_bootstraps": False,  # 12
    "encoder.wrap_shift": True,  # 13
    "atari.fire_on_reset": True,  # 25
}

GAMES = {
    "freeway": 0.01,
    "frostbite": 1.0,
    "venture": 1.0,
    "gravitar": 1.0,
    "solaris": 1.0,
    "montezuma_revenge": 1.0,
}
"""The six games of Sec. 4.2 and the scale of their bonus (row 8)."""


def preset(name: str, **overrides: Any) -> Config:
    keys = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_preset(name, keys, "atari")


def changes(name: str, **overrides: Any) -> dict[str, Any]:
    """What a preset has that paper has otherwise, its name aside."""
    found = difference(preset(name, **overrides), preset("paper", **overrides))
    assert found.pop("preset") == ("paper", name)
    return {key: new for key, (_, new) in found.items()}


@pytest.mark.parametrize(("key", "value", "source"), PAPER, ids=[row[0] for row in PAPER])
def test_paper_values(key: str, value: Any, source: str) -> None:
    found = get(preset("paper"), key)
    assert found == value, source
    assert type(found) is type(value)


def test_the_table_is_complete() -> None:
    # A setting that is added must be given its place in the paper here; env is the labyrinth's,
    # gym of any other environment.
    keys = [key for key, _ in fields(Config()) if not key.startswith(("env.", "gym."))]
    assert sorted(key for key, _, _ in PAPER) == sorted(keys)


def test_sources_name_the_table_that_the_value_is_from() -> None:
    tables = (PHI, PP, DQN, LWM, "Sec.", "Alg.")
    for key, _, known in PAPER:
        found = source(key, "atari")
        assert "POL" not in found, key
        if key == "atari.game":  # a choice of the user, no number
            continue
        if known.startswith(tables):
            assert found.partition(":")[0] == known.partition(":")[0], key
        else:
            assert not found or key in ("loop.cycles_per_update", "world_model.sigmoid_output")


def test_the_labyrinth_cites_its_own_tables() -> None:
    assert source("loop.actors", "labyrinth") == "POL DQN: Actors"
    assert source("loop.cycles_per_update", "labyrinth") == "POL DQN: ratio 4"
    assert source("evaluation.episodes", "labyrinth") == ""


def test_the_command_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--workload", "atari"]) == 0
    shown = capsys.readouterr().out
    assert "  loop.actors=128  environments stepped together  [Atari DQN: Actors]\n" in shown
    assert "POL" not in shown


def test_units_of_the_paper() -> None:
    c = preset("paper")
    assert c.window == 40 + 80 + 5  # row 21
    assert c.loop.total_frames * c.atari.action_repeat == 5 * 10**7  # row 23
    assert c.loop.total_frames // c.loop.actors == 97_656
    d = c.dqn
    epsilon = ladder(d.epsilon_base, d.epsilon_low, d.epsilon_high, c.loop.actors)
    assert epsilon.shape == (128,)
    assert epsilon[0] == pytest.approx(0.4) and epsilon[-1] == pytest.approx(0.4**8)
    ratio = epsilon[1:] / epsilon[:-1]  # evenly spaced exponents
    assert ratio.max() == pytest.approx(ratio.min()) == pytest.approx(0.4 ** (7 / 127))


def test_networks_of_the_paper() -> None:
    # The lines of the tables that are shapes; Montezuma has 18 actions.
    actions = 18
    learner = LearnerState(preset("paper"), 84 * 84, actions)
    phi = learner.encoder
    assert phi is not None
    trunks = [phi.encoder.trunk, learner.dqn.features.trunk]
    assert len({id(p) for trunk in trunks for p in trunk.parameters()}) == 12  # row 32: own CNNs
    for trunk in trunks:
        layers = [m for m in trunk.modules() if isinstance(m, nn.Conv2d)]
        assert [layers[0].in_channels, *(m.out_channels for m in layers)] == [1, 32, 64, 64]
        assert [m.kernel_size for m in layers] == [(8, 8), (4, 4), (3, 3)]
        assert [m.stride for m in layers] == [(4, 4), (2, 2), (1, 1)]
    assert phi.encoder.projection.weight.shape == (32, 64 * 7 * 7)

    dqn = learner.dqn
    assert dqn.features.projection.weight.shape == (512, 64 * 7 * 7)
    assert dqn.core.cell.weight_ih.shape == (3 * 512, 512 + 1 + actions)
    assert dqn.core.cell.weight_hh.shape == (3 * 512, 512)
    assert dqn.head.first.weight.shape == (2 * 512, 512)  # both streams' first layers in one
    assert dqn.head.advantage.weight.shape == (actions, 512) and dqn.head.advantage.bias is None
    assert dqn.head.value.weight.shape == (1, 512)

    model = learner.bonus.model
    assert model.features.weight.shape == (128, 32 + actions)
    assert model.core.cell.weight_ih.shape == (3 * 256, 128)
    assert model.core.cell.weight_hh.shape == (3 * 256, 256)
    assert model.head.weight.shape == (256, 256)
    assert model.output.weight.shape == (32, 256)

    # Row 31: epsilon 1e-3 for the DQN alone.
    for optimiser, rate, epsilon in [
        (learner.optimiser, 1e-4, 1e-3),
        (phi.optimiser, 5e-4, 1e-8),
        (learner.bonus.optimiser, 5e-4, 1e-8),
    ]:
        assert type(optimiser) is torch.optim.Adam
        (group,) = optimiser.param_groups
        assert (group["lr"], group["eps"], group["betas"]) == (rate, epsilon, (0.9, 0.999))
        assert group["weight_decay"] == 0 and not group["amsgrad"]


# The scale of the bonus.


@pytest.mark.parametrize("name", PRESETS["atari"])
@pytest.mark.parametrize(("game", "beta"), GAMES.items())
def test_beta_by_game(name: str, game: str, beta: float) -> None:
    assert preset(name, atari__game=game).intrinsic.beta == beta


def test_beta_that_is_asked_for_wins() -> None:
    assert preset("paper", atari__game="freeway", intrinsic__beta=0.5).intrinsic.beta == 0.5
    assert preset("paper", atari__game="pong").intrinsic.beta == 1
    assert load_preset("paper").intrinsic.beta == 1  # the labyrinth plays no game


# The other presets.


def test_names_of_the_presets() -> None:
    assert set(PRESETS["atari"]) == {"paper", "official", "laptop", "single-gpu", "debug"}
    assert load_preset(workload="atari") == preset("paper")


def test_official_differs_in_its_switches_and_nowhere_else() -> None:
    assert changes("official") == OFFICIAL


def test_single_gpu_differs_in_device_and_precision() -> None:
    assert changes("single-gpu") == {"device": "cuda", "precision": "bfloat16"}


SMALLER = {
    "loop.actors",
    "loop.total_frames",
    "loop.warmup_frames",
    "loop.log_every_frames",
    "loop.checkpoint_every_frames",
    "replay.capacity_steps",
    "replay.batch",
    "replay.burn_in",
    "replay.unroll",
    "encoder.batch",
    "encoder.pretrain_iterations",
    "world_model.pretrain_iterations",
}
"""What laptop and debug both have less of."""


def test_laptop_has_less_of_everything_and_the_same_method() -> None:
    found = changes("laptop")
    # Fewer actors, windows and pretraining; fewer updates, each of which moves everything further.
    rates = {"dqn.tau", "dqn.learning_rate", "dqn.adam_epsilon", "intrinsic.momentum"}
    rates |= {"encoder.centre"}  # row 38
    assert set(found) == SMALLER | rates | {"loop.cycles_per_update"}
    paper = preset("paper")
    assert all(found[key] < get(paper, key) for key in SMALLER)
    assert found["loop.cycles_per_update"] > 1 and found["dqn.tau"] > 0.005
    assert found["dqn.learning_rate"] > 1e-4 and found["intrinsic.momentum"] < 0.999
    assert found["dqn.adam_epsilon"] < 1e-3 and 0 < found["encoder.centre"] <= 1
    laptop = preset("laptop")
    assert 10**6 <= laptop.loop.total_frames * laptop.atari.action_repeat <= 2 * 10**6
    # The networks, the inputs and the targets are the paper's.
    for section in ("atari", "dqn", "encoder", "world_model", "intrinsic", "evaluation"):
        changed = {key for key in found if key.partition(".")[0] == section}
        assert changed <= SMALLER | rates


def test_debug_is_tiny_and_switches_nothing() -> None:
    found = changes("debug", atari__game="freeway")
    widths = {
        f"{part}.{layer}" for part in ("dqn", "world_model") for layer in ("features", "hidden")
    }
    widths |= {"dqn.head", "world_model.head", "encoder.embedding"}
    less = SMALLER | widths | {
        "atari.time_limit", "dqn.n_step", "world_model.pretrain_batch", "world_model.pretrain_rows",
        "evaluation.episodes",
    }  # fmt: skip
    assert set(found) == less | {"loop.cycles_per_update", "atari.workers"}
    paper, debug = preset("paper"), preset("debug")
    assert all(found[key] < get(paper, key) for key in less)
    assert debug.atari.game == "freeway" and debug.atari.workers == 1
    # Tiny: seconds of work, and kilobytes of weights but for the convolutions.
    assert debug.loop.total_frames <= 500 and debug.loop.actors == 2
    assert debug.replay.batch * debug.window <= 64
    assert debug.encoder.pretrain_iterations + debug.world_model.pretrain_iterations <= 20
    assert max(get(debug, key) for key in widths) <= 32
    assert debug.evaluation.episodes * debug.atari.time_limit <= 1000
    # Still, the ring goes round, windows lie in both halves, and games end in either.
    rows = debug.replay.capacity_steps // debug.loop.actors
    assert debug.loop.total_frames // debug.loop.actors > rows > debug.window
    assert debug.loop.warmup_frames // debug.loop.actors >= debug.atari.time_limit
