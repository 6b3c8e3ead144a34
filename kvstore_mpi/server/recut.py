"""The pieces of a table that a server is to have, out of those of servers that had cut it otherwise. Pure.

Rows go by their ids, with their states and ages. Updates are counted by piece; where pieces had unequal
numbers of them, because their snapshots are of unequal moments, the new ones have the greatest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.errors import ConfigurationError
from kvstore_mpi.server.snapshot_records import LAST_USED, PLACES, UPDATES, USES, VALUE
from kvstore_mpi.values.row_index import ABSENT
from kvstore_mpi.values.row_sparse import RowSparse
from kvstore_mpi.wire.state_parts import MASTER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvstore_mpi.records import KeySpec
    from kvstore_mpi.server.snapshot_records import KeyRecord

Array = np.ndarray[Any, Any]
_Part = dict[int, Array]


class Recut:
    """Takes what servers had of a table, one after the other, and makes the pieces of a shard."""

    def __init__(self, spec: KeySpec, was: KeySpec, shard: tuple[int, int]) -> None:
        """Begin with nothing.

        Args:
            spec: Of the table, as it is to be cut.
            was: Of the table, as it was cut before.
            shard: Which pieces are wanted; as ``Create`` has it.
        """
        self._spec = spec
        self._layout = RowSparse(spec)
        # An entry also for a piece that gets no rows: it is a piece all the same, and one of which nothing
        # is told could not be restored.
        self._found: dict[int, list[_Part]] = {lo: [] for lo in range(*shard, 2)}
        self._count = 0  # of updates
        self._newest = 0  # number of the last update that any piece had
        # By the former cut, and not by what the files have: a server that died before it was given the
        # table has left no entry that would tell.
        self._missing = set(range(0, 2 * was.partitions, 2))  # old pieces that have not come
        self._cut = was.layout, was.partitions

    @staticmethod
    def wants(_key: KeyRecord) -> bool:
        """Return whether what a server had has to be read: always, as any piece may have rows of any."""
        return True

    def add(self, key: KeyRecord, arrays: Sequence[Array]) -> None:
        """Take what a server had; the arrays of a base, in the order of the key's records.

        Raises:
            ConfigurationError: It was cut otherwise than what the others had.
        """
        # Files of two jobs under the names of one, as a job leaves them that ends when some of its servers
        # have saved, and others have not: rows would be missing, or there twice.
        if (key.spec.layout, key.spec.partitions) != self._cut:
            raise self._unfit("pieces are cut in two ways: not all servers had saved when a job ended")
        # With a smaller count than rows have really seen, Adam would correct a bias that is no longer
        # there, and its next step would have the wrong size.
        self._count = max([self._count, *(unit.updates for unit in key.units)])
        # Which ids the places stand for, the cut that was decides, and not the one that is to be.
        old = RowSparse(key.spec)
        parts: dict[int, _Part] = {}
        for record, array in zip(key.arrays, arrays):
            parts.setdefault(record.lo, {})[record.index] = array
        for lo, part in parts.items():
            self._missing.discard(lo)
            if self._layout.grows:
                self._add_growing(old, lo, part)
            else:
                self._add_fixed(old, lo, part)

    def _add_growing(self, old: RowSparse, lo: int, part: _Part) -> None:
        updates = int(part[UPDATES][0])
        self._newest = max(self._newest, updates)
        # Rows that wait to be admitted have places, ages and uses, but no values: the n-th place is not
        # that of the n-th row.
        has_values = part[USES] >= self._admit_after
        rows = np.where(has_values, np.cumsum(has_values) - 1, ABSENT)
        num_rows = int(has_values.sum())
        tables = {index: _by_rows(array, num_rows) for index, array in part.items() if index not in _ABOUT}
        # ``deal`` takes ascending places, and a piece has its rows in the order in which they came.
        order = np.argsort(part[PLACES])
        for target, which, places in self._deal(old, lo, part[PLACES][order]):
            chosen = order[which]
            its_rows = rows[chosen]
            its_rows = its_rows[its_rows != ABSENT]
            taken = {index: table[its_rows] for index, table in tables.items()}
            # Rows are as old as they were, by the count of their own piece.
            ages = {LAST_USED: updates - part[LAST_USED][chosen], USES: part[USES][chosen]}
            self._found[target].append({**taken, **ages, PLACES: places})

    def _add_fixed(self, old: RowSparse, lo: int, part: _Part) -> None:
        num_rows = old.rows_of(lo // 2)
        tables = {index: _by_rows(array, num_rows) for index, array in part.items()}
        for target, which, places in self._deal(old, lo, np.arange(num_rows)):
            self._found[target].append({index: table[which] for index, table in tables.items()})
            # Beside the rows, since where they belong is needed once all former pieces have been read.
            self._found[target][-1][PLACES] = places

    @property
    def _admit_after(self) -> int:
        return 1 if self._spec.growth is None else self._spec.growth.retention.admit_after

    def _deal(self, old: RowSparse, lo: int, places: Array) -> Iterator[tuple[int, Array, Array]]:
        """Deal ascending places of an old piece to the pieces that are wanted."""
        if places.size and not 0 <= places[0] <= places[-1] < old.rows_of(lo // 2):
            raise self._unfit(f"piece {lo // 2} has rows that are none of it")
        all_rows = np.arange(places.size)
        for piece, which, its_places in self._layout.deal(old.ids_of(lo // 2, places)):
            if 2 * piece in self._found:
                # Never as a view, which would keep all that the other server had. Places in eight bytes, as
                # snapshots have them.
                yield 2 * piece, all_rows[which], its_places.astype(np.int64)

    @property
    def updates(self) -> list[tuple[int, int]]:
        """The number that stands for each piece, and how often it was updated."""
        return [(lo, self._count) for lo in self._found]

    def _unfit(self, problem: str) -> ConfigurationError:
        return ConfigurationError(f"of key {self._spec.key!r} in the snapshots {problem}")

    def arrays(self) -> Iterator[tuple[tuple[int, int], Array]]:
        """Yield the arrays of the shard, as ``TableShard.contents`` does.

        Raises:
            ConfigurationError: Pieces of the table are missing.
        """
        # Only now: that no server had a piece is known when all of them have been read.
        if self._missing:
            missing = ", ".join(str(lo // 2) for lo in sorted(self._missing))
            raise self._unfit(f"pieces are missing: {missing}")
        # Over all pieces and not of each: one that was never updated has no states, and its rows may
        # now lie beside rows that have some.
        kinds = self._kinds()
        make = self._growing if self._layout.grows else self._fixed
        for lo, parts in self._found.items():
            yield from (((index, lo), array) for index, array in make(lo, parts, kinds))

    def _kinds(self) -> _Kinds:
        """Return width and type of the values and states that rows have."""
        tables = [
            (index, array)
            for parts in self._found.values()
            for part in parts
            for index, array in part.items()
            if index not in _ABOUT and len(array)
        ]
        dtype = self._layout.dtype
        # Also where there are no rows yet; see ``GrowingPiece`` for the type.
        rests = np.dtype(np.float32) if self._layout.grows and dtype == np.float16 else dtype
        kinds = {VALUE: (self._layout.width, rests)}
        for index, array in tables:
            kind = (array.shape[1], array.dtype)
            if kinds.setdefault(index, kind) != kind:
                raise self._unfit("pieces have rows or states of different kinds")
        # In the order that the check of a header wants.
        return {index: kinds[index] for index in sorted(kinds)}

    def _fixed(self, lo: int, parts: Sequence[_Part], kinds: _Kinds) -> Iterator[tuple[int, Array]]:
        num_rows = self._layout.rows_of(lo // 2)
        for index, (width, dtype) in kinds.items():
            # States that a piece had not yet begin with zeros, and a master with the value.
            table: Array = np.zeros((num_rows, width), dtype)
            for part in parts:
                rows = part.get(index, part[VALUE] if index == MASTER else None)
                if rows is not None:
                    table[part[PLACES]] = rows
            yield index, table.reshape(-1)

    def _growing(self, _lo: int, parts: Sequence[_Part], kinds: _Kinds) -> Iterator[tuple[int, Array]]:
        num_rows = [len(part[VALUE]) for part in parts]
        for index, (width, dtype) in kinds.items():
            tables = [
                part.get(index, np.zeros((count, width), dtype))
                for part, count in zip(parts, num_rows)
                if count
            ]
            yield index, np.concatenate([np.empty((0, width), dtype), *tables]).reshape(-1)
            if index == VALUE:
                # First in each list, because there is no concatenation of nothing, and a piece without rows
                # still has arrays of the right type.
                nothing = np.empty(0, np.int64)
                ages = np.concatenate([nothing, *(part[LAST_USED] for part in parts)])
                # One count for all rows from here on. Their ages are measured from it, or rows of a piece
                # that had fewer updates would be evicted too late, or pass for rows of a later time.
                yield UPDATES, np.array([self._newest])
                yield PLACES, np.concatenate([nothing, *(part[PLACES] for part in parts)])
                yield LAST_USED, self._newest - ages
                yield USES, np.concatenate([np.empty(0, np.int32), *(part[USES] for part in parts)])


_Kinds = dict[int, tuple[int, np.dtype[Any]]]
_ABOUT = frozenset({UPDATES, PLACES, LAST_USED, USES})


def _by_rows(array: Array, num_rows: int) -> Array:
    return array.reshape(num_rows, array.size // max(1, num_rows))
