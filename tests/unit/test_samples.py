"""Which of many combinations a thorough run leaves out."""

from __future__ import annotations

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st
from support.often import left_out

TESTS = {"a": ["a[1]", "a[2]", "a[3]", "a[4]"], "b": ["b[x]"], "c": [f"c[{n}]" for n in range(30)]}


@given(st.integers(2, 40), st.text(max_size=3))
def test_of_each_test_at_least_one_is_run(one_in, seed):
    """And one in as many as are asked for."""
    out = left_out(TESTS, one_in, seed)
    for every in TESTS.values():
        assert len([each for each in every if each not in out]) == max(1, -(-len(every) // one_in))


def test_each_combination_is_run_for_some_commit():
    """A commit always has the same sample; others have others."""
    assert left_out(TESTS, 3, "0") == left_out(TESTS, 3, "0")
    every = {*chain.from_iterable(TESTS.values())}
    assert set.union(*(every - left_out(TESTS, 3, str(commit)) for commit in range(40))) == every
