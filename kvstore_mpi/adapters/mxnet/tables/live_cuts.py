"""Tables that are cut otherwise while a job trains, until its steps are as fast as they get (Parallax).

The times of steps are measured in the engine, where a push of the first such table ends, and added up over
all workers: so all feed the same search with the same numbers, and cut before the same push.
"""

from __future__ import annotations

import logging
import math
import time
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from kvstore_mpi.adapters.mxnet.tables.partitions import without_search
from kvstore_mpi.hybrid.partitions import (
    LARGEST_PIECE_BYTES,
    SAMPLE_STEPS,
    SteadySearch,
    StepTimes,
    most_partitions,
    steps_until_sample,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvstore_mpi.adapters.mxnet.exchange.exchange import Exchange
    from kvstore_mpi.adapters.mxnet.exchange.row_tables import RowTable
    from kvstore_mpi.adapters.mxnet.tables.partitions import Cut
    from kvstore_mpi.interfaces import Clock, Done
    from kvstore_mpi.records import Growth, Key
    from kvstore_mpi.rows_interface import RowsWorker

    Array = np.ndarray[Any, Any]

log = logging.getLogger("kvstore_mpi.mxnet")

_TIMES = "step times"


class _Searched(NamedTuple):
    """A table of which the number of pieces is looked for.

    Attributes:
        by: How it is cut.
        least: The fewest pieces that it is cut into.
        most: The most.
        growth: How its rows come into being, which servers then keep when it is cut anew.
    """

    by: str
    least: int
    most: int
    growth: Growth | None

    def bounded(self, pieces: int) -> int:
        """Return the number that it is cut into where ``pieces`` are tried."""
        return max(self.least, min(self.most, pieces))


class LiveCuts:
    """The tables of one store whose number of pieces is looked for; all are cut into the same number."""

    def __init__(
        self,
        exchange: Exchange,
        mode: str,
        settled: Callable[[Key, RowTable], Array | None],
        cut_anew: Callable[[Key], None],
        clock: Clock = time.perf_counter,
    ) -> None:
        """Start without tables.

        Args:
            exchange: Of the store.
            mode: Of the store.
            settled: Waits until nothing of a table is under way; returns its value, if this worker has it.
            cut_anew: Told of each table that was.
            clock: Measures steps.
        """
        self._exchange, self._mode = exchange, mode
        self._worker = cast("RowsWorker", exchange.worker)
        self._settled = settled
        self._cut_anew = cut_anew
        self._clock = clock
        self._tables: dict[Key, _Searched] = {}
        self._pieces: dict[Key, int] = {}
        self._search: SteadySearch | None = None
        self._store = -1  # in which times are added up
        self._sums: Array = np.empty(0)
        self._created: Future[BaseException | None] = Future()  # the key of the sums
        self._times = StepTimes()
        self._last: float | None = None
        self._pushes = 0  # of the first table, since all were cut
        self._former: dict[Key, bool] = {}  # cut anew; whether this worker has pushed to the new pieces

    def begin(self, key: Key, table: RowTable, cut: Cut, growth: Growth | None = None) -> Cut:
        """Look for a new table's number of pieces, if that is wished; return how it is cut at first.

        All workers call this for the same tables in the same order.
        """
        if not cut.is_searched:
            return cut
        if why := self._problem_of(table, growth):
            return without_search(cut, key, why, rank=self._exchange.worker.rank)
        servers = self._exchange.worker.num_servers
        num_bytes = math.prod(table.shape) * np.dtype(table.dtype).itemsize
        most = most_partitions(table.shape[0], servers)
        searched = _Searched(cut.by, min(most, -(-num_bytes // LARGEST_PIECE_BYTES)), most, None)
        if growth is not None:
            # The same number on each server, as rows stay on theirs.
            searched = _Searched(cut.by, servers, most - most % servers, growth)
        if self._search is None:
            least = 1 if growth is None else servers
            self._search = SteadySearch(servers, searched.most, least=least, multiple=servers)
        self._tables[key] = searched
        self._pieces[key] = searched.bounded(self._search.pieces)
        return cut._replace(pieces=self._pieces[key])

    def _problem_of(self, table: RowTable, growth: Growth | None) -> str:
        """Return why a table cannot be cut otherwise while a job trains; nothing if it can."""
        if self._mode == "async":
            return "workers of an async store have no step in common"
        if growth is None:
            return ""
        if growth.retention.max_rows:
            return "each piece keeps its part of max_rows, so that their number decides which rows go"
        few = table.shape[0] < self._exchange.worker.num_servers
        return "it has fewer rows than there are servers" if few else ""

    def forget(self, key: Key) -> None:
        """A table is none any more."""
        if self._tables.pop(key, None) is None:
            return
        # What is still to be measured is of the sample before, on whichever ranks it comes late.
        if self._first is not None:
            self._exchange.stagings[self._first].array.wait_to_read()
            self._exchange.check()
        self._begin_sample()

    def _begin_sample(self) -> None:
        self._pushes, self._last, self._times = 0, None, StepTimes()

    # --- a push ---

    def before_push(self, key: Key, table: RowTable) -> None:
        """Cut a table anew before its next push, if it is to be."""
        if self._former.get(key):
            del self._former[key]
            # Behind the first push to the new pieces, which has ended by then: with it all workers'.
            self._exchange.after(key, partial(self._worker.release_rows, table.store, key))
        elif key in self._former:
            self._former[key] = True
        if key not in self._tables or self._search is None:
            return
        if key == self._first and self._pushes == steps_until_sample():
            self._feed(self._search, table)
        pieces = self._tables[key].bounded(self._search.pieces)
        if pieces != self._pieces[key]:
            self._cut(key, table, pieces)

    @property
    def _first(self) -> Key | None:
        return next(iter(self._tables), None)

    def _feed(self, search: SteadySearch, table: RowTable) -> None:
        """Take the times of a sample, which all workers have by now."""
        self._wait(table)
        search.feed((self._sums / self._exchange.worker.num_workers).tolist())
        self._begin_sample()
        if search.found is not None and self._exchange.worker.rank == 0:
            times = ", ".join(f"{each.pieces}: {each.seconds:.4g} s" for each in search.found.samples)
            log.info("tables are cut into %d pieces from now on; steps took %s", search.pieces, times)

    def _cut(self, key: Key, table: RowTable, pieces: int) -> None:
        """Cut a table anew; no push of it is under way on any worker."""
        worker, store, searched = self._exchange.worker, table.store, self._tables[key]
        value, states = None, None
        if searched.growth is not None:
            self._wait(table)
        else:
            value = self._settled(key, table)
            # Before the new table takes the name. Rounds wait for rank 0's push, which follows its states.
            states = self._worker.row_states(store, key) if worker.rank == 0 else None
        ended: Future[BaseException | None] = Future()
        self._worker.init_rows(
            store,
            key,
            table.shape,
            table.dtype,
            value,
            ended.set_result,
            partitions=pieces,
            by=searched.by,
            growth=searched.growth,
            anew=True,
        )
        error = ended.result()
        if error is not None:
            raise error
        if states is not None:
            self._worker.load_row_states(store, key, states)
        self._pieces[key] = pieces
        self._former[key] = False
        self._cut_anew(key)

    def _wait(self, table: RowTable) -> None:
        """Wait until nothing of a table is under way on this worker."""
        try:
            table.array.wait_to_read()
        finally:
            self._exchange.check()  # our error is better than the engine's

    def pushed(self, key: Key, table: RowTable) -> None:
        """A push of a table is queued."""
        if key != self._first or self._search is None or self._search.found is not None:
            return
        self._pushes += 1
        is_sample = self._pushes == steps_until_sample()
        if is_sample and not self._sums.size:
            self._make_sums()
        self._exchange.queue(partial(self._measure, is_sample=is_sample), mutable=[table.array])

    def _make_sums(self) -> None:
        """Create the key of the times, behind all that the script has created.

        Before, these would have other numbers than in a job that searches nothing, and goes on with this
        one's snapshots.
        """
        worker = self._exchange.worker
        self._store = self._exchange.open_further("sync")
        self._sums = worker.exchange_buffer(SAMPLE_STEPS, "float64")
        worker.init(
            self._store, _TIMES, self._sums.shape, self._sums, self._created.set_result, scratch=True
        )

    def _measure(self, done: Done, *, is_sample: bool) -> None:
        """A push has ended; in an operation of the engine."""
        now = self._clock()
        if self._last is not None:
            self._times.add(now - self._last)
        self._last = now
        if not is_sample:
            done(None)
            return
        # The initial value of the sums is written when it comes.
        self._created.add_done_callback(lambda result: self._add_up(result.result(), done))

    def _add_up(self, error: BaseException | None, done: Done) -> None:
        if error is not None:
            done(error)
            return
        try:
            self._sums[:] = self._times.take()
            self._exchange.worker.pushpull(self._store, _TIMES, 0, done)
        except BaseException as failed:  # noqa: BLE001  in a callback, whose errors nobody else would hear of
            done(failed)
