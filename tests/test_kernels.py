"""The compiled GRU against steps of the plain cell in double precision, and life without it."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lwm import kernels
from lwm.config import load_preset
from lwm.learner import LearnerState
from lwm.networks import GRU, Dense, round_products
from lwm.training import Trainer

needs_compiler = pytest.mark.skipif(
    kernels.library() is None, reason="no C++ compiler here: torch unrolls the GRUs"
)
needs_bfloat16 = pytest.mark.skipif(
    not kernels.multiplies_bfloat16(), reason="no products of bfloat16 (AVX512-BF16) here"
)


def _reference(core: GRU, x: Tensor, is_first: Tensor | None, h: Tensor) -> Tensor:
    states = []
    for t in range(len(x)):
        if is_first is not None:
            h = h * ~is_first[t][:, None]
        h = core.step(x[t], h)
        states.append(h)
    return torch.stack(states)


def _largest(errors: list[Tensor], scale: list[Tensor]) -> float:
    pairs = zip(errors, scale, strict=True)
    return max((e.abs().max() / s.abs().max().clamp(min=1e-6)).item() for e, s in pairs)


# Batches around the tile of rows, widths with an odd and an even number of vectors, windows shorter
# and longer than a chunk of the backward pass.
@needs_compiler
@pytest.mark.parametrize("cuts", [None, 0.0, 0.1])
@pytest.mark.parametrize(
    "rows, batch, inputs, hidden",
    [
        (1, 1, 1, 16),
        (5, 7, 3, 48),
        (12, 8, 20, 32),
        (9, 9, 64, 128),
        (70, 17, 5, 64),
        (3, 600, 4, 16),
    ],
)
def test_states_and_gradients(
    rows: int, batch: int, inputs: int, hidden: int, cuts: float | None
) -> None:
    torch.manual_seed(rows)
    core = GRU(inputs, hidden)
    exact = copy.deepcopy(core).double()
    x, h = torch.randn(rows, batch, inputs), torch.randn(batch, hidden)
    is_first = None if cuts is None else torch.rand(rows, batch) < cuts
    weight = torch.randn(rows, batch, hidden)
    results = []
    for net, unroll in ((core, core.unroll), (exact, lambda *a: _reference(exact, *a))):
        dtype = next(net.parameters()).dtype
        x_, h_ = (v.to(dtype).requires_grad_() for v in (x, h))
        out = unroll(x_, is_first, h_)
        grads = torch.autograd.grad((out * weight).sum(), [x_, h_, *net.parameters()])
        results.append([out.detach(), *grads])
    ours, truth = results
    assert _largest([a - b for a, b in zip(ours, truth, strict=True)], truth) < 1e-5
    with torch.no_grad():
        assert torch.equal(core.unroll(x, is_first, h), ours[0])


@needs_compiler
def test_gates_saturate_without_nan() -> None:
    core = GRU(4, 16)
    for scale in (1e3, 1e8, 1e30):
        x = (torch.randn(6, 5, 4) * scale).requires_grad_()
        out = core.unroll(x, None, torch.zeros(5, 16))
        (grad,) = torch.autograd.grad(out.sum(), x)
        plain = _reference(core, x.detach(), None, torch.zeros(5, 16))
        assert torch.isfinite(grad).all()
        torch.testing.assert_close(out, plain, rtol=1e-4, atol=1e-5)


@needs_compiler
def test_not_a_number_passes_through() -> None:
    """The NaN guard of the learner needs to see it."""
    core = GRU(4, 16)
    x = torch.zeros(3, 2, 4)
    x[1, 0, 0] = torch.nan
    out = core.unroll(x, None, torch.zeros(2, 16))
    assert out[1:, 0].isnan().any() and torch.isfinite(out[:, 1]).all()


@needs_compiler
def test_arrays_that_are_not_contiguous() -> None:
    torch.manual_seed(0)
    core = GRU(6, 32)
    x = torch.randn(4, 11, 6).transpose(0, 1)
    h = torch.randn(32, 4).t()
    out = core.unroll(x, None, h)
    torch.testing.assert_close(out, _reference(core, x, None, h), rtol=1e-5, atol=1e-6)
    grads = [
        torch.autograd.grad(v.sum(), list(core.parameters()))
        for v in (out, _reference(core, x, None, h))
    ]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def _rounded_steps(core: GRU, x: Tensor, is_first: Tensor, h: Tensor) -> Tensor:
    """Steps in float64 of what the products see: everything rounded to bfloat16."""

    def rounded(v: Tensor) -> Tensor:
        return v.float().bfloat16().double()

    c, states = core.cell, []
    weights = (rounded(c.weight_ih), rounded(c.weight_hh), c.bias_ih.double(), c.bias_hh.double())
    w_ih, w_hh, b_ih, b_hh = weights
    h = h.double()
    for t in range(len(x)):
        h = h * ~is_first[t][:, None]
        r, z, n = (rounded(x[t]) @ w_ih.t() + b_ih).chunk(3, 1)
        r_h, z_h, n_h = (rounded(h) @ w_hh.t() + b_hh).chunk(3, 1)
        r, z = torch.sigmoid(r + r_h), torch.sigmoid(z + z_h)
        n = torch.tanh(n + r * n_h)
        h = n + z * (h - n)
        states.append(h)
    return torch.stack(states)


@needs_bfloat16
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    "rows, batch, inputs, hidden",
    [(1, 1, 1, 16), (5, 7, 3, 48), (9, 9, 33, 128), (70, 17, 5, 64), (3, 300, 4, 16)],
)
def test_rounded_states_and_gradients(
    rows: int,
    batch: int,
    inputs: int,
    hidden: int,
    threads: int,
) -> None:
    """States as float64 has them for rounded factors; gradients within what rounding leaves."""
    torch.manual_seed(rows)
    core = GRU(inputs, hidden)
    rough = copy.deepcopy(core)
    round_products(threads, rough)
    x = torch.randn(rows, batch, inputs, requires_grad=True)
    h = torch.randn(batch, hidden, requires_grad=True)
    is_first = torch.rand(rows, batch) < 0.1
    weight = torch.randn(rows, batch, hidden)
    out = [net.unroll(x, is_first, h) for net in (rough, core)]
    assert not torch.equal(*out)
    # A state at the edge between two bfloat16 may be rounded to the other one.
    torch.testing.assert_close(
        out[0].double(), _rounded_steps(core, x, is_first, h), rtol=0, atol=2e-3
    )
    grads = [
        torch.autograd.grad((y * weight).sum(), [x, h, *net.parameters()])
        for net, y in zip((rough, core), out, strict=True)
    ]
    for ours, truth in zip(*grads, strict=True):
        assert (ours - truth).norm() < 0.01 * truth.norm()
    with torch.no_grad():
        assert torch.equal(rough.unroll(x, is_first, h), out[0])


@needs_bfloat16
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    "rows, batch, inputs, outputs", [(1, 1, 16, 16), (3, 5, 32, 48), (70, 9, 128, 256)]
)
def test_rounded_layer_is_exact_where_nothing_is_rounded(
    rows: int,
    batch: int,
    inputs: int,
    outputs: int,
    threads: int,
) -> None:
    torch.manual_seed(rows)
    layer = Dense(inputs, outputs)
    rough = copy.deepcopy(layer)
    round_products(threads, rough)
    with torch.no_grad():  # small whole numbers: every product and sum is exact in any order
        for v in (*layer.parameters(), *rough.parameters()):
            v.copy_(torch.randint(-8, 8, v.shape, generator=torch.Generator().manual_seed(v.dim())))
    x = torch.randint(-8, 8, (rows, batch, inputs)).float().requires_grad_()
    weight = torch.randint(-8, 8, (rows, batch, outputs)).float()
    results = []
    for net in (rough, layer):
        y = net(x)
        grads = torch.autograd.grad((y * weight).sum(), [x, *net.parameters()])
        results.append([y, *grads])
    for ours, truth in zip(*results, strict=True):
        assert torch.equal(ours, truth)


@needs_bfloat16
def test_threads_share_rows_and_change_no_state() -> None:
    torch.manual_seed(0)
    core, x = GRU(5, 32), torch.randn(6, 21, 5)
    states, inputs, weights = [], [], []
    for threads in (1, 2, 7):
        round_products(threads, core)
        x_ = x.clone().requires_grad_()
        out = core.unroll(x_, None, torch.zeros(21, 32))
        grads = torch.autograd.grad(out.square().sum(), [x_, *core.parameters()])
        states.append(out)
        inputs.append(grads[0])
        weights.append(grads[1])
    for other in (1, 2):
        assert torch.equal(states[0], states[other])
        assert torch.equal(inputs[0], inputs[other])
        torch.testing.assert_close(weights[0], weights[other], rtol=1e-4, atol=1e-4)


@needs_bfloat16
@pytest.mark.parametrize("threads", [1, 2])
def test_not_a_number_passes_through_rounding(threads: int) -> None:
    core, layer = GRU(4, 16), Dense(16, 16)
    round_products(threads, core, layer)
    x = torch.zeros(3, 10, 4)
    x[1, 9, 0] = torch.nan
    states = core.unroll(x, None, torch.zeros(10, 16))
    out = layer(states)
    for found in (states, out):
        assert found[1:, 9].isnan().any() and torch.isfinite(found[:, :9]).all()
    for grad in torch.autograd.grad(out.sum(), [core.cell.weight_hh, layer.weight]):
        assert grad.isnan().any()


@needs_compiler
@pytest.mark.parametrize("rounded", [0, 1])
def test_resets_of_a_transposed_array(rounded: int) -> None:
    core = GRU(4, 16)
    round_products(rounded, core)
    x, h = torch.randn(5, 3, 4), torch.randn(3, 16)
    is_first = (torch.arange(15).view(3, 5) % 4 == 1).t()
    assert torch.equal(core.unroll(x, is_first, h), core.unroll(x, is_first.contiguous(), h))


@needs_bfloat16
def test_rounded_updates_learn_what_plain_ones_do() -> None:
    """A whole run, of a few updates: nearly the same losses, and not the same."""
    results = []
    for precision in ("float32", "bfloat16"):
        config = load_preset("debug", {"unroll_precision": precision, "loop.total_frames": 600})
        rows = [event.data for event in Trainer(config).run() if event.kind == "train"]
        results.append({k: v for k, v in rows[-1].items() if "loss" in k})
    plain, rounded = results
    assert "dqn/loss" in plain and "world_model/loss" in plain
    for key, value in plain.items():
        assert rounded[key] == pytest.approx(value, rel=0.1) and rounded[key] != value


@needs_bfloat16
def test_rounded_layer_rounds_windows_and_nothing_else() -> None:
    layer = Dense(16, 16)
    x = torch.randn(4, 3, 16)
    window, rows = layer(x), layer(x[0])
    round_products(1, layer)
    assert not torch.equal(layer(x), window)
    assert torch.equal(layer(x[0]), rows)  # what an actor does


@pytest.mark.parametrize("precision, threads", [("float32", 1), ("bfloat16", 2)])
def test_the_config_says_what_is_rounded(precision: str, threads: int) -> None:
    changes = {"unroll_precision": precision, "unroll_threads": threads}
    state = LearnerState(load_preset("debug", changes), 4, 4)
    model = state.bonus.parts()["world_model"]
    layers = [m for net in (state.dqn, state.target, model) for m in net.modules()]
    marks = [m.rounded for m in layers if isinstance(m, GRU | Dense)]
    assert marks == [0 if precision == "float32" else threads] * 6


def _describe(**environment: str) -> str:
    code = "from lwm import kernels; print(kernels.description())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.strip()


def test_without_a_compiler_or_when_told_so_torch_does_it(tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    assert _describe(**cache, LWM_KERNELS="0") == "torch"
    assert _describe(**cache, PATH=str(tmp_path), CXX="no-such-compiler") == "torch"
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    assert _describe(**cache, CXX=str(broken)) == "torch"


@needs_compiler
def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a directory")
    assert _describe(XDG_CACHE_HOME=str(file)) == "torch"


@needs_compiler
def test_compiled_once_and_found_again(tmp_path: Path) -> None:
    first = _describe(XDG_CACHE_HOME=str(tmp_path))
    assert first.startswith("compiled ")
    (made,) = (tmp_path / "lwm").iterdir()
    stamp = made.stat().st_mtime_ns
    assert _describe(XDG_CACHE_HOME=str(tmp_path)) == first
    assert made.stat().st_mtime_ns == stamp
    shutil.rmtree(tmp_path / "lwm")
    assert _describe(XDG_CACHE_HOME=str(tmp_path)) == first
