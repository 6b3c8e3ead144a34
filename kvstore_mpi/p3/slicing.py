"""How the shards of a key are cut into slices, and which rank of a client pushes which slice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore_mpi.records import Shard, Slice

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


SLICE_ELEMENTS = 50_000
"""Most elements of a slice that crosses a link, if nothing else is said: the optimum of P3, section 5.6."""


def cut(key_id: int, shards: Iterable[Shard], slice_elements: int) -> list[tuple[int, Slice]]:
    """Cut shards into slices of at most ``slice_elements`` elements.

    An empty shard gives one empty slice, so that an empty key is pushed and answered like any other.

    Returns:
        (server, slice) in ascending order of elements.
    """
    slices = []
    for server, lo, hi in shards:
        starts = range(lo, hi, slice_elements) if hi > lo else (lo,)
        slices += [(server, Slice(key_id, a, min(a + slice_elements, hi))) for a in starts]
    return slices


def deal_to_ranks(key_id: int, num_slices: int, ranks: int) -> list[int]:
    """Return which rank of a client pushes each slice of a key.

    Every rank gets a run of neighbours, so that these can share messages and collectives; and every key
    begins with another rank, so that keys of one slice are spread as well.
    """
    return [(key_id + position * ranks // num_slices) % ranks for position in range(num_slices)]


def deal_to_ranks_near(key_id: int, servers: Sequence[int], num_servers: int, ranks: int) -> list[int]:
    """Return which rank of a client pushes each piece of a table: one of those that are near its server.

    Where ranks and servers are dealt to hosts in the same order, what a rank has merged stays on its host.
    With another rank rows would cross a link on their way to it, and again to the server.

    Args:
        key_id: Number of the table; ranks that are equally near take turns.
        servers: The server of each piece.
        num_servers: Of the whole job.
        ranks: That push.
    """
    dealt = []
    for position, server in enumerate(servers):
        first, end = server * ranks // num_servers, (server + 1) * ranks // num_servers
        dealt.append(first + (key_id + position) % max(1, end - first))
    return dealt
