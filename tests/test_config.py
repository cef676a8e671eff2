"""The config: the paper's tables to the letter, and nothing that no run could use."""

from __future__ import annotations

import ast
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lwm
from lwm.config import (
    AGENTS,
    PRESETS,
    Config,
    difference,
    fields,
    from_dict,
    get,
    load_preset,
    replace,
    to_dict,
)
from lwm.errors import BadInput
from lwm.sections import DQNConfig

SOURCE = Path(lwm.__file__).parent

# Table "POL DQN", line by line.
POL_DQN = {
    "dqn.learning_rate": 5e-4,
    "dqn.adam_epsilon": 1e-3,
    "dqn.clip_norm": 40,
    "loop.actors": 8,
    "replay.unroll": 32,
    "replay.burn_in": 16,
    "loop.cycles_per_update": 4,
    "replay.batch": 32,
    "dqn.n_step": 1,
    "dqn.gamma": 0.99,
    "dqn.tau": 0.05,
    "replay.capacity_steps": 10**5,
    "loop.warmup_frames": 10**4,
    "loop.total_frames": 10**6,
    "env.time_limit": 1000,
    # Training epsilon 0.01: 0.01 ** 1 for every actor.
    "dqn.epsilon_base": 0.01,
    "dqn.epsilon_low": 1,
    "dqn.epsilon_high": 1,
    "evaluation.epsilon": 0.01,
    # FC 4 + 4 + 1 -> 32, which is the RNN's input size.
    "dqn.features": 32,
    "dqn.hidden": 128,
    # Advantage 128 -> 128 -> 4 and value 128 -> 128 -> 1.
    "dqn.head": 128,
}

# Table "POL LWM", line by line.
POL_LWM = {
    "world_model.learning_rate": 5e-4,
    "world_model.pretrain_iterations": 1000,
    "intrinsic.momentum": 0.99,
    "world_model.features": 32,
    "world_model.hidden": 128,
    "world_model.head": 128,
    "world_model.sigmoid_output": True,
    "intrinsic.beta": 1,
}

# The rows of the decisions that the tables do not hold, column "default".
DECISIONS = {
    "dqn.reset_state": True,  # 2
    "intrinsic.leak_to_baseline": False,  # 3
    "intrinsic.boundary": "terminal",  # 4
    "replay.start_state": "stored",  # 5
    "intrinsic.start_belief": "zero",  # 5
    "intrinsic.moments_include_burn_in": False,  # 9
    "dqn.truncation_bootstraps": True,  # 12
    "intrinsic.clip": 10,  # 16
    "world_model.relu_features": True,  # 18
    "world_model.pretrain_batch": 64,  # 24
    "world_model.pretrain_rows": 100,  # 24
    "world_model.adam_epsilon": 1e-8,  # 31
    "env.carve_start": "corner",  # 36
    "evaluation.episodes": 4096,
}

# Column "official": decision -> the switch and how it stands.
OFFICIAL = {
    1: ("dqn.clip_norm", 0),
    2: ("dqn.reset_state", False),
    3: ("intrinsic.leak_to_baseline", True),
    4: ("intrinsic.boundary", "reset"),
    5: ("replay.start_state", "zero"),
    9: ("intrinsic.moments_include_burn_in", True),
    12: ("dqn.truncation_bootstraps", False),
    16: ("intrinsic.clip", 0),
}


@pytest.mark.parametrize(("key", "value"), [*POL_DQN.items(), *POL_LWM.items(), *DECISIONS.items()])
def test_paper_values(key: str, value: Any) -> None:
    found = get(load_preset("paper"), key)
    assert found == value
    assert type(found) is type(value) or (type(found), type(value)) == (float, int)


def test_paper_is_the_default() -> None:
    assert Config() == load_preset() == load_preset("paper")
    config = Config()
    assert (config.agent, config.preset, config.seed) == ("lwm", "paper", 0)
    assert config.window == 16 + 32 + 1


def test_what_the_paper_does_not_have_is_off() -> None:
    # Everything that is neither in a table nor a decision must leave the algorithm alone.
    config = load_preset("paper")
    off = {
        "replay.align_starts": 0,
        "dqn.trace": 0,
        "dqn.gap": 0,
        "dqn.final_learning_rate": 0,
        "dqn.average": 0,
        "dqn.auxiliary": 0,
        "world_model.loss": "mse",
        "world_model.clip_norm": 0,
        "world_model.residual": False,
        "env.early_steps_per_room": 0,
        "intrinsic.final_beta": -1,
        "intrinsic.stored_bonus": False,
        "dqn.error_input": True,
        "encoder.freeze_after_pretraining": False,
        "loop.evaluate_every_frames": 0,
        "loop.schedule_frames": 0,
        "loop.stop_at_score": 0,
    }
    assert {key: get(config, key) for key in off} == off


def test_official_differs_in_its_switches_and_nowhere_else() -> None:
    changed = difference(load_preset("official"), load_preset("paper"))
    assert changed.pop("preset") == ("paper", "official")
    assert {key: new for key, (_, new) in changed.items()} == dict(OFFICIAL.values())


def test_debug_shrinks_and_switches_nothing() -> None:
    changed = difference(load_preset("debug"), load_preset("paper"))
    switches = {key for key, _ in OFFICIAL.values()}
    assert not switches & set(changed)


@pytest.mark.parametrize("workload, name", [(w, n) for w in PRESETS for n in PRESETS[w]])
def test_presets_know_their_name_and_survive_json(workload: str, name: str) -> None:
    config = load_preset(name, workload=workload)
    assert (config.preset, config.workload) == (name, workload)
    assert from_dict(json.loads(json.dumps(to_dict(config), allow_nan=False))) == config


def test_configs_are_frozen() -> None:
    config = Config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.dqn.gamma = 0.5


def test_overrides_leave_the_original_alone() -> None:
    config = load_preset("paper")
    changed = replace(config, {"env.size": 5, "seed": 7, "dqn.gamma": 0.9})
    assert (config.env.size, config.seed, config.dqn.gamma) == (3, 0, 0.99)
    assert (changed.env.size, changed.seed, changed.dqn.gamma) == (5, 7, 0.9)
    assert set(difference(changed, config)) == {"env.size", "seed", "dqn.gamma"}
    assert difference(changed, config)["env.size"] == (3, 5)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("loop.total_frames", "1e6", 1_000_000),
        ("loop.total_frames", "250_000", 250_000),
        ("loop.total_frames", 3e5, 300_000),
        ("env.size", "4", 4),
        ("dqn.gamma", "0.5", 0.5),
        ("dqn.gamma", 1, 1.0),
        ("dqn.learning_rate", "1e-4", 1e-4),
        ("intrinsic.final_beta", "-1", -1.0),
        ("dqn.reset_state", "true", True),
        ("dqn.reset_state", "False", False),
        ("dqn.reset_state", "0", False),
        ("dqn.reset_state", "1", True),
        ("dqn.reset_state", False, False),
        ("intrinsic.boundary", "mask", "mask"),
        ("agent", "mbie-eb", "mbie-eb"),
    ],
)
def test_text_becomes_the_type_of_the_setting(key: str, text: Any, value: Any) -> None:
    found = get(replace(Config(), {key: text}), key)
    assert found == value
    assert type(found) is type(value)


REFUSED = [
    # key, value, what the message must hold
    ("dqn.gama", 0.9, "did you mean 'dqn.gamma'?"),
    ("dqn.gamma.x", 0.9, "unknown setting"),
    ("gamma", 0.9, "unknown setting 'gamma'"),
    ("env", {"size": 3}, "unknown setting 'env'"),
    ("", 1, "unknown setting ''"),
    ("agent", "lvm", "did you mean 'lwm'?"),
    ("agent", "zzzz", "choose from random, dqn, lwm, lwm-ff, lwm-rf, mbie-eb, rnd, icm"),
    ("agent", 3, "agent=3"),
    ("preset", "offical", "did you mean 'official'?"),
    ("workload", "doom", "workload='doom' is not one of 'labyrinth', 'atari'"),
    ("intrinsic.boundary", "wrap", "'terminal', 'mask', 'reset'"),
    ("intrinsic.boundary", ["mask"], "is not one of"),
    ("env.size", 1, "env.size=1 is outside [2, 64]"),
    ("env.size", 65, "outside"),
    ("env.size", 2.5, "not a valid int"),
    ("env.size", "three", "not a valid int"),
    ("env.size", "", "not a valid int"),
    ("env.size", True, "not a valid int"),
    ("env.size", None, "not a valid int"),
    ("env.size", [3], "not a valid int"),
    ("env.size", "inf", "not a valid int"),
    ("env.size", "nan", "not a valid int"),
    ("env.size", float("nan"), "not a valid int"),
    ("dqn.gamma", 1.01, "outside [0, 1]"),
    ("dqn.gamma", -0.01, "outside [0, 1]"),
    ("dqn.gamma", "nan", "not a valid float"),
    ("dqn.gamma", float("nan"), "not a valid float"),
    ("dqn.gamma", "inf", "inf"),
    ("dqn.gamma", "0,9", "not a valid float"),
    ("dqn.gamma", True, "not a valid float"),
    ("dqn.gamma", None, "not a valid float"),
    ("dqn.reset_state", "yes", "not a valid bool"),
    ("dqn.reset_state", 2, "not a valid bool"),
    ("dqn.reset_state", None, "not a valid bool"),
    ("loop.stop_at_score", 1, "outside [-inf, 0]"),
    ("loop.stop_at_score", "-inf", "not a valid float"),
    ("world_model.pretrain_rows", 17, "leaves nothing after replay.burn_in=16"),
    ("loop.stop_at_score", "nan", "not a valid float"),
    ("seed", -1, "outside"),
    ("seed", 2**31, "outside"),
    ("threads", 0, "outside"),
    ("replay.capacity_steps", 800, "holds 100 rows per actor, but a window takes 100"),
    ("loop.warmup_frames", 800, "gives 100 rows per actor, but a window takes 100"),
    ("replay.unroll", 9999, "a window takes 10016"),
]


@pytest.mark.parametrize(("key", "value", "words"), REFUSED)
def test_refused_in_one_line(key: str, value: Any, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        replace(Config(), {key: value})
    message = str(caught.value)
    assert words in message
    assert "\n" not in message


def test_unknown_preset() -> None:
    with pytest.raises(BadInput, match=r"unknown preset 'best' of atari"):
        load_preset("best", workload="atari")
    with pytest.raises(BadInput, match=r"unknown workload 'atary'; did you mean 'atari'\?"):
        load_preset(workload="atary")
    with pytest.raises(
        BadInput, match=r"unknown preset 'papr' of labyrinth; did you mean 'paper'\?"
    ):
        load_preset("papr")


def test_cross_entropy_needs_probabilities() -> None:
    with pytest.raises(BadInput, match=r"needs world_model\.sigmoid_output=True"):
        replace(Config(), {"world_model.loss": "bce", "world_model.sigmoid_output": False})


def test_not_a_number_is_refused_by_the_dataclasses_too() -> None:
    with pytest.raises(BadInput, match="outside"):
        Config(dqn=DQNConfig(gamma=float("nan")))


@pytest.mark.parametrize(
    "data",
    [
        {"sed": 1},
        {"dqn": {"gama": 1}},
        {"dqn": {"gamma": {"deep": 1}}},
        {"dqn": 3},
        {"seed": {"value": 3}},
        {"env": {"size": "three"}},
        {"env": None},
    ],
)
def test_foreign_files_are_refused(data: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        from_dict(data)


def test_windows_must_fit() -> None:
    # 49 rows a window without a world model, 100 rows with one (its pretraining window).
    assert replace(Config(), {"agent": "dqn", "replay.capacity_steps": 400}).window == 49
    with pytest.raises(BadInput, match="holds 49 rows per actor, but a window takes 49"):
        replace(Config(), {"agent": "dqn", "replay.capacity_steps": 399})
    with pytest.raises(BadInput, match="takes 100"):
        replace(Config(), {"agent": "lwm", "replay.capacity_steps": 400})
    # A walk that never learns needs no warm-up.
    assert replace(Config(), {"agent": "random", "loop.warmup_frames": 0}).bonus == "none"


@pytest.mark.parametrize(
    ("agent", "leak", "bonus"),
    [
        ("random", False, "none"),
        ("random", True, "none"),
        ("dqn", False, "none"),
        ("dqn", True, "lwm"),
        ("lwm", False, "lwm"),
        ("lwm-ff", True, "lwm-ff"),
        ("mbie-eb", True, "mbie-eb"),
    ],
)
def test_bonus_of_each_agent(agent: str, leak: bool, bonus: str) -> None:
    config = load_preset("paper", {"agent": agent, "intrinsic.leak_to_baseline": leak})
    assert config.bonus == bonus


OVERRIDES = {
    # The others are not for the labyrinth.
    "agent": st.sampled_from([a for a in AGENTS if a not in ("lwm-rf", "rnd", "icm")]),
    "seed": st.integers(0, 2**28 - 1),
    "threads": st.integers(1, 256),
    "env.size": st.integers(2, 64),
    "env.time_limit": st.integers(1, 10**6),
    "env.carve_start": st.sampled_from(["corner", "random"]),
    "loop.total_frames": st.integers(20_000, 10**10),  # beyond every warm-up
    "loop.validation_episodes": st.integers(1, 10**6),
    "replay.batch": st.integers(1, 10**5),
    "replay.start_state": st.sampled_from(["stored", "zero"]),
    "dqn.gamma": st.floats(0, 1),
    "dqn.learning_rate": st.floats(0, 1),
    "dqn.reset_state": st.booleans(),
    "world_model.adam_epsilon": st.floats(0, 1),
    "intrinsic.beta": st.floats(0, 1e6),
    "intrinsic.final_beta": st.floats(-1, 1e6),
    "intrinsic.boundary": st.sampled_from(["terminal", "mask", "reset"]),
    "evaluation.episodes": st.integers(1, 10**7),
}


@settings(deadline=None)
@given(st.sampled_from(sorted(PRESETS["labyrinth"])), st.fixed_dictionaries({}, optional=OVERRIDES))
def test_to_a_dict_and_back(preset: str, overrides: dict[str, Any]) -> None:
    config = load_preset(preset, overrides)
    assert all(get(config, key) == value for key, value in overrides.items())
    assert from_dict(to_dict(config)) == config
    assert from_dict(json.loads(json.dumps(to_dict(config), allow_nan=False))) == config
    # Text from a command line says the same as the values themselves.
    assert load_preset(preset, {key: str(value) for key, value in overrides.items()}) == config


KEYS = [key for key, _ in fields(Config())]


@pytest.mark.parametrize("key", KEYS)
def test_every_setting_says_what_it_is(key: str) -> None:
    doc = dict(fields(Config()))[key].metadata["doc"]
    assert len(doc) >= 4 and doc == doc.strip()


def attributes_read(tree: ast.AST) -> set[str]:
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


_PROPERTIES = {"window", "bonus", "updates_encoder", "progress"}


def test_every_setting_is_read() -> None:
    trees = {path: ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}
    own = trees.pop(SOURCE / "run_config.py")
    read = set().union(*map(attributes_read, trees.values()))
    # Some settings are read through a property of the config, which others read in turn.
    for node in ast.walk(own):
        if isinstance(node, ast.FunctionDef) and node.name in _PROPERTIES & read:
            read |= attributes_read(node)
    assert [key for key in KEYS if key.rpartition(".")[2] not in read] == []


def test_keys_are_settable_one_by_one() -> None:
    config = Config()
    for key in KEYS:
        assert replace(config, {key: get(config, key)}) == config


def test_fields_are_listed_once_a_class() -> None:
    """New tuples for every config would stay in CPython's free lists: a long sweep would grow."""
    one, other = Config(), load_preset("best", {"seed": 3})
    assert fields(one) is fields(other)
    keys = [key for key, _ in fields(one)]
    assert len(keys) == len(set(keys)) and {"seed", "loop.total_frames"} <= set(keys)


@pytest.mark.parametrize(
    ("workload", "changes", "words"),
    [
        ("gym", {"intrinsic.start_belief": "stored"}, "start_belief=stored needs replay.priorit"),
        ("gym", {"replay.align_starts": 0.5}, "align_starts=0.5 needs replay.prioritised=False"),
        ("labyrinth", {"replay.prioritised": True}, "needs replay.prioritised=False"),
        ("gym", {"agent": "rnd", "intrinsic.boundary": "mask"}, "no other intrinsic.boundary"),
        ("gym", {"env.tv": True}, "env.tv=True is for the labyrinth"),
        ("atari", {"env.tv": True}, "Atari has atari.tv"),
        ("labyrinth", {"env.first_size": 1}, "first_size=1 is no labyrinth"),
        ("labyrinth", {"env.first_size": 4}, "first_size=4 is more than env.size=3"),
        ("atari", {"env.first_size": 2}, "first_size=2 is for the labyrinth"),
        ("gym", {"env.first_size": 2}, "first_size=2 is for the labyrinth"),
        ("labyrinth", {"unroll_threads": 2}, "unroll_threads=2 needs unroll_precision=bfloat16"),
        ("atari", {"unroll_precision": "bfloat16", "device": "cuda"}, "is for CPUs"),
        (
            "labyrinth",
            {"unroll_precision": "bfloat16", "dqn.hidden": 100},
            "needs a multiple of 16: dqn.hidden=100",
        ),
    ],
)
def test_settings_that_would_fail_later_or_change_nothing_are_refused(
    workload: str, changes: dict[str, Any], words: str
) -> None:
    preset = {"labyrinth": "best", "gym": "default", "atari": "laptop"}[workload]
    with pytest.raises(BadInput, match=words):
        load_preset(preset, changes, workload)
