"""T: the length of a step of several workers, from bytes and the bound of P3.

All bytes of the layers up to some layer must have crossed before its forward pass (``p3.bound``); what they
cost the busiest host, ``sending`` says. Devices of a host are summed first, over the host's own link, while
other layers cross the network. Pure.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from kvstore_mpi.p3.bound import Layer, compute_seconds, least
from kvstore_mpi.p3.slicing import SLICE_ELEMENTS
from kvstore_mpi.planner.sending import ITEM_BYTES, Sending, Sites, Way, network_seconds
from kvstore_mpi.planner.tables import largest_table, numbers_of_pieces, pieces_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.planner.cluster import Cluster
    from kvstore_mpi.planner.net import Net, NetLayer

COMPARED_ELEMENTS = (SLICE_ELEMENTS, 12_500, 25_000, 100_000, 200_000, 400_000)
"""Sizes that are compared where servers sum dense arrays, the store's own first. The ranks of a client have
neighbouring slices share a collective, up to a megabyte, so that there their size decides nothing."""

WORTH = 0.01
"""By what share a step must be shorter for another choice than the store's own: steps of P3 are predicted
within 0.9 % in the middle (``benchmarks/planner_model.py``), and what differs by a header is a tie."""

SLICES_TOO_LATE = 5.3
"""For each other host: by the time of these slices a step exceeds the bound, but not by more than its
forward pass, which is all that an order can lose (``docs/p3.md``). Fitted to steps of ResNet-50 on four
hosts with slices of 12,500, 25,000 and 50,000 elements (``benchmarks/results/p3-slices.json``)."""


class Other(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What would be next best instead of a size or number that was chosen.

    Attributes:
        number: Elements of a slice, or pieces of the largest table.
        more_s: Seconds that a step would take more; less than 0 if it is shorter by too little to count.
    """

    number: int
    more_s: float


class Times(NamedTuple):
    """A step.

    Attributes:
        step_s: Seconds of all of it.
        compute_s: Seconds without communication.
        waits_for: Name of the layer before whose forward pass it waits longest; nothing if it never does.
        crossing_s: Seconds that the busiest link needs for all bytes.
        link: Which link that is: ``network`` or ``host``; nothing where nothing crosses.
        slice_elements: With which slices; 0 where nothing is cut.
        pieces: Into how many the largest table is cut; 0 without servers or tables.
        other_slices: The next best size, where several were compared.
        other_pieces: The next best number.
    """

    step_s: float
    compute_s: float
    waits_for: str = ""
    crossing_s: float = 0.0
    link: str = ""
    slice_elements: int = 0
    pieces: int = 0
    other_slices: Other | None = None
    other_pieces: Other | None = None


def sites_of(workers: int, ways: int, cluster: Cluster) -> Sites | None:
    """Return where workers of some devices each go, or ``None`` if the cluster cannot hold them.

    Workers of a host have its devices in the cluster's order, the first one the first ``ways`` of them.
    """
    if ways <= cluster.num_each_host:
        on_each = cluster.num_each_host // ways
        hosts = -(-workers // on_each)
        if hosts > cluster.hosts:
            return None
        ranks = -(-workers // hosts)
        return Sites(hosts, ranks, 1.0, *_speeds(cluster, ways, ranks))
    if ways % cluster.num_each_host or workers * ways > cluster.num_devices:
        return None
    on_hosts = ways // cluster.num_each_host
    speed, devices = _speeds(cluster, cluster.num_each_host, 1)
    return Sites(workers, 1, 1 / on_hosts, speed, on_hosts * devices)


def _speeds(cluster: Cluster, ways: int, ranks: int) -> tuple[float, float]:
    """Return ``speed`` and ``devices`` of ``Sites``, for this number of workers on a host.

    A net is divided for the devices of the first one. Another is slower by what that of its devices makes
    it which is slowest beside the first one's in its place.
    """
    speeds = [device.speed for device in cluster.each_host[: ranks * ways]]
    slower = min(each / speeds[place % ways] for place, each in enumerate(speeds))
    speed = slower * max(speeds[:ways])
    return speed, sum(speeds) / (ranks * speed)


def step_times(
    net: Net,
    sites: Sites,
    cluster: Cluster,
    way: Way,
    *,
    servers: int = 0,
    speedup: float = 1.0,
    slices: Sequence[int] = (),
    pieces: Sequence[int] = (),
) -> Times:
    """Return the length of a step, with the best size of slices and the best number of pieces of tables.

    Args:
        net: What one device of speed 1 computes and what it sends.
        sites: Where the workers are, and how fast.
        cluster: Has the links.
        way: How values are summed.
        servers: On hosts of workers, at most one on each.
        speedup: Of a step, by devices that are one worker together, over the fastest of them.
        slices: Sizes to compare, in elements; if there are none, some where servers sum dense arrays, else
            the store's own.
        pieces: Numbers of pieces of tables to compare, 0 for what the store does by itself; if there are
            none, ``tables.numbers_of_pieces``.
    """
    pace = sites.speed * speedup
    layers = [Layer(each.num_bytes, each.forward_s / pace, each.backward_s / pace) for each in net.layers]
    compute = net.other_s / speedup + compute_seconds(layers)
    if sites.hosts * sites.ranks == 1:
        return Times(compute, compute)
    sliced = way is Way.SERVERS and sites.hosts > 1 and not all(each.is_table for each in net.layers)
    sizes = slices or (COMPARED_ELEMENTS if sliced else (SLICE_ELEMENTS,))
    sending = Sending(sites, cluster, way, servers, sizes[0])
    numbers = pieces or numbers_of_pieces(net, sending.servers_of_tables)
    ways = [sending.with_pieces(net, number) for number in numbers]
    cut, other_pieces = _best([_times(net, layers, compute, each) for each in ways])
    ways = [ways[cut]._replace(slice_elements=elements) for elements in sizes]
    times = [_times(net, layers, compute, each) for each in ways]
    best, other_slices = _best(times)
    return times[best]._replace(
        other_slices=other_slices and Other(sizes[other_slices.number], other_slices.more_s),
        other_pieces=other_pieces and Other(numbers[other_pieces.number], other_pieces.more_s),
    )


def _best(found: Sequence[Times]) -> tuple[int, Other | None]:
    """Return which step is shortest, or the first, which the store takes by itself, where that is as good.

    Returns:
        Its place, and that of the next best one if there are several.
    """
    places = range(len(found))
    best = min(places, key=lambda place: found[place].step_s)
    if found[best].step_s >= (1 - WORTH) * found[0].step_s:
        best = 0
    others = [Other(place, found[place].step_s - found[best].step_s) for place in places if place != best]
    return best, min(others, key=lambda each: each.more_s, default=None)


def _times(net: Net, layers: list[Layer], compute: float, sending: Sending) -> Times:
    other = compute - compute_seconds(layers)
    network = [*network_seconds(net, sending)]
    inside = [*accumulate(_inside_seconds(each, sending) for each in net.layers)]
    busiest = [max(pair) for pair in zip(network, inside)]
    bound, layer = least(layers, busiest)
    delay = _delay(net, sending)
    least_s = max(compute + delay, other + bound)
    link = "network" if network[-1] >= inside[-1] else "host"
    return Times(
        # At worst nothing is hidden at all.
        max(least_s, min(least_s + _too_late(layers, sending), compute + delay + busiest[-1])),
        compute,
        "" if layer is None else net.layers[layer].name,
        busiest[-1],
        link,
        sending.slice_elements,
        _pieces_of_largest(net, sending),
    )


def _pieces_of_largest(net: Net, sending: Sending) -> int:
    table, servers = largest_table(net), sending.servers_of_tables
    return pieces_of(table, sending.pieces, servers) if table is not None and servers else 0


def _inside_seconds(layer: NetLayer, sending: Sending) -> float:
    """Return what summing one layer among the devices of a host takes, rows as if all were different."""
    sites, link = sending.sites, sending.cluster.within_host
    if sites.ranks == 1:
        return 0.0
    num_bytes = sites.share * layer.num_bytes * min(1.0, layer.touched * sites.ranks)
    return 2 * (sites.ranks - 1) / sites.ranks * num_bytes / link.bytes_per_s


def _too_late(layers: Sequence[Layer], sending: Sending) -> float:
    """Return by how much a step exceeds the bound because what is under way cannot be overtaken."""
    largest = min(ITEM_BYTES * sending.slice_elements, max(layer.num_bytes for layer in layers))
    a_slice = largest / sending.cluster.between_hosts.bytes_per_s
    forward = sum(layer.forward_s for layer in layers)
    return min(forward, SLICES_TOO_LATE * (sending.sites.hosts - 1) * a_slice)


def _delay(net: Net, sending: Sending) -> float:
    """Return what nothing hides between backward and forward: there and back, and a slice of layer 1."""
    sites, cluster = sending.sites, sending.cluster
    link = cluster.between_hosts if sites.hosts > 1 else cluster.within_host
    last = min(ITEM_BYTES * sending.slice_elements, net.layers[0].num_bytes)
    hops = 2 * (sites.hosts - 1) if sites.hosts > 1 and sending.way is not Way.SERVERS else 2
    return hops * link.latency_s + last / link.bytes_per_s
