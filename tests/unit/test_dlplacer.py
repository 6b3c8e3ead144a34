"""Placements by the solver: the same in pieces as in one, and what links do to them."""

from __future__ import annotations

import msgspec
import pytest
from support.placement_twins import (
    ALIKE,
    MILLI,
    UNLIKE,
    assert_best,
    assert_feasible,
    graph_with,
    series_parallel,
    slowest,
)

from kvstore_mpi.planner.cluster import uniform
from kvstore_mpi.planner.placement.baselines import earliest_first, heft
from kvstore_mpi.planner.placement.decompose import cuts, solve_by_pieces
from kvstore_mpi.planner.placement.graph import Edge, Graph, Operation
from kvstore_mpi.planner.placement.place import place
from kvstore_mpi.planner.placement.problem import NANO, Wishes, problem_of

cp = pytest.importorskip(
    "kvstore_mpi.planner.placement.cp", reason="needs ortools, which the extra planner installs"
)

ROOMY = msgspec.structs.replace(
    UNLIKE, devices=tuple(msgspec.structs.replace(each, memory_bytes=0) for each in UNLIKE.each_host)
)
"""The same devices without limits of memory, with which nets are not solved by pieces alone."""

THREE = uniform(3, 1e6, 1e-3)


class TestPieces:
    @pytest.mark.parametrize(
        "cluster", [ALIKE, ROOMY, uniform(3, 1e6, 1e-3)], ids=["two", "unlike", "three"]
    )
    @pytest.mark.parametrize("seed", range(3))
    def test_pieces_give_what_the_whole_gives(self, seed, cluster):
        """On nets that can be cut at their joints; the solver begins with something bad each time."""
        problem = problem_of(series_parallel(seed), cluster, Wishes())
        assert len(cuts(problem)) >= 3

        def solve(part):
            return cp.solve(part, slowest(part), 100)[0]

        pieces, whole = solve_by_pieces(problem, solve), solve(problem)
        assert pieces.length == pieces.bound == whole.length == whole.bound

    def test_an_edge_past_an_operation_leaves_no_cut_there(self):
        """Where the result comes from matters after it."""
        problem = problem_of(graph_with([(0, 1), (1, 2), (2, 3), (1, 3)], 4), ALIKE, Wishes())
        assert [problem.operations[each] for each in cuts(problem)] == ["op0", "op1", "op3"]

    def test_a_shared_weight_keeps_its_operations_in_one_piece(self):
        """What lies between them is no place to cut."""
        graph = graph_with([(0, 1), (1, 2), (2, 3)], 4)
        _, second, _, last = graph.operations
        shared = Operation(name="op2", forward_seconds=MILLI, weights=("w",))
        graph = Graph(
            operations=(Operation(name="op0", forward_seconds=MILLI, weights=("w",)), second, shared, last),
            edges=graph.edges,
        )
        problem = problem_of(graph, ALIKE, Wishes())
        assert [problem.operations[each] for each in cuts(problem)] == ["op0", "op2", "op3"]
        assert_best(graph, ALIKE)

    def test_memory_that_is_short_joins_the_pieces_again(self):
        """Everything on one device would be best, and has no room."""
        graph = graph_with([(0, 1), (1, 2), (2, 3)], 4, seed=5)
        need = sum(each.memory_bytes for each in graph.operations)
        cluster = uniform(2, 1e6, 1e-3, memory_bytes=need - 1)
        assert_best(graph, cluster)
        assert len(set(place(graph, cluster).device_of.values())) == 2


class TestLinks:
    @pytest.mark.parametrize("seed", range(2))
    def test_a_faster_link_never_hurts(self, seed):
        """From no link to speak of, where one device is best, to a perfect one: the longest path."""
        graph = series_parallel(seed, joints=1, branches=3)
        rates = (1.0, 1e5, 1e6, 1e30)
        times = [place(graph, uniform(3, rate)).predicted_seconds for rate in rates]
        assert times == sorted(times, reverse=True)
        problem = problem_of(graph, uniform(3, 1e30), Wishes())
        assert times[-1] == max(problem.tails) / NANO

    def test_without_a_link_to_speak_of_one_device_computes_everything(self):
        """The time is that of one device."""
        graph = Graph(
            operations=tuple(Operation(name=name, forward_seconds=MILLI) for name in "abcd"),
            edges=tuple(
                Edge(source=one, target=other, num_bytes=10) for one, other in ("ab", "ac", "bd", "cd")
            ),
        )
        found = place(graph, uniform(2, 1.0))
        assert found.speedup == 1
        assert len(set(found.device_of.values())) == 1

    def test_two_branches_as_in_the_paper(self):
        """Two equal branches of an Inception module run side by side: 6.1 ms instead of 10."""
        names = ("in", "left", "right", "out")
        graph = Graph(
            operations=tuple(
                Operation(name=name, forward_seconds=(1 if name in {"in", "out"} else 4) * MILLI)
                for name in names
            ),
            edges=tuple(
                Edge(source=one, target=other, num_bytes=1000)
                for one, other in (("in", "left"), ("in", "right"), ("left", "out"), ("right", "out"))
            ),
        )
        found = place(graph, uniform(2, 1e7))
        assert found.device_of["left"] != found.device_of["right"]
        assert found.predicted_seconds == pytest.approx((1 + 4 + 0.1 + 1) * MILLI)
        assert found.speedup == pytest.approx(10 / 6.1)


class TestOtherMethods:
    def test_the_search_is_close_and_its_bound_holds(self):
        """Within 3 % of the best, on nets with forward and backward passes."""
        for seed in range(4):
            graph = series_parallel(seed, branches=3)
            best = place(graph, ALIKE, method="cp")
            found = place(graph, ALIKE, method="search", seconds=4)
            assert found.bound_seconds <= best.predicted_seconds <= found.predicted_seconds
            assert found.predicted_seconds <= 1.03 * best.predicted_seconds

    def test_list_schedulers_are_never_better_than_the_best(self):
        """HEFT and m-ETF obey the rules, which their times show."""
        for seed in range(2):
            graph = series_parallel(seed, branches=3)
            problem = problem_of(graph, ALIKE, Wishes())
            best = place(graph, ALIKE, method="cp").predicted_seconds
            for solution in (heft(problem), earliest_first(problem)):
                assert solution.length / NANO >= best
                assert_feasible(problem, solution)

    def test_halves_of_the_backward_pass_that_are_apart_take_no_longer(self):
        """The gradient of a weight is computed while nothing else can be."""
        graph = series_parallel(2, branches=2)
        halves = tuple(
            Operation(
                name=each.name,
                forward_seconds=each.forward_seconds,
                backward_seconds=each.backward_seconds,
                weight_gradient_seconds=each.backward_seconds / 2,
            )
            for each in graph.operations
        )
        graph = Graph(operations=halves, edges=graph.edges)
        whole = place(graph, ALIKE)
        apart = place(graph, ALIKE, Wishes(split_backward=True))
        assert apart.predicted_seconds < whole.predicted_seconds
        assert apart.bound_seconds <= apart.predicted_seconds
