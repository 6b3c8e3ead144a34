"""What the ranks of a client must do with rows of tables; each check is called by all ranks of a group.

``mpiexec -n 3 python -m mpi4py -m kvstore_mpi.testing.row_contract`` runs all checks over MPI. Expected
values are computed from rank and size, so any size will do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.tensor_collectives.driver import Driver
from kvstore_mpi.tensor_collectives.row_unions import Summed
from kvstore_mpi.tensor_collectives.rows import Pushed, RowCollectives
from kvstore_mpi.testing import row_lookup_contract
from kvstore_mpi.testing.row_ranks import (
    NUMBERS,
    PIECES,
    Check,
    HasRows,
    Ranks,
    Table,
    contribution,
    same,
)
from kvstore_mpi.values.rows import RowMerger, Rows

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from kvstore_mpi.interfaces import Communicator

Array = np.ndarray[Any, Any]

DTYPES = ("float16", "float32", "float64", "int8", "int32", "int64")
CHECKS: list[Check] = [*row_lookup_contract.CHECKS]


def check(function: Check) -> Check:
    """Add a check to those that every group must pass."""
    CHECKS.append(function)
    return function


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
