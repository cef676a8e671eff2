"""Building blocks of the networks: the recurrent unroll and the dueling head.

The GRU is the hot path of the whole system.  It is written as one autograd function over a whole
window because that is where the time is: ``_CompiledGRU`` calls our own machine code (``kernels``),
``_RoundedGRU`` the same with products of bfloat16 where a config asks for them, and ``_UnrollGRU``
is what runs where neither can be had.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lwm import devices, kernels


class _UnrollGRU(torch.autograd.Function):
    """h_t = GRU(x_t, keep_t * h_{t-1}) for t = 0 .. T-1, with the gate order of ``nn.GRUCell``.

    The input projections and all weight gradients are single large multiplications, the chain
    rule's element-wise factors are formed for all steps at once, and a step is left with one
    multiplication and a handful of small operations.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        h0: Tensor,
        keep: Tensor | None,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor,
        b_hh: Tensor,
        cuts: list[bool] | None,
    ) -> Tensor:
        T, B, _ = x.shape
        H = h0.shape[1]
        flat = x.reshape(T * B, -1)
        # The reset and update gates add both biases; the candidate keeps b_hn inside r * (...).
        rz = torch.addmm(b_ih[: 2 * H] + b_hh[: 2 * H], flat, w_ih[: 2 * H].t()).view(T, B, 2 * H)
        n = torch.addmm(b_ih[2 * H :], flat, w_ih[2 * H :].t()).view(T, B, H)
        gh_n = x.new_empty(T, B, H)
        w_rz = w_hh[: 2 * H].t().contiguous()
        w_n = w_hh[2 * H :].t().contiguous()
        b_n = b_hh[2 * H :]
        states = x.new_empty(T + 1, B, H)
        states[0] = h0
        h, *after = states.unbind(0)
        r, z = rz[..., :H], rz[..., H:]
        # Views are made before the loop: slicing inside it costs as much as the arithmetic.
        steps = zip(*(v.unbind(0) for v in (rz, r, z, n, gh_n)), after, strict=True)
        for t, (rz_t, r_t, z_t, n_t, gh_t, out_t) in enumerate(steps):
            if cuts is not None and cuts[t]:
                assert keep is not None
                h = h * keep[t]
            rz_t.addmm_(h, w_rz).sigmoid_()
            torch.addmm(b_n, h, w_n, out=gh_t)
            n_t.addcmul_(r_t, gh_t).tanh_()
            torch.lerp(n_t, h, z_t, out=out_t)
            h = out_t
        ctx.save_for_backward(x, keep, w_ih, w_hh, rz, n, gh_n, states)
        ctx.cuts = cuts
        return states[1:]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, keep, w_ih, w_hh, rz, n, gh_n, states = ctx.saved_tensors
        cuts = ctx.cuts
        T, B, H = n.shape
        r, z = rz[..., :H], rz[..., H:]
        h_prev = states[:-1] if keep is None else states[:-1] * keep
        # d h_t / d (pre-activations), for all steps at once.
        to_n = torch.ops.aten.tanh_backward(1 - z, n)
        to_z = torch.ops.aten.sigmoid_backward(h_prev - n, z)
        to_r = torch.ops.aten.sigmoid_backward(gh_n, r)
        d_hidden = x.new_empty(T, B, 3 * H)
        d_n = x.new_empty(T, B, H)
        dh = x.new_zeros(B, H)
        d_gates = (d_hidden[..., k * H : (k + 1) * H] for k in range(3))
        views = (grads[0], to_n, to_z, to_r, r, z, d_n, d_hidden, *d_gates)
        steps = zip(*(v.unbind(0) for v in views), strict=True)
        for t, (g, f_n, f_z, f_r, r_t, z_t, dn_t, d_all, d_r, d_z, d_hn) in reversed(
            list(enumerate(steps))
        ):
            dh.add_(g)
            torch.mul(dh, f_n, out=dn_t)
            torch.mul(dh, f_z, out=d_z)
            torch.mul(dn_t, f_r, out=d_r)
            torch.mul(dn_t, r_t, out=d_hn)
            dh.mul_(z_t).addmm_(d_all, w_hh)
            if cuts is not None and cuts[t]:
                dh.mul_(keep[t])
        flat = d_hidden.view(T * B, 3 * H)
        d_w_hh = flat.t() @ h_prev.reshape(T * B, H)
        d_b_hh = flat.sum(0)
        d_hidden[..., 2 * H :] = d_n
        d_w_ih = flat.t() @ x.reshape(T * B, -1)
        d_b_ih = flat.sum(0)
        d_x = (flat @ w_ih).view_as(x) if ctx.needs_input_grad[0] else None
        d_h0 = dh if ctx.needs_input_grad[1] else None
        return d_x, d_h0, None, d_w_ih, d_w_hh, d_b_ih, d_b_hh, None


class _CompiledGRU(torch.autograd.Function):
    """The same by ``kernels/gru.cpp``: a step's gates never leave the registers."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        h0: Tensor,
        keep: Tensor | None,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor,
        b_hh: Tensor,
        wants_gradient: bool,
    ) -> Tensor:
        weights = (w_ih, w_hh, b_ih, b_hh)
        return _forward("gru_forward", (), ctx, x, h0, keep, weights, wants_gradient)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, keep, w_ih, w_hh, gates, previous = ctx.saved_tensors
        T, B, inputs = x.shape
        H = w_hh.shape[1]
        grad = grads[0].contiguous()
        dh, d_b = x.new_zeros(B, H), x.new_zeros(4 * H)
        d_w_hh, d_w_ih = x.new_zeros(H, 3 * H), x.new_zeros(inputs, 3 * H)
        d_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        # A few steps at a time: what a chunk writes is multiplied while it is still in the cache.
        chunk = max(_CHUNK_ROWS // B, 1)
        d_chunk = x.new_empty(chunk * B, 4 * H)
        for end in range(T, 0, -chunk):
            steps = slice(max(end - chunk, 0), end)
            rows = (end - steps.start) * B
            d = d_chunk[:rows]
            cut = None if keep is None else keep[steps]
            arrays = (grad[steps], cut, w_hh, gates[steps], previous[steps], d, d_b, dh)
            _call("gru_backward", (end - steps.start, B, H), arrays)
            # Columns of d: the candidate's recurrent part, reset, update, candidate.
            d_w_hh.addmm_(previous[steps].view(rows, H).t(), d[:, : 3 * H])
            d_w_ih.addmm_(x[steps].view(rows, inputs).t(), d[:, H:])
            if d_x is not None:
                torch.mm(d[:, H:], w_ih, out=d_x[steps].view(rows, inputs))
        return _gradients(ctx, d_x, dh, d_w_ih, d_w_hh, d_b)


class _RoundedGRU(torch.autograd.Function):
    """The same by ``kernels/gru_bf16.cpp``: what is multiplied is rounded to bfloat16, what is
    summed, kept and handed on is float32."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        h0: Tensor,
        keep: Tensor | None,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor,
        b_hh: Tensor,
        wants_gradient: bool,
        threads: int,
    ) -> Tensor:
        ctx.threads = threads
        weights = (w_ih, w_hh, b_ih, b_hh)
        return _forward("gru_bf16_forward", (threads,), ctx, x, h0, keep, weights, wants_gradient)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, keep, w_ih, w_hh, gates, previous = ctx.saved_tensors
        T, B, inputs = x.shape
        H, shares = w_hh.shape[1], ctx.threads
        dh, d_b = x.new_zeros(B, H), x.new_zeros(shares, 4 * H)
        d_w_hh, d_w_ih = x.new_zeros(shares, H, 3 * H), x.new_zeros(shares, inputs, 3 * H)
        d_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        into = (d_x, d_w_ih, d_w_hh, d_b, dh)
        arrays = (grads[0].contiguous(), keep, x, w_ih, w_hh, gates, previous, *into)
        _call("gru_bf16_backward", (shares, T, B, inputs, H), arrays)
        sums = (_joined(v) for v in (d_w_ih, d_w_hh, d_b))
        return (*_gradients(ctx, d_x, dh, *sums), None)


_CHUNK_ROWS = 512


def _joined(shares: Tensor) -> Tensor:
    """[threads, ...] -> their sum."""
    return shares[0] if len(shares) == 1 else shares.sum(0)


def _forward(
    name: str,
    shares: tuple[int, ...],
    ctx: Any,
    x: Tensor,
    h0: Tensor,
    keep: Tensor | None,
    weights: tuple[Tensor, ...],
    wants_gradient: bool,
) -> Tensor:
    """A compiled forward pass: the states after each row [T, B, H].  ``shares``: the number of
    threads, for one that takes it."""
    T, B, inputs = x.shape
    H = h0.shape[1]
    x = x.contiguous()
    states = x.new_empty(T + 1, B, H)
    states[0] = h0
    # The states before each step; a copy of their own only where some are set to zero.
    previous = states if keep is None else x.new_empty(T, B, H)
    gates = x.new_empty(T, B, 4 * H) if wants_gradient else None
    _call(name, (*shares, T, B, inputs, H), (x, keep, *weights, states, previous, gates))
    if wants_gradient:
        ctx.save_for_backward(x, keep, *weights[:2], gates, previous)
    return states[1:]


def _gradients(
    ctx: Any, d_x: Tensor | None, dh: Tensor, d_w_ih: Tensor, d_w_hh: Tensor, d_b: Tensor
) -> tuple[Tensor | None, ...]:
    """The compiled order of the gates (candidate's recurrent part, reset, update, candidate) as
    torch has it, for each argument of ``forward``."""
    H = dh.shape[1]
    d_w_hh = torch.cat([d_w_hh[:, H:], d_w_hh[:, :H]], 1).t()
    d_b_hh = torch.cat([d_b[H : 3 * H], d_b[:H]])
    d_h0 = dh if ctx.needs_input_grad[1] else None
    return d_x, d_h0, None, d_w_ih.t(), d_w_hh, d_b[H:], d_b_hh, None


class _RoundedLinear(torch.autograd.Function):
    """x [..., inputs] -> [..., outputs] by ``kernels/linear_bf16.cpp``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, threads: int) -> Tensor:
        ctx.threads = threads
        x = x.contiguous()
        outputs, inputs = weight.shape
        y = x.new_empty(*x.shape[:-1], outputs)
        sizes = (threads, x.numel() // inputs, inputs, outputs)
        _call("linear_bf16_forward", sizes, (x, weight, bias, y))
        ctx.save_for_backward(x, weight)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        outputs, inputs = weight.shape
        d_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        shares = ctx.threads
        d_w, d_b = x.new_zeros(shares, inputs, outputs), x.new_zeros(shares, outputs)
        arrays = (x, weight, grads[0].contiguous(), d_x, d_w, d_b)
        _call("linear_bf16_backward", (shares, x.numel() // inputs, inputs, outputs), arrays)
        return d_x, _joined(d_w).t(), _joined(d_b), None


def _cuts(is_first: Tensor) -> list[bool]:
    """[T, B] -> the rows in which a state is reset; elsewhere than on a CPU, where it would have
    to be waited for, all rows are taken for such."""
    return is_first.any(1).tolist() if is_first.is_cpu else [True] * len(is_first)


def _call(name: str, sizes: tuple[int, ...], arrays: tuple[Tensor | None, ...]) -> None:
    """Call a compiled function with contiguous float32 arrays (None: a null pointer)."""
    pointers = (None if a is None else a.data_ptr() for a in arrays)
    if getattr(kernels.library(), name)(*sizes, *pointers):
        raise MemoryError(f"{name}: no memory for the packed weights")


class GRU(nn.Module):
    """A one-layer GRU that can be stepped (actors) and unrolled with resets (learner)."""

    rounded = 0
    """Threads that unroll windows with products of bfloat16, where the processor has them; 0: in
    float32."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(inputs, hidden)
        self.hidden = hidden

    def initial(self, batch: int) -> Tensor:
        """[batch, hidden] zeros: the state at the start of an episode."""
        return self.cell.weight_hh.new_zeros(batch, self.hidden)

    def step(self, x: Tensor, h: Tensor) -> Tensor:
        """[B, inputs], [B, hidden] -> the next state [B, hidden]."""
        return self.cell(x, h)

    def unroll(self, x: Tensor, is_first: Tensor | None, h: Tensor) -> Tensor:
        """[T, B, inputs], [T, B] bool, [B, hidden] -> the states after each row [T, B, hidden].

        The state is set to zero before each row where ``is_first``; None never resets.
        """
        c = self.cell
        weights = (c.weight_ih, c.weight_hh, c.bias_ih, c.bias_hh)
        cuts = [] if is_first is None else _cuts(is_first)
        keep = None
        if is_first is not None and any(cuts):
            keep = (~is_first).to(x.dtype).contiguous()
        if self._compiled(x):
            wants = torch.is_grad_enabled() and any(v.requires_grad for v in (x, h, *weights))
            if self.rounded and kernels.multiplies_bfloat16():
                return _RoundedGRU.apply(x, h, keep, *weights, wants, self.rounded)
            return _CompiledGRU.apply(x, h, keep, *weights, wants)
        if keep is None:
            return _UnrollGRU.apply(x, h, None, *weights, None)
        return _UnrollGRU.apply(x, h, keep[..., None], *weights, cuts)

    def _compiled(self, x: Tensor) -> bool:
        made = kernels.library() if x.is_cpu and x.dtype == torch.float32 else None
        return made is not None and self.hidden % made.gru_width() == 0


class FeedForward(nn.Module):
    """Stands in the GRU's place with the same interface and no memory (spec row 33)."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, hidden)
        self.hidden = hidden

    def initial(self, batch: int) -> Tensor:
        """[batch, hidden] zeros; carried along and never read."""
        return self.layer.weight.new_zeros(batch, self.hidden)

    def step(self, x: Tensor, h: Tensor) -> Tensor:
        """[B, inputs] -> [B, hidden]; ``h`` is ignored."""
        return F.relu(self.layer(x))

    def unroll(self, x: Tensor, is_first: Tensor | None, h: Tensor) -> Tensor:
        """[T, B, inputs] -> [T, B, hidden]; ``is_first`` and ``h`` are ignored."""
        return F.relu(self.layer(x))


class Dense(nn.Linear):
    """A linear layer whose products, on windows [T, B, inputs], can be of bfloat16."""

    rounded = 0
    """As of ``GRU``."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]."""
        if self.rounded and x.dim() == 3 and self._compiled(x):
            return _RoundedLinear.apply(x, self.weight, self.bias, self.rounded)
        return F.linear(x, self.weight, self.bias)

    def _compiled(self, x: Tensor) -> bool:
        made = kernels.library() if x.is_cpu and x.dtype == torch.float32 else None
        if made is None or not kernels.multiplies_bfloat16():
            return False
        sizes = (self.in_features, self.out_features)
        return all(size % made.gru_width() == 0 for size in sizes)


def round_products(threads: int, *parts: nn.Module | torch.optim.Optimizer) -> None:
    """From now on these networks unroll windows with products of bfloat16, where the processor has
    them, on so many threads; the optimisers among the parts are left alone."""
    for net in parts:
        for layer in net.modules() if isinstance(net, nn.Module) else ():
            if isinstance(layer, GRU | Dense):
                layer.rounded = threads


class DuelingHead(nn.Module):
    """Q = V + A - mean A; each stream one hidden layer; the advantage output has no bias."""

    def __init__(self, inputs: int, hidden: int, num_actions: int) -> None:
        super().__init__()
        # Both first layers as one multiplication: rows [:hidden] are the advantage's.
        self.first = Dense(inputs, 2 * hidden)
        self.advantage = nn.Linear(hidden, num_actions, bias=False)
        self.value = nn.Linear(hidden, 1)
        self.width = hidden

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> Q-values [..., num_actions]."""
        # split, not two slices: its gradient is one concatenation, not two arrays of zeros.
        a, v = F.relu(self.first(x)).split(self.width, -1)
        a, v = self.advantage(a), self.value(v)
        return v + a - a.mean(-1, keepdim=True)


def one_hot(index: Tensor, size: int) -> Tensor:
    """[...] int64 -> [..., size] float32, by lookup: ``F.one_hot`` checks its indices at length."""
    return F.embedding(index, _identity(size, index.device))


@functools.cache
def _identity(size: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.eye(size, device=device)


def optimiser_tree(optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """Adam's moments by parameter number (absent before the first step)."""
    state = optimiser.state_dict()["state"]
    return {str(i): {k: devices.fetch(v) for k, v in s.items()} for i, s in state.items()}


def load_optimiser(optimiser: torch.optim.Optimizer, tree: dict[str, Any]) -> None:
    """Inverse of ``optimiser_tree``."""
    groups = optimiser.state_dict()["param_groups"]
    state = {
        int(i): {k: torch.from_numpy(np.array(v)) for k, v in s.items()} for i, s in tree.items()
    }
    optimiser.load_state_dict({"state": state, "param_groups": groups})
