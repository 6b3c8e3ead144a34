"""Reads published graphs: PipeDream's profiles, and the instances of dnn-partitioning. Pure."""

from __future__ import annotations

import re

import msgspec

from kvstore_mpi.errors import UsageError
from kvstore_mpi.planner.placement.graph import Edge, Graph, Operation
from kvstore_mpi.planner.placement.stages import Node, Pipeline

_MILLI = 1e-3
_NUMBER = r"([-+.\dEe]+)"
_NODE = re.compile(
    rf"(\S+) -- (.*) -- forward_compute_time={_NUMBER}, backward_compute_time={_NUMBER}, "
    rf"activation_size=(\[.*\]|[-+.\dEe;]+), parameter_size={_NUMBER}"
)
_EDGE = re.compile(r"\s+(\S+) -- (\S+)")


def from_pipedream(text: str, name: str = "") -> Graph:
    """Read a profile of PipeDream (SOSP 2019).

    A line for each layer, with milliseconds and bytes; then lines that begin with a tab, for edges.

    Raises:
        UsageError: A line is neither; the error has its number.
    """
    operations: list[Operation] = []
    edges: list[tuple[str, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if found := _NODE.match(line):
            node, kind, forward, backward, activation, parameter = found.groups()
            sizes = re.findall(_NUMBER, activation)
            operations.append(
                Operation(
                    name=node,
                    kind=kind,
                    forward_seconds=float(forward) * _MILLI,
                    backward_seconds=float(backward) * _MILLI,
                    parameter_bytes=round(float(parameter)),
                    activation_bytes=round(sum(map(float, sizes))),
                )
            )
        elif found := _EDGE.match(line):
            edges.append((found[1], found[2]))
        elif line.strip():
            raise UsageError(f"line {number} of the profile is no node and no edge: {line[:60]!r}")
    size = {each.name: each.activation_bytes for each in operations}
    return Graph(
        name=name,
        operations=tuple(operations),
        edges=tuple(
            Edge(source=source, target=target, num_bytes=size.get(source, 0)) for source, target in edges
        ),
    ).checked()


class _JsonNode(msgspec.Struct, rename="camel"):
    id: int
    fpga_latency: float
    cpu_latency: float
    supported_on_fpga: bool | int = True
    is_backward_node: bool | int = False
    color_class: int | None = None
    size: float = 0.0
    name: str = ""


class _JsonEdge(msgspec.Struct, rename="camel"):
    source_id: int
    dest_id: int
    cost: float


class _JsonInstance(msgspec.Struct):
    nodes: list[_JsonNode]
    edges: list[_JsonEdge]
    maxFPGAs: int  # noqa: N815 - the format's name
    maxCPUs: int = 0  # noqa: N815
    maxSizePerFPGA: float = float("inf")  # noqa: N815


def from_dnn_partitioning(text: str | bytes) -> Pipeline:
    """Read an instance of dnn-partitioning (Tarnawski et al., NeurIPS 2020), in its own unit of time.

    Raises:
        UsageError: The text is nothing of the kind; the error says where.
    """
    try:
        read = msgspec.json.decode(text, type=_JsonInstance, strict=False)
    except msgspec.DecodeError as error:
        raise UsageError(f"this is no instance of dnn-partitioning: {error}") from None
    index = {node.id: i for i, node in enumerate(read.nodes)}
    transfer: dict[int, float] = {}
    for edge in read.edges:
        for end in (edge.source_id, edge.dest_id):
            if end not in index:
                raise UsageError(
                    f"the edge {edge.source_id} -> {edge.dest_id} names {end}, which is no node"
                )
        if transfer.setdefault(edge.source_id, edge.cost) != edge.cost:
            raise UsageError(f"node {edge.source_id} has edges of different costs: one result has one size")
    return Pipeline(
        nodes=tuple(
            Node(
                name=f"{node.name or 'node'}:{node.id}",
                accelerator_seconds=node.fpga_latency,
                processor_seconds=node.cpu_latency,
                transfer_seconds=transfer.get(node.id, 0.0),
                memory_bytes=node.size,
                backward=bool(node.is_backward_node),
                color=node.color_class,
                accelerated=bool(node.supported_on_fpga),
            )
            for node in read.nodes
        ),
        edges=tuple(dict.fromkeys((index[edge.source_id], index[edge.dest_id]) for edge in read.edges)),
        accelerators=read.maxFPGAs,
        processors=read.maxCPUs,
        memory_bytes=read.maxSizePerFPGA,
    )
