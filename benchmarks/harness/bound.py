"""How fast one iteration can be at all: arithmetic on layers, compute times and the rate of the links.

The setting: every host runs one worker and one server, its link is full duplex, and the part of a layer
that a worker shares with its own server never crosses a link. This file must not measure, read or start
anything.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from kvstore_mpi.p3.bound import Layer, compute_seconds, least

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Layer", "compute_seconds"]


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

    Args:
        layers: The model.
        hosts: See ``bytes_through_link``.
        bytes_per_s: Goodput of a link in each direction.
        shares: See ``network_seconds``.
        first_delay_s: What nothing can hide between the end of backward and the start of forward: two
            one-way latencies and one slice.
    """
    network = network_seconds(layers, hosts, bytes_per_s, shares)
    return max(compute_seconds(layers) + first_delay_s, least(layers, network).seconds)


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
