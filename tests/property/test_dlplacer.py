"""What placements keep for every net, also for one with operations that take no time, as Dropout does."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.placement_twins import ALIKE, MILLI, shortest

from kvstore_mpi.planner.placement.graph import Edge, Graph, Operation
from kvstore_mpi.planner.placement.place import place
from kvstore_mpi.planner.placement.problem import NANO, Wishes, problem_of

TIMES = st.sampled_from([0.0, 0.0, MILLI, 2 * MILLI, 5 * MILLI])

REPEATABLE = settings(deadline=None, derandomize=True, max_examples=150)


@st.composite
def nets(draw):
    """Three to five operations in any order, many of which take no time in one pass or in both."""
    count = draw(st.integers(3, 5))
    trains = draw(st.booleans())
    operations = [
        Operation(
            name=f"op{i}", forward_seconds=draw(TIMES), backward_seconds=draw(TIMES) if trains else 0.0
        )
        for i in range(count)
    ]
    edges = [
        Edge(source=f"op{one}", target=f"op{other}", num_bytes=draw(st.sampled_from([0, 1000])))
        for one, other in itertools.combinations(range(count), 2)
        if draw(st.integers(0, 2)) == 0
    ]
    return Graph(operations=tuple(draw(st.permutations(operations))), edges=tuple(edges))


AT_ONCE = Graph(
    operations=(
        Operation(name="long", forward_seconds=MILLI),
        Operation(name="nothing"),
        Operation(name="after", forward_seconds=5 * MILLI),
    ),
    edges=(Edge(source="nothing", target="after"),),
)
"""What takes no time starts with what is long, and another device waits for it alone."""

MEANWHILE = Graph(
    operations=tuple(
        Operation(name=name, forward_seconds=forward * MILLI, backward_seconds=backward * MILLI)
        for name, forward, backward in (("a", 1, 0), ("b", 5, 1), ("c", 0, 5), ("d", 0, 0), ("e", 0, 0))
    ),
    edges=tuple(Edge(source=one, target=other) for one, other in ("ad", "bd", "be")),
)
"""What takes no time could begin while its device computes what is long, if it did not need the device."""


@pytest.mark.parametrize("method", ["search", "cp"])
def test_the_simulator_agrees_with_what_was_found(method):
    """Whatever takes no time: no placement is better than by trying everything, and the bound holds."""
    if method == "cp":
        pytest.importorskip("ortools", reason="the extra planner installs it")

    @REPEATABLE
    @example(AT_ONCE)
    @example(MEANWHILE)
    @given(nets())
    def check(graph):
        found = place(graph, ALIKE, method=method, seconds=1)
        best = shortest(problem_of(graph, ALIKE, Wishes()))
        assert round(found.bound_seconds * NANO) <= best <= round(found.predicted_seconds * NANO)
        assert method == "search" or round(found.predicted_seconds * NANO) == best

    check()
