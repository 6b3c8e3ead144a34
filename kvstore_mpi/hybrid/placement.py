"""Which server has which piece of which table, and how evenly rows fall on pieces.

Dense keys are placed by ``scheduler/placement.py``, which balances every prefix of a model. Tables are
fewer and larger, and what a piece costs a server in a step is not its size but how many of its rows are
touched: so the pieces of each table are dealt evenly to the servers first, and by bytes second. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def deal_pieces(piece_bytes: Sequence[int], loads: Sequence[int]) -> list[int]:
    """Return the server of each piece of one table.

    No server has more than one piece more than another, because the pieces of a table are touched alike. Of
    the servers with the fewest, the one that holds the fewest bytes gets the largest piece that is left.

    Args:
        piece_bytes: Of each piece.
        loads: Bytes that each server holds so far.
    """
    loads = list(loads)
    counts = [0] * len(loads)
    servers = [0] * len(piece_bytes)
    for piece in _largest_first(piece_bytes):
        server = min(range(len(loads)), key=lambda each: (counts[each], loads[each]))
        servers[piece] = server
        counts[server] += 1
        loads[server] += piece_bytes[piece]
    return servers


def deal_tables(tables: Sequence[Sequence[int]], loads: Sequence[int]) -> list[list[int]]:
    """Return the servers of the pieces of several tables; the largest table is dealt first.

    Small tables of one piece so fill up what large ones leave (longest processing time first).

    Args:
        tables: The bytes of each piece of each table.
        loads: Bytes that each server holds so far.
    """
    loads = list(loads)
    placed: list[list[int]] = [[] for _ in tables]
    for table in _largest_first([sum(each) for each in tables]):
        placed[table] = deal_pieces(tables[table], loads)
        for server, size in zip(placed[table], tables[table]):
            loads[server] += size
    return placed


def _largest_first(sizes: Sequence[int]) -> list[int]:
    """Return positions, by size; of equal ones the first comes first."""
    return sorted(range(len(sizes)), key=lambda each: -sizes[each])


def imbalance(loads: Sequence[float]) -> float:
    """Return how many times the mean the largest load is; 1 if there is no load."""
    total = sum(loads)
    return max(loads) * len(loads) / total if total else 1.0
