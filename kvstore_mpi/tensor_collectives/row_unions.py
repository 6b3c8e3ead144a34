"""The union of what hosts have of some tables, on all of them, for sums that all ranks get.

The first rank of each host speaks for it. Their rows go as they are, or each first merges some of the ids
and then gives that to the others: whichever is fewer bytes, for each table (``row_dealing.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvstore_mpi.tensor_collectives import row_dealing
from kvstore_mpi.tensor_collectives.row_blocks import no_rows, row_bytes
from kvstore_mpi.tensor_collectives.row_messages import numbers
from kvstore_mpi.tensor_collectives.row_sums import partial_sums

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from kvstore_mpi.records import Rows
    from kvstore_mpi.tensor_collectives.row_blocks import Table
    from kvstore_mpi.tensor_collectives.row_messages import RowMessages
    from kvstore_mpi.tensor_collectives.row_sums import RowSums

Array = np.ndarray[Any, Any]


class Summed(NamedTuple):
    """What a rank has of a table whose sum all ranks get.

    Attributes:
        rows: Of this rank.
        table: What they are rows of.
        key: Names it; the overlap of the hosts' ids is taken to be about that of the last time.
    """

    rows: Rows
    table: Table
    key: Hashable


class Unions:
    """What the first rank of a host does together with those of the others; blocking."""

    def __init__(
        self,
        messages: RowMessages,
        leaders: Sequence[int],
        rank: int,
        sums: RowSums,
        *,
        wide: bool,
    ) -> None:
        """Start without knowing how many ids are those of several hosts.

        Args:
            messages: Between ranks.
            leaders: The first rank of each host.
            rank: The own one.
            sums: Makes sums.
            wide: A host's sums are not rounded yet.
        """
        self._messages = messages
        self._leaders, self._rank = leaders, rank
        self._others = [each for each in leaders if each != rank]
        self._sums = sums
        self._wide = wide
        self._overlap: dict[Hashable, float] = {}

    def of(self, sums: Sequence[Summed]) -> list[Rows]:
        """Return the union of each table with the sums of all hosts; all leaders call it."""
        leaders, others = self._leaders, self._others
        mine = numbers([each.rows for each in sums])
        told = {**self._messages.tell(dict.fromkeys(others, mine), others, mine.size), self._rank: mine}
        counts = np.stack([told[rank] for rank in leaders])
        totals = counts.sum(axis=0).tolist()
        first = [self._merges_first(each, number) for each, number in zip(sums, totals)]
        unions: list[Rows] = [no_rows(each.table) for each in sums]
        for merges in (True, False):
            places = [place for place, which in enumerate(first) if which is merges]
            if places:
                some = [sums[place] for place in places]
                came = self._merge_first(some) if merges else self._send_all(some, counts[:, places])
                for place, union in zip(places, came):
                    unions[place] = union
        for each, union, number in zip(sums, unions, totals):
            if number:
                self._overlap[each.key] = union.ids.size / number
        return unions

    def _partial(self, table: Table) -> Table:
        return partial_sums(table) if self._wide else table

    def _merges_first(self, each: Summed, num_rows: int) -> bool:
        num_bytes, ranks = row_bytes(self._partial(each.table)), len(self._leaders)
        return row_dealing.merges_first(num_rows, num_bytes, ranks, self._overlap.get(each.key, 1.0))

    def _send_all(self, sums: Sequence[Summed], counts: Array) -> list[Rows]:
        """Give all rows to all, who merge them.

        Args:
            sums: Of this host.
            counts: Number of rows of each host, of shape (hosts, tables).
        """
        others = self._others
        rows = [each.rows for each in sums]
        expected = {rank: counts[self._leaders.index(rank)].tolist() for rank in others}
        partials = [self._partial(each.table) for each in sums]
        came = {**self._messages.swap(dict.fromkeys(others, rows), expected, partials), self._rank: rows}
        return self._sum(came, [each.table for each in sums])

    def _merge_first(self, sums: Sequence[Summed]) -> list[Rows]:
        """Merge some of the ids of each table, and give that to all."""
        leaders, others = self._leaders, self._others
        dealt = [
            row_dealing.deal(
                each.rows, row_dealing.places_of(each.rows.ids, len(leaders)), range(len(leaders))
            )
            for each in sums
        ]
        parts = {rank: [each[place].taken() for each in dealt] for place, rank in enumerate(leaders)}
        own = parts.pop(self._rank)
        tables = [each.table for each in sums]
        came = self._messages.swap_untold(parts, others, [self._partial(table) for table in tables])
        merged = self._sum({**came, self._rank: own}, tables)
        spread = self._messages.swap_untold(dict.fromkeys(others, merged), others, tables)
        # Of each id one rank has a sum: they are put in order, and nothing is added.
        return self._sum({**spread, self._rank: merged}, tables)

    def _sum(self, of_ranks: Mapping[int, Sequence[Rows]], tables: Sequence[Table]) -> list[Rows]:
        """Sum the rows of all hosts, in the order of these."""
        of_hosts = [of_ranks[rank] for rank in self._leaders]
        return [
            self._sums.of([of_host[number] for of_host in of_hosts], table)
            for number, table in enumerate(tables)
        ]
