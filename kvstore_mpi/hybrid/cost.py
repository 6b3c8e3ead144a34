"""What a step of a key costs on each way: the bytes of the busiest machine, and the time that follows.

Parallax counts bytes sent and received by a machine (Table 3), for N machines with one worker and one
server each, a key of w bytes, and a share alpha of its rows that a step touches::

                          one key of one piece    each of many keys, or of a key in many pieces
    dense, by allreduce   4 w (N - 1) / N         4 w (N - 1) / N
    dense, by servers     2 w (N - 1)             4 w (N - 1) / N
    rows, by allreduce    2 alpha w (N - 1)       2 alpha w (N - 1)
    rows, by servers      2 alpha w (N - 1)       4 alpha w (N - 1) / N

The functions of this file give these figures with ``Wire(0, 0, 0)`` and ``Pull.OWN``. They count besides:

- ids and headers (``Wire``);
- several ranks on a machine, whose rows are merged before they leave it: alpha is that of their union;
- rows that are merged before they are spread by allreduce, ``rows_merged``;
- what is pulled: rows that the next step needs (``Pull.OWN``, with a request), or all that have changed
  (``Pull.CHANGED``), which are the union of all machines' rows;
- servers on machines of their own, and fewer servers than machines.

Only the four operations of arithmetic are used, which give the same bits on every machine: ranks that know
the same numbers come to the same costs. Pure.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvstore_mpi.hybrid.density import Density


class Cluster(NamedTuple):
    """Where the workers and servers of a job are.

    Attributes:
        machines: Number of machines that have workers.
        servers: Of the whole job; 0 if there are none.
        ranks: Workers on each machine.
        colocated: Servers share the machines of the workers, dealt to these in turn; if not, each server
            has a machine of its own.
    """

    machines: int
    servers: int
    ranks: int = 1
    colocated: bool = True

    @property
    def server_machines(self) -> int:
        """Number of machines that have servers."""
        return min(self.servers, self.machines) if self.colocated else self.servers


class Table(NamedTuple):
    """A key, seen as rows; a dense one may be a single row.

    Attributes:
        rows: Number of rows.
        row_bytes: Bytes of one row's values.
        pieces: Into how many pieces it is cut for the servers.
    """

    rows: int
    row_bytes: int
    pieces: int = 1

    @property
    def num_bytes(self) -> int:
        """Bytes of all rows."""
        return self.rows * self.row_bytes


class Wire(NamedTuple):
    """What travels beside values.

    The 80 bytes of a message itself are not counted: many keys share it.

    Attributes:
        place_bytes: With each row to or from a server: its place within a piece.
        id_bytes: With each row between ranks: its id.
        piece_bytes: With each piece, and with each part that is sent to a rank: an entry and a header.
    """

    place_bytes: int = 4
    id_bytes: int = 4
    piece_bytes: int = 40


class Pull(enum.Enum):
    """What a worker gets back from the servers."""

    OWN = "own"
    """The rows that it asks for, as many as it pushes; those of several ranks of a machine once."""
    EACH = "each"
    """The rows that each rank asks for, for itself alone."""
    CHANGED = "changed"
    """The rows that anybody has changed."""


class Traffic(NamedTuple):
    """What one machine sends and receives in a step.

    Attributes:
        sent: Bytes.
        received: Bytes.
        messages: That it sends one after the other, also to processes of its own machine; of rows, pieces
            of tables, which cost the processes as much (``benchmarks/results/partitions.json``).
    """

    sent: float
    received: float
    messages: float

    @property
    def num_bytes(self) -> float:
        """Bytes sent and received, as the paper counts them."""
        return self.sent + self.received


NOTHING = Traffic(0.0, 0.0, 0.0)

SERVERS_PART = 0.5
"""Of what processors take for a byte of rows. Two clients push 1 MB each; with two servers instead of one a
step is 2.0 ms shorter (``benchmarks/results/partitions.json``), and these take 2 ms less if a server takes
half of the 3.9 ns that a byte takes in all where none crosses a link (``test_planner_measured.py``)."""


class Speed(NamedTuple):
    """How fast bytes move on a route, as measured.

    Attributes:
        byte_s: Seconds of a byte, in the busier direction: links carry both at once.
        message_s: Seconds of a message without content.
    """

    byte_s: float
    message_s: float = 0.0

    def seconds(self, traffic: Traffic) -> float:
        """Predict the time of some traffic."""
        return self.byte_s * max(traffic.sent, traffic.received) + self.message_s * traffic.messages


def even_share(cluster: Cluster) -> float:
    """Return what share of the keys a machine with servers has if they are spread evenly."""
    return 1 / cluster.server_machines


def share_of(pieces: int, cluster: Cluster) -> float:
    """Return the share of one key that the machine with the most of its pieces has."""
    return -(-pieces // cluster.server_machines) / pieces


def dense_allreduce(table: Table, cluster: Cluster) -> Traffic:
    """Count what summing a dense key among machines costs: a reduce-scatter and an allgather."""
    others = cluster.machines - 1
    each_way = 2 * table.num_bytes * others / cluster.machines
    return Traffic(each_way, each_way, 2 * others)


def rows_gathered(table: Table, density: Density, cluster: Cluster, wire: Wire) -> Traffic:
    """Count what it costs if each machine gathers the rows of all others, as in the paper."""
    others = cluster.machines - 1
    rows = density.machine * table.rows
    each_way = others * (rows * (table.row_bytes + wire.id_bytes) + wire.piece_bytes)
    return Traffic(each_way, each_way, others)


def rows_merged(table: Table, density: Density, cluster: Cluster, wire: Wire) -> Traffic:
    """Count what it costs if each machine first merges all rows of some ids, then spreads the union.

    These are the bytes of servers that spread what has changed: each machine serves as one.
    """
    others = cluster.machines - 1
    rows = (density.machine + density.job) * table.rows / cluster.machines
    each_way = others * (rows * (table.row_bytes + wire.id_bytes) + 2 * wire.piece_bytes)
    return Traffic(each_way, each_way, 2 * others)


def rows_allreduce(table: Table, density: Density, cluster: Cluster, wire: Wire) -> Traffic:
    """Count the better of the two."""
    ways = rows_gathered(table, density, cluster, wire), rows_merged(table, density, cluster, wire)
    return min(ways, key=lambda each: each.num_bytes)


def dense_servers(table: Table, cluster: Cluster, wire: Wire, *, share: float) -> Traffic:
    """Count what pushing and pulling a dense key costs the busiest machine.

    Args:
        table: The key.
        cluster: Has servers.
        wire: What travels beside values.
        share: Of the key, or of all keys, that the busiest machine with servers has.
    """
    return _busiest(dense_of_workers(table, cluster, wire), cluster, share)


def rows_servers(
    table: Table, density: Density, cluster: Cluster, wire: Wire, *, share: float, pull: Pull = Pull.CHANGED
) -> Traffic:
    """Count what pushing and pulling rows costs the busiest machine.

    Args:
        table: The key.
        density: Measured, or expected.
        cluster: Has servers.
        wire: What travels beside values.
        share: Of the key, or of all keys, that the busiest machine with servers has.
        pull: Which rows are pulled.
    """
    return _busiest(rows_of_workers(table, density, wire, pull, cluster.ranks), cluster, share)


def handled(even: Traffic, cluster: Cluster, share: float) -> float:
    """Return the bytes of rows that the processors of the busiest machine handle.

    Its worker's are the same however pieces are dealt; its servers' grow with their share.

    Args:
        even: The machine's traffic if each machine had a server, and all the same share.
        cluster: Has servers.
        share: Of the key, or of all keys, that the busiest machine with servers has.
    """
    servers = cluster.machines * share
    return max(even.sent, even.received) * (1 - SERVERS_PART + SERVERS_PART * servers)


def dense_of_workers(table: Table, cluster: Cluster, wire: Wire) -> Traffic:
    """Count what the workers of a machine exchange with all servers, wherever these are."""
    each_way = table.num_bytes + table.pieces * wire.piece_bytes
    return Traffic(each_way, each_way, cluster.servers)


def rows_of_workers(
    table: Table, density: Density, wire: Wire, pull: Pull = Pull.CHANGED, ranks: int = 1
) -> Traffic:
    """Count the same for rows, of a number of ranks on a machine; arguments as of ``rows_servers``."""
    a_row = table.row_bytes + wire.place_bytes
    headers = table.pieces * wire.piece_bytes
    pushed = density.machine * table.rows * a_row + headers
    if pull is Pull.CHANGED:  # asked for with the push
        return Traffic(pushed, density.job * table.rows * a_row + headers, table.pieces)
    asking = ranks if pull is Pull.EACH else 1
    wanted = (density.rank if pull is Pull.EACH else density.machine) * table.rows
    asked, came = (asking * (wanted * each + headers) for each in (wire.place_bytes, a_row))
    return Traffic(pushed + asked, came, table.pieces)


def _busiest(of_workers: Traffic, cluster: Cluster, share: float) -> Traffic:
    """Return the busiest machine's traffic, from what the workers of each machine exchange with servers.

    A machine with servers exchanges its share with all others, and, if it has workers as well, what they
    have at the other servers.
    """
    up, down, messages = of_workers
    machines = cluster.machines
    answers = machines * share * messages
    if cluster.colocated:
        others = machines - 1
        return Traffic(
            (1 - share) * up + share * others * down,
            (1 - share) * down + share * others * up,
            messages + answers,
        )
    if share * machines > 1:
        return Traffic(share * machines * down, share * machines * up, answers)
    return of_workers


def added(traffics: Iterable[Traffic]) -> Traffic:
    """Return what several keys cost together."""
    total = NOTHING
    for each in traffics:
        total = Traffic(*(one + other for one, other in zip(total, each)))
    return total
