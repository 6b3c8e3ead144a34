"""What the ranks of a client must do with rows of tables; each check is called by all ranks of a group.

``mpiexec -n 3 python -m mpi4py -m kvstore_mpi.testing.row_contract`` runs all checks over MPI. Expected
values are computed from rank and size, so any size will do.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from kvstore_mpi.tensor_collectives.driver import Driver
from kvstore_mpi.tensor_collectives.row_lookups import LookedUp
from kvstore_mpi.tensor_collectives.row_unions import Summed
from kvstore_mpi.tensor_collectives.rows import Pushed, RowCollectives
from kvstore_mpi.values.rows import RowMerger, Rows, sum_type

if TYPE_CHECKING:
    from kvstore_mpi.interfaces import Communicator

Array = np.ndarray[Any, Any]

DTYPES = ("float16", "float32", "float64", "int8", "int32", "int64")
NUMBERS = ((0, 0, 0, 0), (5, 0, 3, 0), (0, 1, 0, 0), (700, 650, 900, 1), (400, 400, 400, 400))
"""Rows of each rank; further ranks begin again."""

PIECES = 7


class Table(NamedTuple):
    """What rows are of."""

    num_rows: int
    width: int
    dtype: np.dtype[Any]

    @staticmethod
    def pieces_of(ids: Array) -> Array:
        """Return the number of the piece of each row."""
        return ids % PIECES


class HasRows(Protocol):
    """Ranks that do something together with rows."""

    @property
    def rows(self) -> RowCollectives:
        """What they do."""
        ...


class Ranks(NamedTuple):
    """A group of ranks, as one of them sees it."""

    rank: int
    hosts: Sequence[Sequence[int]]
    rows: RowCollectives
    host: Sequence[int]
    """Those of its host, whether they share memory or not."""

    @property
    def size(self) -> int:
        """Number of ranks."""
        return sum(map(len, self.hosts))

    def contributions(self, table: Table, numbers: Sequence[int]) -> list[Rows]:
        """Return what each rank has."""
        return [contribution(rank, table, numbers[rank % len(numbers)]) for rank in range(self.size)]

    def total(self, parts: Sequence[Rows], table: Table) -> Rows:
        """Return the sum of what all ranks have: in their order on each host, then in that of hosts."""
        if self.size == 1:
            return parts[0]
        partial = table._replace(dtype=sum_type(table.dtype))
        return total([total([parts[rank] for rank in host], partial) for host in self.hosts], table)


Check = Callable[[Ranks], None]
CHECKS: list[Check] = []


def check(function: Check) -> Check:
    """Add a check to those that every group must pass."""
    CHECKS.append(function)
    return function


def contribution(rank: int, table: Table, number: int) -> Rows:
    """Return what a rank has: rows with ids at random, mostly small ones, and values that need rounding."""
    source = np.random.default_rng((rank, number))
    share = np.sort(source.random(table.num_rows if table.num_rows < 1 << 20 else 2 * number + 1) ** 3)
    ids = np.unique((share * (table.num_rows - 1)).astype(np.int64))
    ids = np.sort(source.permutation(ids)[:number])
    values = 100 * source.standard_normal((ids.size, table.width))
    values[::3] = -0.0
    return Rows(ids, values.astype(table.dtype))


def total(parts: Sequence[Rows], table: Table) -> Rows:
    """Return the sum of rows in their order, by means of a dense array."""
    ids = np.unique(np.concatenate([part.ids for part in parts]))
    wide = np.dtype(np.float32) if table.dtype == np.float16 else table.dtype
    values: Array = np.zeros((ids.size, table.width), wide)
    for part in parts:
        values[np.searchsorted(ids, part.ids)] += part.values
    return Rows(ids, values.astype(table.dtype))


def same(rows: Rows, wanted: Rows) -> None:
    """Make sure that rows have the bits of others."""
    np.testing.assert_array_equal(rows.ids, wanted.ids)
    assert rows.ids.dtype == np.int64
    assert rows.values.dtype == wanted.values.dtype
    assert rows.values.shape == wanted.values.shape
    np.testing.assert_array_equal(rows.values, wanted.values)
    assert rows.values.tobytes() == wanted.values.tobytes()


def reduced(ranks: HasRows, rows: Rows, table: Table, owners: Sequence[int]) -> Rows:
    """Sum the rows of a single table for the owners of its pieces."""
    [came] = ranks.rows.reduce([Pushed(rows, table, owners)])
    return came


def summed(ranks: HasRows, rows: Rows, table: Table, key: Hashable) -> Rows:
    """Sum the rows of a single table for all."""
    [came] = ranks.rows.allreduce([Summed(rows, table, key)])
    return came


def spread(ranks: HasRows, parts: Sequence[Rows] | None, table: Table, root: int) -> list[Rows]:
    """Give a rank's rows of a single table to all."""
    [came] = ranks.rows.broadcast([parts], [table], root)
    return came


def _picked(rows: Rows, which: Array) -> Rows:
    return Rows(rows.ids[which], rows.values[which])


@check
def one_rank_gets_the_sum(ranks: Ranks) -> None:
    """Of any type and number of rows; the others get none, and nobody's rows change."""
    for dtype in DTYPES:
        table = Table(1_500, 3, np.dtype(dtype))
        for numbers in NUMBERS:
            parts = ranks.contributions(table, numbers)
            for root in range(ranks.size):
                wanted = ranks.total(parts, table) if ranks.rank == root else contribution(0, table, 0)
                own = contribution(ranks.rank, table, numbers[ranks.rank % len(numbers)])
                same(reduced(ranks, own, table, [root] * PIECES), wanted)
                same(own, parts[ranks.rank])


@check
def every_owner_gets_the_sum_of_its_pieces(ranks: Ranks) -> None:
    """With more owners and with fewer; some own several pieces."""
    for dtype in DTYPES:
        table = Table(1_500, 3, np.dtype(dtype))
        for numbers in NUMBERS:
            parts = ranks.contributions(table, numbers)
            for count in range(2, ranks.size + 1):
                owners = [ranks.size - 1 - piece % count for piece in range(PIECES)]
                union = ranks.total(parts, table)
                wanted = _picked(union, np.array(owners)[union.ids % PIECES] == ranks.rank)
                same(reduced(ranks, parts[ranks.rank], table, owners), wanted)


@check
def all_ranks_get_the_sum(ranks: Ranks) -> None:
    """With the same bits the first time and later, when it is known how many ids are those of several."""
    for width, dtype in ((width, dtype) for width in (1, 40) for dtype in DTYPES):
        table = Table(1_500, width, np.dtype(dtype))
        for numbers in NUMBERS:
            parts = ranks.contributions(table, numbers)
            wanted = ranks.total(parts, table)
            for _ in range(3):
                same(summed(ranks, parts[ranks.rank], table, (width, dtype, numbers)), wanted)


@check
def one_rank_spreads_its_rows(ranks: Ranks) -> None:
    """In as many parts as it has."""
    for dtype in DTYPES:
        table = Table(1_500, 3, np.dtype(dtype))
        for root in range(ranks.size):
            for numbers in ((), (0,), (0, 0), (9,), (4, 0, 900)):
                parts = [contribution(index, table, number) for index, number in enumerate(numbers)]
                given = parts if ranks.rank == root else None
                came = spread(ranks, given, table, root)
                assert len(came) == len(parts)
                for one, wanted in zip(came, parts):
                    same(one, wanted)


@check
def one_rank_spreads_a_table(ranks: Ranks) -> None:
    """Of any shape, in place."""
    for root in range(ranks.size):
        for shape in ((0, 3), (7, 1), (40, 2, 5)):
            value = np.full(shape, 1.0 + ranks.rank)
            ranks.rows.broadcast_value(value, root)
            np.testing.assert_array_equal(value, np.full(shape, 1.0 + root))


@check
def ids_may_be_huge(ranks: Ranks) -> None:
    """Above what 32 bits hold, up to the last."""
    for num_rows in (1 << 31, (1 << 31) + 1, (1 << 62) + 7):
        table = Table(num_rows, 2, np.dtype(np.float32))
        parts = [contribution(rank, table, 40) for rank in range(ranks.size)]
        parts = [Rows(np.append(ids[:-1], num_rows - 1), values) for ids, values in parts]
        wanted = ranks.total(parts, table)
        own = parts[ranks.rank]
        same(summed(ranks, own, table, num_rows), wanted)
        root = ranks.size - 1
        came = reduced(ranks, own, table, [root] * PIECES)
        if ranks.rank == root:
            same(came, wanted)
        [came] = spread(ranks, [own] if ranks.rank == root else None, table, root)
        same(came, parts[root])


@check
def tables_together_are_as_each_alone(ranks: Ranks) -> None:
    """Of any types, widths and owners, large, small and without rows, in one call, with the same bits."""
    tables = [
        Table(1_500, 3, np.dtype(np.float16)),
        Table(1_500, 40, np.dtype(np.float64)),
        Table(1 << 40, 1, np.dtype(np.float32)),
        Table(9, 5, np.dtype(np.int8)),
        Table(40_000, 17, np.dtype(np.float32)),
    ]
    owners = [[(piece + number) % ranks.size for piece in range(PIECES)] for number in range(3)]
    owners += [[0] * PIECES, [ranks.size - 1] * PIECES]
    for numbers in (*NUMBERS, (2_000, 2_000, 1_999, 0)):
        parts = [ranks.contributions(table, numbers) for table in tables]
        own = [each[ranks.rank] for each in parts]
        unions = [ranks.total(each, table) for each, table in zip(parts, tables)]
        for _ in range(3):
            came = ranks.rows.allreduce([Summed(*each) for each in zip(own, tables, range(len(tables)))])
            for one, wanted in zip(came, unions):
                same(one, wanted)
        came = ranks.rows.reduce([Pushed(*each) for each in zip(own, tables, owners)])
        for one, union, of_pieces in zip(came, unions, owners):
            same(one, _picked(union, np.array(of_pieces)[union.ids % PIECES] == ranks.rank))
        for root in range(ranks.size):
            given = [each[: 2 - number % 3] for number, each in enumerate(parts)]
            sent = [each if ranks.rank == root else None for each in given]
            for came_parts, wanted_parts in zip(ranks.rows.broadcast(sent, tables, root), given):
                assert len(came_parts) == len(wanted_parts)
                for one, wanted in zip(came_parts, wanted_parts):
                    same(one, wanted)


@check
def float16_is_rounded_once(ranks: Ranks) -> None:
    """Ones added to 2048 one by one would all be lost in float16."""
    if ranks.size == 1:
        return
    table = Table(9, 1, np.dtype(np.float16))
    first = 2048.0 if ranks.rank == 0 else 1.0
    own = Rows(np.array([4]), np.array([[first]], np.float16))
    wanted = Rows(np.array([4]), np.array([[2048.0 + ranks.size - 1]], np.float16))
    same(summed(ranks, own, table, "halves"), wanted)
    came = reduced(ranks, own, table, [0] * PIECES)
    if ranks.rank == 0:
        same(came, wanted)


@check
def whole_numbers_are_exact(ranks: Ranks) -> None:
    """Beyond what a float holds."""
    table = Table(9, 2, np.dtype(np.int64))
    own = Rows(np.array([0, 8]), np.full((2, 2), (1 << 60) + 1))
    wanted = Rows(np.array([0, 8]), np.full((2, 2), ranks.size * ((1 << 60) + 1)))
    same(summed(ranks, own, table, "whole"), wanted)


@check
def what_was_returned_stays(ranks: Ranks) -> None:
    """Though sizes grow and shrink from call to call, and ranks enter and leave at different times."""
    table = Table(5_000, 8, np.dtype(np.float32))
    results = []
    for step, number in enumerate((3, 40, 2_000, 10, 4_000, 4_001, 0, 3_999)):
        parts = [contribution(rank, table, max(0, number - rank)) for rank in range(ranks.size)]
        own, root = parts[ranks.rank], step % ranks.size
        union = ranks.total(parts, table)
        results.append((summed(ranks, own, table, "table"), union))
        came = reduced(ranks, own, table, [root] * PIECES)
        if ranks.rank == root:
            results.append((came, union))
        came_parts = spread(ranks, parts[:2] if ranks.rank == root else None, table, root)
        results += zip(came_parts, parts[:2])
    for came, wanted in results:
        same(came, wanted)


@check
def ranks_of_a_host_look_up_together(ranks: Ranks) -> None:
    """Each gets the rows of its own ids, which one rank of its host has, in one or several parts."""
    tables = [Table(1_500, 3, np.dtype(np.float16)), Table(1 << 40, 40, np.dtype(np.float64))]
    for count in range(1, len(ranks.host) + 1):
        of_pieces = [ranks.host[piece % count] for piece in range(PIECES)]
        for used, numbers in ((used, numbers) for used in (tables[:1], tables) for numbers in NUMBERS):
            wanted = [ranks.contributions(table, numbers) for table in used]
            lookups = [
                LookedUp(each[ranks.rank].ids, table, of_pieces) for each, table in zip(wanted, used)
            ]
            united = ranks.rows.lookups.unite(lookups)
            have = []
            for table, each, ids in zip(used, wanted, united):
                union = np.unique(np.concatenate([each[rank].ids for rank in ranks.host]))
                mine = union[np.array(of_pieces)[union % PIECES] == ranks.rank]
                asked = np.concatenate(list(ids.values()))
                np.testing.assert_array_equal(np.unique(asked), mine)
                pieces = [mine[mine % PIECES == piece] for piece in range(PIECES)]
                have.append([Rows(some, _made_of(some, table)) for some in pieces])
            for table, each, parts in zip(used, wanted, ranks.rows.lookups.give(lookups, have, united)):
                ids = np.concatenate([part.ids for part in parts])
                order = np.argsort(ids)
                values = np.concatenate([part.values for part in parts])
                own = each[ranks.rank].ids
                same(Rows(ids[order], values[order]), Rows(own, _made_of(own, table)))


@check
def rows_are_given_with_those_of_other_tables(ranks: Ranks) -> None:
    """Tables whose ids were united by themselves, each asked for by another rank, and the reverse."""
    tables = [Table(60, 2, np.dtype(np.float32)), Table(70, 3, np.dtype(np.float64))]
    lookups = [
        LookedUp(np.arange(ranks.rank, 60, number + 2), table, [ranks.host[number % len(ranks.host)]])
        for number, table in enumerate(tables)
    ]
    apart, at_once = [[0], [1]], [[0, 1]]
    for asked, given in ((apart, at_once), (at_once, apart)):
        united = {
            number: ids
            for numbers in asked
            for number, ids in zip(numbers, ranks.rows.lookups.unite([lookups[each] for each in numbers]))
        }
        unions = [np.unique(np.concatenate(list(ids.values()))) for _, ids in sorted(united.items())]
        have = [[Rows(union, _made_of(union, table))] for union, table in zip(unions, tables)]
        for numbers in given:
            given_rows = ranks.rows.lookups.give(
                [lookups[number] for number in numbers],
                [have[number] for number in numbers],
                [united[number] for number in numbers],
            )
            for number, parts in zip(numbers, given_rows):
                ids = np.concatenate([part.ids for part in parts])
                values = np.concatenate([part.values for part in parts])
                own = lookups[number].ids
                same(Rows(ids, values), Rows(own, _made_of(own, tables[number])))


@check
def of_rows_since_a_version_those_come_that_have_changed(ranks: Ranks) -> None:
    """Of two tables each, with another one of which all rows come, in a message or in several."""
    tables = [Table(60, 2, np.dtype(np.float32)), Table(70, 3, np.dtype(np.float64))]
    asker, ids = ranks.host[-1], np.arange(ranks.rank, 60, 3)
    for used in ([0], [1], [0, 1]):
        lookups = [LookedUp(ids, tables[number], [asker], only_newer=number == 1) for number in used]
        united = ranks.rows.lookups.unite(lookups)
        have = []
        for number, by_rank in zip(used, united):
            union = np.unique(np.concatenate(list(by_rank.values())))
            came = union[union % 2 == 0] if number == 1 else union
            have.append([Rows(came, _made_of(came, tables[number]))])
        for number, parts in zip(used, ranks.rows.lookups.give(lookups, have, united)):
            wanted = ids[ids % 2 == 0] if number == 1 else ids
            came, values = (np.concatenate(each) for each in zip(*parts))
            same(Rows(came, values), Rows(wanted, _made_of(wanted, tables[number])))


def _made_of(ids: Array, table: Table) -> Array:
    """Return rows that say which they are."""
    values: Array = ((ids[:, None] + np.arange(table.width)) % 2_000).astype(table.dtype)
    return values


def ranks_of(communicator: Communicator, *, shares: bool) -> Ranks:
    """Return the ranks of a communicator, which may share memory or send messages alone."""
    rows = RowCollectives(Driver(communicator), RowMerger(), shares=shares)
    hosts = communicator.hosts() if shares else [[rank] for rank in range(communicator.size)]
    [host] = [host for host in communicator.hosts() if communicator.rank in host]
    return Ranks(communicator.rank, hosts, rows, host)


def run_checks(communicator: Communicator) -> None:
    """Run all checks on a communicator, with messages alone and with shared memory."""
    for shares in (False, True):
        ranks = ranks_of(communicator, shares=shares)
        for one in CHECKS:
            one(ranks)


def main() -> None:
    """Run all checks on this rank of an MPI job; rank 0 says how many have passed."""
    from kvstore_mpi.comm.mpi import MpiCommunicator  # noqa: PLC0415  importing it initialises MPI

    communicator = MpiCommunicator()
    run_checks(communicator)
    if communicator.rank == 0:
        print(f"{len(CHECKS)} checks passed on {communicator.size} ranks", flush=True)  # noqa: T201
    communicator.close()


if __name__ == "__main__":
    main()
