"""Pipelines of stages: samples stream through devices, and the most loaded device sets the pace. Pure.

The model of Tarnawski et al., "Efficient algorithms for device placement of DNN graph operators" (NeurIPS
2020): accelerators of one kind with limited memory, and processors that share the host's memory. A result
that crosses the border of an accelerator's part is read or written by it once, and that takes time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from kvstore_mpi.errors import UsageError

if TYPE_CHECKING:
    from kvstore_mpi.planner.placement.graph import Graph

ACCELERATOR = "accelerator"
PROCESSOR = "processor"
NO_WAY = "no way to share out the nodes is allowed: memory, or nodes that need a processor"
"""Of an error."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One pass of one operation.

    Attributes:
        name: Unique.
        accelerator_seconds: On an accelerator.
        processor_seconds: On a processor.
        transfer_seconds: Of its result, between an accelerator and the host's memory.
        memory_bytes: On an accelerator.
        backward: It belongs to the backward pass.
        color: Nodes of one color share a device; ``None``: it has none.
        accelerated: It may be on an accelerator.
    """

    name: str
    accelerator_seconds: float = 0.0
    processor_seconds: float = 0.0
    transfer_seconds: float = 0.0
    memory_bytes: float = 0.0
    backward: bool = False
    color: int | None = None
    accelerated: bool = True


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be cut into stages.

    Attributes:
        nodes: In any order.
        edges: Pairs of indices of nodes: the second reads the result of the first.
        accelerators: Number of them.
        processors: Number of them.
        memory_bytes: Of each accelerator.
    """

    nodes: tuple[Node, ...]
    edges: tuple[tuple[int, int], ...]
    accelerators: int
    processors: int = 0
    memory_bytes: float = float("inf")

    def readers(self) -> list[list[int]]:
        """Return, for each node, those that read its result."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for source, target in self.edges:
            found[source].append(target)
        return found


class Stage(NamedTuple):
    """The nodes of one device; ``kind`` is ``accelerator`` or ``processor``."""

    kind: str
    nodes: tuple[int, ...]


class Stages(NamedTuple):
    """An answer: stages in the order of the forward pass, and how good it is.

    Attributes:
        stages: The stages.
        load: The largest load; where devices take turns, the sum of all.
        bound: What no answer is below.
    """

    stages: tuple[Stage, ...]
    load: float
    bound: float

    @property
    def gap(self) -> float:
        """How much more than the bound the load may be, as a share of itself; 0: nothing is better."""
        return max(0.0, 1 - self.bound / self.load) if self.load else 0.0


def load_of(pipeline: Pipeline, stage: Stage) -> float:
    """Return what a sample takes of one device, by the definition."""
    nodes = pipeline.nodes
    if stage.kind == PROCESSOR:
        return sum(nodes[each].processor_seconds for each in stage.nodes)
    inside = set(stage.nodes)
    load = sum(nodes[each].accelerator_seconds for each in stage.nodes)
    for each, readers in enumerate(pipeline.readers()):
        within = [reader in inside for reader in readers]
        if (each in inside and not all(within)) or (each not in inside and any(within)):
            load += nodes[each].transfer_seconds
    return load


def check_stages(pipeline: Pipeline, stages: tuple[Stage, ...], *, in_turn: bool = False) -> float:
    """Check an answer, and return its largest load.

    Args:
        pipeline: What is cut.
        stages: The answer.
        in_turn: Devices take turns: a processor may have several stages, and the sum of loads is returned.

    Raises:
        UsageError: A node is in no stage or in two; there are too many stages; memory does not suffice; a
            color is cut; a node may not be there; or a forward pass would go back to an earlier stage.
    """
    home: dict[int, int] = {}
    for number, stage in enumerate(stages):
        _check_stage(pipeline, number, stage, home)
    if missing := set(range(len(pipeline.nodes))) - set(home):
        raise UsageError(f"node {pipeline.nodes[min(missing)].name!r} is in no stage")
    for kind, most in ((ACCELERATOR, pipeline.accelerators), (PROCESSOR, pipeline.processors)):
        count = sum(stage.kind == kind for stage in stages)
        if count > most and not (in_turn and kind == PROCESSOR and most):
            raise UsageError(f"{count} stages are for {kind}s, of which there are {most}")
    colors: dict[int, int] = {}
    for each, node in enumerate(pipeline.nodes):
        if node.color is not None and colors.setdefault(node.color, home[each]) != home[each]:
            raise UsageError(f"color {node.color} is on two devices; {node.name!r} is on one of them")
    for source, target in pipeline.edges:
        ends = pipeline.nodes[source], pipeline.nodes[target]
        if home[source] > home[target] and not any(each.backward for each in ends):
            raise UsageError(f"{ends[1].name!r} reads {ends[0].name!r}, which is in a later stage")
    loads = [load_of(pipeline, stage) for stage in stages]
    return sum(loads) if in_turn else max(loads, default=0.0)


def _check_stage(pipeline: Pipeline, number: int, stage: Stage, home: dict[int, int]) -> None:
    """Check one stage, and note where its nodes are."""
    need = 0.0
    for each in stage.nodes:
        node = pipeline.nodes[each]
        if each in home:
            raise UsageError(f"node {node.name!r} is in two stages, or twice in one")
        home[each] = number
        need += node.memory_bytes
        if stage.kind == ACCELERATOR and not node.accelerated:
            raise UsageError(f"node {node.name!r} cannot be on an accelerator")
    if stage.kind == ACCELERATOR and need > pipeline.memory_bytes:
        raise UsageError(f"stage {number} needs {need} bytes, an accelerator has {pipeline.memory_bytes}")


def pipeline_of(
    graph: Graph, accelerators: int, bytes_per_second: float, memory_bytes: float = float("inf")
) -> Pipeline:
    """Return a net as a pipeline on accelerators alone: both passes of an operation share a device.

    Args:
        graph: The net.
        accelerators: Number of devices of speed 1.
        bytes_per_second: Between a device and the host's memory.
        memory_bytes: Of each device.
    """
    graph.checked()
    index = {name: i for i, name in enumerate(graph.order())}
    trains = any(each.backward_seconds for each in graph.operations)
    sent = dict.fromkeys(index, 0)
    returned = dict.fromkeys(index, 0)
    for edge in graph.edges:
        sent[edge.source] = max(sent[edge.source], edge.num_bytes)
        returned[edge.target] = max(returned[edge.target], edge.num_bytes)
    operations = graph.by_name()
    nodes, edges = [], [(index[edge.source], index[edge.target]) for edge in graph.edges]
    for backward in (False, True)[: 1 + trains]:
        for name, color in index.items():
            each = operations[name]
            seconds = each.backward_seconds if backward else each.forward_seconds
            nodes.append(
                Node(
                    name=f"{name} backward" if backward else name,
                    accelerator_seconds=seconds,
                    transfer_seconds=(returned if backward else sent)[name] / bytes_per_second,
                    memory_bytes=0 if backward else each.memory_bytes,
                    backward=backward,
                    color=color,
                )
            )
    if trains:
        count = len(index)
        edges += [(count + target, count + source) for source, target in edges]
        edges += [(each, count + each) for each in range(count)]
    return Pipeline(
        nodes=tuple(nodes), edges=tuple(edges), accelerators=accelerators, memory_bytes=memory_bytes
    )
