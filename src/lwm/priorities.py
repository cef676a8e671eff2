"""Prioritised sampling of windows (row 20 of the specification): a sum tree, and what is in it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FLOOR = 1e-6


class SumTree:
    """Weights of ``leaves`` items and the sums over them, for drawing in O(log leaves).

    The children of node i are 2i and 2i + 1, the root is node 1.  A sum is always computed from the
    two below it and never corrected by a difference, so rounding errors do not pile up, and the
    tree is a function of its leaves alone: a restored one equals the one that was saved.
    """

    def __init__(self, leaves: int) -> None:
        self._depth = max(leaves - 1, 0).bit_length()
        self._size = 1 << self._depth
        self._nodes = np.zeros(2 * self._size)
        self.leaves = self._nodes[self._size : self._size + leaves]
        """[leaves] weights, to be read; written by ``set`` and ``fill``."""

    @property
    def total(self) -> float:
        """Sum of all weights."""
        return float(self._nodes[1])

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._nodes.nbytes

    def set(self, leaf: NDArray[np.int64], value: NDArray[np.float64]) -> None:
        """Give items ``leaf`` [N] the weights ``value`` [N]; of equal items the last one counts."""
        node = leaf + self._size
        self._nodes[node] = value
        for _ in range(self._depth):
            # Where paths have met, the same sum is written more than once.
            node = node >> 1
            self._nodes[node] = self._nodes[2 * node] + self._nodes[2 * node + 1]

    def fill(self, values: NDArray[np.float64]) -> None:
        """Give all items the weights ``values`` [leaves]."""
        self.leaves[:] = values
        first = self._size
        while first > 1:
            level = self._nodes[first : 2 * first]
            self._nodes[first // 2 : first] = level[0::2] + level[1::2]
            first //= 2

    def find(self, u: NDArray[np.float64]) -> NDArray[np.int64]:
        """Items [N] in whose share of [0, total) each ``u`` [N] lies; never one of weight 0.

        That needs a total above 0.
        """
        node = np.ones(len(u), np.int64)
        for _ in range(self._depth):
            left = 2 * node
            below = self._nodes[left]
            # By rounding u may reach past all weights; an empty branch is never entered.
            right = (u >= below) & (self._nodes[left + 1] > 0)
            u = np.where(right, u - below, u)
            node = left + right
        return node - self._size

    def check_valid(self) -> None:
        """Raise if a weight is impossible or a sum is not that of its children."""
        if not np.isfinite(self._nodes).all() or self._nodes.min() < 0:
            raise ValueError("a priority is negative or not finite")
        inner = self._nodes[: self._size]
        if np.any(inner[1:] != (self._nodes[0::2] + self._nodes[1::2])[1:]):
            raise ValueError("a sum of priorities is wrong")


class WindowPriorities:
    """A priority for every window in a ring of ``rows`` rows of ``envs`` environments.

    Window k of an environment is its rows k * every ... k * every + length - 1; its name is
    (first row, environment).  The tree holds p ** alpha; 0 stands for a window that has no priority
    yet or is no longer there.  ``count`` is the number of rows appended since the run began.
    """

    def __init__(
        self, rows: int, envs: int, every: int, length: int, alpha: float, beta: float
    ) -> None:
        if not 0 < length <= rows:
            raise ValueError(f"replay holds {rows} rows, a window takes {length}")
        self._rows, self._envs, self._every, self._length = rows, envs, every, length
        self._alpha, self._beta = alpha, beta
        # Valid windows begin in a stretch of rows - length + 1 rows (see `valid`), which has at
        # most so many multiples of `every`.  Window k takes place k % _slots; as _slots * every is
        # more than rows - length, the window before it there is overwritten when k is complete.
        self._slots = (rows - length) // every + 1
        self._tree = SumTree(self._slots * envs)
        self._settled = 0  # windows before this one had their priorities when last looked at

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._tree.nbytes

    def valid(self, count: int) -> range:
        """Windows k of which all rows are in the ring.

        The ring holds rows max(0, count - rows) ... count - 1.  Window k is whole in it when its
        first row k * every >= count - rows and its last row k * every + length - 1 <= count - 1.
        """
        begin = -(-max(0, count - self._rows) // self._every)
        end = (count - self._length) // self._every + 1
        return range(begin, max(begin, end))

    def advance(self, count: int) -> None:
        """The ring now has ``count`` rows, one more: forget windows whose first row it replaced."""
        gone, rest = divmod(count - 1 - self._rows, self._every)
        if gone >= 0 and rest == 0:
            self._tree.set(self._leaves(gone, np.arange(self._envs)), np.zeros(self._envs))

    def missing(self, count: int) -> NDArray[np.int64]:
        """Names [N, 2] of the valid windows that have no priority yet, oldest first."""
        valid = self.valid(count)
        k = np.arange(max(valid.start, self._settled), max(valid.stop, self._settled))
        leaf = self._leaves(k[:, None], np.arange(self._envs))
        place, env = np.nonzero(self._tree.leaves[leaf] == 0)
        self._settled = int(k[place[0]]) if len(place) else max(valid.stop, self._settled)
        return np.stack([k[place] * self._every, env], axis=1)

    def set(self, count: int, origin: NDArray[np.int64], p: NDArray[np.floating]) -> None:
        """Give windows ``origin`` [B, 2] the priorities ``p`` [B], at least ``FLOOR``.

        Windows that have been overwritten since they were drawn are passed over; of equal names
        the last one counts.
        """
        first, env = origin.T
        p = np.asarray(p, np.float64)
        if p.shape != first.shape or not (p >= 0).all() or not np.isfinite(p).all():
            raise ValueError("priorities must be one number per window, finite and not negative")
        k, rest = np.divmod(first, self._every)
        valid = self.valid(count)
        if np.any(rest) or np.any(k >= valid.stop) or np.any((env < 0) | (env >= self._envs)):
            raise ValueError("a priority for a window that does not exist (yet)")
        there = k >= valid.start
        self._tree.set(
            self._leaves(k[there], env[there]), np.maximum(p[there], FLOOR) ** self._alpha
        )

    def sample(
        self, rng: np.random.Generator, count: int, batch: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Names [B, 2] of windows drawn with probability p ** alpha / sum, independently, and
        their importance weights [B]: (p ** alpha) ** -beta, divided by the largest."""
        if not self._tree.total > 0:
            raise ValueError("no window has a priority yet")
        leaf = self._tree.find(rng.random(batch) * self._tree.total)
        place, env = np.divmod(leaf, self._envs)
        oldest = self.valid(count).start
        k = oldest + (place - oldest) % self._slots  # the one valid window that has this place
        weight = self._tree.leaves[leaf] ** -self._beta
        return np.stack([k * self._every, env], 1), (weight / weight.max()).astype(np.float32)

    def check_valid(self, count: int) -> None:
        """Raise if the tree contradicts itself, or a window that is not there has a priority."""
        self._tree.check_valid()
        valid = self.valid(count)
        absent = np.ones(self._slots, np.bool_)
        absent[np.arange(valid.start, valid.stop) % self._slots] = False
        if np.any(self._tree.leaves.reshape(self._slots, self._envs)[absent]):
            raise ValueError("a window that is not in replay has a priority")

    def get_state(self) -> NDArray[np.float64]:
        """The tree's weights [windows, envs], for a checkpoint; not copied."""
        return self._tree.leaves.reshape(self._slots, self._envs)

    def set_state(self, state: NDArray[np.float64]) -> None:
        """Restore what ``get_state`` returned."""
        if state.shape != (self._slots, self._envs):
            raise ValueError(f"priorities {state.shape}, expected {(self._slots, self._envs)}")
        self._tree.fill(state.ravel())
        self._settled = 0

    def _leaves(self, k: NDArray[np.int64] | int, env: NDArray[np.int64]) -> NDArray[np.int64]:
        """Places in the tree of windows ``k`` of environments ``env``."""
        return k % self._slots * self._envs + env
