"""Workers of several devices: how a net is divided among them, and how much faster they are. Pure.

The layers of a pipeline are cut into stages (``pipelines.stages``); parts of any shape are placed
(``placement``). What is found is timed with the order in which the ranks will compute.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from kvstore_mpi.errors import UsageError
from kvstore_mpi.planner.cuts import KINDS, PIPELINE, PLACEMENT, Cut
from kvstore_mpi.planner.pipelines.stages import Layer, partition
from kvstore_mpi.planner.placement.place import place
from kvstore_mpi.planner.placement.placement import BACKWARD, FORWARD
from kvstore_mpi.planner.predicted_step import Chain, predicted_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.planner.cluster import Cluster
    from kvstore_mpi.planner.cuts import Parts
    from kvstore_mpi.planner.placement.graph import Graph

LEAST_SPEEDUP = 1e-3
"""Of several devices over one: whoever divides a net so that it is slower does not use them."""

EFFORT_S = 10.0
"""Most effort for a placement, about as many seconds of a processor; most need a fraction of it."""


class ModelParallel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of workers of several devices, from a placement, a pipeline or a measurement.

    Attributes:
        ways: M, devices of a worker.
        speedup: SU^M, of a step without communication between workers.
        kind: ``placement`` or ``pipeline``.
        cut: Which rank has what; ``None`` where only the speed-up is known.
        chain: What makes their step as long as it is, as far as that is known.
        gap: Of a placement that is not proven: no other takes less of its time by a larger share.
    """

    ways: int
    speedup: float
    kind: str = KINDS[0]
    cut: Cut | None = None
    chain: Chain | None = None
    gap: float = 0.0


def check_known(known: Sequence[ModelParallel]) -> None:
    """Make sure that workers of several devices can be as somebody says.

    Raises:
        UsageError: They cannot, or something else is said of the same.
    """
    for each in known:
        if each.ways <= 1 or each.kind not in KINDS or not each.speedup >= LEAST_SPEEDUP:
            raise UsageError(
                f"{each.ways}-way {each.kind!r} with speed-up {each.speedup:g}: model parallelism needs 2 "
                f"devices or more, a speed-up of {LEAST_SPEEDUP:g} or more, and one of {', '.join(KINDS)}"
            )
        # Measured times are divided: such a number may be more by the last of its digits.
        if each.speedup > each.ways and not math.isclose(each.speedup, each.ways):
            raise UsageError(
                f"{each.ways}-way {each.kind!r} with speed-up {each.speedup:g}: {each.ways} devices are at "
                f"most {each.ways} times as fast as one; give the seconds of a step on one, over those "
                f"on {each.ways}"
            )
        same = [other.speedup for other in known if (other.ways, other.kind) == (each.ways, each.kind)]
        if len(same) > 1:
            raise UsageError(
                f"{each.ways}-way {each.kind!r} has speed-up {same[0]:g} and {same[1]:g}: give one of them"
            )


def divided(
    parts: Parts,
    cluster: Cluster,
    ways: int,
    seconds: float = EFFORT_S,
    *,
    alone_s: float | None = None,
    other_s: float = 0.0,
) -> ModelParallel:
    """Return the best division of a net among the devices of one worker.

    Args:
        parts: Of the net.
        cluster: Whose devices they are.
        ways: How many of them a worker has.
        seconds: Effort for a placement.
        alone_s: What one device of speed 1 computes in a step, without its division; by default its parts
            for all micro-batches, which in reality take longer than the whole.
        other_s: Seconds of a step beside, which each rank takes as one device does.

    Raises:
        UsageError: There is none: more stages than layers, memory that does not suffice, devices that
            would have nothing to do, or hosts on which such workers do not fit.
    """
    devices = cluster.of_one_worker(ways)
    if devices is None:
        raise UsageError("its workers do not fit on the hosts")
    cut, gap = (
        (_stages(parts, devices), 0.0) if parts.kind == PIPELINE else _placed(parts, devices, seconds)
    )
    if alone_s is None:
        operations = parts.graph.operations
        alone_s = parts.micro_batches * sum(
            each.forward_seconds + each.backward_seconds for each in operations
        )
    alone = min(alone_s / device.speed for device in devices.all_devices)
    step = predicted_step(parts, cut, devices)
    # The whole is measured at another moment than its parts, and on a busy machine may take longer than
    # their sum. No division is faster than all devices computing all the time.
    step_s = max(step.table.step, alone_s / sum(device.speed for device in devices.all_devices))
    # Over a step as it will be, so that one that is divided is as long as its longest chain, and the rest.
    speedup = (alone + other_s) / (step_s + other_s) if step_s + other_s else 1.0
    return ModelParallel(ways, speedup, parts.kind, cut, step.chain(), gap)


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
        devices=devices.all_devices,
    )
    names = [layer.name for layer in layers]
    runs = zip((0, *found.bounds), (*found.bounds, len(names)))
    forward = tuple(tuple(names[first:end]) for first, end in runs)
    return Cut(PIPELINE, parts.graph.structure, forward, tuple(stage[::-1] for stage in forward))


def _placed(parts: Parts, devices: Cluster, seconds: float) -> tuple[Cut, float]:
    found = place(parts.graph, devices, seconds=seconds)
    orders = [found.order[device.name] for device in devices.all_devices]
    used = sum(bool(order) for order in orders)
    if used < len(orders):
        raise UsageError(f"the best placement leaves {len(orders) - used} of {len(orders)} devices idle")
    forward, backward = (
        tuple(tuple(task.operation for task in order if task.phase == phase) for order in orders)
        for phase in (FORWARD, BACKWARD)
    )
    return Cut(PLACEMENT, parts.graph.structure, forward, backward), found.gap
