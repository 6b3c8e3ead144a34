"""T: the length of a step of several workers, from bytes and the bound of P3.

What a layer costs the busiest host is counted as routes of keys are (``hybrid.cost``): a dense array that
is summed among hosts, or pushed to servers and pulled, and the touched rows of a table. All bytes of the
layers up to some layer must have crossed before its forward pass (``p3.bound``). Devices of a host are
summed first, over the host's own link, at the same time as other layers cross the network. Pure.
"""

from __future__ import annotations

import enum
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from kvstore_mpi.hybrid import cost
from kvstore_mpi.hybrid.density import Density
from kvstore_mpi.p3.bound import Layer, compute_seconds, least

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.planner.cluster import Cluster
    from kvstore_mpi.planner.net import Net, NetLayer

ITEM_BYTES = 4
SLICE_ELEMENTS = 50_000
"""The store's own size of slices."""

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


class Way(enum.Enum):
    """How values are summed."""

    ALLREDUCE = "allreduce"
    """Among the workers of one client, without servers."""
    SERVERS = "servers"
    """By servers; each host is a client."""
    HYBRID = "hybrid"
    """Dense arrays among the workers of one client, rows of tables by servers."""


class Sites(NamedTuple):
    """Where data-parallel workers are.

    Attributes:
        hosts: That have workers.
        ranks: Workers on each host that hold the same parameters.
        share: Of the parameters that a host holds; less than 1 where a worker is on several hosts.
    """

    hosts: int
    ranks: int
    share: float = 1.0


class Times(NamedTuple):
    """A step.

    Attributes:
        step_s: Seconds of all of it.
        compute_s: Seconds without communication.
        waits_for: Name of the layer before whose forward pass it waits longest; nothing if it never does.
        crossing_s: Seconds that the busiest link needs for all bytes.
        link: Which link that is: ``network`` or ``host``; nothing where nothing crosses.
        slice_elements: With which slices; 0 where nothing is cut.
    """

    step_s: float
    compute_s: float
    waits_for: str = ""
    crossing_s: float = 0.0
    link: str = ""
    slice_elements: int = 0


def sites_of(workers: int, ways: int, cluster: Cluster) -> Sites | None:
    """Return where workers of some devices each go, or ``None`` if the cluster cannot hold them."""
    if ways <= cluster.num_each_host:
        on_each = cluster.num_each_host // ways
        hosts = -(-workers // on_each)
        return Sites(hosts, -(-workers // hosts)) if hosts <= cluster.hosts else None
    if ways % cluster.num_each_host or workers * ways > cluster.num_devices:
        return None
    return Sites(workers, 1, cluster.num_each_host / ways)


def step_times(
    net: Net,
    sites: Sites,
    cluster: Cluster,
    way: Way,
    *,
    servers: int = 0,
    speedup: float = 1.0,
    slices: Sequence[int] = (),
) -> Times:
    """Return the length of a step, with the best size of slices.

    Args:
        net: What one device computes and what it sends.
        sites: Where the workers are.
        cluster: Has the links.
        way: How values are summed.
        servers: On hosts of workers, at most one on each.
        speedup: Of the compute, by devices that are one worker together.
        slices: Sizes to compare, in elements; if there are none, some where servers sum dense arrays, else
            the store's own.
    """
    layers = [
        Layer(each.num_bytes, each.forward_s / speedup, each.backward_s / speedup) for each in net.layers
    ]
    compute = net.other_s / speedup + compute_seconds(layers)
    if sites.hosts * sites.ranks == 1:
        return Times(compute, compute)
    by_servers = way is Way.SERVERS and sites.hosts > 1
    found = [
        _times(net, layers, compute, _Sending(sites, cluster, way, servers, elements))
        for elements in slices or (COMPARED_ELEMENTS if by_servers else (SLICE_ELEMENTS,))
    ]
    return _best(found)


def _best(found: Sequence[Times]) -> Times:
    """Return the shortest step, or the first, with what the store does by itself, where that is as good."""
    best = min(found, key=lambda each: each.step_s)
    return best if best.step_s < (1 - WORTH) * found[0].step_s else found[0]


class _Sending(NamedTuple):
    sites: Sites
    cluster: Cluster
    way: Way
    servers: int
    slice_elements: int


def _times(net: Net, layers: list[Layer], compute: float, sending: _Sending) -> Times:
    other = compute - compute_seconds(layers)
    network = [*accumulate(_network_seconds(each, sending) for each in net.layers)]
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
    )


def _network_seconds(layer: NetLayer, sending: _Sending) -> float:
    """Return what the busiest host's link needs for one layer, and its processors for slices and rows."""
    if sending.sites.hosts == 1:
        return 0.0
    traffic = _traffic(layer, sending)
    crossing = max(traffic.sent, traffic.received)
    seconds = crossing / sending.cluster.between_hosts.bytes_per_s
    if sending.way is Way.SERVERS and not layer.is_table and layer.num_bytes:
        num_slices = -(-layer.num_bytes // (ITEM_BYTES * sending.slice_elements))
        seconds += num_slices * crossing / layer.num_bytes * sending.cluster.slice_s
    if layer.is_table:
        rows = sending.cluster.rows
        seconds += cost.Speed(rows.byte_s, rows.message_s).seconds(traffic)
        seconds += rows.table_s * (sending.way is Way.ALLREDUCE)
    return seconds


def _traffic(layer: NetLayer, sending: _Sending) -> cost.Traffic:
    sites = sending.sites
    machines = cost.Cluster(sites.hosts, sending.servers or sites.hosts, sites.ranks)
    rows = max(1, round(layer.rows * sites.share))
    table = cost.Table(rows, round(layer.num_bytes * sites.share) // rows)
    touched = Density(layer.touched, layer.touched, max(layer.touched, layer.touched_by_all))
    if layer.is_table and sending.way is Way.ALLREDUCE:
        return cost.rows_allreduce(table, touched, machines, cost.Wire())
    if layer.is_table:
        share = cost.even_share(machines)
        return cost.rows_servers(table, touched, machines, cost.Wire(), share=share, pull=cost.Pull.OWN)
    if sending.way is Way.SERVERS:
        slices = -(-table.num_bytes // (ITEM_BYTES * sending.slice_elements))
        cut = table._replace(pieces=slices)
        return cost.dense_servers(cut, machines, cost.Wire(), share=cost.even_share(machines))
    return cost.dense_allreduce(table, machines)


def _inside_seconds(layer: NetLayer, sending: _Sending) -> float:
    """Return what summing one layer among the devices of a host takes, rows as if all were different."""
    sites, link = sending.sites, sending.cluster.within_host
    if sites.ranks == 1:
        return 0.0
    num_bytes = sites.share * layer.num_bytes * min(1.0, layer.touched * sites.ranks)
    return 2 * (sites.ranks - 1) / sites.ranks * num_bytes / link.bytes_per_s


def _too_late(layers: Sequence[Layer], sending: _Sending) -> float:
    """Return by how much a step exceeds the bound because what is under way cannot be overtaken."""
    largest = min(ITEM_BYTES * sending.slice_elements, max(layer.num_bytes for layer in layers))
    a_slice = largest / sending.cluster.between_hosts.bytes_per_s
    forward = sum(layer.forward_s for layer in layers)
    return min(forward, SLICES_TOO_LATE * (sending.sites.hosts - 1) * a_slice)


def _delay(net: Net, sending: _Sending) -> float:
    """Return what nothing hides between backward and forward: there and back, and a slice of layer 1."""
    sites, cluster = sending.sites, sending.cluster
    link = cluster.between_hosts if sites.hosts > 1 else cluster.within_host
    last = min(ITEM_BYTES * sending.slice_elements, net.layers[0].num_bytes)
    hops = 2 * (sites.hosts - 1) if sites.hosts > 1 and sending.way is not Way.SERVERS else 2
    return hops * link.latency_s + last / link.bytes_per_s
