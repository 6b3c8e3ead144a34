"""What the layers of a net cost between hosts: the time of the busiest host's link and of its processors.

Layers are counted as routes of keys are (``hybrid.cost``): a dense array that is summed among hosts, or
pushed to servers and pulled, and the touched rows of a table. Pure.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

from kvstore_mpi.hybrid import cost
from kvstore_mpi.hybrid.density import Density
from kvstore_mpi.planner.tables import busiest_share, pieces_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvstore_mpi.planner.cluster import Cluster
    from kvstore_mpi.planner.net import Net, NetLayer
    from kvstore_mpi.planner.store_costs import Rows

ITEM_BYTES = 4


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
        speed: Of a worker's fastest device; of the slowest worker, for which the others wait.
        devices: Of a worker, counted in such devices; more where others are faster than the slowest.
    """

    hosts: int
    ranks: int
    share: float = 1.0
    speed: float = 1.0
    devices: float = 1.0


class Sending(NamedTuple):
    """How the layers of a net are sent.

    Attributes:
        sites: Where the workers are.
        cluster: Has the links.
        way: How values are summed.
        servers: On hosts of workers, at most one on each; 0: one on each.
        slice_elements: Of dense arrays that servers sum.
        pieces: Planned for tables, 0 for what the store does by itself.
        share: Of all tables, that the busiest server has.
    """

    sites: Sites
    cluster: Cluster
    way: Way
    servers: int
    slice_elements: int
    pieces: int = 0
    share: float = 0.0

    @property
    def servers_of_tables(self) -> int:
        """Servers that have tables; 0 where there is nothing between hosts, or workers sum them."""
        return 0 if self.sites.hosts == 1 or self.way is Way.ALLREDUCE else self.servers or self.sites.hosts

    @property
    def rows(self) -> Rows:
        """What processors take for rows."""
        return self.cluster.rows_allreduce if self.way is Way.ALLREDUCE else self.cluster.rows_servers

    def with_pieces(self, net: Net, pieces: int) -> Sending:
        """Return the same with a number of pieces of tables."""
        servers = self.servers_of_tables
        share = busiest_share(net, pieces, servers) if servers else 0.0
        return self._replace(pieces=pieces, share=share)


class RowWork(NamedTuple):
    """What the processors of the busiest host have to do in a step for the rows of tables.

    Attributes:
        num_bytes: That they handle.
        messages: Pieces of tables that the host pushes, and that its servers send.
        tables: Number of tables.
    """

    num_bytes: float = 0.0
    messages: float = 0.0
    tables: int = 0

    def seconds(self, rows: Rows) -> float:
        """Return how long that takes; nothing without a table."""
        if not self.tables:
            return 0.0
        each = rows.message_s * self.messages + rows.table_s * self.tables
        return rows.step_s + rows.byte_s * self.num_bytes + each


def network_seconds(net: Net, sending: Sending) -> Iterator[float]:
    """Yield what the layers up to each need between hosts: of the busiest host's link and processors."""
    links, dense, work = 0.0, 0.0, RowWork()
    for layer in net.layers:
        if sending.sites.hosts > 1:
            links += link_seconds(layer, sending)
            if layer.is_table:
                work = _with_table(work, layer, sending)
            else:
                dense += sending.cluster.byte_s * crossing(layer, sending)
        rows = work.seconds(sending.rows)
        yield together(together(links, dense, HIDING_DENSE), rows, HIDING[sending.way])


def row_work(net: Net, sending: Sending) -> RowWork:
    """Return what processors have to do for all tables of a net."""
    work = RowWork()
    for layer in net.layers:
        if layer.is_table:
            work = _with_table(work, layer, sending)
    return work


def together(links: float, processors: float, hiding: float) -> float:
    """Return what both take, some of it at the same time."""
    longer, shorter = max(links, processors), min(links, processors)
    return longer and longer * (1 + (shorter / longer) ** hiding) ** (1 / hiding)


def processors_alone(both: float, links: float, hiding: float) -> float:
    """Return what processors take by themselves, from what both take ``together``; 0 if links need all."""
    return both * (1 - (links / both) ** hiding) ** (1 / hiding) if both > links else 0.0


def link_seconds(layer: NetLayer, sending: Sending) -> float:
    """Return what the busiest host's link needs for one layer, and its slices."""
    num_bytes = crossing(layer, sending)
    seconds = num_bytes / sending.cluster.between_hosts.bytes_per_s
    if sending.way is Way.SERVERS and not layer.is_table and layer.num_bytes:
        num_slices = -(-layer.num_bytes // (ITEM_BYTES * sending.slice_elements))
        seconds += num_slices * num_bytes / layer.num_bytes * sending.cluster.slice_s
    return seconds


def crossing(layer: NetLayer, sending: Sending) -> float:
    """Return the bytes of a layer in the busier direction of the busiest host's link."""
    traffic = _traffic(layer, sending)
    return max(traffic.sent, traffic.received)


def _with_table(work: RowWork, layer: NetLayer, sending: Sending) -> RowWork:
    traffic = _traffic(layer, sending)
    handled = _handled(layer, sending, traffic)
    return RowWork(work.num_bytes + handled, work.messages + traffic.messages, work.tables + 1)


def _handled(layer: NetLayer, sending: Sending, traffic: cost.Traffic) -> float:
    """Return the bytes of a table that the processors of the busiest host handle."""
    if sending.way is Way.ALLREDUCE:
        return max(traffic.sent, traffic.received)
    hosts = sending.sites.hosts
    even = _traffic(layer, sending._replace(servers=hosts, share=1 / hosts))
    return cost.handled(even, cost.Cluster(hosts, sending.servers_of_tables), sending.share)


def _traffic(layer: NetLayer, sending: Sending) -> cost.Traffic:
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
