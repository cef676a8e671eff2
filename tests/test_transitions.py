"""Transitions as sequences: rows by hand, final observations included, and what they are paid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from lwm import Bonus, sequences_of

# Two environments, five transitions: the first one's episode ends after two and after four (with
# the final observations 12 and 32), the second one's never does.
OBS = np.array([[10, 50], [11, 51], [30, 52], [31, 53], [40, 54]])
NEXT = np.array([[11, 51], [12, 52], [31, 53], [32, 54], [41, 55]])
ACTION = np.array([[0, 1], [1, 1], [2, 0], [0, 2], [1, 0]])
FIRST = np.array([[1, 0], [0, 0], [1, 0], [0, 0], [1, 0]], bool)


def test_rows_by_hand() -> None:
    seq, where = sequences_of(OBS, ACTION, NEXT, FIRST)
    assert seq.obs.T.tolist() == [
        [10, 11, 12, 30, 31, 32, 40, 41],
        [50, 50, 50, 51, 52, 53, 54, 55],  # two ends fewer: two rows that count nowhere
    ]
    assert seq.is_first.T.astype(int).tolist() == [
        [1, 0, 0, 1, 0, 0, 1, 0],
        [1, 1, 1, 0, 0, 0, 0, 0],
    ]
    assert where.T.tolist() == [[0, 1, 3, 4, 6], [2, 3, 4, 5, 6]]
    assert np.array_equal(np.take_along_axis(seq.action, where, 0), ACTION)
    for shift, expected in ((0, OBS), (1, NEXT)):
        assert np.array_equal(np.take_along_axis(seq.obs, where + shift, 0), expected)


def test_entries_of_dicts_and_more_axes() -> None:
    def seen(place: Any) -> Any:
        return {"place": place, "twice": np.stack([place, 2 * place], -1)}

    plain, where = sequences_of(OBS, ACTION, NEXT, FIRST)
    seq, same = sequences_of(seen(OBS), ACTION, seen(NEXT), FIRST)
    assert np.array_equal(seq.obs["place"], plain.obs) and np.array_equal(where, same)
    assert np.array_equal(seq.obs["twice"], np.stack([plain.obs, 2 * plain.obs], -1))


@pytest.mark.parametrize("kind", ["lwm", "rnd", "icm"])
def test_every_transition_is_paid_what_it_was_while_acting(kind: str) -> None:
    """Final ones too: a replay that joins ``obs`` to ``obs`` pays them nothing."""
    space = spaces.Discrete(60)
    bonus = Bonus(space, spaces.Discrete(3), 2, "debug", kind=kind, settle=0)
    seq, where = sequences_of(OBS, ACTION, NEXT, FIRST)
    bonus.update(seq)
    r_in = np.take_along_axis(bonus.compute(*seq), where, 0)
    paid = [bonus.step(*row) for row in zip(OBS, ACTION, NEXT, FIRST, strict=True)]
    assert np.allclose(r_in, paid, rtol=1e-4, atol=1e-5)
    assert (r_in[[1, 3, 4], 0] != 0).all()  # those that lead to 12, 32 and 41


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"action": ACTION[0]}, r"expected action and is_first \[T, B\] .* got \[2\] and \[5, 2\]"),
        ({"action": ACTION[:0], "is_first": FIRST[:0]}, r"T at least 1, got \[0, 2\]"),
        ({"is_first": FIRST[:4]}, r"got \[5, 2\] and \[4, 2\]"),
        ({"obs": OBS[:4]}, r"obs: expected a batch of \[5, 2\], got \[4, 2\]"),
        ({"next_obs": {"a": NEXT[:, :1]}}, r"next_obs: expected a batch of \[5, 2\], got \[5, 1\]"),
    ],
)
def test_bad_transitions(changes: dict[str, Any], message: str) -> None:
    given = {"obs": OBS, "action": ACTION, "next_obs": NEXT, "is_first": FIRST, **changes}
    with pytest.raises(ValueError, match=message):
        sequences_of(**given)
