"""The union of what hosts have of some tables, on all of them, for sums that all ranks get.

The first rank of each host speaks for it. Their rows go as they are, or each first merges a range of the
ids and then gives that to the others: whichever is fewer bytes, for each table (``row_cuts.py``).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvstore_mpi.records import Rows
from kvstore_mpi.tensor_collectives import row_cuts
from kvstore_mpi.tensor_collectives.row_blocks import id_type, no_rows, row_bytes
from kvstore_mpi.tensor_collectives.row_messages import numbers
from kvstore_mpi.tensor_collectives.row_sums import partial_sums

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

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
        mine = np.concatenate([row_cuts.sample(each.rows.ids, len(leaders)) for each in sums])
        told = {**self._messages.tell(dict.fromkeys(others, mine), others, mine.size), self._rank: mine}
        samples = [
            [told[rank].reshape(len(sums), -1)[number] for rank in leaders] for number in range(len(sums))
        ]
        numbers = [sum(int(each[0]) for each in of_table) for of_table in samples]
        first = [self._merges_first(each, number) for each, number in zip(sums, numbers)]
        unions: list[Rows] = [no_rows(each.table) for each in sums]
        for merges, way in ((True, self._merge_first), (False, self._send_all)):
            places = [place for place, which in enumerate(first) if which is merges]
            if places:
                came = way([sums[place] for place in places], [samples[place] for place in places])
                for place, union in zip(places, came):
                    unions[place] = union
        for each, union, number in zip(sums, unions, numbers):
            if number:
                self._overlap[each.key] = union.ids.size / number
        return unions

    def _partial(self, table: Table) -> Table:
        return partial_sums(table) if self._wide else table

    def _merges_first(self, each: Summed, num_rows: int) -> bool:
        num_bytes, ranks = row_bytes(self._partial(each.table)), len(self._leaders)
        return row_cuts.merges_first(num_rows, num_bytes, ranks, self._overlap.get(each.key, 1.0))

    def _send_all(self, sums: Sequence[Summed], samples: Sequence[Sequence[Array]]) -> list[Rows]:
        """Give all rows to all, who merge them."""
        leaders, others = self._leaders, self._others
        rows = [each.rows for each in sums]
        counts = {
            rank: [int(each[place][0]) for each in samples]
            for place, rank in enumerate(leaders)
            if rank != self._rank
        }
        partials = [self._partial(each.table) for each in sums]
        came = {**self._messages.swap(dict.fromkeys(others, rows), counts, partials), self._rank: rows}
        of_hosts = [came[rank] for rank in leaders]
        return [
            self._sums.of([of_host[number] for of_host in of_hosts], each.table)
            for number, each in enumerate(sums)
        ]

    def _merge_first(self, sums: Sequence[Summed], samples: Sequence[Sequence[Array]]) -> list[Rows]:
        """Merge a range of the ids of each table, and give that to all."""
        leaders, others = self._leaders, self._others
        ranges = [
            _ranges(each.rows, row_cuts.cuts(of_table, each.table.num_rows))
            for each, of_table in zip(sums, samples)
        ]
        parts = {rank: [each[place] for each in ranges] for place, rank in enumerate(leaders)}
        own = parts.pop(self._rank)
        came = {
            **self._messages.swap_untold(parts, others, [self._partial(each.table) for each in sums]),
            self._rank: own,
        }
        merged = [
            self._sums.of([came[rank][number] for rank in leaders], each.table)
            for number, each in enumerate(sums)
        ]
        return self._join_between(merged, [each.table for each in sums])

    def _join_between(self, parts: Sequence[Rows], tables: Sequence[Table]) -> list[Rows]:
        """Return what the first ranks of all hosts have, one behind the other."""
        leaders, others = self._leaders, self._others
        if len(parts) > 1:
            came = {
                **self._messages.swap_untold(dict.fromkeys(others, parts), others, tables),
                self._rank: parts,
            }
            return [
                Rows(
                    np.concatenate([came[rank][number].ids for rank in leaders]),
                    np.concatenate([came[rank][number].values for rank in leaders]),
                )
                for number in range(len(parts))
            ]
        # The rows of a single table, which may be large, arrive where they are to be.
        [part], [table] = parts, tables
        told = self._messages.tell(dict.fromkeys(others, numbers(parts)), others, 1)
        counts = {rank: int(told[rank][0]) if rank in told else part.ids.size for rank in leaders}
        num_rows = sum(counts.values())
        space = Rows(np.empty(num_rows, id_type(table)), np.empty((num_rows, table.width), table.dtype))
        self._messages.fill(dict.fromkeys(counts, part), counts, space, table)
        return [Rows(space.ids.astype(np.int64), space.values)]


def _ranges(rows: Rows, starts: Array) -> list[Rows]:
    """Cut rows at ids."""
    bounds = np.searchsorted(rows.ids, starts).tolist()
    return [Rows(rows.ids[lo:hi], rows.values[lo:hi]) for lo, hi in itertools.pairwise(bounds)]
