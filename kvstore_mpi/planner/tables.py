"""Into how many pieces tables are cut: which numbers plans compare, and what the busiest server has. Pure.

One number is planned for all tables of a job (``hybrid.partitions.planned_partitions``). What it changes is
how evenly rows are spread over servers, and what pieces cost these and the workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore_mpi.hybrid.partitions import first_partitions, most_partitions, planned_partitions
from kvstore_mpi.hybrid.placement import deal_pieces

if TYPE_CHECKING:
    from kvstore_mpi.planner.net import Net, NetLayer


def pieces_of(layer: NetLayer, planned: int, servers: int) -> int:
    """Return into how many pieces a table is cut; with 0 ``planned`` as the store does by itself."""
    return planned_partitions(planned, layer.rows, layer.num_bytes // layer.rows, servers)


def largest_table(net: Net) -> NetLayer | None:
    """Return the table of most bytes, if there is one."""
    tables = (layer for layer in net.layers if layer.is_table)
    return max(tables, key=lambda layer: layer.num_bytes, default=None)


def numbers_of_pieces(net: Net, servers: int) -> tuple[int, ...]:
    """Return the numbers to compare: first the store's own for the largest table, then others that fit it.

    These are one piece, two, and as many for each server as are a power of two. Without tables or servers
    there is nothing to cut, and the only number is 0.
    """
    table = largest_table(net)
    if table is None or not servers:
        return (0,)
    own = first_partitions(table.rows, table.num_bytes // table.rows, servers)
    most = most_partitions(table.rows, servers)
    doubled = (servers << exponent for exponent in range(most.bit_length()))
    others = sorted({1, 2, *(each for each in doubled if each <= most)} - {own})
    return (own, *(each for each in others if pieces_of(table, each, servers) == each))


def busiest_share(net: Net, planned: int, servers: int) -> float:
    """Return which share of the touched rows of all tables the busiest server has.

    Pieces are dealt as the scheduler deals them, table by table, and the pieces of a table are touched
    alike.
    """
    held, touched = [0] * servers, [0.0] * servers
    for layer in net.layers:
        if layer.is_table:
            pieces = pieces_of(layer, planned, servers)
            for server, dealt in enumerate(deal_pieces(pieces, held)):
                held[server] += dealt * layer.num_bytes // pieces
                touched[server] += dealt / pieces * layer.touched * layer.num_bytes
    return max(touched) / sum(touched) if any(touched) else 1 / servers
