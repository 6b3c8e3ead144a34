"""Runs a placement step by step, and checks it against equations (7) to (13). Pure.

It shares nothing with the solvers, not even how times are counted: what they say is checked here.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

from kvstore_mpi.errors import UsageError
from kvstore_mpi.planner.placement.placement import BACKWARD, FORWARD, WEIGHT_GRADIENT, Placement, Task

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvstore_mpi.planner.cluster import Cluster
    from kvstore_mpi.planner.placement.graph import Graph, Operation


class Run(NamedTuple):
    """A task on a device, from ``since`` to ``until`` (nanoseconds)."""

    task: Task
    device: str
    since: int
    until: int


class Transfer(NamedTuple):
    """A result on one link, from ``since`` to ``until`` (nanoseconds), on its way to ``target``."""

    task: Task
    target: str
    link: tuple[str, str]
    num_bytes: int
    since: int
    until: int


class Timeline(NamedTuple):
    """What happens in one step."""

    runs: tuple[Run, ...]
    transfers: tuple[Transfer, ...]

    @property
    def length(self) -> int:
        """Nanoseconds from the start of the first task to the end of the last."""
        return max((run.until for run in self.runs), default=0)


def simulate(graph: Graph, cluster: Cluster, placement: Placement) -> Timeline:
    """Run one step.

    A device computes its tasks in the placement's order, each as soon as its inputs are there. A result
    leaves when it is ready; where links are shared (``placement.contention``), they serve what is ready
    first, and a result goes to a device once.

    Raises:
        UsageError: The placement breaks a rule, or its order cannot be followed.
    """
    check(graph, cluster, placement)
    return _Simulation(graph, cluster, placement).run()


def check(graph: Graph, cluster: Cluster, placement: Placement) -> None:
    """Check what does not depend on time: equations (7), (8), (9) and (13), shared weights, orders.

    Raises:
        UsageError: Names the first rule that is broken.
    """
    placement.require(graph, cluster)
    devices = cluster.by_name()
    used: Counter[str] = Counter()
    home: dict[str, tuple[str, str]] = {}
    for each in graph.operations:
        device = placement.device_of.get(each.name)
        if device not in devices:
            raise UsageError(
                f"(7): operation {each.name!r} has the device {device!r}, which is none of the cluster"
            )
        used[device] += each.memory_bytes
        for weight in each.weights:
            other, first = home.setdefault(weight, (device, each.name))
            if other != device:
                raise UsageError(
                    f"the weight {weight!r} would be on two devices: {first!r} is on {other}, "
                    f"{each.name!r} on {device}"
                )
    for device, num_bytes in used.items():
        if 0 < devices[device].memory_bytes < num_bytes:
            raise UsageError(
                f"(13): device {device} needs {num_bytes} bytes and has {devices[device].memory_bytes}"
            )
    _check_orders(graph, placement)
    _check_routes(graph, cluster, placement)


def check_times(graph: Graph, cluster: Cluster, placement: Placement, timeline: Timeline) -> None:
    """Check equations (10), (11) and (12) on a timeline, from whatever made it.

    Raises:
        UsageError: Names the first task that begins too early, or two on one device at once.
    """
    ends = {run.task: run.until for run in timeline.runs}
    starts = {run.task: run.since for run in timeline.runs}
    links = {(link.source, link.target): link for link in cluster.all_links}
    ways = _ways(placement)
    for before, after, num_bytes in _arcs(graph, _phases(graph, placement.split_backward)):
        hops = itertools.pairwise(ways.get((before, after), ()) if num_bytes else ())
        delay = sum(_whole(links[hop].seconds(num_bytes)) for hop in hops)
        if starts[after] < ends[before] + delay:
            raise UsageError(f"(10): {after} begins before the result of {before} is there")
    by_device = defaultdict(list)
    for run in timeline.runs:
        by_device[run.device].append(run)
    for runs in by_device.values():
        runs.sort(key=lambda run: (run.since, run.until))
        for one, other in itertools.pairwise(runs):
            if other.since < one.until:
                raise UsageError(f"(12): {one.task} and {other.task} overlap on {one.device}")


def _whole(seconds: float) -> int:
    """Return nanoseconds."""
    return round(seconds * 1e9)


def _phases(graph: Graph, split: bool) -> dict[str, dict[str, float]]:
    """Return the passes of each operation with their seconds."""
    trains = any(each.backward_seconds for each in graph.operations)
    return {each.name: _passes(each, trains, split) for each in graph.operations}


def _passes(each: Operation, trains: bool, split: bool) -> dict[str, float]:
    if not trains:
        return {FORWARD: each.forward_seconds}
    if not split or not each.weight_gradient_seconds:
        return {FORWARD: each.forward_seconds, BACKWARD: each.backward_seconds}
    return {
        FORWARD: each.forward_seconds,
        BACKWARD: each.backward_seconds - each.weight_gradient_seconds,
        WEIGHT_GRADIENT: each.weight_gradient_seconds,
    }


def _arcs(graph: Graph, phases: dict[str, dict[str, float]]) -> Iterator[tuple[Task, Task, int]]:
    """Yield which task waits for which, and for how many bytes."""
    for name, passes in phases.items():
        for one, other in itertools.pairwise(passes):
            yield Task(name, one), Task(name, other), 0
    for edge in graph.edges:
        yield Task(edge.source), Task(edge.target), edge.num_bytes
        if BACKWARD in phases[edge.source]:
            yield Task(edge.target, BACKWARD), Task(edge.source, BACKWARD), edge.num_bytes


def _ways(placement: Placement) -> dict[tuple[Task, Task], tuple[str, ...]]:
    """Return the nodes on the way from one task to another."""
    ways = {(Task(r.source), Task(r.target)): r.nodes for r in placement.routes}
    return ways | {(Task(r.target, BACKWARD), Task(r.source, BACKWARD)): r.back for r in placement.routes}


def _check_orders(graph: Graph, placement: Placement) -> None:
    """Check that each device computes each pass of its operations once, and nothing else."""
    expected = {
        Task(name, phase): placement.device_of[name]
        for name, passes in _phases(graph, placement.split_backward).items()
        for phase in passes
    }
    for device, tasks in placement.order.items():
        for task in tasks:
            if expected.pop(task, None) != device:
                raise UsageError(
                    f"the order of {device} has {task}, which is not to be computed there, or is twice"
                )
    if expected:
        raise UsageError(f"{next(iter(expected))} is in no device's order")


def _check_routes(graph: Graph, cluster: Cluster, placement: Placement) -> None:
    """Check (8) and (9): a route joins the devices of its ends by links, over routers only."""
    links = {(link.source, link.target) for link in cluster.all_links}
    routes = {(route.source, route.target): route for route in placement.routes}
    trains = any(each.backward_seconds for each in graph.operations)
    for edge in graph.edges:
        ends = placement.device_of[edge.source], placement.device_of[edge.target]
        if ends[0] == ends[1] or not edge.num_bytes:
            continue
        route = routes.get((edge.source, edge.target))
        ways = [(route.nodes if route else (), ends)]
        if trains:
            ways.append((route.back if route else (), (ends[1], ends[0])))
        for way, (here, there) in ways:
            what = f"for {edge.source} -> {edge.target}"
            if (way[:1], way[-1:]) != ((here,), (there,)):
                raise UsageError(f"(8): no route leads from {here} to {there} {what}")
            for hop in itertools.pairwise(way):
                if hop not in links:
                    raise UsageError(f"(9): the route {what} needs a link {hop[0]} -> {hop[1]}")
            if strange := set(way[1:-1]) - set(cluster.all_routers):
                raise UsageError(f"(9): the route {what} crosses {strange}, which forwards nothing")


class _Simulation:
    """The state of one step; ``run`` is called once."""

    def __init__(self, graph: Graph, cluster: Cluster, placement: Placement) -> None:
        self._placement = placement
        self._links = {(link.source, link.target): link for link in cluster.all_links}
        phases = _phases(graph, placement.split_backward)
        self._durations = {
            Task(name, phase): _whole(seconds / cluster.by_name()[placement.device_of[name]].speed)
            for name, passes in phases.items()
            for phase, seconds in passes.items()
        }
        self._ways = _ways(placement)
        self._waits = Counter[Task]()
        self._leaving: dict[Task, list[tuple[Task, int]]] = defaultdict(list)
        for before, after, num_bytes in _arcs(graph, phases):
            self._waits[after] += 1
            self._leaving[before].append((after, num_bytes))
        self._queues = {device: list(reversed(tasks)) for device, tasks in placement.order.items()}
        self._busy = dict.fromkeys(self._queues, False)
        self._free: Counter[tuple[str, str]] = Counter()
        self._events: list[tuple[int, int, Task | _Parcel]] = []
        self._numbers = itertools.count()
        self._runs: list[Run] = []
        self._transfers: list[Transfer] = []

    def run(self) -> Timeline:
        for device in self._queues:
            self._start(device, 0)
        while self._events:
            now, _, what = heapq.heappop(self._events)
            if isinstance(what, Task):
                self._finish(what, now)
            elif len(what.way) > 1:
                self._hop(what, now)
            else:
                self._arrive(what.waiting, now)
        stuck = [queue[-1] for queue in self._queues.values() if queue]
        if stuck:
            raise UsageError(
                f"the order cannot be followed: {', '.join(map(str, stuck))} wait for each other"
            )
        return Timeline(tuple(self._runs), tuple(self._transfers))

    def _at(self, when: int, what: Task | _Parcel) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), what))

    def _start(self, device: str, now: int) -> None:
        queue = self._queues[device]
        if queue and not self._busy[device] and not self._waits[queue[-1]]:
            task = queue.pop()
            self._busy[device] = True
            self._runs.append(Run(task, device, now, now + self._durations[task]))
            self._at(now + self._durations[task], task)

    def _finish(self, task: Task, now: int) -> None:
        device = self._placement.device_of[task.operation]
        self._busy[device] = False
        local: list[Task] = []
        parcels: dict[object, _Parcel] = {}
        for after, num_bytes in self._leaving[task]:
            way = self._ways.get((task, after), ()) if num_bytes else ()
            if len(way) < 2:  # noqa: PLR2004 - a way has two ends
                local.append(after)
                continue
            key = (way, num_bytes) if self._placement.contention else (way, after)
            parcels.setdefault(key, _Parcel(task, way, num_bytes, [])).waiting.append(after)
        for parcel in parcels.values():
            self._hop(parcel, now)
        self._arrive(local, now)
        self._start(device, now)

    def _hop(self, parcel: _Parcel, now: int) -> None:
        """Send a result over the next link of its way."""
        link = parcel.way[0], parcel.way[1]
        since = max(now, self._free[link]) if self._placement.contention else now
        until = since + _whole(self._links[link].seconds(parcel.num_bytes))
        self._free[link] = until
        self._transfers.append(Transfer(parcel.task, parcel.way[-1], link, parcel.num_bytes, since, until))
        self._at(until, parcel._replace(way=parcel.way[1:]))

    def _arrive(self, tasks: list[Task], now: int) -> None:
        for task in tasks:
            self._waits[task] -= 1
            self._start(self._placement.device_of[task.operation], now)


class _Parcel(NamedTuple):
    """A result under way: from ``way[0]``, where it is, to ``way[-1]``, for the tasks that wait for it."""

    task: Task
    way: tuple[str, ...]
    num_bytes: int
    waiting: list[Task]
