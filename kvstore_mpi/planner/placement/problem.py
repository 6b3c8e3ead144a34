"""What solvers are given: tasks, arcs and delays as whole numbers. Pure.

Times are whole nanoseconds, so that sums are exact and a gap of 0 means 0. Tasks are the passes of
operations; an arc says that one task waits for another, and for a transfer if their devices differ.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from kvstore_mpi.errors import UsageError
from kvstore_mpi.planner.placement.placement import BACKWARD, FORWARD, WEIGHT_GRADIENT, Task

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from kvstore_mpi.planner.cluster import Cluster
    from kvstore_mpi.planner.placement.graph import Graph, Operation

Delays = tuple[tuple[int, ...], ...]
"""Nanoseconds of a transfer, by the device that sends and the one that receives."""

NANO = 1_000_000_000
MOST = 2**62
"""Of all nanoseconds, or all bytes, of a problem: solvers count with 64 bits."""


def nanoseconds(seconds: float) -> int:
    """Return a time as solvers and the simulator count it."""
    return round(seconds * NANO)


class Arc(NamedTuple):
    """One task waits for another.

    Attributes:
        before: Index of the task that comes first.
        after: Index of the one that waits.
        delays: What the result takes from device to device.
    """

    before: int
    after: int
    delays: Delays


class Wishes(NamedTuple):
    """What a user wants of a placement.

    Attributes:
        pinned: Device of an operation, by name.
        together: Edges (source, target) that must not be cut.
        contention: A link carries one transfer at a time.
        split_backward: Gradients of parameters are tasks of their own.
    """

    pinned: Mapping[str, str] = {}
    together: Collection[tuple[str, str]] = ()
    contention: bool = False
    split_backward: bool = False


@dataclass(frozen=True)
class Problem:
    """Tasks to be given a device and a time.

    Attributes:
        operations: Names.
        tasks: Passes of operations.
        owner: Index of its operation, for each task.
        durations: Nanoseconds, by task and device.
        arcs: Which task waits for which.
        group: Of each operation; those of one group share a device.
        allowed: Indices of devices, for each group.
        memory: Bytes of each group.
        capacity: Bytes of each device; 0: not limited.
    """

    operations: tuple[str, ...]
    tasks: tuple[Task, ...]
    owner: tuple[int, ...]
    durations: tuple[tuple[int, ...], ...]
    arcs: tuple[Arc, ...]
    group: tuple[int, ...]
    allowed: tuple[tuple[int, ...], ...]
    memory: tuple[int, ...]
    capacity: tuple[int, ...]

    @cached_property
    def inputs(self) -> tuple[tuple[Arc, ...], ...]:
        """The arcs into each task."""
        return _grouped(len(self.tasks), self.arcs, [arc.after for arc in self.arcs])

    @cached_property
    def outputs(self) -> tuple[tuple[Arc, ...], ...]:
        """The arcs out of each task."""
        return _grouped(len(self.tasks), self.arcs, [arc.before for arc in self.arcs])

    @cached_property
    def group_of_task(self) -> tuple[int, ...]:
        """The group of each task's operation."""
        return tuple(self.group[owner] for owner in self.owner)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Tasks, each after those that it waits for."""
        missing = [len(each) for each in self.inputs]
        ready = [task for task, count in enumerate(missing) if not count]
        for task in ready:  # grows
            for arc in self.outputs[task]:
                missing[arc.after] -= 1
                if not missing[arc.after]:
                    ready.append(arc.after)
        return tuple(ready)

    @cached_property
    def tails(self) -> tuple[int, ...]:
        """What follows each task at least, itself included: on the fastest devices, without transfers."""
        tails = [0] * len(self.tasks)
        for task in reversed(self.order):
            after = max((tails[arc.after] for arc in self.outputs[task]), default=0)
            tails[task] = self.least(task) + after
        return tuple(tails)

    def least(self, task: int) -> int:
        """Return the duration of a task on the fastest device that it may have."""
        return min(self.durations[task][device] for device in self.allowed[self.group_of_task[task]])


@dataclass
class Solution:
    """What a solver found.

    Attributes:
        device: Of each group.
        starts: Of each task, nanoseconds.
        length: Until the last task ends.
        bound: No solution is shorter.
    """

    device: list[int]
    starts: list[int]
    length: int
    bound: int = field(default=0)


def problem_of(graph: Graph, cluster: Cluster, wishes: Wishes) -> Problem:
    """Return the problem of placing a net on a cluster.

    Raises:
        UsageError: The graph or cluster is none, a wish cannot be had, or memory does not suffice.
    """
    graph.checked()
    cluster.checked()
    operations = graph.by_name()
    names = graph.order()
    index = {name: i for i, name in enumerate(names)}
    _check_names(index, wishes)
    tasks, owner, durations = _tasks([operations[name] for name in names], cluster, wishes)
    position = {task: i for i, task in enumerate(tasks)}
    arcs = [
        Arc(before, after, delays)
        for name in names
        for before, after, delays in _own_arcs(name, position, len(cluster.all_devices))
    ]
    tables: dict[int, Delays] = {}
    for edge in graph.edges:
        delays = tables.setdefault(edge.num_bytes, _delays(cluster, edge.num_bytes))
        arcs.append(Arc(position[Task(edge.source)], position[Task(edge.target)], delays))
        here, there = position.get(Task(edge.source, BACKWARD)), position.get(Task(edge.target, BACKWARD))
        if here is not None and there is not None:
            arcs.append(Arc(there, here, delays))
    group = _groups(graph, index, wishes)
    members: list[list[Operation]] = [[] for _ in range(max(group, default=-1) + 1)]
    for name, number in zip(names, group):
        members[number].append(operations[name])
    memory = tuple(sum(each.memory_bytes for each in group) for group in members)
    capacity = tuple(device.memory_bytes for device in cluster.all_devices)
    _check_countable(durations, arcs, memory)
    return Problem(
        operations=names,
        tasks=tuple(tasks),
        owner=tuple(owner),
        durations=tuple(durations),
        arcs=tuple(arcs),
        group=tuple(group),
        allowed=tuple(_allowed(each, need, cluster, wishes) for each, need in zip(members, memory)),
        memory=memory,
        capacity=_sufficient(capacity, memory),
    )


def _check_names(index: Mapping[str, int], wishes: Wishes) -> None:
    """Check that what is wished is of operations that are there."""
    for name, device in wishes.pinned.items():
        if name not in index:
            raise UsageError(f"{name!r} is pinned to {device}, but there is no such operation")
    for source, target in wishes.together:
        for name in (source, target):
            if name not in index:
                raise UsageError(
                    f"the edge {source} -> {target} must not be cut, but {name!r} is no operation"
                )


def _check_countable(
    durations: Sequence[Sequence[int]], arcs: Sequence[Arc], memory: Sequence[int]
) -> None:
    longest = sum(map(max, durations)) + sum(max(map(max, arc.delays)) for arc in arcs)
    if longest > MOST:
        raise UsageError(
            f"the net may take {longest / NANO:.3g} seconds on this cluster: look at the units of its "
            "operations' seconds, its edges' bytes, and the links"
        )
    if sum(memory) > MOST:
        raise UsageError(
            f"the net needs {sum(memory):.3g} bytes: look at the units of parameter_bytes and "
            "activation_bytes"
        )


def _grouped(count: int, arcs: Sequence[Arc], keys: Sequence[int]) -> tuple[tuple[Arc, ...], ...]:
    found: list[list[Arc]] = [[] for _ in range(count)]
    for arc, key in zip(arcs, keys):
        found[key].append(arc)
    return tuple(map(tuple, found))


def _tasks(
    operations: Sequence[Operation], cluster: Cluster, wishes: Wishes
) -> tuple[list[Task], list[int], list[tuple[int, ...]]]:
    """Return the passes of all operations; a net without any backward time has forward passes only."""
    tasks, owner, durations = [], [], []
    trains = any(each.backward_seconds for each in operations)
    for number, each in enumerate(operations):
        passes = {FORWARD: each.forward_seconds}
        if trains:
            late = each.weight_gradient_seconds if wishes.split_backward else 0.0
            passes[BACKWARD] = each.backward_seconds - late
            if late:
                passes[WEIGHT_GRADIENT] = late
        for phase, seconds in passes.items():
            tasks.append(Task(each.name, phase))
            owner.append(number)
            durations.append(tuple(nanoseconds(seconds / device.speed) for device in cluster.all_devices))
    return tasks, owner, durations


def _own_arcs(name: str, position: Mapping[Task, int], devices: int) -> list[tuple[int, int, Delays]]:
    """Return the arcs between the passes of one operation, which share a device."""
    nothing = ((0,) * devices,) * devices
    passes = [Task(name, phase) for phase in (FORWARD, BACKWARD, WEIGHT_GRADIENT)]
    places = [position[task] for task in passes if task in position]
    return [(before, after, nothing) for before, after in itertools.pairwise(places)]


def _delays(cluster: Cluster, num_bytes: int) -> Delays:
    return tuple(
        tuple(
            sum(
                nanoseconds(link.seconds(num_bytes))
                for link in cluster.route(one.name, other.name, num_bytes)
            )
            for other in cluster.all_devices
        )
        for one in cluster.all_devices
    )


def _groups(graph: Graph, index: Mapping[str, int], wishes: Wishes) -> list[int]:
    """Return the group of each operation: shared weights and edges that must not be cut join them."""
    leader = list(range(len(index)))

    def find(one: int) -> int:
        while leader[one] != one:
            leader[one] = one = leader[leader[one]]
        return one

    first: dict[str, int] = {}
    pairs = [
        (first.setdefault(weight, index[operation.name]), index[operation.name])
        for operation in graph.operations
        for weight in operation.weights
    ]
    pairs += [(index[source], index[target]) for source, target in wishes.together]
    for one, other in pairs:
        low, high = sorted((find(one), find(other)))
        leader[high] = low
    numbers: dict[int, int] = {}
    return [numbers.setdefault(find(one), len(numbers)) for one in range(len(index))]


def _allowed(members: Sequence[Operation], need: int, cluster: Cluster, wishes: Wishes) -> tuple[int, ...]:
    """Return the devices that a group may have."""
    names = [device.name for device in cluster.all_devices]
    chosen = {wishes.pinned[each.name]: each.name for each in members if each.name in wishes.pinned}
    for device, name in chosen.items():
        if device not in names:
            raise UsageError(f"{name!r} is pinned to {device!r}, which is no device of the cluster")
    if len(chosen) > 1:
        (one, first), (other, second), *_ = chosen.items()
        raise UsageError(
            f"{first!r} is pinned to {one}, {second!r} to {other}, but they share a weight or an edge "
            "that must not be cut, and must be on one device"
        )
    possible = [i for i, name in enumerate(names) if not chosen or name in chosen]
    fitting = [
        i
        for i in possible
        if need <= cluster.all_devices[i].memory_bytes or not cluster.all_devices[i].memory_bytes
    ]
    if not fitting:
        most = max(cluster.all_devices[i].memory_bytes for i in possible)
        more = f" and {len(members) - 1} operations that share its device" * (len(members) > 1)
        raise UsageError(
            f"{members[0].name!r}{more} need {need} bytes, and no device that they may have "
            f"has more than {most}"
        )
    return tuple(fitting)


def _sufficient(capacity: tuple[int, ...], memory: tuple[int, ...]) -> tuple[int, ...]:
    """Return the capacities, of which none counts that all groups together cannot exceed."""
    total = sum(memory)
    if all(capacity) and total > sum(capacity):
        raise UsageError(
            f"the net needs {total} bytes, and all devices together have {sum(capacity)}: use more "
            "devices, a smaller batch, or devices with more memory"
        )
    return tuple(0 if have >= total else have for have in capacity)
