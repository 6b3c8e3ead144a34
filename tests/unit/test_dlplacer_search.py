"""Placements without ortools: what the search finds and says of it, and that efforts have an end."""

from __future__ import annotations

import sys

import pytest
from support.placement_twins import ALIKE, MILLI, UNLIKE, graph_with, random_graph, shortest

from kvstore_mpi.errors import UnsupportedError
from kvstore_mpi.planner.cluster import uniform
from kvstore_mpi.planner.placement import list_schedule, search
from kvstore_mpi.planner.placement.baselines import earliest_first, heft
from kvstore_mpi.planner.placement.graph import Edge, Graph, Operation
from kvstore_mpi.planner.placement.list_schedule import tails_with_delays
from kvstore_mpi.planner.placement.place import QUICK_TIMES, place
from kvstore_mpi.planner.placement.problem import NANO, Wishes, problem_of

THREE = uniform(3, 1e6, 1e-3)
HARD = random_graph(24, 1, trains=True, share=0.3)
"""Nobody proves its best placement on three devices in a second."""


@pytest.fixture
def no_ortools(monkeypatch):
    """Let Python find no ortools, as where the extra is not installed."""
    monkeypatch.setitem(sys.modules, "ortools", None)


@pytest.fixture(scope="module")
def solver():
    """Return the module of the solver, which takes half a second to import."""
    return pytest.importorskip(
        "kvstore_mpi.planner.placement.cp", reason="needs ortools, which the extra planner installs"
    )


@pytest.fixture
def timed(monkeypatch):
    """Return a list that has an entry for each placement that the search gives its times."""
    entries = []

    def counted(*arguments):
        entries.append(None)
        return list_schedule.schedule(*arguments)

    monkeypatch.setattr(search, "schedule", counted)
    return entries


class TestWithoutOrtools:
    def test_the_search_answers_and_says_how_far_off_it_may_be(self, no_ortools):
        """Its own bound, and with that its gap."""
        found = place(HARD, THREE, seconds=0.1)
        assert found.method == "search"
        assert found == place(HARD, THREE, seconds=0.1, method="search")
        assert 0 < found.bound_seconds < found.predicted_seconds
        assert found.gap == pytest.approx(1 - found.bound_seconds / found.predicted_seconds)

    def test_the_solver_is_refused(self, no_ortools):
        """It is not taken for the search; the error says what to install."""
        with pytest.raises(
            UnsupportedError, match=r"'cp' needs ortools: pip install 'kvstore_mpi\[planner\]'"
        ):
            place(HARD, THREE, method="cp")


class TestTheSearch:
    @pytest.mark.parametrize("cluster", [ALIKE, UNLIKE, THREE], ids=["alike", "unlike", "three"])
    @pytest.mark.parametrize("trains", [False, True])
    def test_small_nets_are_placed_as_well_as_can_be_or_nearly(self, cluster, trains):
        """Never better than by trying everything, within 3 % of it, and the bound holds."""
        for seed in range(3):
            graph = random_graph(5, seed, trains=trains)
            best = shortest(problem_of(graph, cluster, Wishes()))
            found = place(graph, cluster, method="search")
            assert best <= round(found.predicted_seconds * NANO) <= 1.03 * best
            assert round(found.bound_seconds * NANO) <= best

    def test_memory_that_is_short_joins_the_pieces_again(self):
        """Everything on one device would be best, and has no room."""
        graph = graph_with([(0, 1), (1, 2), (2, 3)], 4, seed=5)
        need = sum(each.memory_bytes for each in graph.operations)
        cluster = uniform(2, 1e6, 1e-3, memory_bytes=need - 1)
        found = place(graph, cluster, method="search")
        assert len(set(found.device_of.values())) == 2
        best = shortest(problem_of(graph, cluster, Wishes()))
        assert found.predicted_seconds * NANO == pytest.approx(best)

    def test_the_bound_of_a_placement_counts_what_follows_the_work_of_a_device(self):
        """Two tasks of 1 ms on one device, each before by 9 ms elsewhere: 11 ms, 10 by path, 2 by work."""
        graph = Graph(
            operations=tuple(
                Operation(name=name, forward_seconds=(1 if name in "ab" else 9) * MILLI) for name in "abcd"
            ),
            edges=(Edge(source="a", target="c"), Edge(source="b", target="d")),
        )
        problem = problem_of(graph, uniform(3, 1e6), Wishes())
        device = [{"a": 0, "b": 0, "c": 1, "d": 2}[name] for name in problem.operations]
        tails = tails_with_delays(problem, device)
        assert search.placement_bound(problem, device, tails) == 11_000_000


def assert_not_proven(method):
    """Place a hard net with next to no effort."""
    found = place(HARD, THREE, seconds=0.01, method=method)
    assert found.method == method
    assert 0 < found.bound_seconds < found.predicted_seconds <= found.single_seconds
    assert found.gap > 0


class TestEffort:
    def test_what_is_not_proven_in_time_has_a_gap(self, timed):
        """A hundredth of a second ends, with an answer, a bound below it and some gap."""
        assert_not_proven("search")
        assert len(timed) <= 0.01 * search.TRIES_PER_SECOND

    def test_what_the_solver_does_not_prove_in_time_has_a_gap(self, solver, timed):
        """It begins with what the search finds in a tenth of a second, whatever the size of the net."""
        assert_not_proven("cp")
        assert len(timed) * len(problem_of(HARD, THREE, Wishes()).tasks) <= QUICK_TIMES

    def test_more_effort_is_never_worse(self):
        """The same placements are tried, and then others."""
        times = [
            place(HARD, THREE, seconds=seconds, method="search").predicted_seconds
            for seconds in (0, 0.02, 0.1)
        ]
        assert times == sorted(times, reverse=True)
        assert times[-1] < times[0]

    def test_without_any_effort_list_schedulers_have_their_say(self, timed):
        """No placement is worse than theirs."""
        problem = problem_of(HARD, THREE, Wishes())
        found = place(HARD, THREE, seconds=0, method="search")
        best = min(heft(problem).length, earliest_first(problem).length)
        assert round(found.predicted_seconds * NANO) <= best
        assert 0 < found.bound_seconds < found.predicted_seconds
        assert len(timed) == 1

    def test_of_large_nets_the_solver_begins_with_what_list_schedulers_find(self, solver, timed):
        """The search has no time to, for which each try takes longer."""
        graph = random_graph(120, 1, trains=True, share=0.04)
        problem = problem_of(graph, THREE, Wishes())
        found = place(graph, THREE, seconds=0, method="cp")
        best = min(heft(problem).length, earliest_first(problem).length)
        assert round(found.predicted_seconds * NANO) <= best
        assert len(timed) * len(problem.tasks) <= QUICK_TIMES

    def test_the_solver_ends_when_its_conflicts_are_used_up(self, solver):
        """It says how much of the effort it has used, which is all of it, and little more."""
        problem = problem_of(HARD, THREE, Wishes())
        start = heft(problem)
        found, used = solver.solve(problem, start, 0.05)
        assert found.bound < found.length <= start.length
        assert 0.05 <= used < 0.1
