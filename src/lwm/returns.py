"""Value rescaling and TD targets: pure functions, one equation each."""

from __future__ import annotations

import torch
from torch import Tensor

_EPS = 1e-3


def rescale(x: Tensor) -> Tensor:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + 0.001 x, element-wise (R2D2's value rescaling)."""
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + _EPS * x


def unrescale(y: Tensor) -> Tensor:
    """The inverse of ``rescale``, element-wise, in closed form."""
    root = (1 + 4 * _EPS * (y.abs() + 1 + _EPS)).sqrt()
    return y.sign() * (((root - 1) / (2 * _EPS)) ** 2 - 1)


def n_step_targets(
    r_t: Tensor, discount_t: Tensor, is_last: Tensor, v_t: Tensor, gamma: float, n: int
) -> Tensor:
    """Targets of rows 0 .. T-n-1: [T, B] each -> [T-n, B].

    sum_{k=1..m} gamma^{k-1} r_{t+k} + gamma^m discount_{t+m} v_{t+m}, where m = min(n, steps to
    the next ``is_last`` row).  ``r_t`` is the whole reward, bonus included; ``v_t`` the value used
    to bootstrap in row t.  Entries of ``is_last`` rows mean nothing: they are never trained.
    """
    target = v_t
    for _ in range(n):
        # One step further back: an is_last row ends the sum, so its own value stands there.
        onward = torch.where(is_last[1 : len(target)], v_t[1 : len(target)], target[1:])
        rows = slice(1, len(onward) + 1)
        target = r_t[rows] + gamma * discount_t[rows] * onward
    return target


def lambda_targets(
    r_t: Tensor, discount_t: Tensor, is_last: Tensor, v_t: Tensor, gamma: float, trace: float
) -> Tensor:
    """Q(lambda) targets of rows 0 .. T-2: [T, B] each -> [T-1, B].

    G_t = r_{t+1} + gamma discount_{t+1} ((1 - trace) v_{t+1} + trace G_{t+1}), with G = v on the
    window's last row and on ``is_last`` rows (nothing follows them).
    """
    onward = v_t[-1]
    targets = []
    for t in range(len(r_t) - 2, -1, -1):
        g = r_t[t + 1] + gamma * discount_t[t + 1] * onward
        targets.append(g)
        onward = torch.where(is_last[t], v_t[t], torch.lerp(v_t[t], g, trace))
    return torch.stack(targets[::-1])


def disadvantage(q: Tensor, action: Tensor) -> Tensor:
    """How far an action is below the best one: Q-values [..., A], actions [...] -> [...], <= 0.

    A share of it in an action's target widens the gap between the best action and all others, and
    leaves the best one's value where it is (advantage learning: Bellemare et al., 2016).
    """
    return q.gather(-1, action[..., None]).squeeze(-1) - q.amax(-1)


def sequence_priority(delta: Tensor, valid: Tensor, eta: float) -> Tensor:
    """Priority of each window: [U, B] TD errors, [U, B] rows that are trained -> [B] (row 20).

    eta * max |delta| + (1 - eta) * mean |delta| over the trained rows.
    """
    size = delta.abs() * valid
    mean = size.sum(0) / valid.sum(0).clamp(min=1)
    return eta * size.amax(0) + (1 - eta) * mean
