"""Runs of neighbouring slices: what may stand in a message as one piece, and what may not."""

from __future__ import annotations

import pytest

from kvstore_mpi.values.dense import merge, neighbours

FIRST = (7, 0, 5, 3, True)


@pytest.mark.parametrize(
    ("second", "merged"),
    [
        pytest.param((7, 5, 8, 3, True), [(7, 0, 8, 3, True)], id="neighbours"),
        pytest.param((8, 5, 8, 3, True), None, id="another key"),
        pytest.param((7, 6, 8, 3, True), None, id="a gap"),
        pytest.param((7, 0, 5, 3, True), None, id="the same once more"),
        pytest.param((7, 5, 8, 4, True), None, id="of another round"),
        pytest.param((7, 5, 8, 3, False), None, id="answered otherwise"),
        pytest.param((7, 5, 5, 3, True), None, id="empty"),
    ],
)
def test_only_neighbours_of_one_kind_are_merged(second, merged):
    """Whatever follows the range in an entry is equal for all slices of a run."""
    assert merge([FIRST, second]) == (merged or [FIRST, second])


def test_many_neighbours_become_one():
    """In the order in which they stand, as often as they stand there."""
    entries = [(1, lo, lo + 2) for lo in (0, 2, 4, 10, 12, 4)]
    assert merge(entries) == [(1, 0, 6), (1, 10, 14), (1, 4, 6)]
    assert merge([]) == []


def test_positions_that_follow_each_other_are_a_run():
    """Also a single one, and none."""
    assert list(neighbours([2, 3, 4, 7, 9, 10])) == [range(2, 5), range(7, 8), range(9, 11)]
    assert list(neighbours([])) == []
