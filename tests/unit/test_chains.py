"""Which operations are computed together: chains, of which others take one result."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore_mpi.planner.pipelines.chains import chains


@pytest.mark.parametrize(
    ("reads", "last", "expected"),
    [
        ({0: [], 1: [(0, 0)], 2: [(1, 0)]}, (2, 0), [[0, 1, 2]]),
        (  # a fork after 1, a join at 5
            {0: [], 1: [(0, 0)], 2: [(1, 0)], 3: [(1, 0)], 4: [(3, 0)], 5: [(2, 0), (4, 0)], 6: [(5, 0)]},
            (6, 0),
            [[0, 1], [2], [3, 4], [5, 6]],
        ),
        (  # a residual: what goes past is taken twice
            {0: [], 1: [(0, 0)], 2: [(0, 0), (1, 0)], 3: [(2, 0)]},
            (3, 0),
            [[0], [1], [2, 3]],
        ),
        (  # two towers of their own, and an operation that takes one result twice
            {0: [], 1: [], 2: [(1, 0), (1, 0)], 3: [(0, 0), (2, 0)]},
            (3, 0),
            [[0], [1, 2], [3]],
        ),
        (  # 1 divides what it has: its takers are with it, and what joins them
            {
                0: [],
                1: [(0, 0)],
                2: [(1, 0)],
                3: [(1, 1)],
                4: [(2, 0), (3, 0)],
                5: [(4, 0)],
                6: [(4, 0), (5, 0)],
            },
            (6, 0),
            [[0, 1, 2, 3, 4], [5], [6]],
        ),
    ],
)
def test_examples(reads, last, expected):
    """As drawn on paper."""
    assert chains(reads, last) == expected


@st.composite
def nets(draw):
    """Return what operations of a net read, each of which leads to the last one."""
    count = draw(st.integers(1, 10))
    reads = {}
    for number in range(count):
        sources = st.tuples(st.integers(0, number - 1), st.sampled_from([0, 0, 0, 1]))
        reads[number] = draw(st.lists(sources, max_size=3)) if number else []
    taken = {source for results in reads.values() for source, _ in results}
    reads[count] = [(number, 0) for number in range(count) if number not in taken] or [(count - 1, 0)]
    return reads


@given(nets(), st.data())
def test_any_net(reads, data):
    """Each operation once; one result of each group; groups in an order; and no chain is cut."""
    wanted = st.sets(st.sampled_from(sorted(reads)), max_size=3)
    together = data.draw(st.lists(wanted, max_size=2))
    groups = chains(reads, (max(reads), 0), together)
    assert sorted(number for group in groups for number in group) == list(reads)
    home = {number: place for place, group in enumerate(groups) for number in group}
    assert all(len({home[number] for number in numbers}) <= 1 for numbers in together)
    results = {place: set() for place in range(len(groups))}
    readers = {number: set() for number in reads}
    for number, sources in reads.items():
        for source, output in sources:
            readers[source].add(number)
            assert home[source] <= home[number]
            if home[source] != home[number]:
                results[home[source]].add((source, output))
    for place, found in results.items():
        assert len(found) == (place < len(groups) - 1)
        assert {source for source, _ in found} <= {groups[place][-1]}
        assert groups[place] == sorted(groups[place])
    for number, sources in reads.items():
        if len({source for source, _ in sources}) == 1 and readers[sources[0][0]] == {number}:
            assert home[sources[0][0]] == home[number]


def test_what_must_be_together():
    """What is between them, or would otherwise be taken of the middle of a group, is with them."""
    reads = {0: [], 1: [(0, 0)], 2: [(0, 0)], 3: [(1, 0), (2, 0)], 4: [(3, 0)]}
    assert chains(reads, (4, 0)) == [[0], [1], [2], [3, 4]]
    assert chains(reads, (4, 0), [{1, 2}]) == [[0], [1, 2, 3, 4]]
    assert chains(reads, (4, 0), [{0, 3}]) == [[0, 1, 2, 3, 4]]
