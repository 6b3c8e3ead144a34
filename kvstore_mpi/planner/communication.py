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

import msgspec

from kvstore_mpi.hybrid import cost
from kvstore_mpi.hybrid.density import Density
from kvstore_mpi.p3.bound import Layer, compute_seconds, least
from kvstore_mpi.planner.tables import busiest_share, largest_table, numbers_of_pieces, pieces_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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


HIDING = {Way.ALLREDUCE: 1.3, Way.SERVERS: 1.65, Way.HYBRID: 1.65}
"""How much of the time of processors, for rows, passes while links are busy: p in T^p = L^p + C^p, with 1
for nothing. Ranks that sum among themselves wait for each other before each message of rows; servers take
what comes. Read off steps over 100, 200 and 500 Mbit/s (``benchmarks/harness/planner_points.py``)."""

HIDING_DENSE = 2.5
"""The same of bytes that are no rows: slices travel while others are summed."""


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
    pieces: Sequence[int] = (),
) -> Times:
    """Return the length of a step, with the best size of slices and the best number of pieces of tables.

    Args:
        net: What one device computes and what it sends.
        sites: Where the workers are.
        cluster: Has the links.
        way: How values are summed.
        servers: On hosts of workers, at most one on each.
        speedup: Of the compute, by devices that are one worker together.
        slices: Sizes to compare, in elements; if there are none, some where servers sum dense arrays, else
            the store's own.
        pieces: Numbers of pieces of tables to compare, 0 for what the store does by itself; if there are
            none, ``tables.numbers_of_pieces``.
    """
    layers = [
        Layer(each.num_bytes, each.forward_s / speedup, each.backward_s / speedup) for each in net.layers
    ]
    compute = net.other_s / speedup + compute_seconds(layers)
    if sites.hosts * sites.ranks == 1:
        return Times(compute, compute)
    sliced = way is Way.SERVERS and sites.hosts > 1 and not all(each.is_table for each in net.layers)
    sizes = slices or (COMPARED_ELEMENTS if sliced else (SLICE_ELEMENTS,))
    sending = _Sending(sites, cluster, way, servers, sizes[0])
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


class _Sending(NamedTuple):
    sites: Sites
    cluster: Cluster
    way: Way
    servers: int
    slice_elements: int
    pieces: int = 0
    share: float = 0.0  # of all tables, that the busiest server has

    @property
    def servers_of_tables(self) -> int:
        """Servers that have tables; 0 where there is nothing between hosts, or workers sum them."""
        return 0 if self.sites.hosts == 1 or self.way is Way.ALLREDUCE else self.servers or self.sites.hosts

    def with_pieces(self, net: Net, pieces: int) -> _Sending:
        servers = self.servers_of_tables
        share = busiest_share(net, pieces, servers) if servers else 0.0
        return self._replace(pieces=pieces, share=share)


def _times(net: Net, layers: list[Layer], compute: float, sending: _Sending) -> Times:
    other = compute - compute_seconds(layers)
    network = [*_network(net, sending)]
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


def _pieces_of_largest(net: Net, sending: _Sending) -> int:
    table, servers = largest_table(net), sending.servers_of_tables
    return pieces_of(table, sending.pieces, servers) if table is not None and servers else 0


def _network(net: Net, sending: _Sending) -> Iterator[float]:
    """Yield what the layers up to each need between hosts: of the busiest host's link and processors."""
    cluster, links, dense, rows, has_tables = sending.cluster, 0.0, 0.0, 0.0, False
    for layer in net.layers:
        if sending.sites.hosts > 1:
            links += _link_seconds(layer, sending)
            if layer.is_table:
                rows += _rows_seconds(layer, sending) + (0.0 if has_tables else cluster.rows.step_s)
                has_tables = True
            else:
                dense += cluster.byte_s * _crossing(layer, sending)
        yield _together(_together(links, dense, HIDING_DENSE), rows, HIDING[sending.way])


def _crossing(layer: NetLayer, sending: _Sending) -> float:
    traffic = _traffic(layer, sending)
    return max(traffic.sent, traffic.received)


def _link_seconds(layer: NetLayer, sending: _Sending) -> float:
    """Return what the busiest host's link needs for one layer, and its slices."""
    crossing = _crossing(layer, sending)
    seconds = crossing / sending.cluster.between_hosts.bytes_per_s
    if sending.way is Way.SERVERS and not layer.is_table and layer.num_bytes:
        num_slices = -(-layer.num_bytes // (ITEM_BYTES * sending.slice_elements))
        seconds += num_slices * crossing / layer.num_bytes * sending.cluster.slice_s
    return seconds


def _rows_seconds(layer: NetLayer, sending: _Sending) -> float:
    traffic, rows = _traffic(layer, sending), sending.cluster.rows
    of_table = rows.table_s if sending.way is Way.ALLREDUCE else rows.served_table_s
    seconds = rows.byte_s * _handled(layer, sending, traffic) + rows.message_s * traffic.messages
    return of_table + seconds


def _together(links: float, processors: float, hiding: float) -> float:
    """Return what both take, some of it at the same time."""
    longer, shorter = max(links, processors), min(links, processors)
    return longer and longer * (1 + (shorter / longer) ** hiding) ** (1 / hiding)


def _handled(layer: NetLayer, sending: _Sending, traffic: cost.Traffic) -> float:
    """Return the bytes of a table that the processors of the busiest host handle."""
    if sending.way is Way.ALLREDUCE:
        return max(traffic.sent, traffic.received)
    hosts = sending.sites.hosts
    even = _traffic(layer, sending._replace(servers=hosts, share=1 / hosts))
    return cost.handled(even, cost.Cluster(hosts, sending.servers_of_tables), sending.share)


def _traffic(layer: NetLayer, sending: _Sending) -> cost.Traffic:
    sites = sending.sites
    machines = cost.Cluster(sites.hosts, sending.servers or sites.hosts, sites.ranks)
    rows = max(1, round(layer.rows * sites.share))
    table = cost.Table(rows, round(layer.num_bytes * sites.share) // rows)
    touched = Density(layer.touched, layer.touched, max(layer.touched, layer.touched_by_all))
    if layer.is_table and sending.way is Way.ALLREDUCE:
        return cost.rows_allreduce(table, touched, machines, cost.Wire())
    if layer.is_table:
        cut = table._replace(pieces=pieces_of(layer, sending.pieces, machines.servers))
        return cost.rows_servers(
            cut, touched, machines, cost.Wire(), share=sending.share, pull=cost.Pull.OWN
        )
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
