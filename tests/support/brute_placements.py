"""Tries nets of a few operations: no placement and no order of tasks is shorter than what solvers find.

``PYTHONPATH=tests python -m support.brute_placements 7 --part 3/100`` tries one in a hundred of the shapes
of seven operations. Each has costs that follow from its number, and one of four clusters in turn. ``place``
answers for all of them, CP-SAT alone for one in five, and the search alone, which need not find the best,
for one in twenty-five.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.errors import UsageError
from kvstore_mpi.planner.placement import search
from kvstore_mpi.planner.placement.place import CP, SEARCH, place
from kvstore_mpi.planner.placement.problem import NANO, problem_of
from support.placement_twins import CLUSTERS, NO_WISHES, assert_feasible, graph_with, slowest
from support.seeds import check

if TYPE_CHECKING:
    from kvstore_mpi.planner.cluster import Cluster
    from kvstore_mpi.planner.placement.graph import Graph
    from kvstore_mpi.planner.placement.problem import Problem

Array = Any
Pairs = list[tuple[int, int]]

NEVER = -(2**60)
"""Nanoseconds: when a task ends that has no time yet, and how long others wait that do not need it."""

SOLVER_SHARE = 5
SEARCH_SHARE = 25
"""Of how many shapes the solver, and the search, is asked for one alone: of all four clusters in turn."""


def shapes(count: int) -> list[Pairs]:
    """Return every net of ``count`` operations once, whatever the names: edges from low to high numbers.

    A set of edges is a number with a bit for each possible edge. Two operations next to each other that no
    edge joins may change places, and by such exchanges any order of a net becomes any other: sets that
    they lead to are the same net, and the smallest number stands for it.
    """
    pairs = list(itertools.combinations(range(count), 2))
    bits = {pair: bit for bit, pair in enumerate(reversed(pairs))}
    every = np.arange(1 << len(pairs))
    exchanged = [_exchanged(every, low, bits) for low in range(count - 1)]
    smallest, before = every.copy(), np.zeros_like(every)
    while not np.array_equal(smallest, before):
        before = smallest.copy()
        for other in exchanged:
            np.minimum(smallest, smallest[other], out=smallest)
    return [
        [pair for pair in pairs if number >> bits[pair] & 1] for number in every[smallest == every].tolist()
    ]


def _exchanged(every: Array, low: int, bits: dict[tuple[int, int], int]) -> Array:
    """Return what sets of edges become if ``low`` and the next one change places: themselves if joined."""
    name = {low: low + 1, low + 1: low}
    result = np.zeros_like(every)
    for pair, bit in bits.items():
        one, other = sorted(name.get(each, each) for each in pair)
        result |= (every >> bit & 1) << bits[one, other]
    return np.where(every >> bits[low, low + 1] & 1, every, result)


def shortest_at_once(problem: Problem) -> int | None:
    """Return the length of the best solution: every order of tasks, each for every placement at once.

    In an order each task has the earliest time after what its device already has. Nothing is left out, so
    that this is for problems of few tasks. ``None``: memory allows no placement.
    """
    device = _placements(problem)[list(problem.group_of_task)]  # by task, of each placement
    took = np.array([np.array(each)[here] for each, here in zip(problem.durations, device)])
    wait = np.where(device[:, None] == device, 0, NEVER)
    for arc in problem.arcs:
        wait[arc.after, arc.before] = np.array(arc.delays)[device[arc.before], device[arc.after]]
    inputs = [{arc.before for arc in arcs} for arcs in problem.inputs]
    ends = np.full_like(device, NEVER)
    best = took.sum(axis=0) - NEVER

    def follow(left: frozenset[int]) -> None:
        if not left:
            np.minimum(best, ends.max(axis=0), out=best)
        for task in left:
            if left.isdisjoint(inputs[task]):
                ends[task] = (ends + wait[task]).max(axis=0).clip(0) + took[task]
                follow(left - {task})
                ends[task] = NEVER

    follow(frozenset(range(len(problem.tasks))))
    return int(best.min()) if best.size else None


def _placements(problem: Problem) -> Array:
    """Return the device of each group, of all placements for which there is memory."""
    every = np.array(np.meshgrid(*problem.allowed, indexing="ij")).reshape(len(problem.allowed), -1)
    for here, have in enumerate(problem.capacity):
        need = np.array(problem.memory) @ (every == here)
        if have:
            every = every[:, need <= have]
    return every


def shortest_of(graph: Graph, cluster: Cluster) -> int | None:
    """Return the length of the best placement of a net, ``None`` if there is no memory for any."""
    try:
        return shortest_at_once(problem_of(graph, cluster, NO_WISHES))
    except UsageError:
        need = sum(each.memory_bytes for each in graph.operations)
        check(need > sum(each.memory_bytes for each in cluster.all_devices), "it would fit")
        return None


def check_place(graph: Graph, cluster: Cluster, best: int | None) -> None:
    """Check that ``place`` finds the best, and proves it; or refuses if there is none."""
    try:
        found = place(graph, cluster, method=CP)
    except UsageError as error:
        check(best is None, f"refused: {error}")
        return
    length = round(found.predicted_seconds * NANO)
    check((length, found.gap) == (best, 0), f"place: {length} ns, gap {found.gap}, not {best} ns")


def check_solver(graph: Graph, cluster: Cluster, best: int) -> None:
    """Check that CP-SAT alone, from a bad start, finds the best and proves it."""
    from kvstore_mpi.planner.placement import cp  # noqa: PLC0415  needs ortools

    problem = problem_of(graph, cluster, NO_WISHES)
    found = cp.solve(problem, slowest(problem), 60)[0]
    where = f"the solver: {found.length} ns, bound {found.bound}, not {best} ns"
    check((found.length, found.bound) == (best, best), where)
    check(search.fits(problem, found.device), "the solver: not enough memory")
    assert_feasible(problem, found)


def check_search(graph: Graph, cluster: Cluster, best: int) -> None:
    """Check that what the search alone finds is no better than the best, and its bound is none too high."""
    found = place(graph, cluster, method=SEARCH)
    length, bound = (round(each * NANO) for each in (found.predicted_seconds, found.bound_seconds))
    check(bound <= best <= length, f"the search: {length} ns, bound {bound}, not {best} ns")


def graph_of_shape(edges: Pairs, count: int, number: int) -> tuple[Graph, Cluster]:
    """Return a shape with its costs, and its cluster."""
    return graph_with(edges, count, seed=number), CLUSTERS[number % len(CLUSTERS)]


def difference(edges: Pairs, count: int, number: int, turn: int) -> str:
    """Return what is found of a shape that is not the best, or nothing.

    Args:
        edges: Of the shape.
        count: Of its operations.
        number: Of the shape, from which its costs and its cluster follow.
        turn: Says which solvers are asked alone.
    """
    graph, cluster = graph_of_shape(edges, count, number)
    try:
        best = shortest_of(graph, cluster)
        check_place(graph, cluster, best)
        if best is not None and turn % SOLVER_SHARE == 0:
            check_solver(graph, cluster, best)
        if best is not None and turn % SEARCH_SHARE == 0:
            check_search(graph, cluster, best)
    except Exception as error:  # noqa: BLE001  the others are tried all the same
        return f"shape {number} of {count}, {edges}: {error!r}"
    return ""


def try_part(count: int, part: int, parts: int) -> tuple[int, list[str]]:
    """Try a part of all shapes; return how many there were, and what differs.

    A part is of fours, which have the four clusters in turn, from the first of all shapes to the last.
    """
    chosen = [
        (number, edges)
        for number, edges in enumerate(shapes(count))
        if number // len(CLUSTERS) % parts == part - 1
    ]
    found = (difference(edges, count, number, turn) for turn, (number, edges) in enumerate(chosen))
    return len(chosen), [each for each in found if each]


def main() -> None:
    """Try the part that the command line names; say what differs, and how fast it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, help="operations of a net")
    parser.add_argument("--part", default="1/1", metavar="K/N", help="the Kth of N parts (all)")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    if not 1 <= part <= parts:
        parser.error(f"{options.part} is no part: of three there are 1/3, 2/3 and 3/3")
    start = time.perf_counter()
    tried, wrong = try_part(options.count, part, parts)
    rate = tried / (time.perf_counter() - start)
    text = f"{options.count} operations, part {options.part}: {tried} shapes, {len(wrong)} differ"
    print(*wrong, f"{text}; {rate:.0f} shapes/s", sep="\n")  # noqa: T201  a command's output
    sys.exit(min(1, len(wrong)))


if __name__ == "__main__":
    main()
