"""The net as it is planned for: operations with their times and memory, edges with bytes. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from kvstore_mpi.errors import UsageError
from kvstore_mpi.planner.digests import digest
from kvstore_mpi.planner.quantities import check_bytes, check_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Operation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One operation, or several that always run together (a convolution and its normalisation).

    Attributes:
        name: Unique in its graph.
        kind: What it does, e.g. ``Convolution``; for people.
        forward_seconds: Of the forward pass on a device of speed 1.
        backward_seconds: Of the backward pass on a device of speed 1; 0 for inference.
        weight_gradient_seconds: The part of ``backward_seconds`` that gives gradients of its own
            parameters, which no other operation waits for; the rest gives the gradients of its inputs.
        parameter_bytes: That its device holds for its parameters, with their gradients and states.
        activation_bytes: That its device keeps of it from the forward to the backward pass.
        weights: Names of its parameters. Operations that share one must be on one device.
    """

    name: str
    kind: str = ""
    forward_seconds: float = 0.0
    backward_seconds: float = 0.0
    weight_gradient_seconds: float = 0.0
    parameter_bytes: int = 0
    activation_bytes: int = 0
    weights: tuple[str, ...] = ()

    @property
    def memory_bytes(self) -> int:
        """All that its device holds for it."""
        return self.parameter_bytes + self.activation_bytes


class Edge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one operation computes from another's result.

    Attributes:
        source: Name of the operation whose result it is.
        target: Name of the operation that reads it.
        num_bytes: Of the result; as many travel back as its gradient. 0: nothing has to be sent.
    """

    source: str
    target: str
    num_bytes: int = 0


class Graph(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A net; ``checked`` says whether it can be planned for.

    Attributes:
        operations: In any order.
        edges: In any order, one at most from one operation to another.
        name: For people; no part of the hash.
    """

    operations: tuple[Operation, ...]
    edges: tuple[Edge, ...]
    name: str = ""

    def by_name(self) -> dict[str, Operation]:
        """Return the operations by their names."""
        return {each.name: each for each in self.operations}

    @property
    def digest(self) -> str:
        """Hexadecimal; equal for graphs with the same operations and edges in any order."""
        operations = sorted(self.operations, key=lambda each: each.name)
        edges = sorted(self.edges, key=lambda each: (each.source, each.target))
        return digest([operations, edges])

    @property
    def structure(self) -> str:
        """What tells this net from others, whatever its times and sizes are: names, weights and edges."""
        operations = sorted((each.name, sorted(each.weights)) for each in self.operations)
        return digest([operations, sorted((each.source, each.target) for each in self.edges)])

    def order(self) -> tuple[str, ...]:
        """Return the names so that each comes after those that it reads.

        Raises:
            UsageError: Operations wait for each other in a circle; the error names one.
        """
        inputs = Counter(edge.target for edge in self.edges)
        targets = targets_of(self.edges)
        ready = [each.name for each in self.operations if not inputs[each.name]]
        for name in ready:  # grows
            for target in targets.get(name, ()):
                inputs[target] -= 1
                if not inputs[target]:
                    ready.append(target)
        if len(ready) < len(self.operations):
            circle = " -> ".join(_circle(self, set(ready)))
            raise UsageError(f"the graph {self.name or 'given'} has a cycle, and no order: {circle}")
        return tuple(ready)

    def checked(self) -> Graph:
        """Return the graph.

        Raises:
            UsageError: A name twice, an edge to nowhere or given twice, a time or size that cannot be, or a
                cycle.
        """
        names = Counter(each.name for each in self.operations)
        if twice := [name for name, count in names.items() if count > 1]:
            raise UsageError(f"two operations of the graph have the name {twice[0]!r}: rename one")
        for edge in self.edges:
            for end in (edge.source, edge.target):
                if end not in names:
                    raise UsageError(
                        f"the edge {edge.source} -> {edge.target} names {end!r}, "
                        "which is no operation of the graph"
                    )
            check_bytes(f"the edge {edge.source} -> {edge.target}: num_bytes", edge.num_bytes)
        pairs = Counter((edge.source, edge.target) for edge in self.edges)
        if again := [pair for pair, count in pairs.items() if count > 1]:
            raise UsageError(f"the edge {again[0][0]} -> {again[0][1]} is given twice: add up its bytes")
        for each in self.operations:
            _check_operation(each)
        self.order()
        return self

    def to_json(self) -> str:
        """Return the graph as JSON, for ``from_json``."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Graph:
        """Read what ``to_json`` made, and check it.

        Raises:
            UsageError: The text is nothing of the kind, or no graph; the error says where.
        """
        try:
            graph = msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as error:
            raise UsageError(f"this is not the JSON of a graph: {error}") from None
        return graph.checked()


def targets_of(edges: Iterable[Edge]) -> Mapping[str, list[str]]:
    """Return, for each operation that is read, those that read it."""
    targets: dict[str, list[str]] = {}
    for edge in edges:
        targets.setdefault(edge.source, []).append(edge.target)
    return targets


def _check_operation(each: Operation) -> None:
    for field in ("forward_seconds", "backward_seconds", "weight_gradient_seconds"):
        check_seconds(f"operation {each.name!r}: {field}", getattr(each, field))
    for field in ("parameter_bytes", "activation_bytes"):
        check_bytes(f"operation {each.name!r}: {field}", getattr(each, field))
    if each.weight_gradient_seconds > each.backward_seconds:
        raise UsageError(
            f"operation {each.name!r}: weight_gradient_seconds ({each.weight_gradient_seconds}) is a "
            f"part of backward_seconds ({each.backward_seconds}) and cannot be more"
        )


def _circle(graph: Graph, done: set[str]) -> list[str]:
    """Return the names along one circle; each operation left has an input that is left."""
    sources: dict[str, str] = {}
    for edge in graph.edges:
        if edge.source not in done and edge.target not in done:
            sources[edge.target] = edge.source
    path = [next(iter(sources))]
    while sources[path[-1]] not in path:
        path.append(sources[path[-1]])
    start = path.index(sources[path[-1]])
    return [path[start], *reversed(path[start:])]
