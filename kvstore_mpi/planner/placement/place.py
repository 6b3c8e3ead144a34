"""Finds the placement of a net: the way from a graph and a cluster to a checked answer. Pure."""

from __future__ import annotations

import importlib.util
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from kvstore_mpi.errors import InternalError, UnsupportedError, UsageError
from kvstore_mpi.planner.placement import search
from kvstore_mpi.planner.placement.baselines import earliest_first, heft
from kvstore_mpi.planner.placement.decompose import solve_by_pieces
from kvstore_mpi.planner.placement.list_schedule import schedule, tails_with_delays
from kvstore_mpi.planner.placement.placement import Placement, Route, Task
from kvstore_mpi.planner.placement.problem import NANO, Problem, Solution, Wishes, nanoseconds, problem_of
from kvstore_mpi.planner.placement.simulate import check_times, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvstore_mpi.planner.cluster import Cluster, Link
    from kvstore_mpi.planner.placement.graph import Graph

AUTO = "auto"
CP = "cp"
SEARCH = "search"
METHODS = (AUTO, CP, SEARCH)
SHARE = 4
"""A piece may use a quarter of the effort that is left; most need next to nothing."""

CONTENDED_TRIES_PER_SECOND = 200
"""Placements that the simulator times count as a second of work, whatever the machine."""

QUICK_SECONDS = 0.1
"""Most effort of the search that gives the solver something to begin with."""

QUICK_TIMES = 20_000
"""As many times of tasks it may compute however little effort is left: about a tenth of a second's work."""


def place(
    graph: Graph,
    cluster: Cluster,
    wishes: Wishes | None = None,
    *,
    seconds: float = 60.0,
    method: str = AUTO,
    workers: int = 1,
) -> Placement:
    """Return the best placement found, with what it takes and a bound.

    Args:
        graph: The net.
        cluster: Where it is to be placed.
        wishes: Pins, edges that must not be cut, contention, the two halves of the backward pass. With
            contention, the best placement without it, each device alone and neighbours of both are timed by
            the simulator; the bound holds, but is not tight.
        seconds: Effort, about as many seconds of a processor; counted in work, not by a clock, so that the
            answer is the same each time.
        method: ``cp`` (needs ortools), ``search`` (pure Python), or ``auto``, the first that is there.
        workers: Threads of ``cp``.

    Raises:
        UsageError: The net or the cluster is none, memory does not suffice, a wish cannot be had, or there
            is no such method.
        UnsupportedError: ``cp`` without ortools.
    """
    wishes = wishes or Wishes()
    if method not in METHODS:
        raise UsageError(f"there is no method {method!r}; give {', '.join(map(repr, METHODS))}")
    if method == AUTO:
        method = CP if _has_ortools() else SEARCH
    if method == CP and not _has_ortools():
        raise UnsupportedError(
            "method 'cp' needs ortools: pip install 'kvstore_mpi[planner]', or use 'search'"
        )
    solver = _Solver(method, seconds, workers)
    problem = problem_of(graph, cluster, wishes._replace(split_backward=False))
    solutions = [solver.whole(problem)]
    if wishes.split_backward:
        problem = problem_of(graph, cluster, wishes)
        solutions = [solver.split(problem, solutions[0])]
    placed = partial(placement_of, graph, cluster, problem, wishes=wishes, method=method)
    if wishes.contention:
        solutions += _on_one_device(problem, solutions[0].bound)
        solutions += _with_contention(problem, solutions, seconds / SHARE, placed)
    return min(map(placed, solutions), key=lambda each: each.predicted_seconds)


def _with_contention(
    problem: Problem,
    known: Sequence[Solution],
    seconds: float,
    placed: Callable[[Solution], Placement],
) -> list[Solution]:
    """Return the best solution that is found from known ones where links are shared.

    Solvers know nothing of what else a link carries: times are the simulator's.
    """
    bound = known[0].bound

    def timed(device: Sequence[int]) -> Solution:
        found = schedule(problem, device, tails_with_delays(problem, device))
        found.bound = bound
        found.length = nanoseconds(placed(found).predicted_seconds)
        return found

    tries = int(seconds * CONTENDED_TRIES_PER_SECOND)
    found = search.climb(problem, tries, bound, (each.device for each in known), timed)
    return [] if found is None else [found]


def _on_one_device(problem: Problem, bound: int) -> list[Solution]:
    """Return the solutions without any transfer, which links that are shared cannot slow down."""
    found = []
    for here in range(len(problem.capacity)):
        device = [here] * len(problem.allowed)
        if all(here in allowed for allowed in problem.allowed) and search.fits(problem, device):
            found.append(schedule(problem, device, problem.tails))
            found[-1].bound = bound
    return found


def _has_ortools() -> bool:
    return importlib.util.find_spec("ortools") is not None


class _Solver:
    """Solves with one method, and shares an effort among all that it solves."""

    def __init__(self, method: str, seconds: float, workers: int) -> None:
        self._method = method
        self._left = seconds
        self._workers = workers

    def whole(self, problem: Problem) -> Solution:
        """Return a solution of a net by its pieces; all at once only where memory is short."""
        by_pieces = solve_by_pieces(problem, self._solve)
        if search.fits(problem, by_pieces.device):
            return by_pieces
        start = min(
            (
                each
                for each in (heft(problem), earliest_first(problem), search.first_fit(problem))
                if search.fits(problem, each.device)
            ),
            key=lambda each: each.length,
            default=None,
        )
        found = self._solve(problem, start)
        if not search.fits(problem, found.device):
            raise UsageError(
                "no placement was found that memory allows: use more devices or a smaller batch"
            )
        found.bound = max(found.bound, by_pieces.bound)
        return found

    def split(self, problem: Problem, whole: Solution) -> Solution:
        """Return a solution with the halves of the backward pass apart, from one with them together."""
        start = schedule(problem, whole.device, tails_with_delays(problem, whole.device))
        start.bound = search.simple_bound(problem)
        return self._improved(problem, start)

    def _solve(self, problem: Problem, start: Solution | None = None) -> Solution:
        effort = self._left / SHARE
        if self._method == CP:
            least = QUICK_TIMES / max(1, len(problem.tasks)) / search.TRIES_PER_SECOND
            effort = min(QUICK_SECONDS, max(effort, least))
        found, used = search.solve(problem, effort)
        if found.bound < found.length and (self._method == SEARCH or effort < QUICK_SECONDS):
            found = search.or_listed(problem, found)
        if self._method == SEARCH:
            self._left -= used
        return self._improved(problem, search.better(start, found))

    def _improved(self, problem: Problem, start: Solution) -> Solution:
        if self._method == SEARCH or start.bound >= start.length:
            return start
        from kvstore_mpi.planner.placement import cp  # noqa: PLC0415  ortools takes half a second to import

        found, used = cp.solve(problem, start, self._left / SHARE, self._workers)
        self._left -= used
        return found


def placement_of(
    graph: Graph, cluster: Cluster, problem: Problem, solution: Solution, *, wishes: Wishes, method: str
) -> Placement:
    """Return a solution as a placement, with the time that the simulator gives it.

    Raises:
        InternalError: The simulator needs longer than the solution says.
    """
    names = [device.name for device in cluster.all_devices]
    device_of = {
        name: names[solution.device[problem.group[i]]] for i, name in enumerate(problem.operations)
    }
    order: dict[str, list[Task]] = {name: [] for name in names}
    for task in _by_time(problem, solution):
        order[device_of[problem.tasks[task].operation]].append(problem.tasks[task])
    found = Placement(
        graph_digest=graph.digest,
        cluster_digest=cluster.digest,
        device_of=device_of,
        order={name: tuple(each) for name, each in order.items()},
        routes=tuple(_routes(graph, cluster, device_of)),
        predicted_seconds=0.0,
        single_seconds=_alone(graph, cluster),
        bound_seconds=solution.bound / NANO,
        contention=wishes.contention,
        split_backward=wishes.split_backward,
        method=method,
    )
    timeline = simulate(graph, cluster, found)
    check_times(graph, cluster, found, timeline)
    if timeline.length > solution.length and not wishes.contention:
        raise InternalError(
            f"the simulator needs {timeline.length} ns, the solver says {solution.length} ns"
        )
    return msgspec.structs.replace(found, predicted_seconds=timeline.length / NANO)


def _by_time(problem: Problem, solution: Solution) -> list[int]:
    """Return the tasks in the order in which a solution has them.

    One that takes no time may start at the moment at which its device starts a longer one; it comes first.
    """
    position = {task: i for i, task in enumerate(problem.order)}

    def when(task: int) -> tuple[int, int, int]:
        start, here = solution.starts[task], solution.device[problem.group_of_task[task]]
        return start, start + problem.durations[task][here], position[task]

    return sorted(range(len(problem.tasks)), key=when)


def _alone(graph: Graph, cluster: Cluster) -> float:
    """Return what the fastest device takes for all of it."""
    return (
        min(
            sum(
                nanoseconds(seconds / device.speed)
                for each in graph.operations
                for seconds in (each.forward_seconds, each.backward_seconds)
            )
            for device in cluster.all_devices
        )
        / NANO
    )


def _routes(graph: Graph, cluster: Cluster, device_of: dict[str, str]) -> Iterator[Route]:
    trains = any(each.backward_seconds for each in graph.operations)
    for edge in graph.edges:
        here, there = device_of[edge.source], device_of[edge.target]
        if here != there and edge.num_bytes:
            yield Route(
                source=edge.source,
                target=edge.target,
                nodes=_nodes(cluster.route(here, there, edge.num_bytes)),
                back=_nodes(cluster.route(there, here, edge.num_bytes)) if trains else (),
                num_bytes=edge.num_bytes,
            )


def _nodes(way: tuple[Link, ...]) -> tuple[str, ...]:
    return (way[0].source, *(link.target for link in way))
