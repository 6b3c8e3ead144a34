"""How many pieces of a table each server gets.

What a piece costs a server in a step is not its size but how many of its rows are touched, and the pieces
of a table are touched alike. So each table is dealt evenly to the servers, whatever these hold otherwise,
and bytes decide only where that leaves a choice. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def deal_pieces(count: int, loads: Sequence[int]) -> list[int]:
    """Return how many pieces each server gets; no server has more than one more than another.

    Args:
        count: Pieces of the table, of equal size.
        loads: Bytes that each server holds so far; those with the fewest get a piece more.
    """
    for_each, rest = divmod(count, len(loads))
    counts = [for_each] * len(loads)
    for server in sorted(range(len(loads)), key=loads.__getitem__)[:rest]:
        counts[server] += 1
    return counts
