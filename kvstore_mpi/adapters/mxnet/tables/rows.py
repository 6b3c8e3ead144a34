"""The tables of one store: keys of which only rows travel, and their way through the engine to the worker.

A key is a table if it is initialised with a row-sparse array, if the optimizer knows its gradient to be
row-sparse, or if its first push is. Where the servers update, a push brings back the rows that have
changed, and of a row-sparse weight some rows are fetched. Where the workers do, and where nobody does, a
push brings back the sum. This file must not know about MXNet's KVStore interface.
"""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from kvstore_mpi.adapters.mxnet.bridge import native
from kvstore_mpi.adapters.mxnet.bridge.arrays import (
    Staging,
    copy_to,
    dense,
    dense_ones,
    dtype_name,
)
from kvstore_mpi.adapters.mxnet.bridge.row_arrays import AllRows, FetchedRows, PushedRows, row_numbers
from kvstore_mpi.adapters.mxnet.bridge.rows_behind import rows_behind
from kvstore_mpi.adapters.mxnet.exchange import row_weights
from kvstore_mpi.adapters.mxnet.exchange.exchange import at_once
from kvstore_mpi.adapters.mxnet.exchange.gluon_parameters import has_sparse_gradient, is_lazy, parameter_of
from kvstore_mpi.adapters.mxnet.exchange.key_routes import tell_that_servers_keep_all
from kvstore_mpi.adapters.mxnet.exchange.row_tables import RowTable, may_be_table, together
from kvstore_mpi.adapters.mxnet.exchange.row_weights import SparseStaging
from kvstore_mpi.adapters.mxnet.tables.live_cuts import LiveCuts
from kvstore_mpi.adapters.mxnet.tables.moves import KeyMoves
from kvstore_mpi.adapters.mxnet.tables.partitions import Partitions
from kvstore_mpi.adapters.mxnet.tables.prefetched_rows import PrefetchedRows
from kvstore_mpi.adapters.mxnet.tables.row_counts import ClientCounts
from kvstore_mpi.adapters.mxnet.tables.row_fetches import RowFetches
from kvstore_mpi.adapters.mxnet.updates.clipped_steps import own_values
from kvstore_mpi.adapters.mxnet.updates.hybrid_updates import HybridUpdates
from kvstore_mpi.adapters.mxnet.updates.updates import travels_rounded
from kvstore_mpi.errors import UsageError
from kvstore_mpi.hybrid.routes import Route
from kvstore_mpi.records import Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mxnet.ndarray import NDArray

    from kvstore_mpi.adapters.mxnet.exchange.exchange import Exchange
    from kvstore_mpi.adapters.mxnet.updates.updates import Updates
    from kvstore_mpi.interfaces import Done
    from kvstore_mpi.records import Key
    from kvstore_mpi.rows_interface import RowsWorker

    Array = np.ndarray[Any, Any]


class RowKeys:
    """The keys of a store that are tables, among its ``exchange.stagings``.

    Attributes:
        has_any: One has been a table. A ``TableEmbedding`` is made apart, and other keys stay as they are.
        counts: Of these and of embeddings.
        partitions: What the user has said of pieces.
        cuts: The search for their number, where that is wished; of embeddings, too.
        prefetched: Rows that were asked for ahead.
    """

    def __init__(self, exchange: Exchange, updates: Updates, mode: str) -> None:
        """Start without tables, in a store of this mode."""
        self._exchange = exchange
        self._updates = updates
        self._worker = cast("RowsWorker", exchange.worker)
        self._mode, self.has_any = mode, False
        self.counts = ClientCounts(exchange)
        self.partitions = Partitions()
        self._fetches = RowFetches(exchange)
        together = self._worker.unites_lookups
        fetch = partial(self._fetches.begin, priority=0, exact=False, together=together)
        self.prefetched = PrefetchedRows(
            lambda key, ids, since: fetch(key, self._table(key), ids=ids, since=since), together=together
        )
        self.cuts = LiveCuts(exchange, mode, self._settled, self.counts.cut_anew)
        self._moves: KeyMoves | None = None

    def __contains__(self, key: Key) -> bool:
        """Tell whether a key is a table."""
        return isinstance(self._exchange.stagings.get(key), RowTable)

    # --- which keys are tables ---

    def init(self, key: Key, value: NDArray) -> bool:
        """Create a key with the value of rank 0 if it is to be a table; tell whether it is."""
        shape, dtype = native.shape_of(value), dtype_name(value)
        is_sparse = not native.is_dense(value)
        if not (is_sparse or has_sparse_gradient(self._updates.updater, key)):
            return False
        route = self._route_of(key, shape, dtype, is_sparse=is_sparse)
        if route is None:
            return False
        exchange, first = self._exchange, self._exchange.worker.rank == 0
        exchange.stagings.check_new(key, shape, dtype)
        has_mirror = not is_sparse or self._updates.on_workers or route.by_workers
        staging = Staging(shape if has_mirror else (1,), dtype, np.empty)
        if has_mirror and is_sparse:
            staging = SparseStaging(shape, dtype)
        table = RowTable(shape, staging, is_sparse=is_sparse, is_mirror=has_mirror)
        source = None
        if has_mirror:
            source = staging.buffer.reshape(shape)
            if first:
                staging.fill([value])
                staging.array.wait_to_read()
        elif first:
            source = np.ascontiguousarray(dense(value).asnumpy())
        self._create(key, table, source, route)
        self.counts.created(key)
        return True

    def takes(self, key: Key, values: Sequence[NDArray]) -> bool:
        """Tell whether values of a key are pushed to a table; the first push can make one of a key."""
        staging = self._exchange.stagings.known(key)
        if isinstance(staging, RowTable):
            if self._moves is not None and self._moves.before_push(key, staging):
                self.cuts.forget(key)
                self.prefetched.forget(key)
                return False
            self.cuts.before_push(key, staging)
            return True
        is_first = not (staging.was_pushed or all(map(native.is_dense, values)))
        route = self._route_of(key, staging.shape, staging.dtype, is_sparse=False) if is_first else None
        if self._moves is not None and self._moves.before_dense_push(key, values, route):
            return True
        if route is not None:
            self._take_place(key, staging, route)
        return route is not None

    def follow(self, key: Key) -> bool:
        """Make a table of a dense key of which another worker pushes rows; tell whether it can be one."""
        staging = self._exchange.stagings.known(key)
        route = self._route_of(key, staging.shape, staging.dtype, is_sparse=False)
        if route is not None:
            self._take_place(key, staging, route)
        return route is not None

    def _take_place(self, key: Key, staging: Staging, route: Route) -> None:
        """Make a table of a key that was dense so far, and not pushed."""
        staging.array.wait_to_read()  # it holds rank 0's value since the key was initialised
        table = RowTable(staging.shape, staging, is_sparse=False, is_mirror=True)
        self._create(key, table, staging.buffer.reshape(staging.shape), route)
        if staging.loaded is not None and not self._updates.on_workers:
            self._exchange.worker.load_optimizer_states(self._exchange.store, {key: staging.loaded})

    def _route_of(self, key: Key, shape: tuple[int, ...], dtype: str, *, is_sparse: bool) -> Route | None:
        """Return the route of a table, or ``None`` for a key that is none: its like is summed densely."""
        route = self._exchange.route_of(key, is_table=True)
        may_be = may_be_table(self._updates.spec, shape, dtype, is_sparse=is_sparse)
        has_rows = getattr(self._worker, "has_rows", False)
        return route if has_rows and may_be and route is not Route.ALLREDUCE else None

    def _create(self, key: Key, table: RowTable, source: Array | None, route: Route) -> None:
        """Create a table in this call: placement depends on the order."""
        ended: Future[BaseException | None] = Future()
        exchange = self._exchange
        cut = self.partitions.of(key, parameter_of(self._updates.updater, key))
        table.store = exchange.store_of(route)
        if exchange.on_servers and not route.by_workers:
            cut = self.cuts.begin(key, table, cut)
        form = table.shape, table.dtype, source
        self._worker.init_rows(table.store, key, *form, ended.set_result, partitions=cut.pieces, by=cut.by)
        exchange.stagings[key] = table
        if not self.has_any:
            tell_that_servers_keep_all(exchange.worker, self._mode)
        self.has_any = True
        exchange.queue(
            lambda done: ended.add_done_callback(lambda result: done(result.result())),
            mutable=[table.array],
        )

    def _come_back(self, key: Key, value: Array) -> None:
        """Make a table, with the value that all workers have, of a key that was one before."""
        staging = Staging(value.shape, value.dtype.name, np.empty)
        staging.buffer.reshape(value.shape)[...] = value
        table = RowTable(value.shape, staging, is_sparse=False, is_mirror=True)
        self._create(key, table, staging.buffer.reshape(value.shape), Route.SERVERS)
        self.counts.created(key)
        table.note_push()

    def optimizer_set(self, updates: Updates) -> None:
        """Take what updates from now on; tables are fetched from the servers where the workers do."""
        self._updates = updates
        if isinstance(updates, HybridUpdates):
            calls = self._bring_up_to_date, self._come_back
            self._moves = KeyMoves(self._exchange, updates, self.counts, *calls)
        for key, table in list(self._exchange.stagings.items()) if updates.on_workers else []:
            if isinstance(table, RowTable) and table.mirror is None:
                mirror = SparseStaging(table.shape, table.dtype)
                self._fetches.whole_into(mirror, key, table, 0)
                self._exchange.stagings[key] = RowTable(
                    table.shape, mirror, is_sparse=table.is_sparse, is_mirror=True
                )

    # --- push ---

    def push(self, key: Key, values: Sequence[NDArray], priority: int) -> None:
        """Queue the sum of the values, one for each device, into the table's sum over workers."""
        table = self._table(key)
        self._exchange.check_arrays(key, values)
        has_dense = any(map(native.is_dense, values))
        if table.is_sparse and has_dense:
            raise UsageError(
                f"worker {self._exchange.worker.rank}: key {key!r} is row-sparse and takes row-sparse "
                "gradients only; push value.tostype('row_sparse'), or initialise it with a dense array"
            )
        self._updates.before_push(key)
        pushed = AllRows(values, table) if has_dense else PushedRows(key, values, table)
        out: list[Rows] = []
        start = self._how_to_push(key, table, pushed.rows, priority, out)
        if table.is_current:  # nobody has asked for the last answer
            table.is_given_to_nobody()
            self._queue(table.apply, mutable=[table.array], priority=priority)
        self._exchange.queue(start, mutable=[table.array], const=pushed.arrays, priority=priority)
        if self._updates.updater is not None and self._updates_here(key):
            self._update(key, table, out)
        table.note_push()
        self.prefetched.pushed(key)
        table.is_current, table.others_pushed = True, False
        self.cuts.pushed(key, table)
        may_move = self._moves is not None and self._moves.may_move(key, table)
        if self.counts.pushed(key, table, may_move=may_move) and self._moves is not None:
            self._moves.window_ended(key)

    def _how_to_push(
        self, key: Key, table: RowTable, rows: Callable[[], Rows], priority: int, out: list[Rows]
    ) -> Callable[[Done], None]:
        """Return what pushes, and keeps the answer if there is one."""
        worker, store = self._worker, table.store
        if self._updates.updater is None:
            table.is_given_to_nobody()
            answer = partial(table.take_sum, out)
        elif self._updates_here(key):
            return lambda done: worker.pushpull_rows(store, key, rows(), priority, done, out)
        elif table.mirror is None:
            return lambda done: worker.push_rows(store, key, rows(), priority, done)
        else:
            answer = partial(table.take_changes, out)
        return lambda done: worker.pushpull_rows(
            store, key, rows(), priority, table.keeping(answer, done), out
        )

    def _update(self, key: Key, table: RowTable, out: list[Rows]) -> None:
        """Queue the workers' own update with the sum that will be in ``out``."""
        self._updates.hold(key, table.array, partial(own_values, out))
        gradient = rows_behind(table.array, lambda: together(out, table).array)
        meet = self._exchange.meet
        row_weights.update(self._updates.local, key, gradient, table.array, table.sparse, meet=meet)
        if not is_lazy(self._updates.local, table.dtype):
            table.is_given_to_nobody()
        elif table.has_readers:
            self._queue(lambda: table.note_update(out), mutable=[table.array])

    # --- pull ---

    def pull(self, key: Key, outs: Sequence[NDArray], priority: int) -> None:
        """Queue the table's value, with all own pushes so far, into arrays of any kind.

        Waits for the last sum where that goes to row-sparse arrays.
        """
        table = self._table(key)
        if self._updates.updater is None and table.was_pushed:
            sparse = [out for out in outs if not native.is_dense(out)]
            self._deliver_sum(table, sparse)
            outs = dense_ones(list(outs))
        if table.mirror is not None:
            self._refresh(key, table, priority)
            self.deliver(key, outs, priority)
        elif outs:
            copy_to(self._fetches.whole(key, table, priority).array, outs)

    def pull_rows(self, key: Key, outs: Sequence[NDArray], row_ids: NDArray, priority: int) -> None:
        """Queue some rows into row-sparse arrays; waits for their numbers only."""
        table = self._table(key)
        ids = row_numbers(key, row_ids, table.shape[0])
        rows = FetchedRows(ids, table.shape, table.dtype)
        if table.mirror is not None:
            self._refresh(key, table, priority)
            self._queue(table.taking, mutable=[table.array], priority=priority)
            self._queue(
                partial(rows.take_from, table.mirror),
                mutable=[rows.array],
                const=[table.array],
                priority=priority,
            )
        elif rows.ids.size or self._worker.unites_lookups:
            found = self.prefetched.take(key, rows.ids)
            self._fetches.fill(key, table, priority, rows, found)
        for out in outs:
            native.copy(rows.array, out)

    def prefetch(self, key: Key, ids: Array) -> None:
        """Queue a request for rows that will be asked for, unless all rows are here."""
        if self._table(key).mirror is None:
            self.prefetched.want(key, ids)

    def deliver(self, key: Key, outs: Sequence[NDArray], priority: int) -> None:
        """Queue the mirror into arrays; of those that had it last time only what has changed since."""
        table = self._table(key)
        if table.mirror is None:
            copy_to(self._fetches.whole(key, table, priority).array, outs)
            return
        behind = [table.is_in(out) for out in outs]
        news: list[Rows] = []
        take = (lambda: news.extend(table.news())) if any(behind) else table.apply
        self._queue(take, mutable=[table.array], priority=priority)
        table.is_given_to(outs)
        # One operation for each: two arrays of the user may be parts of one, which the engine cannot write
        # twice at a time.
        for out, only_news in zip(outs, behind):
            if only_news:
                write = partial(table.write, out, news)
                self._queue(write, mutable=[out], const=[table.array], priority=priority)
            else:
                copy_to(table.array, [out])
            self._queue(partial(table.arrivals.append, None), const=[out], priority=priority)

    def _deliver_sum(self, table: RowTable, outs: Sequence[NDArray]) -> None:
        if outs:
            self._queue(table.taking, mutable=[table.array])
            self._wait(table)
            rows = together(table.sum or [], table)
            for out in outs:
                rows.array.copyto(out)

    # --- through the engine ---

    def _updates_here(self, key: Key) -> bool:
        """Tell whether the workers update a table, and not servers."""
        return self._updates.on_workers or not self._exchange.is_on_servers(key)

    def _table(self, key: Key) -> RowTable:
        table = self._exchange.stagings.known(key)
        assert isinstance(table, RowTable)
        return table

    def _refresh(self, key: Key, table: RowTable, priority: int) -> None:
        """Ask the servers what has changed in a mirror, unless the last push has done so."""
        is_current = table.is_current and not table.others_pushed
        if not (is_current or self._updates_here(key) or self._updates.updater is None):
            self._ask(key, table, priority)
        table.is_current = table.others_pushed = False

    def _bring_up_to_date(self, key: Key, table: RowTable) -> None:
        """Wait until the mirror has all that the servers have."""
        self._refresh(key, table, 0)
        self._queue(table.taking, mutable=[table.array])
        self._wait(table)

    def _settled(self, key: Key, table: RowTable) -> Array | None:
        """Wait until nothing of a table is under way; return its value, if this worker has or gives it."""
        if table.mirror is not None:
            self._bring_up_to_date(key, table)
            if not travels_rounded(self._updates.spec, table.dtype):
                return table.buffer.reshape(table.shape)
        self._wait(table)
        if self._exchange.worker.rank and table.mirror is None:
            return None
        whole = self._fetches.whole(key, table, 0)
        whole.array.wait_to_read()
        self._exchange.check()
        return whole.buffer.reshape(table.shape)

    def _ask(self, key: Key, table: RowTable, priority: int = 0) -> None:
        out: list[Rows] = []
        answer = partial(table.take_changes, out)
        ask = partial(self._worker.pull_rows, self._exchange.store, key, priority)
        self._exchange.queue(
            lambda done: ask(table.keeping(answer, done), out), mutable=[table.array], priority=priority
        )

    def _queue(
        self,
        action: Callable[[], Any],
        *,
        mutable: Sequence[NDArray] = (),
        const: Sequence[NDArray] = (),
        priority: int = 0,
    ) -> None:
        self._exchange.queue(
            partial(at_once, action), mutable=mutable, const=const, priority=priority, after_failures=False
        )

    def _wait(self, table: RowTable) -> None:
        try:
            table.array.wait_to_read()
        finally:
            self._exchange.check()  # our error is better than the engine's
