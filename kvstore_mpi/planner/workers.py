"""Workers of several devices: how a net is divided among them, and how much faster they are. Pure.

The layers of a pipeline are cut into stages (``pipelines.stages``); parts of any shape are placed
(``placement``). What is found is timed with the order in which the ranks will compute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kvstore_mpi.errors import UsageError
from kvstore_mpi.planner.cuts import KINDS, PIPELINE, PLACEMENT, Cut
from kvstore_mpi.planner.pipelines.schedules import check, one_f_one_b
from kvstore_mpi.planner.pipelines.segments import Segment, SegmentGraph, chain
from kvstore_mpi.planner.pipelines.stages import Layer, partition
from kvstore_mpi.planner.pipelines.timetable import Times, simulate
from kvstore_mpi.planner.placement.place import place
from kvstore_mpi.planner.placement.placement import BACKWARD, FORWARD

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvstore_mpi.planner.cluster import Cluster
    from kvstore_mpi.planner.cuts import Parts
    from kvstore_mpi.planner.placement.graph import Graph

EFFORT_S = 10.0
"""For a placement, about as many seconds of a processor; most need a fraction of it."""


class ModelParallel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of workers of several devices, from a placement, a pipeline or a measurement.

    Attributes:
        ways: M, devices of a worker.
        speedup: SU^M, of a step without communication between workers.
        kind: ``placement`` or ``pipeline``.
        cut: Which rank has what; ``None`` where only the speed-up is known.
    """

    ways: int
    speedup: float
    kind: str = KINDS[0]
    cut: Cut | None = None


def divided(parts: Parts, cluster: Cluster, ways: int) -> ModelParallel:
    """Return the best division of a net among the devices of one worker.

    Raises:
        UsageError: There is none: more stages than layers, memory that does not suffice, devices that
            would have nothing to do, or hosts on which such workers do not fit.
    """
    devices = cluster.of_one_worker(ways)
    if devices is None:
        raise UsageError("its workers do not fit on the hosts")
    cut = (_stages if parts.kind == PIPELINE else _placed)(parts, devices)
    alone = min(
        sum(each.forward_seconds + each.backward_seconds for each in parts.graph.operations) / device.speed
        for device in devices.all_devices
    )
    step_s = _step_seconds(parts, cut, devices)
    return ModelParallel(ways, parts.micro_batches * alone / step_s if step_s else 1.0, parts.kind, cut)


def layers_of(graph: Graph) -> list[Layer]:
    """Return the operations of a chain as layers."""
    sent = {edge.source: edge.num_bytes for edge in graph.edges}
    by_name = graph.by_name()
    return [
        Layer(
            name,
            by_name[name].forward_seconds + by_name[name].backward_seconds,
            sent.get(name, 0),
            by_name[name].activation_bytes,
            by_name[name].parameter_bytes,
            by_name[name].weights,
        )
        for name in graph.order()
    ]


def _stages(parts: Parts, devices: Cluster) -> Cut:
    layers = layers_of(parts.graph)
    found = partition(
        layers,
        devices.num_devices,
        micro_batches=parts.micro_batches,
        link=devices.between_hosts if devices.hosts > 1 else devices.within_host,
        memory_limit=min((each.memory_bytes for each in devices.each_host if each.memory_bytes), default=0),
    )
    names = [layer.name for layer in layers]
    runs = zip((0, *found.bounds), (*found.bounds, len(names)))
    forward = tuple(tuple(names[first:end]) for first, end in runs)
    return Cut(PIPELINE, parts.graph.structure, forward, tuple(stage[::-1] for stage in forward))


def _placed(parts: Parts, devices: Cluster) -> Cut:
    found = place(parts.graph, devices, seconds=EFFORT_S)
    orders = [found.order[device.name] for device in devices.all_devices]
    used = sum(bool(order) for order in orders)
    if used < len(orders):
        raise UsageError(f"the best placement leaves {len(orders) - used} of {len(orders)} devices idle")
    forward, backward = (
        tuple(tuple(task.operation for task in order if task.phase == phase) for order in orders)
        for phase in (FORWARD, BACKWARD)
    )
    return Cut(PLACEMENT, parts.graph.structure, forward, backward)


def _step_seconds(parts: Parts, cut: Cut, devices: Cluster) -> float:
    """Return what all micro-batches take, in the order in which the trainer computes them."""
    if cut.kind == PIPELINE:
        graph, members = chain([()] * len(cut.forward)), cut.forward
        schedule = one_f_one_b(len(cut.forward), parts.micro_batches)
    else:
        graph = segments_of(parts.graph, cut.rank_of)
        members = tuple((segment.name,) for segment in graph.segments)
        schedule = cut.schedule(graph, parts.micro_batches)
    check(graph, schedule, parts.micro_batches)
    return simulate(graph, schedule, _times(parts.graph, graph, members, devices)).step


def segments_of(graph: Graph, rank_of: Mapping[str, int]) -> SegmentGraph:
    """Return the operations of a graph as segments on ranks."""
    segments = [
        Segment(
            name,
            rank_of[name],
            tuple(edge.source for edge in graph.edges if edge.target == name),
            graph.by_name()[name].weights,
        )
        for name in graph.order()
    ]
    return SegmentGraph(segments, 1 + max(rank_of.values()))


def _times(parts: Graph, graph: SegmentGraph, members: Sequence[Sequence[str]], devices: Cluster) -> Times:
    """Return what segments take, given the operations of each."""
    by_name, places = parts.by_name(), devices.all_devices
    speed = [places[segment.rank].speed for segment in graph.segments]
    ends = {(members[edge.source][-1], members[edge.target][0]): edge.number for edge in graph.edges}
    transfer = [0.0] * len(graph.edges)
    for edge in parts.edges:
        number = ends.get((edge.source, edge.target))
        if number is not None and graph.crosses(graph.edges[number]):
            source, target = (graph.edges[number].source, graph.edges[number].target)
            way = devices.route(
                places[graph.rank_of(source)].name, places[graph.rank_of(target)].name, edge.num_bytes
            )
            transfer[number] = sum(link.seconds(edge.num_bytes) for link in way)
    return Times(
        [
            sum(by_name[name].forward_seconds for name in names) / fast
            for names, fast in zip(members, speed)
        ],
        [
            sum(by_name[name].backward_seconds for name in names) / fast
            for names, fast in zip(members, speed)
        ],
        transfer,
    )
