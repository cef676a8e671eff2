"""Building blocks of the networks: the recurrent layer, a linear one, the dueling head."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lwm import devices, kernels
from lwm.unrolling import CompiledGRU, RoundedGRU, RoundedLinear, UnrollGRU


def _cuts(is_first: Tensor) -> list[bool]:
    """[T, B] -> the rows in which a state is reset; elsewhere than on a CPU, where it would have
    to be waited for, all rows are taken for such."""
    return is_first.any(1).tolist() if is_first.is_cpu else [True] * len(is_first)


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
                return RoundedGRU.apply(x, h, keep, *weights, wants, self.rounded)
            return CompiledGRU.apply(x, h, keep, *weights, wants)
        if keep is None:
            return UnrollGRU.apply(x, h, None, *weights, None)
        return UnrollGRU.apply(x, h, keep[..., None], *weights, cuts)

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
            return RoundedLinear.apply(x, self.weight, self.bias, self.rounded)
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
