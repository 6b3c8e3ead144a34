"""Where the elements of a key live: which server owns which range.

Placement is by least-loaded bytes in the order in which keys are declared, so that every *prefix* of the
model is balanced over the servers to within a slice (round robin aliases with the period of the layers
and costs 10 to 60 %). A key's ranges are contiguous per server: ownership (shard) and message (slice)
stay separate ideas; ``p3/slicing.py`` cuts the slices.

Of few bytes a slice is much: a model of three slices on eight servers has one link carry seven times 200 KB
while others are idle. So what is dealt at once is smaller while servers hold little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore_mpi.hybrid.placement import deal_pieces
from kvstore_mpi.records import Shard

if TYPE_CHECKING:
    from collections.abc import Iterable

LEAST_BYTES = 32 << 10
"""What is dealt at once is not smaller: this crosses a link of 1 Gb/s in a quarter of a millisecond, and a
message takes about a tenth of one of its two processes."""

LOAD_FOR_EACH = 4
"""Nor is it larger than this part of what a server holds, as long as that is less than a slice."""


class Placement:
    """Assigns shards to servers; remembers how many bytes each server holds."""

    def __init__(self, num_servers: int, slice_elements: int, *, round_robin: bool = False) -> None:
        """Start with empty servers.

        Args:
            num_servers: At least 1.
            slice_elements: Granularity of the balance, in elements.
            round_robin: Deal slices to servers in turn, whatever they hold, as P3 does (section 4.1).
        """
        self._loads = [0] * num_servers
        # Apart: of a table a step touches some rows, of other keys every byte.
        self._table_loads = [0] * num_servers
        self._slice_elements = slice_elements
        self._round_robin = round_robin
        self._dealt = 0

    def place(self, num_elements: int, itemsize: int, *, whole: bool = False) -> list[Shard]:
        """Assign a key of ``num_elements`` elements of ``itemsize`` bytes.

        Args:
            num_elements: May be 0; the key then has one empty shard.
            itemsize: Bytes of one element.
            whole: Keep the key on one server, for optimizers that need the whole tensor.

        Returns:
            Shards in ascending order of elements, at most one per server, covering the key exactly.
        """
        slice_elements = num_elements if whole else self._dealt_at_once(num_elements, itemsize)
        num_slices = max(1, -(-num_elements // max(1, slice_elements)))
        shards = []
        lo = 0
        for server, count in self._deal(num_slices, max(1, slice_elements) * itemsize).items():
            hi = min(num_elements, lo + count * slice_elements)
            shards.append(Shard(server, lo, hi))
            self._loads[server] += (hi - lo) * itemsize
            lo = hi
        return shards

    def place_pieces(self, count: int, piece_bytes: int) -> list[Shard]:
        """Assign the pieces of a table: evenly, since steps touch them alike.

        Args:
            count: At least 1.
            piece_bytes: Of the largest.

        Returns:
            Shards as of ``place``; a piece ``p`` stands in them as ``[2p, 2p+1)``.
        """
        shards = []
        first = 0
        for server, dealt in enumerate(deal_pieces(count, self.loads)):
            if dealt:
                shards.append(Shard(server, 2 * first, 2 * (first + dealt)))
                self._table_loads[server] += dealt * piece_bytes
                first += dealt
        return shards

    def free(self, shards: Iterable[Shard], itemsize: int) -> None:
        """A key that ``place`` has assigned is gone."""
        for server, lo, hi in shards:
            self._loads[server] -= (hi - lo) * itemsize

    def free_pieces(self, shards: Iterable[Shard], piece_bytes: int) -> None:
        """A table that ``place_pieces`` has assigned is gone."""
        for server, lo, hi in shards:
            self._table_loads[server] -= (hi - lo) // 2 * piece_bytes

    def _dealt_at_once(self, num_elements: int, itemsize: int) -> int:
        """Return how many elements of a key are dealt at once, as many each time where that is no slice."""
        if self._round_robin or len(self._loads) == 1:
            return self._slice_elements
        held = sum(self._loads) // (LOAD_FOR_EACH * len(self._loads))
        most = max(LEAST_BYTES, held) // itemsize
        if most >= self._slice_elements:
            return self._slice_elements
        times = max(1, -(-num_elements // most))
        if times > len(self._loads):  # all servers get as many
            times += -times % len(self._loads)
        return -(-num_elements // times)

    def _deal(self, num_slices: int, slice_bytes: int) -> dict[int, int]:
        """Return how many slices each server gets when each goes to the least loaded, or the next.

        The server that was dealt the last slice comes last, for the last slice may be a short one.
        """
        loads = list(self._loads)
        counts: dict[int, int] = {}
        for _ in range(num_slices):
            server = self._dealt % len(loads) if self._round_robin else loads.index(min(loads))
            self._dealt += 1
            loads[server] += slice_bytes
            counts[server] = counts.pop(server, 0) + 1
        return counts

    @property
    def loads(self) -> tuple[int, ...]:
        """Bytes that each server holds so far."""
        return tuple(map(sum, zip(self._loads, self._table_loads)))
