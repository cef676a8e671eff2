"""A GRU unrolled over a window, and a linear layer, as autograd functions.

The GRU is the hot path of the whole system.  It is written as one function over a whole window
because that is where the time is: ``CompiledGRU`` calls our own machine code (``kernels``),
``RoundedGRU`` the same with products of bfloat16 where a config asks for them, and ``UnrollGRU`` is
what runs where neither can be had.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lwm import kernels


class UnrollGRU(torch.autograd.Function):
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
        """x [T, B, inputs], h0 [B, H], keep [T, B, 1] or None -> the states after each row
        [T, B, H]; ``cuts``: the rows in which some state is reset."""
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
        """Of the states [T, B, H] -> of each argument of ``forward``."""
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


class CompiledGRU(torch.autograd.Function):
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
        """x [T, B, inputs], h0 [B, H], keep [T, B] or None -> the states after each row
        [T, B, H]."""
        weights = (w_ih, w_hh, b_ih, b_hh)
        return _forward("gru_forward", (), ctx, x, h0, keep, weights, wants_gradient)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Of the states [T, B, H] -> of each argument of ``forward``."""
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


class RoundedGRU(torch.autograd.Function):
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
        """x [T, B, inputs], h0 [B, H], keep [T, B] or None -> the states after each row
        [T, B, H]."""
        ctx.threads = threads
        weights = (w_ih, w_hh, b_ih, b_hh)
        return _forward("gru_bf16_forward", (threads,), ctx, x, h0, keep, weights, wants_gradient)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Of the states [T, B, H] -> of each argument of ``forward``."""
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


class RoundedLinear(torch.autograd.Function):
    """x [..., inputs] -> [..., outputs] by ``kernels/linear_bf16.cpp``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, threads: int) -> Tensor:
        """x [..., inputs], weight [outputs, inputs], bias [outputs] -> [..., outputs]."""
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
        """Of the outputs [..., outputs] -> of each argument of ``forward``."""
        x, weight = ctx.saved_tensors
        outputs, inputs = weight.shape
        d_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        shares = ctx.threads
        d_w, d_b = x.new_zeros(shares, inputs, outputs), x.new_zeros(shares, outputs)
        arrays = (x, weight, grads[0].contiguous(), d_x, d_w, d_b)
        _call("linear_bf16_backward", (shares, x.numel() // inputs, inputs, outputs), arrays)
        return d_x, _joined(d_w).t(), _joined(d_b), None


def _call(name: str, sizes: tuple[int, ...], arrays: tuple[Tensor | None, ...]) -> None:
    """Call a compiled function with contiguous float32 arrays (None: a null pointer)."""
    pointers = (None if a is None else a.data_ptr() for a in arrays)
    if getattr(kernels.library(), name)(*sizes, *pointers):
        raise MemoryError(f"{name}: no memory for the packed weights")
