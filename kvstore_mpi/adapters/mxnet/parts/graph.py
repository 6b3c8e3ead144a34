"""Turns an MXNet symbol, or a net of Gluon, into a graph to be placed."""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import mxnet as mx

from kvstore_mpi.adapters.mxnet.parts.op_costs import CHEAP, FREE, Cost, Shape, Work, cost
from kvstore_mpi.errors import UsageError
from kvstore_mpi.planner.placement.graph import Edge, Graph, Operation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kvstore_mpi.planner.cluster import Roofline

PARAMETER_COPIES = 3
"""A parameter, its gradient and one state of the optimizer."""


def graph_of(
    net: Any,
    shapes: Mapping[str, Shape],
    device: Roofline,
    *,
    measured: Mapping[str, tuple[float, float]] | None = None,
    block_of: Callable[[str], str | None] | None = None,
    fuse: bool = True,
    parameter_copies: int = PARAMETER_COPIES,
) -> Graph:
    """Return the graph of a net, forward and backward.

    Args:
        net: A symbol, or a net of Gluon, which is called with its inputs in the order of ``shapes``.
        shapes: Of the inputs, by name, the batch included.
        device: What a device of speed 1 can do; gives the times of all that is not in ``measured``.
        measured: Seconds forward and backward of operations, by name, from a profile.
        block_of: Gives an operation's name the name of the block that it becomes a part of; those with
            ``None`` stay alone. The step of a recurrent cell, for example.
        fuse: What is cheap and follows one operation only (an activation) becomes a part of it.
        parameter_copies: How often memory for a parameter is needed.

    Raises:
        UsageError: A shape is missing, or the blocks wait for each other.

    Warns:
        UserWarning: A kind of operation is not known, and counts as reading and writing only; or something
            was measured that the net has not.
    """
    symbol = net if isinstance(net, mx.sym.Symbol) else _symbol(net, shapes)
    nodes = nodes_of(symbol, shapes, device, measured)
    if block_of:
        nodes = _merged(nodes, {node.name: block_of(node.name) or node.name for node in nodes})
    if fuse:
        nodes = _fused(nodes)
    return Graph(
        name=symbol.name or "",
        operations=tuple(node.operation(parameter_copies) for node in nodes),
        edges=tuple(
            Edge(source=source, target=node.name, num_bytes=num_bytes)
            for node in nodes
            for source, num_bytes in node.reads.items()
        ),
    ).checked()


@dataclass
class Node:
    """An operation, or several in one; ``weights`` has the bytes of each of its parameters."""

    name: str
    kind: str
    cost: Cost
    weights: dict[str, int]
    num_bytes: int
    reads: dict[str, int] = field(default_factory=dict)  # name of another node -> bytes of its results

    def operation(self, parameter_copies: int) -> Operation:
        """Return it as part of a graph that is to be placed."""
        return Operation(
            name=self.name,
            kind=self.kind,
            forward_seconds=self.cost.forward,
            backward_seconds=self.cost.backward,
            weight_gradient_seconds=self.cost.weight_gradient,
            parameter_bytes=parameter_copies * sum(self.weights.values()),
            activation_bytes=self.num_bytes,
            weights=tuple(self.weights),
        )


def _symbol(net: Any, shapes: Mapping[str, Shape]) -> Any:
    result = net(*(mx.sym.var(name) for name in shapes))
    flat = [
        each for one in (result if isinstance(result, (list, tuple)) else [result]) for each in _flat(one)
    ]
    return flat[0] if len(flat) == 1 else mx.sym.Group(flat)


def _flat(result: Any) -> Iterable[Any]:
    if isinstance(result, (list, tuple)):
        for each in result:
            yield from _flat(each)
    else:
        yield result


def nodes_of(
    symbol: Any,
    shapes: Mapping[str, Shape],
    device: Roofline,
    measured: Mapping[str, tuple[float, float]] | None = None,
) -> list[Node]:
    """Return a node for each operation that has an input; what has none is a constant, like a variable.

    Args:
        symbol: The net.
        shapes: As of ``graph_of``, and so the others and what is raised.
        device: What computes.
        measured: Instead of what follows from that.
    """
    measured = measured or {}
    listed = json.loads(symbol.tojson())["nodes"]
    results = _result_shapes(symbol, shapes, listed)
    nodes: dict[int, Node] = {}
    strange: Counter[str] = Counter()
    names = names_of(listed)
    if absent := sorted(measured.keys() - {each["name"] for each in listed if each["op"] != "null"}):
        warnings.warn(f"'measured' has no operations of this net: {', '.join(absent)}", stacklevel=3)
    for number, each in enumerate(listed):
        kind, name = each["op"], each["name"]
        sources = [(source, output) for source, output, _ in each["inputs"]]
        if kind == "null" or not sources:
            continue
        variables = [source for source, _ in sources if listed[source]["op"] == "null"]
        weights = {
            listed[source]["name"]: results[source][0]
            for source in variables
            if listed[source]["name"] not in shapes
        }
        inputs = [
            results[source][output] for source, output in sources if listed[source]["name"] not in weights
        ]
        work = Work(kind, each.get("attrs", {}), inputs, list(weights.values()), results[number])
        found = cost(work, device)
        if name in measured:
            found = _measured(found, *measured[name])
        strange[kind] += not found.known
        node = nodes[number] = Node(
            names[number],
            kind,
            found,
            {key: math.prod(shape) * device.item_bytes for key, shape in weights.items()},
            0 if kind in FREE else sum(math.prod(shape) for shape in results[number]) * device.item_bytes,
        )
        for source, output in dict.fromkeys(sources):
            if source in nodes:
                size = math.prod(results[source][output]) * device.item_bytes
                node.reads[nodes[source].name] = node.reads.get(nodes[source].name, 0) + size
    if unknown := {kind: count for kind, count in strange.items() if count}:
        warnings.warn(
            f"no cost is known for operations of the kinds {unknown}: each counts as reading its "
            "inputs and writing its result; give their seconds in 'measured'",
            stacklevel=3,
        )
    return list(nodes.values())


def names_of(listed: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Return a name for each operation of a symbol's JSON, none twice: a layer may be used twice."""
    uses: Counter[str] = Counter()
    names: dict[int, str] = {}
    for number, each in enumerate(listed):
        if each["op"] != "null":
            name = each["name"]
            uses[name] += 1
            names[number] = f"{name}#{uses[name]}" if uses[name] > 1 else name
    return names


def _measured(known: Cost, forward: float, backward: float) -> Cost:
    """Return measured times, the backward pass divided as the model divides it."""
    share = known.weight_gradient / known.backward if known.backward else 0.0
    return Cost(forward, backward, backward * share)


def _result_shapes(symbol: Any, shapes: Mapping[str, Shape], listed: list[Any]) -> list[list[Shape]]:
    """Return the shapes of the visible results of each node of the JSON."""
    internals = symbol.get_internals()
    try:
        _, found, _ = internals.infer_shape(**shapes)
    except mx.base.MXNetError as error:
        # MXNet's words begin with the way to where it was noticed, and end with what is wrong.
        reason = str(error).strip().splitlines()[-1]
        raise UsageError(f"the shapes {dict(shapes)} do not fit the net: {reason}") from None
    if found is None:
        raise UsageError(f"the shapes {dict(shapes)} do not suffice: name every input of the net")
    names = internals.list_outputs()
    results: list[list[Shape]] = []
    place = 0
    for each in listed:
        prefix = each["name"] if each["op"] == "null" else each["name"] + "_"
        own: list[Shape] = []
        while place < len(names) and names[place].startswith(prefix) and (each["op"] != "null" or not own):
            if own and not names[place].removeprefix(prefix).startswith(("output", "mean", "var", "state")):
                break
            own.append(tuple(found[place]))
            place += 1
        results.append(own)
    return results


def _merged(nodes: list[Node], home: Mapping[str, str]) -> list[Node]:
    """Return the nodes after those with the same home have become one."""
    merged: dict[str, Node] = {}
    kinds: dict[str, Counter[str]] = {}
    for node in nodes:
        name = home[node.name]
        whole = merged.setdefault(name, Node(name, node.kind, Cost(0.0, 0.0), {}, 0))
        whole.cost = Cost(
            whole.cost.forward + node.cost.forward,
            whole.cost.backward + node.cost.backward,
            whole.cost.weight_gradient + node.cost.weight_gradient,
        )
        whole.weights |= node.weights
        whole.num_bytes += node.num_bytes
        kinds.setdefault(name, Counter())[node.kind] += 1
        for source, num_bytes in node.reads.items():
            if home[source] != name:
                whole.reads[home[source]] = whole.reads.get(home[source], 0) + num_bytes
    for name, whole in merged.items():
        whole.kind = "+".join(kinds[name])
    return list(merged.values())


def _fused(nodes: list[Node]) -> list[Node]:
    """Return the nodes after cheap ones have joined the only one that they follow, or that follows them."""
    readers = Counter(source for node in nodes for source in node.reads)
    home: dict[str, str] = {}
    cheap = {node.name: node.kind in CHEAP or node.kind in FREE for node in nodes}
    for node in nodes:
        home[node.name] = node.name
        if len(node.reads) == 1:
            (source,) = node.reads
            whole = home[source]
            if readers[source] == 1 and (cheap[node.name] or cheap[whole]):
                home[node.name] = whole
                cheap[whole] = cheap[whole] and cheap[node.name]
    return _merged(nodes, home)
