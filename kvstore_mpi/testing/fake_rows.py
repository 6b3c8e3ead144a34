"""Tables of a group of fake workers: sums, lazy updates and answers of changed rows, in the dumbest way.

Each table is one dense array beside the numbers of the versions in which its rows have changed last, and
an update is that of the whole array, of which only the pushed rows are kept.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvstore_mpi.errors import UsageError
from kvstore_mpi.records import Rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvstore_mpi.interfaces import Done
    from kvstore_mpi.records import FetchedVersions, Key
    from kvstore_mpi.testing.fake_answers import Call
    from kvstore_mpi.testing.fake_rules import Rule

    Answer = Callable[[Call, Done, Callable[[], None] | None], None]

Array = np.ndarray[Any, Any]


class Init(NamedTuple):
    """One worker's ``init_rows``."""

    call: Call
    shape: tuple[int, ...]
    dtype: str
    value: Array | None
    done: Done


class Push(NamedTuple):
    """One worker's ``push_rows``, or, with ``out``, its ``pushpull_rows``."""

    call: Call
    rows: Rows
    done: Done
    out: list[Rows] | None


class _Table:
    """One table on the servers."""

    def __init__(self, value: Array) -> None:
        self.value = value
        self.version = 0
        self.changed = np.zeros(len(value), np.int64)
        self.known: dict[int, int] = {}
        self.summed: Array | None = None  # the rows of the sum that is the value

    def change(self, ids: Array) -> None:
        """Note that rows have changed."""
        self.version += 1
        self.changed[ids] = self.version

    def news(self, rank: int) -> Array:
        """Return the ids of the rows that have changed since this worker last asked, or of the sum."""
        known = self.known.get(rank, -1)
        self.known[rank] = self.version
        if self.summed is not None:
            return self.summed
        return np.flatnonzero(self.changed > known)


class Tables:
    """The tables of a group."""

    def __init__(self, answer: Answer, ranks: range, rules: dict[int, Rule], *, on_servers: bool) -> None:
        """Start without tables.

        Args:
            answer: Ends a call, with the function that hands over what is answered.
            ranks: Of the workers.
            rules: What servers do with sums, by the number of the store.
            on_servers: There are some; otherwise workers are given sums.
        """
        self._answer = answer
        self._ranks = ranks
        self._rules = rules
        self._on_servers = on_servers
        self._tables: dict[tuple[int, Key], _Table] = {}
        self._inits: dict[tuple[int, Key], dict[int, Init]] = {}
        self._pushes: dict[tuple[int, Key], list[deque[Push]]] = {}

    def init(self, init: Init, mode: str) -> None:
        """Take a worker's ``init_rows``; the table is there when all workers have called it."""
        place = init.call.store, init.call.key
        waiting = self._inits.setdefault(place, {})
        waiting[init.call.rank] = init
        if len(waiting) < len(self._ranks):
            return
        first = waiting[0].value
        kinds = {(each.shape, each.dtype) for each in waiting.values()}
        if first is None or len(kinds) > 1:
            raise UsageError(
                f"key {init.call.key!r} is made of different tables {kinds}, or rank 0 has none"
            )
        table = self._tables[place] = _Table(first.reshape(len(first), -1).copy())
        for rank, each in waiting.items():
            give = None
            if each.value is not None:
                assert each.value.shape == each.shape
                give = partial(np.copyto, each.value, first.copy())
                table.known[rank] = table.version
            assert give or self._keeps_tables(mode)
            self._answer(each.call, each.done, give)

    def is_begun(self, store: int, key: Key) -> bool:
        """Tell whether some worker has called ``init_rows``."""
        return (store, key) in self._inits

    def row_bytes(self, store: int) -> dict[Key, int]:
        """Return the bytes of a row of each table of a store."""
        return {
            key: table.value[0].nbytes for (number, key), table in self._tables.items() if number == store
        }

    def _keeps_tables(self, mode: str) -> bool:
        return self._on_servers and mode != "client"

    def push(self, push: Push, mode: str) -> None:
        """Take a worker's push, which is summed when all workers have pushed, or at once."""
        place = push.call.store, push.call.key
        if place not in self._tables:
            raise UsageError(f"{push.call.name} of key {push.call.key!r} before its init_rows")
        check_rows(push.rows, self._tables[place].value)
        if mode == "async" or (self._on_servers and not self._keeps_tables(mode)):
            self._apply([push], mode)
            return
        waiting = self._pushes.setdefault(place, [deque() for _ in self._ranks])
        waiting[push.call.rank].append(push)
        if all(waiting):
            self._apply([each.popleft() for each in waiting], mode)

    def pull(
        self,
        call: Call,
        done: Done,
        out: list[Rows],
        ids: Array | None,
        since: FetchedVersions | None = None,
    ) -> None:
        """Answer with some rows, or with those that have changed."""
        if not self._on_servers:
            raise UsageError(f"{call.name} of key {call.key!r} without servers")
        table = self._tables[call.store, call.key]
        ids = table.news(call.rank) if ids is None else ids
        if since is not None:  # a table of one piece
            ids = ids[table.changed[ids] > since.of_pieces.get(0, -1)]
            since.of_pieces[0] = table.version
        self._answer(call, done, partial(out.extend, _parts(ids, table.value)))

    def _apply(self, pushes: list[Push], mode: str) -> None:
        call = pushes[0].call
        table = self._tables[call.store, call.key]
        ids, total = _sum_of([push.rows for push in pushes], table.value)
        on_servers = self._keeps_tables(mode)
        if on_servers:
            self._update(call, table, ids, total)
        for push in pushes:
            give = None
            if push.out is not None:
                news = table.news(push.call.rank) if on_servers else ids
                give = partial(push.out.extend, _parts(news, table.value if on_servers else total))
            self._answer(push.call, push.done, give)

    def _update(self, call: Call, table: _Table, ids: Array, total: Array) -> None:
        rule = self._rules.get(call.store)
        if rule is None:
            before = np.arange(len(table.value)) if table.summed is None else table.summed
            table.change(np.union1d(before, ids))
            table.value[:], table.summed = total, ids
            return
        rule.update_rows(call.key, table.value, ids, total)
        table.summed = None
        table.change(ids)


def check_rows(rows: Rows, table: Array) -> None:
    """Make sure that rows are what ``Rows`` promises, and fit a table."""
    ids, values = rows
    assert ids.dtype == np.int64, ids.dtype
    assert (np.diff(ids) > 0).all(), ids
    assert ids.size == 0 or 0 <= ids[0] <= ids[-1] < len(table), ids
    assert values.shape == (len(ids), table.shape[1]), values.shape
    assert values.dtype == table.dtype, values.dtype
    assert values.flags.c_contiguous


def _sum_of(pushed: list[Rows], table: Array) -> tuple[Array, Array]:
    """Return all ids, and the sum as a dense table."""
    total = np.zeros_like(table)
    for ids, values in pushed:
        total[ids] += values
    return np.unique(np.concatenate([rows.ids for rows in pushed])), total


def _parts(ids: Array, table: Array) -> list[Rows]:
    """Return copies of rows of a table in two parts, as of two servers."""
    return [Rows(part, table[part]) for part in (ids[ids % 2 == 1], ids[ids % 2 == 0])]


class Uncounted:
    """A worker that counts nothing."""

    def travelled(self, store: int, key: Key) -> float | None:  # noqa: ARG002  nothing is known of any
        """See ``interfaces.KVWorker``."""
        return None

    def stats(self) -> dict[str, float]:
        """See ``interfaces.KVWorker``."""
        return {}
