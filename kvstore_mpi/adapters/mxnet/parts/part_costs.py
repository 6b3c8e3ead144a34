"""What the parts of a net cost, measured: for cuts and placements."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
import mxnet as mx
import numpy as np

from kvstore_mpi.adapters.mxnet.exchange.gluon_parameters import shape_of
from kvstore_mpi.planner.placement.graph import Edge, Graph, Operation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.adapters.mxnet.parts.segments import Form, Net

REPEATS = 3
"""Of each measurement; the shortest counts, since whatever disturbs one makes it longer."""

COPIES = 3
"""Of a weight: itself, its gradient, and one that the optimizer keeps."""


def measure_parts(net: Net, batch: Sequence[Form]) -> Graph:
    """Measure the parts of a net one after the other, each on what those before it have made.

    Args:
        net: All on one rank, with their values.
        batch: The forms of the arrays of a micro-batch.
    """
    given = [mx.nd.ones(form.shape, dtype=form.dtype) for form in batch]
    outputs: list[mx.nd.NDArray] = []
    operations = []
    for number, part in enumerate(net.parts):
        arguments = net.arguments(number)
        inputs = [
            given[index] if of_batch else outputs[net.graph.edges[index].source]
            for of_batch, index in arguments
        ]
        # As in a step: nothing goes back to the batch, whose ids, say, have no gradient.
        wanted = [position for position, (of_batch, _) in enumerate(arguments) if not of_batch]
        goes_back = net.goes_back(number)
        params = part.block.collect_params().values()
        # Training changes BatchNorm's statistics. Predicting would not, but MXNet lays the weights of
        # convolutions anew for that, which what is queued for them would not expect.
        kept = [(param, param.data().copy()) for param in params if param.grad_req == "null"]
        forward, backward, output = min(
            (_timed(part.block, inputs, wanted, goes_back=goes_back) for _ in range(1 + REPEATS)),
            key=lambda each: each[0] + each[1],
        )
        for param, value in kept:
            param.set_data(value)
        operation = _operation(net, number)
        weights = sum(int(np.prod(shape_of(param))) * np.dtype(param.dtype).itemsize for param in params)
        operations.append(
            msgspec.structs.replace(
                operation,
                forward_seconds=forward,
                backward_seconds=backward,
                parameter_bytes=COPIES * weights,
                activation_bytes=output.size * np.dtype(output.dtype).itemsize,
            )
        )
        outputs.append(output.detach())
    return _graph(net, operations)


def structure_of(net: Net) -> str:
    """Return ``Graph.structure`` of a net's parts, of which nothing is measured."""
    return _graph(net, [_operation(net, number) for number in range(len(net.parts))]).structure


def _operation(net: Net, number: int) -> Operation:
    block = net.parts[number].block
    return Operation(
        name=net.parts[number].name, kind=type(block).__name__, weights=tuple(block.collect_params())
    )


def _graph(net: Net, operations: Sequence[Operation]) -> Graph:
    """Return parts as a graph; an output that a part takes twice travels once."""
    pairs = dict.fromkeys((edge.source, edge.target) for edge in net.graph.edges)
    edges = tuple(
        Edge(
            source=operations[source].name,
            target=operations[target].name,
            num_bytes=operations[source].activation_bytes,
        )
        for source, target in pairs
    )
    return Graph(operations=tuple(operations), edges=edges).checked()


def _timed(
    block: mx.gluon.HybridBlock,
    inputs: Sequence[mx.nd.NDArray],
    wanted: Sequence[int],
    *,
    goes_back: bool,
) -> tuple[float, float, mx.nd.NDArray]:
    """Go forward, and backward to the ``wanted`` inputs; return the seconds of each, and the output."""
    inputs = [each.copy() for each in inputs]
    for position in wanted:
        inputs[position].attach_grad()
    mx.nd.waitall()
    since = time.perf_counter()
    with mx.autograd.record():
        output = block(*inputs)
    output.wait_to_read()
    middle = time.perf_counter()
    if not goes_back:
        return middle - since, 0.0, output
    head = mx.nd.ones_like(output)
    head.wait_to_read()
    later = time.perf_counter()
    output.backward(head)
    mx.nd.waitall()
    return middle - since, time.perf_counter() - later, output
