"""What the ranks of one host look up together: ids go to the rank that asks for them, rows come back.

By messages, and not through memory that all of them map: an id is a few bytes, and of the rows each rank
gets its own, where in shared memory it would search for them among those of all. It must not know where the
rows come from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvstore_mpi.records import Rows
from kvstore_mpi.tensor_collectives.row_blocks import PartialSums, no_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvstore_mpi.tensor_collectives.row_blocks import DealtTable
    from kvstore_mpi.tensor_collectives.row_messages import RowMessages

Array = np.ndarray[Any, Any]

_NOTHING = np.dtype(np.uint8)
"""The type of the elements of rows without any."""


class LookedUp(NamedTuple):
    """What a rank looks up in a table.

    Attributes:
        ids: As in ``Rows``.
        table: What they are rows of.
        askers: The rank of its host that asks for the rows of each piece.
        only_newer: Of some ids no row comes: those that have not changed.
    """

    ids: Array
    table: DealtTable
    askers: Sequence[int]
    only_newer: bool = False

    def ids_of(self, asker: int) -> Array:
        """Return those for which a rank asks."""
        if asker not in self.askers:
            return self.ids[:0]
        if len(set(self.askers)) == 1:
            return self.ids
        of_ids = np.array(self.askers, np.uint16)[self.table.pieces_of(self.ids)]
        mine: Array = self.ids[of_ids == asker]
        return mine


class RowLookups:
    """One rank of a host, blocking; all ranks of it call the same methods for the same tables."""

    def __init__(self, messages: RowMessages, host: Sequence[int], rank: int) -> None:
        """Be one of the ranks of a host."""
        self._messages = messages
        self._rank = rank
        self._others = [other for other in host if other != rank]

    def unite(self, lookups: Sequence[LookedUp]) -> list[dict[int, Array]]:
        """Return, of each table, the ids for which this rank asks, by the rank that looks them up.

        Of every rank of the host, perhaps none: rows may be given together with those of other tables.
        """
        tables = [PartialSums(each.table.num_rows, 0, _NOTHING) for each in lookups]
        askers = _all_askers(lookups)
        sends = {
            asker: [_without_values(each.ids_of(asker)) for each in lookups]
            for asker in askers
            if asker != self._rank
        }
        came = self._messages.swap_untold(sends, self._others if self._rank in askers else [], tables)
        return [
            {
                self._rank: each.ids_of(self._rank),
                **{rank: came[rank][number].ids if came else each.ids[:0] for rank in self._others},
            }
            for number, each in enumerate(lookups)
        ]

    def give(
        self,
        lookups: Sequence[LookedUp],
        have: Sequence[Sequence[Rows]],
        wanted: Sequence[Mapping[int, Array]],
    ) -> list[list[Rows]]:
        """Return the rows that this rank looks up of each table, in parts.

        Args:
            lookups: What it looks up.
            have: Of each table the rows for which this rank has asked, in parts.
            wanted: What ``unite`` has returned.
        """
        found = [_Found(parts, each) for parts, each in zip(have, lookups)]
        askers = _all_askers(lookups)
        sends = {
            other: [rows.take(ids[other]) for rows, ids in zip(found, wanted)]
            for other in (self._others if self._rank in askers else ())
        }
        tables = [each.table for each in lookups]
        givers = [asker for asker in askers if asker != self._rank]
        if any(each.only_newer for each in lookups):  # how many these are, whoever has them knows
            came = self._messages.swap_untold(sends, givers, tables)
        else:
            counts = {asker: [each.ids_of(asker).size for each in lookups] for asker in givers}
            came = self._messages.swap(sends, counts, tables)
        return [
            [
                found[number].take(wanted[number][self._rank]),
                *(Rows(rows[number].ids, rows[number].values.copy()) for rows in came.values()),
            ]
            for number in range(len(lookups))
        ]


class _Found:
    """Rows of one table that have come in parts, of which no two have an id."""

    def __init__(self, parts: Sequence[Rows], looked_up: LookedUp) -> None:
        nothing = no_rows(looked_up.table)
        self._may_lack = looked_up.only_newer
        self._values = np.concatenate([nothing.values, *(part.values for part in parts)])
        ids = np.concatenate([nothing.ids, *(part.ids for part in parts)])
        self._order = np.argsort(ids, kind="stable")
        self._ids = ids[self._order]

    def take(self, ids: Array) -> Rows:
        """Return those of some ids, copied."""
        if self._may_lack:
            ids = np.intersect1d(ids, self._ids, assume_unique=True)
        return Rows(ids, self._values[self._order[np.searchsorted(self._ids, ids)]])


def _all_askers(lookups: Sequence[LookedUp]) -> list[int]:
    return sorted({asker for each in lookups for asker in each.askers})


def _without_values(ids: Array) -> Rows:
    return Rows(ids, np.empty((ids.size, 0), _NOTHING))
