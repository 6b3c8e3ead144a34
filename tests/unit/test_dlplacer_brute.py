"""Placements are as good as trying everything: the whole of ``place``, and the solver alone."""

from __future__ import annotations

import itertools

import pytest
from support import brute_placements
from support.brute_placements import (
    check_place,
    check_search,
    check_solver,
    graph_of_shape,
    shapes,
    shortest_at_once,
    shortest_of,
    try_part,
)
from support.placement_twins import (
    ALIKE,
    CLUSTERS,
    MILLI,
    NO_WISHES,
    UNLIKE,
    all_graphs,
    assert_best,
    graph_with,
    random_graph,
    shortest,
    slowest,
)

from kvstore_mpi.planner.cluster import uniform
from kvstore_mpi.planner.placement import search
from kvstore_mpi.planner.placement.graph import Edge, Graph, Operation
from kvstore_mpi.planner.placement.place import place
from kvstore_mpi.planner.placement.problem import Wishes, problem_of

cp = pytest.importorskip(
    "kvstore_mpi.planner.placement.cp", reason="needs ortools, which the extra planner installs"
)


def assert_solved(graph, cluster):
    """Check the solver alone, and the whole, against one time that was found by trying everything."""
    best = shortest(problem_of(graph, cluster, NO_WISHES))
    check_solver(graph, cluster, best)
    check_place(graph, cluster, best)


def chain_of(times, sizes):
    """Return operations one after another, with milliseconds and bytes."""
    names = [f"op{i}" for i in range(len(sizes))]
    return Graph(
        operations=tuple(
            Operation(name=name, forward_seconds=MILLI * each, parameter_bytes=size)
            for name, each, size in zip(names, times, sizes)
        ),
        edges=tuple(Edge(source=a, target=b, num_bytes=1000) for a, b in itertools.pairwise(names)),
    )


class TestTheWhole:
    def test_every_net_of_three_operations(self):
        """On equal devices, and on two that differ in all that can differ."""
        for graph in all_graphs(3):
            assert_best(graph, ALIKE)
            assert_best(graph, UNLIKE)

    @pytest.mark.parametrize("seed", range(3))
    def test_random_nets_that_are_trained(self, seed):
        """Both passes of an operation are on one device."""
        assert_best(random_graph(4, seed, trains=True), (ALIKE, UNLIKE)[seed % 2])

    def test_wishes_are_kept_and_the_best_of_what_is_left_is_found(self):
        """A pin, and an edge that must not be cut."""
        graph = graph_with([(0, 1), (0, 2), (1, 3), (2, 3)], 4, seed=3)
        wishes = Wishes(pinned={"op1": "slow"}, together={("op0", "op2")})
        assert_best(graph, UNLIKE, wishes)
        found = place(graph, UNLIKE, wishes).device_of
        assert found["op1"] == "slow"
        assert found["op0"] == found["op2"]


class TestTheSolverAlone:
    """The search proves small nets before the solver is asked: here the solver is, from a bad start."""

    @pytest.mark.parametrize("trains", [False, True])
    @pytest.mark.parametrize("cluster", range(4))
    def test_random_nets_of_five(self, cluster, trains):
        """On equal and unlike devices, two and three."""
        for seed in range(2):
            assert_solved(random_graph(5, 10 * cluster + seed, trains=trains, share=0.5), CLUSTERS[cluster])

    @pytest.mark.parametrize("seed", range(3))
    def test_memory_that_is_short_by_a_byte(self, seed):
        """Everything on one device would be best, and has no room."""
        graph = graph_with([(0, 1), (1, 2), (2, 3), (3, 4)], 5, seed)
        need = sum(each.memory_bytes for each in graph.operations)
        assert_solved(graph, uniform(2, 1e6, 1e-3, memory_bytes=need - 1))

    def test_memory_that_the_search_cannot_share_out(self):
        """It finds none that three devices have memory for, and the solver may take longer than those."""
        graph = chain_of((3, 3, 1, 1, 3, 4, 9), sizes=(9, 8, 31, 13, 2, 27, 30))
        assert_best(graph, uniform(3, 1e5, memory_bytes=40))

    def test_memory_that_nothing_can_share_out(self):
        """The solver says so at once."""
        problem = problem_of(
            chain_of((1, 1, 1), sizes=(8, 8, 8)), uniform(2, 1e6, memory_bytes=15), NO_WISHES
        )
        found, effort = cp.solve(problem, slowest(problem), 60)
        assert not search.fits(problem, found.device)
        assert effort < 1

    @pytest.mark.thorough
    def test_every_shape_of_five(self):
        """All 302 of them, each with other costs; each on one of four clusters."""
        for number, edges in enumerate(shapes(5)):
            assert_solved(*graph_of_shape(edges, 5, number))

    @pytest.mark.thorough
    @pytest.mark.parametrize(
        ("count", "trains", "seeds"),
        [(6, False, range(16)), (6, True, range(6)), (7, False, range(8)), (7, True, range(2))],
    )
    def test_samples_of_six_and_seven(self, count, trains, seeds):
        """Of the 5,984 shapes of six and the 243,668 of seven: half of all possible edges, by seeds."""
        for seed in seeds:
            assert_solved(random_graph(count, seed, trains=trains, share=0.5), CLUSTERS[seed % 4])


class TestAllAtOnce:
    """What tries all shapes with all placements at once is as dumb as what tries one after the other."""

    def test_the_number_of_shapes(self):
        """That of the literature (https://oeis.org/A003087), which leaves no room for one twice."""
        assert [len(shapes(count)) for count in range(1, 7)] == [1, 2, 6, 31, 302, 5984]

    @pytest.mark.parametrize("cluster", CLUSTERS)
    def test_the_best_is_the_same(self, cluster):
        """Of every shape of four operations, and of nets that are trained."""
        nets = [graph_with(edges, 4, seed) for seed, edges in enumerate(shapes(4))]
        for graph in (*nets, *(random_graph(3, seed, trains=True) for seed in range(5))):
            problem = problem_of(graph, cluster, NO_WISHES)
            assert shortest_at_once(problem) == shortest(problem)

    def test_memory_for_no_placement(self):
        """Two operations of three do not fit one of two devices, or not both of them."""
        graph = graph_with([(0, 1)], 3)
        need = sorted(each.memory_bytes for each in graph.operations)
        for memory in (sum(need[:2]) - 1, sum(need) // 2 - 1):
            cluster = uniform(2, 1e6, memory_bytes=memory)
            assert shortest_of(graph, cluster) is None
            check_place(graph, cluster, None)
            with pytest.raises(AssertionError, match="refused"):
                check_place(graph, cluster, 1)

    def test_parts_are_the_whole(self):
        """Each shape of four is in one of three parts, and nothing differs."""
        parts = [try_part(4, part, 3) for part in (1, 2, 3)]
        assert parts == [(12, []), (11, []), (8, [])]

    @pytest.mark.parametrize("check", [check_place, check_solver, check_search])
    @pytest.mark.parametrize("other", [-1, 1])
    def test_a_nanosecond_more_or_less_is_noticed(self, check, other):
        """In each of three answers; of this small net the search alone finds the best, too."""
        graph, cluster = graph_of_shape([(0, 1), (0, 2)], 3, 0)
        best = shortest_of(graph, cluster)
        check(graph, cluster, best)
        with pytest.raises(AssertionError):
            check(graph, cluster, best + other)

    def test_what_differs_is_named(self, monkeypatch, capsys):
        """And the command fails."""
        monkeypatch.setattr(brute_placements, "shortest_of", lambda *_: 1)
        monkeypatch.setattr("sys.argv", ["brute_placements", "2", "--part", "1/1"])
        with pytest.raises(SystemExit, match="1"):
            brute_placements.main()
        said = capsys.readouterr().out
        assert "shape 1 of 2, [(0, 1)]: AssertionError('place: " in said
        assert "part 1/1: 2 shapes, 2 differ" in said

    @pytest.mark.thorough
    @pytest.mark.parametrize(("count", "parts"), [(6, 60), (7, 3000)])
    def test_a_part_of_six_and_seven(self, count, parts):
        """What ``python -m support.brute_placements`` does for all of them."""
        tried, wrong = try_part(count, parts // 2, parts)
        assert tried > 79
        assert wrong == []
