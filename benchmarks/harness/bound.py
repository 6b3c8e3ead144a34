"""How fast one iteration can be at all: arithmetic on layers, compute times and the rate of the links.

The setting: every host runs one worker and one server, its link is full duplex, and the part of a layer
that a worker shares with its own server never crosses a link. This file must not measure, read or start
anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True)
class Layer:
    """One tensor of a model; a list of them is in forward order.

    Attributes:
        num_bytes: Its size.
        forward_s: Seconds of compute in the forward pass that cannot start before its new value is there.
        backward_s: Seconds of compute at whose end its gradient is ready.
    """

    num_bytes: int
    forward_s: float
    backward_s: float


def compute_seconds(layers: Sequence[Layer]) -> float:
    """Return the length of an iteration without any communication."""
    return sum(layer.forward_s + layer.backward_s for layer in layers)


def bytes_through_link(num_bytes: float, hosts: int, largest_share: float | None = None) -> float:
    """Return what crosses the busiest link in each direction when so much is pushed and answered once.

    A host pushes all but its own server's share, and its server answers all other hosts with that share.

    Args:
        num_bytes: Bytes of the tensors.
        hosts: Hosts with one worker and one server each.
        largest_share: Bytes of them on the server that has most; an equal part if not given.
    """
    share = num_bytes / hosts if largest_share is None else largest_share
    return num_bytes + (hosts - 2) * share


def bytes_per_s_for(ratio: float, layers: Sequence[Layer], hosts: int) -> float:
    """Return the goodput at which the network needs ``ratio`` times as long as the compute."""
    crossing = bytes_through_link(sum(layer.num_bytes for layer in layers), hosts)
    return crossing / (ratio * compute_seconds(layers))


def network_seconds(
    layers: Sequence[Layer], hosts: int, bytes_per_s: float, shares: Sequence[float] | None = None
) -> list[float]:
    """Return for each layer how long the busiest link needs for it and all layers before it.

    Args:
        layers: The model.
        hosts: See ``bytes_through_link``.
        bytes_per_s: Goodput of a link in each direction.
        shares: For each layer the bytes of it and all before it on the server that has most; without
            them, every prefix is spread evenly.
    """
    prefixes = accumulate(layer.num_bytes for layer in layers)
    largest: Sequence[float | None] = [None] * len(layers) if shares is None else shares
    return [
        bytes_through_link(prefix, hosts, share) / bytes_per_s for prefix, share in zip(prefixes, largest)
    ]


def lower_bound(
    layers: Sequence[Layer],
    hosts: int,
    bytes_per_s: float,
    *,
    shares: Sequence[float] | None = None,
    first_delay_s: float = 0.0,
) -> float:
    """Return the least seconds of an iteration, whatever the order of sending.

    Layer by layer: the gradients of the layers up to this one exist only after this one's backward pass,
    and all of them must have crossed before its forward pass; what is left of the compute comes on top.

    Args:
        layers: The model.
        hosts: See ``bytes_through_link``.
        bytes_per_s: Goodput of a link in each direction.
        shares: See ``network_seconds``.
        first_delay_s: What nothing can hide between the end of backward and the start of forward: two
            one-way latencies and one slice.
    """
    total = compute_seconds(layers)
    network = network_seconds(layers, hosts, bytes_per_s, shares)
    waits = [max(0.0, needed - before) for needed, before in zip(network, _compute_before(layers))]
    return max(total + first_delay_s, *(total + wait for wait in waits))


def _compute_before(layers: Sequence[Layer]) -> Iterator[float]:
    """Yield for each layer the compute, forward and backward, of the layers before it."""
    before = 0.0
    for layer in layers:
        yield before
        before += layer.forward_s + layer.backward_s


def fifo_bound(layers: Sequence[Layer], hosts: int, bytes_per_s: float) -> float:
    """Return the seconds of an iteration when a perfect network takes gradients first come first served.

    The first layer's gradient comes last, so that the forward pass starts when all have crossed.
    """
    network = network_seconds(layers, hosts, bytes_per_s)
    ready, crossed = 0.0, 0.0
    for layer, needed in zip(reversed(layers), reversed(network)):
        ready += layer.backward_s
        crossed = max(crossed, ready + needed)
    return crossed + sum(layer.forward_s for layer in layers)


def largest_shares(sizes: Sequence[int], slice_bytes: int, servers: int) -> list[int]:
    """Return for each layer the most bytes of it and all before it on one server, placed greedily.

    Slices go, in forward order, each to the server with least bytes so far.

    Args:
        sizes: Bytes of each layer.
        slice_bytes: Most bytes of one slice.
        servers: Number of servers.
    """
    loads = [0] * servers
    shares = []
    for size in sizes:
        for begin in range(0, size, slice_bytes):
            loads[loads.index(min(loads))] += min(slice_bytes, size - begin)
        shares.append(max(loads))
    return shares
