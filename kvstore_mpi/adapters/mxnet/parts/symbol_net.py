"""The net of a symbol, with times from a device's roofline: for what cannot be measured yet.

Operations cost what ``op_costs`` says. Each parameter has the compute of its operation and of those that
follow without a parameter of their own. The first parameter of an operation stands for all of its time.
The parts of the net, for placements, are those of ``operation_parts``: a script that makes these of the
same net runs what was planned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import mxnet as mx

from kvstore_mpi.adapters.mxnet.parts.graph import graph_of, nodes_of
from kvstore_mpi.adapters.mxnet.parts.operation_parts import part_names
from kvstore_mpi.errors import UsageError
from kvstore_mpi.planner.cuts import PLACEMENT, Parts
from kvstore_mpi.planner.net import Net, NetLayer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kvstore_mpi.adapters.mxnet.parts.graph import Node
    from kvstore_mpi.adapters.mxnet.parts.op_costs import Shape
    from kvstore_mpi.planner.cluster import Roofline


def net_of_symbol(
    text: str, inputs: Mapping[str, Shape], device: Roofline, *, name: str, batch: int, samples: int
) -> Net:
    """Return the net of a symbol's JSON.

    Args:
        text: As ``Symbol.tojson`` and ``HybridBlock.export`` write it.
        inputs: Shapes of everything that is no parameter, with the batch.
        device: What computes.
        name: Of the net.
        batch: Samples of a step.
        samples: Of an epoch.

    Raises:
        UsageError: It is no symbol, or the inputs do not fit it.
    """
    try:
        symbol = mx.sym.load_json(text)
        nodes = nodes_of(symbol, inputs, device)
        home = part_names(symbol, inputs)
        graph = graph_of(symbol, inputs, device, block_of=home.get, fuse=False)
    except (mx.MXNetError, ValueError, TypeError, UsageError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{name}: {reason}; say --shape NAME:N,C,... for each input") from error
    return Net(name, batch, samples, tuple(_layers(nodes)), parts=Parts(graph, PLACEMENT))


def _layers(nodes: Sequence[Node]) -> Iterator[NetLayer]:
    """Yield the parameters in forward order, each once."""
    pending: dict[str, int] = {}  # of the layer that is being put together; the first one has its time
    seen: set[str] = set()
    forward = backward = 0.0
    for node in nodes:
        own = {name: num_bytes for name, num_bytes in node.weights.items() if name not in seen}
        seen |= set(own)
        if own and pending:
            yield from _parameters(pending, forward, backward)
            pending, forward, backward = {}, 0.0, 0.0
        pending |= own
        forward, backward = forward + node.cost.forward, backward + node.cost.backward
    yield from _parameters(pending, forward, backward)


def _parameters(pending: Mapping[str, int], forward: float, backward: float) -> Iterator[NetLayer]:
    for place, (name, num_bytes) in enumerate(pending.items()):
        yield NetLayer(name, num_bytes, 0.0 if place else forward, 0.0 if place else backward)
