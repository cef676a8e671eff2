"""The hand-written unroll and the folded head against their plain compositions."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

from lwm.networks import GRU, DuelingHead, FeedForward, one_hot

INPUTS, HIDDEN, BATCH = 5, 7, 3


def _stepped(core: GRU | FeedForward, x: Tensor, is_first: Tensor | None, h: Tensor) -> Tensor:
    states = []
    for t in range(len(x)):
        if is_first is not None:
            h = h * ~is_first[t][:, None]
        h = core.step(x[t], h)
        states.append(h)
    return torch.stack(states)


def _window(rows: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(seed)
    x = torch.randn(rows, BATCH, INPUTS, dtype=torch.float64, requires_grad=True)
    h = torch.randn(BATCH, HIDDEN, dtype=torch.float64, requires_grad=True)
    return x, h, torch.rand(rows, BATCH) < 0.2


def _close(a: Iterable[Tensor], b: Iterable[Tensor]) -> None:
    for one, other in zip(a, b, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


# Lengths below, on and beyond the edges of a block.
@pytest.mark.parametrize("rows", [1, 2, 16, 17, 49])
@pytest.mark.parametrize("cuts", ["none", "nowhere", "some", "everywhere", "row 0"])
@pytest.mark.parametrize("kind", [GRU, FeedForward])
def test_unrolled_is_stepped(kind: type[GRU] | type[FeedForward], rows: int, cuts: str) -> None:
    x, h, some = _window(rows)
    core = kind(INPUTS, HIDDEN).double()
    at_0 = torch.zeros_like(some)
    at_0[0] = True
    is_first = {
        "none": None,
        "nowhere": torch.zeros_like(some),
        "some": some,
        "everywhere": torch.ones_like(some),
        "row 0": at_0,
    }[cuts]
    out, plain = core.unroll(x, is_first, h), _stepped(core, x, is_first, h)
    _close([out], [plain])
    with torch.no_grad():
        _close([core.unroll(x, is_first, h)], [plain])
    weight = torch.randn_like(out)
    inputs = [x, h, *core.parameters()] if kind is GRU else [x, *core.parameters()]
    _close(
        torch.autograd.grad((out * weight).sum(), inputs),
        torch.autograd.grad((plain * weight).sum(), inputs),
    )


def test_gradient_of_the_last_row_only_and_of_a_sum() -> None:
    """Incoming gradients that are zero, or expanded without memory of their own."""
    x, h, is_first = _window(20)
    core = GRU(INPUTS, HIDDEN).double()
    for reduce in (lambda y: y[-1].sum(), lambda y: y.sum()):
        inputs = [x, h, *core.parameters()]
        _close(
            torch.autograd.grad(reduce(core.unroll(x, is_first, h)), inputs),
            torch.autograd.grad(reduce(_stepped(core, x, is_first, h)), inputs),
        )


def test_two_graphs_of_one_core_do_not_share_memory() -> None:
    x, h, is_first = _window(20)
    core = GRU(INPUTS, HIDDEN).double()
    inputs = [x, h, *core.parameters()]
    alone = torch.autograd.grad(core.unroll(x, is_first, h).square().sum(), inputs)
    first = core.unroll(x, is_first, h)
    second = core.unroll(2 * x, None, h)
    with torch.no_grad():
        core.unroll(3 * x, is_first, h)
    kept = first.detach().clone()
    second.sum().backward()
    _close([first], [kept])
    _close(torch.autograd.grad(first.square().sum(), inputs), alone)


def test_is_first_cuts_the_past() -> None:
    x, h, _ = _window(30)
    core = GRU(INPUTS, HIDDEN).double()
    is_first = torch.zeros(30, BATCH, dtype=torch.bool)
    is_first[13, 1] = True
    changed = x.detach().clone()
    changed[:13, 1] += 1
    with torch.no_grad():
        before, after = core.unroll(x, is_first, h), core.unroll(changed, is_first, h + 1)
    assert torch.equal(before[13:, 1], after[13:, 1])
    assert not torch.equal(before[12, 1], after[12, 1])
    assert not torch.equal(before[13, 0], after[13, 0])
    (core.unroll(x, is_first, h)[13:, 1].sum()).backward()
    assert x.grad is not None and h.grad is not None
    assert not x.grad[:13].any() and not h.grad.any()
    assert x.grad[13:, 1].any()


def test_the_same_bits_twice() -> None:
    torch.manual_seed(0)
    core = GRU(32, 128)
    x, h = torch.randn(49, 32, 32), torch.randn(32, 128)
    is_first = torch.rand(49, 32) < 0.02
    runs = []
    for _ in range(2):
        core.zero_grad()
        out = core.unroll(x, is_first, h)
        out.square().sum().backward()
        runs.append([out.detach(), *(p.grad.clone() for p in core.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_dueling_head_is_value_plus_centred_advantage() -> None:
    torch.manual_seed(0)
    head = DuelingHead(HIDDEN, 6, 4).double()
    x = torch.randn(5, BATCH, HIDDEN, dtype=torch.float64, requires_grad=True)
    y = torch.relu(head.first(x))
    a, v = head.advantage(y[..., :6]), head.value(y[..., 6:])
    plain, out = v + a - a.mean(-1, keepdim=True), head(x)
    _close([out], [plain])
    inputs = [x, *head.parameters()]
    weight = torch.randn_like(out)
    _close(
        torch.autograd.grad((out * weight).sum(), inputs),
        torch.autograd.grad((plain * weight).sum(), inputs),
    )


def test_one_hot() -> None:
    index = torch.tensor([[0, 3], [2, 1]])
    assert torch.equal(one_hot(index, 4), torch.nn.functional.one_hot(index, 4).float())
