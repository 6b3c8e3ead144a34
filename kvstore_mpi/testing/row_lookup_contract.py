"""What the ranks of a host must do with rows that they look up; each check is called by all of a group.

A part of ``row_contract``, which runs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.tensor_collectives.row_lookups import LookedUp
from kvstore_mpi.testing.row_ranks import NUMBERS, PIECES, Check, Ranks, Table, same
from kvstore_mpi.values.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Array = np.ndarray[Any, Any]


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
                _check_rows_of(each[ranks.rank].ids, parts, table)


def rows_are_given_with_those_of_other_tables(ranks: Ranks) -> None:
    """Tables whose ids were united by themselves, each asked for by another rank, and the reverse."""
    tables = [Table(60, 2, np.dtype(np.float32)), Table(70, 3, np.dtype(np.float64))]
    lookups = [
        LookedUp(np.arange(ranks.rank, 60, number + 2), table, [ranks.host[number % len(ranks.host)]])
        for number, table in enumerate(tables)
    ]
    apart, at_once = [[0], [1]], [[0, 1]]
    for asked, given in ((apart, at_once), (at_once, apart)):
        united = [
            ids
            for numbers in asked
            for ids in ranks.rows.lookups.unite([lookups[number] for number in numbers])
        ]
        have = [
            [Rows(union, _made_of(union, table))] for union, table in zip(map(_union_of, united), tables)
        ]
        for numbers in given:
            given_rows = ranks.rows.lookups.give(
                [lookups[number] for number in numbers],
                [have[number] for number in numbers],
                [united[number] for number in numbers],
            )
            for number, parts in zip(numbers, given_rows):
                _check_rows_of(lookups[number].ids, parts, tables[number])


def of_rows_since_a_version_those_come_that_have_changed(ranks: Ranks) -> None:
    """Of one table, beside another one of which all rows come, in a message or in several."""
    tables = [Table(60, 2, np.dtype(np.float32)), Table(70, 3, np.dtype(np.float64))]
    ids = np.arange(ranks.rank, 60, 3)
    for used in ([0], [1], [0, 1]):
        steps = [number + 1 for number in used]  # of what has changed: each row, every second one
        some = [tables[number] for number in used]
        lookups = [
            LookedUp(ids, table, [ranks.host[-1]], only_newer=step > 1) for table, step in zip(some, steps)
        ]
        united = ranks.rows.lookups.unite(lookups)
        came = [union[union % step == 0] for union, step in zip(map(_union_of, united), steps)]
        have = [[Rows(each, _made_of(each, table))] for each, table in zip(came, some)]
        for table, step, parts in zip(some, steps, ranks.rows.lookups.give(lookups, have, united)):
            _check_rows_of(ids[ids % step == 0], parts, table)


def _union_of(by_rank: Mapping[int, Array]) -> Array:
    union: Array = np.unique(np.concatenate(list(by_rank.values())))
    return union


def _check_rows_of(wanted: Array, parts: Sequence[Rows], table: Table) -> None:
    """Check that the rows of some ids have come, in parts."""
    ids, values = (np.concatenate(each) for each in zip(*parts))
    order = np.argsort(ids)
    same(Rows(ids[order], values[order]), Rows(wanted, _made_of(wanted, table)))


def _made_of(ids: Array, table: Table) -> Array:
    """Return rows that say which they are."""
    values: Array = ((ids[:, None] + np.arange(table.width)) % 2_000).astype(table.dtype)
    return values


CHECKS: tuple[Check, ...] = (
    ranks_of_a_host_look_up_together,
    rows_are_given_with_those_of_other_tables,
    of_rows_since_a_version_those_come_that_have_changed,
)
