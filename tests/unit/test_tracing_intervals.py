"""Sets of time, against sets of numbers."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from kvstore_mpi.tracing.intervals import clip, difference, intersection, length, union

ANY = st.lists(st.tuples(st.integers(-20, 20), st.integers(-20, 20)), max_size=8)
SETS = ANY.map(union)


def moments(intervals):
    """Return the whole numbers that intervals cover."""
    return {moment for start, end in intervals for moment in range(start, end)}


def is_set(intervals):
    """Tell whether intervals are sorted, not empty, and apart from each other."""
    edges = [edge for interval in intervals for edge in interval]
    return all(low < high for low, high in itertools.pairwise(edges))


@given(ANY)
def test_a_union_covers_what_any_covers(intervals):
    """Empty and inverted intervals cover nothing."""
    assert moments(union(intervals)) == moments(intervals)
    assert is_set(union(intervals))


@given(SETS, SETS)
def test_intersection_and_difference_divide_a_set(left, right):
    """Each moment of the left set is in one of the two, as the right set says."""
    both, only = intersection(left, right), difference(left, right)
    assert moments(both) == moments(left) & moments(right)
    assert moments(only) == moments(left) - moments(right)
    assert is_set(both)
    assert is_set(only)
    assert length(both) + length(only) == length(left) == len(moments(left))


@given(SETS, st.integers(-20, 20), st.integers(-20, 20))
def test_a_clip_is_an_intersection_with_one_interval(intervals, start, end):
    """It is only quicker."""
    if start < end:
        assert clip(intervals, start, end) == intersection(intervals, [(start, end)])
