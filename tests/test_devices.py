"""Devices: what is asked for and not there, and that everything follows the networks' device.

There is no GPU here.  PyTorch's ``meta`` device stands in for one: its tensors have shapes but no
values, and like a GPU's they cannot be mixed with those of the CPU, nor be read by the host.
"""

from __future__ import annotations

import ast
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lwm import devices, networks, runs, symmetry
from lwm.actor import act, initial_state
from lwm.cli import main
from lwm.config import load_preset
from lwm.errors import BadInput
from lwm.learner import LearnerState, learn, learn_encoder, pretrain, priorities
from lwm.types import Pairs, Step, Unroll
from lwm.vision import shift_offsets

SRC = Path(devices.__file__).parent
META = torch.device("meta")
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")


@no_gpu
@pytest.mark.parametrize(
    "arguments",
    [["labyrinth", "--preset", "debug"], ["atari", "--preset", "debug"]],
)
def test_a_gpu_that_is_not_there_is_one_line(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(["train", *arguments, "device=cuda", "--out", str(out), "--quiet"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert said.err.startswith("lwm: device=cuda, but torch finds no CUDA device here")
    assert not out.exists()


@no_gpu
def test_what_the_names_mean_here() -> None:
    assert devices.pick("cpu") == devices.pick("auto") == devices.CPU
    assert devices.described(devices.CPU) is None
    with pytest.raises(BadInput, match="no CUDA device"):
        devices.pick("cuda")


@no_gpu
def test_a_run_made_on_a_gpu_is_scored_on_a_cpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run"
    small = ["loop.total_frames=450", "evaluation.episodes=4", "env.time_limit=20"]
    assert (
        main(["train", "labyrinth", "--preset", "debug", *small, "--out", str(path), "--quiet"])
        == 0
    )
    score = runs.read_evaluation(path)
    document = json.loads((path / "config.json").read_text())
    document["config"]["device"] = "cuda"
    (path / "config.json").write_text(json.dumps(document))
    capsys.readouterr()
    assert main(["evaluate", str(path)]) == 2
    assert capsys.readouterr().err.startswith("lwm: device=cuda, but")
    assert main(["evaluate", str(path), "--device", "cpu"]) == 0
    assert runs.read_evaluation(path) == score


def test_numbers_are_read_in_their_order() -> None:
    lists: dict[str, list[float | torch.Tensor]] = {
        "a": [1.5, torch.tensor(0.1), 2.0],
        "b": [],
        "c": [torch.tensor(3.0, dtype=torch.float64)],
    }
    found = devices.read(lists)
    assert found == {"a": [1.5, float(np.float32(0.1)), 2.0], "b": [], "c": [3.0]}
    assert devices.floats({"x": torch.tensor(0.1), "y": 2.0}) == {"x": found["a"][1], "y": 2.0}


def test_on_the_cpu_nothing_is_copied() -> None:
    array = np.arange(3.0)
    tensor = devices.put(array, devices.CPU)
    array[0] = 7
    assert tensor[0] == 7
    assert np.shares_memory(devices.fetch(tensor), array)


# Everything follows the device.


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """``devices`` means another device, and invents the values that the host asks of it."""
    adam = torch.optim.Adam

    def unfused(*args: Any, fused: bool, **rest: Any) -> torch.optim.Adam:
        assert fused
        return adam(*args, **rest)  # the fused one knows no meta

    def invented(tensor: torch.Tensor) -> np.ndarray:
        assert tensor.device == META, "this was computed on the host"
        return torch.zeros(tensor.shape, dtype=tensor.dtype).numpy()

    def believed(flag: torch.Tensor) -> bool:
        assert flag.device == META
        return True

    monkeypatch.setattr(devices, "pick", lambda name: META)
    monkeypatch.setattr(devices, "fetch", invented)
    monkeypatch.setattr(devices, "is_true", believed)
    monkeypatch.setattr(devices, "select", lambda values, mask: values.flatten())
    monkeypatch.setattr(torch.optim, "Adam", unfused)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    for kept in (networks._identity, symmetry._ways):
        kept.cache_clear()
    yield
    for kept in (networks._identity, symmetry._ways):
        kept.cache_clear()


AGENTS = [
    ("labyrinth", "lwm", {}),
    ("labyrinth", "lwm", {"dqn.auxiliary": 1.0, "world_model.loss": "bce", "dqn.average": 0.9}),
    ("labyrinth", "lwm", {"intrinsic.boundary": "reset", "intrinsic.start_belief": "stored"}),
    ("labyrinth", "lwm", {"intrinsic.boundary": "mask", "dqn.trace": 0.5}),
    (
        "labyrinth",
        "lwm",
        {"dqn.symmetric_share": 1.0, "replay.symmetry_share": 1.0, "intrinsic.boundary": "mask"},
    ),
    ("labyrinth", "lwm-ff", {}),
    ("labyrinth", "mbie-eb", {}),
    ("labyrinth", "dqn", {}),
    ("atari", "lwm", {}),
    ("atari", "lwm", {"precision": "bfloat16", "encoder.wrap_shift": True}),
    ("atari", "dqn", {}),
]


@pytest.mark.parametrize(("workload", "agent", "changes"), AGENTS)
@pytest.mark.usefixtures("elsewhere")
def test_acting_and_learning_follow_the_device(
    workload: str, agent: str, changes: dict[str, Any]
) -> None:
    config = load_preset("debug", {"agent": agent, **changes}, workload)
    shape, kind = ((84, 84), np.uint8) if workload == "atari" else ((4,), np.int8)
    state = LearnerState(config, int(np.prod(shape)), 4)
    modules = [state.dqn, state.target, *([state.average] if state.average else [])]
    if agent.startswith("lwm"):
        modules.append(state.bonus.model)
        assert state.bonus.moments.mean.device == state.bonus.moments.std.device == META
    if state.encoder is not None:
        modules.append(state.encoder.encoder)
    assert all(p.device == META for m in modules for p in m.parameters())

    K = config.loop.actors
    some, never = np.arange(K) % 2 == 0, np.zeros(K, np.bool_)
    zero, whole = np.zeros(K, np.float32), np.zeros(K, np.int64)
    step = Step(np.zeros((K, *shape), kind), whole, zero, some, never, zero, zero, whole, never)
    actors = initial_state(state.dqn, state.bonus, K, state.embedding)
    for row in (step, step._replace(is_first=never)):
        acted, actors = act(state.dqn, state.bonus, actors, row, some, whole, True, state.embed)
        assert all(v.device == META for v in actors)
        assert acted.action.shape == (K,)

    T, B = config.window, config.replay.batch
    flags, numbers = np.zeros((T, B), np.bool_), np.zeros((T, B), np.float32)
    belief = np.zeros((B, state.bonus.hidden), np.float32)
    unroll = Unroll(
        np.zeros((T, B, *shape), kind), np.zeros((T, B), np.int64), numbers, flags, flags, numbers,
        np.zeros((B, config.dqn.hidden), np.float32), belief, numbers, np.zeros((B, 2), np.int64),
    )  # fmt: skip
    _, priority, metrics = learn(state, unroll, 0.5, np.ones(B, np.float32))
    assert priority.shape == (B,)
    assert priorities(state, unroll, 0.0).shape == (B,)
    found = [metrics, pretrain(state, unroll)[1]]
    if state.encoder is not None:
        n = config.encoder.batch
        pairs = Pairs(np.zeros((n, 84, 84), np.uint8), np.zeros((n, 84, 84), np.uint8))
        found.append(
            learn_encoder(state, pairs, shift_offsets(np.random.default_rng(0), 2 * n, 4))[1]
        )
    # Numbers wait on the device until a row is written.
    numbers_there = [v for told in found for v in told.values() if isinstance(v, torch.Tensor)]
    assert len(numbers_there) >= (3 if agent == "dqn" else 4)
    assert all(v.device == META and not v.requires_grad for v in numbers_there)


MODULES = (
    "actor", "agent", "encoder", "evaluate", "intrinsic", "learner", "networks", "returns",
    "symmetry", "vision", "whitening", "world_model",
)  # fmt: skip
FACTORIES = {
    "arange", "empty", "eye", "full", "linspace", "ones", "rand", "randint", "randn", "tensor",
    "zeros",
}  # fmt: skip
HOST = {"item", "numpy", "cpu", "tolist"}


def strays(source: str) -> list[str]:
    """Calls that make a tensor on no stated device, or that bring one to the host unasked."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        name = node.func.attr
        of_torch = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
        placed = any(keyword.arg == "device" for keyword in node.keywords)
        if (of_torch and name in FACTORIES and not placed) or (name in HOST and not of_torch):
            found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


def test_the_walk_finds_strays() -> None:
    text = "torch.zeros(3)\ntorch.eye(2, device=d)\nloss.item()\nx.new_zeros(3)\nnp.zeros(3)\n"
    assert strays(text) == ["1: torch.zeros(3)", "3: loss.item()"]


@pytest.mark.parametrize("module", MODULES)
def test_no_module_of_the_method_forgets_the_device(module: str) -> None:
    found = strays((SRC / f"{module}.py").read_text(encoding="utf-8"))
    # Only where the tensor is known to be on the CPU.
    allowed = ["is_first.any(1).tolist()"] if module == "networks" else []
    assert [line.partition(": ")[2] for line in found] == allowed
