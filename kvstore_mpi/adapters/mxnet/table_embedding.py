"""An embedding whose table is on the servers only: any 64-bit ids, and of the rows what a batch needs.

A forward pass fetches the batch's distinct rows, ``step`` pushes their gradients, and ``prefetch`` fetches
the next batch's rows while this one is computed. Between them are a ``RowCache``, which decides what must
be asked for, and the engine, which keeps pushes and pulls of the table in order. This file must not know
how rows travel.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import mxnet as mx
import numpy as np

from kvstore_mpi.adapters.mxnet.bridge.arrays import Staging, view_of
from kvstore_mpi.adapters.mxnet.bridge.mxnet_errors import raises_mxnet_errors
from kvstore_mpi.adapters.mxnet.bridge.row_arrays import whole_numbers
from kvstore_mpi.adapters.mxnet.embedding_arguments import (
    ANY_ID,
    check_batch_size,
    check_growth,
    check_table,
    whole,
)
from kvstore_mpi.adapters.mxnet.exchange.row_tables import RowTable
from kvstore_mpi.adapters.mxnet.tables.partitions import Cut
from kvstore_mpi.errors import UsageError
from kvstore_mpi.records import Growth, Retention, RowInit, Rows
from kvstore_mpi.values.row_cache import RowCache
from kvstore_mpi.values.rows import unique_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mxnet.ndarray import NDArray

    from kvstore_mpi.adapters.mxnet.store import KVStoreMPI
    from kvstore_mpi.adapters.mxnet.updates.updates import Updates
    from kvstore_mpi.interfaces import Done
    from kvstore_mpi.records import Key
    from kvstore_mpi.rows_interface import RowsWorker

    Array = np.ndarray[Any, Any]

log = logging.getLogger("kvstore_mpi.mxnet")

_MANY_PASSES = 1000
"""More than a step has: a table that nobody steps is meant to be frozen, and would fill the memory."""

_INIT = RowInit("normal", 0.0, 0.01)
_RETENTION = Retention()


class _Used(NamedTuple):
    """Rows that a recorded forward pass has used: their ids, and the array that gets their gradient."""

    ids: Array
    rows: NDArray


class _Coming(NamedTuple):
    """Rows that have been asked for, and what is written when they are there.

    The table's own array would not do: pushes that were queued later write it, too, and a lookup would
    wait until they have crossed the link.
    """

    rows: list[Rows]
    here: NDArray


class TableEmbedding(mx.gluon.Block):  # type: ignore[misc]
    """Looks rows up in a table on the servers, where they come into being when they are first trained.

    Example::

        kv = mx.kv.create("sync-mpi")
        kv.set_optimizer(mx.optimizer.create("adagrad", learning_rate=0.1))
        users = TableEmbedding(kv, "users", 64)
        ...
        with mx.autograd.record():
            loss = loss_of(net(users(ids)), labels)
        users.prefetch(next_ids)        # may be left out
        loss.backward()
        trainer.step(batch_size)        # the net's parameters, in a store of their own
        users.step(batch_size)          # the table's rows

    The table has no Parameter: its rows are in the snapshots of the servers, and never all on a worker. All
    workers make the same tables in the same order, and call ``step`` equally often, also without rows. With
    ``mpilaunch --lookups together`` the ranks of a client also make the same recorded passes and
    prefetches, each with its own ids, perhaps none: of what they ask for each row comes to a host once.
    """

    @raises_mxnet_errors
    def __init__(
        self,
        kv: KVStoreMPI,
        key: Key,
        dim: int,
        *,
        num_rows: int = ANY_ID,
        dtype: Any = "float32",
        init: RowInit = _INIT,
        retention: Retention = _RETENTION,
        staleness: int = 0,
        partitions: int = 0,
        prefix: str | None = None,
    ) -> None:
        """Create the table.

        Args:
            kv: A store with servers and an optimizer.
            key: The table's name in this store.
            dim: Elements of a row.
            num_rows: Ids are below it.
            dtype: Of the rows: a floating-point type, by its name or as NumPy's.
            init: How rows begin.
            retention: Which rows the servers keep.
            staleness: Rows that this worker has may be trained in this number of its further steps, without
                what it and others have pushed since. 0 for training as with a table on the worker.
            partitions: Pieces that the table is cut into; 0 for what ``partitioner`` says of the key, or
                else one on each server.
            prefix: As of any block.

        Raises:
            UsageError: The store has no servers that could update rows, or the key or a number is wrong.
        """
        super().__init__(prefix=prefix)
        dim, num_rows, staleness = whole(dim), whole(num_rows), whole(staleness)
        check_table(key, (num_rows, dim), dtype, staleness)
        check_growth(key, init, retention)
        retention = Retention(*map(whole, retention))
        self._exchange = kv._exchange  # noqa: SLF001  this is a part of the store, which has no more room
        self._exchange.check()
        self._kv = kv
        self._worker = cast("RowsWorker", self._exchange.worker)
        updates = self._updates()
        if not self._exchange.on_servers or updates.on_workers or updates.spec is None:
            raise UsageError(
                f"table {key!r}: its rows are made and updated by servers; start the job with --servers 1 "
                "or more, and call kv.set_optimizer, with an optimizer that servers have, before"
            )
        if self._exchange.route_of(key, is_table=True).by_workers:
            raise UsageError(f"table {key!r}: its rows are on servers only; leave it out of --routes")
        self._key, self._dim, self._staleness = key, dim, staleness
        self._cache = RowCache(staleness, dim, np.dtype(dtype))
        self._clock = 0  # steps so far
        self._used: list[_Used] = []  # since the last step
        self._is_training = False  # a recorded forward pass has been since
        self._intents: list[Array] = []  # ids that are to be asked for after the next step
        self._coming: list[_Coming] = []
        self._passes_ahead = 0  # recorded ones, for which all ranks have said already what they need
        self._table = self._create((num_rows, dim), dtype, Growth(init, retention), partitions)

    def _updates(self) -> Updates:
        return self._kv._updates  # noqa: SLF001  as above; another one after ``set_optimizer``

    def _create(self, shape: tuple[int, ...], dtype: Any, growth: Growth, partitions: int) -> RowTable:
        exchange = self._exchange
        dtype = np.dtype(dtype).name  # as which it travels
        exchange.stagings.check_new(self._key, shape, dtype)
        # A place in the engine's dependencies; the rows are elsewhere.
        table = RowTable(shape, Staging((1,), dtype, np.empty), is_sparse=True, is_mirror=False)
        table.store = exchange.store
        cut = self._cut(table, growth, partitions)
        ended: Future[BaseException | None] = Future()
        # In this call: placement depends on the order.
        self._worker.init_rows(
            exchange.store,
            self._key,
            shape,
            dtype,
            None,
            ended.set_result,
            partitions=cut.pieces,
            by=cut.by,
            growth=growth,
        )
        exchange.stagings[self._key] = table
        self._kv._tables.counts.created(self._key)  # noqa: SLF001  as above
        exchange.queue(
            lambda done: ended.add_done_callback(lambda result: done(result.result())),
            mutable=[table.array],
        )
        return table

    def _cut(self, table: RowTable, growth: Growth, partitions: int) -> Cut:
        """Return how the table is cut: as the caller has it, before what was said with ``partitioner``."""
        if partitions:
            return Cut(partitions)
        tables = self._kv._tables  # noqa: SLF001  as above
        return tables.cuts.begin(self._key, table, tables.partitions.of(self._key, None), growth)

    # --- use ---

    @raises_mxnet_errors
    def forward(self, ids: Any) -> NDArray:
        """Return the rows of ids, (shape of ids, dim); waits for those that are not here.

        Args:
            ids: Of any integer type and shape, on any device, possibly repeated, possibly none.

        Raises:
            UsageError: There is no such id.
        """
        context = ids.context if isinstance(ids, mx.nd.NDArray) else mx.cpu()
        numbers = self._numbers_of(ids)
        together, is_recorded = self._is_made_together(), mx.autograd.is_recording()
        with mx.autograd.pause():
            distinct, positions = np.unique(numbers, return_inverse=True)
            is_beside = self._staleness > 0 and not is_recorded
            if not is_beside:
                self._ask(distinct, self._clock, together=together)
            if not distinct.size:
                with mx.util.np_shape(True):  # elsewhere a dimension of 0 is an unknown one
                    return mx.nd.zeros((*numbers.shape, self._dim), context, self._table.dtype)
            values = self._fresh(distinct) if is_beside else self._fetched(distinct)
            rows = mx.nd.from_numpy(values, zero_copy=True).as_in_context(context)
            if not is_recorded and not is_beside:
                # The clock stands still in an evaluation: no row would become too old, for memory nor for a
                # worker that only looks up while others train.
                self._cache.drop(distinct)
            places = mx.nd.array(positions.reshape(-1), context, np.int32)
        if is_recorded:
            self._keep(distinct, rows)
        # Reshaped afterwards, as the array of one id without dimensions is none of MXNet's.
        return mx.nd.take(rows, places).reshape((*numbers.shape, self._dim))

    @raises_mxnet_errors
    def prefetch(self, ids: Any) -> None:
        """Ask for the rows of the next batch that will be needed; they come while this one is computed.

        Without staleness they are asked for as soon as this batch's gradients have been pushed.

        Args:
            ids: As of ``forward``; waits for them only.
        """
        distinct = np.unique(self._numbers_of(ids))
        use = self._clock + self._is_training
        self._passes_ahead += 1
        if self._cache.may_ask(self._clock, use):
            self._ask(distinct, use, together=True)
        else:
            self._intents.append(distinct)

    @raises_mxnet_errors
    def step(self, batch_size: int) -> None:
        """Queue the gradients of all rows that were used since the last step, divided by the batch's size.

        As of a Trainer, gradients are summed over workers. Returns before they have travelled.

        Raises:
            UsageError: The size is none.
        """
        check_batch_size(self._key, batch_size)
        tables = self._kv._tables  # noqa: SLF001  as above
        tables.cuts.before_push(self._key, self._table)
        used, self._used, self._is_training = self._used, [], False
        gradients = [each.rows.grad.as_in_context(mx.cpu()) for each in used]
        self._updates().before_push(self._key)
        self._exchange.queue(
            partial(self._push, [each.ids for each in used], gradients, batch_size),
            mutable=[self._table.array],
            const=gradients,
        )
        self._table.note_push()
        tables.cuts.pushed(self._key, self._table)
        tables.counts.pushed(self._key, self._table, may_move=False)
        self._clock += 1
        intents, self._intents = self._intents, []
        for ids in intents:
            self._ask(ids, self._clock, together=True)

    def _keep(self, ids: Array, rows: NDArray) -> None:
        """Keep rows of a recorded pass, and what will be their gradient, for the step."""
        rows.attach_grad()
        self._used.append(_Used(ids, rows))
        if len(self._used) == _MANY_PASSES:
            log.warning(
                "table %r: %d recorded lookups since the last step(), which wait for it in memory; look up "
                "what is not trained under autograd.pause()",
                self._key,
                _MANY_PASSES,
            )

    def _is_made_together(self) -> bool:
        """Note that a forward pass begins; tell whether all ranks of the client ask for its rows now."""
        # A pass that is not recorded may be one rank's own, as that of the one that validates. And what was
        # asked for ahead must not make a pass wait for other ranks.
        if not mx.autograd.is_recording():
            return False
        self._is_training = True
        is_ahead = self._passes_ahead > 0
        self._passes_ahead -= is_ahead
        return not is_ahead

    def _numbers_of(self, ids: Any) -> Array:
        """Return ids as int64, in their shape; waits for them."""
        numbers: Array = ids.asnumpy() if isinstance(ids, mx.nd.NDArray) else np.asarray(ids)
        numbers = whole_numbers(numbers, f"table {self._key!r}: ids")
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < self._table.shape[0]:
            raise UsageError(
                f"table {self._key!r} has the ids 0 to {self._table.shape[0] - 1}; what is asked for are "
                f"{numbers.min()} to {numbers.max()}"
            )
        return numbers.astype(np.int64, copy=False)

    # --- through the engine ---

    def _push(
        self, ids: Sequence[Array], gradients: Sequence[NDArray], batch_size: int, done: Done
    ) -> None:
        """Push gradients, which are there."""
        dtype = np.dtype(self._table.dtype)
        factor = dtype.type(1 / batch_size)
        # The one copy of the rows before they are packed: the arrays are the user's, to be filled again.
        values = [view_of(each, dtype.name, each.size).reshape(each.shape) * factor for each in gradients]
        if len(values) == 1:
            rows = Rows(ids[0], values[0])
        else:
            nothing = np.empty((0, self._dim), dtype)
            rows = unique_rows(
                np.concatenate([np.empty(0, np.int64), *ids]), np.concatenate([nothing, *values])
            )
        self._worker.push_rows(self._table.store, self._key, rows, 0, done)

    def _ask(self, ids: Array, use: int, *, together: bool) -> None:
        """Queue a request for rows that are not here, after all pushes that are queued.

        Args:
            ids: Of the rows.
            use: The clock at which they will be used.
            together: All ranks of the client call this.
        """
        # Behind a barrier of asynchronous workers a row shows what all had pushed.
        if self._table.others_pushed:
            self._cache.forget()
            self._table.others_pushed = False
        wanted = self._cache.ask(ids, self._clock, use)
        if not (wanted.size or (together and self._worker.unites_lookups)):
            return
        coming = self._pull(wanted, together=together)
        if wanted.size:
            self._coming.append(coming)

    def _pull(self, ids: Array, *, together: bool) -> _Coming:
        """Queue a pull after all pushes that are queued."""
        coming = _Coming([], mx.nd.zeros(1))
        self._exchange.queue(
            lambda done: self._worker.pull_rows(
                self._table.store, self._key, 0, done, coming.rows, ids, together=together
            ),
            mutable=[self._table.array, coming.here],
        )
        return coming

    def _fetched(self, ids: Array) -> Array:
        """Return rows that were asked for, as they may be used now; waits for all that are coming."""
        coming, self._coming = self._coming, []
        for each in coming:
            for part in self._arrived(each):
                self._cache.fill(part)
        return self._cache.take(ids, self._clock)

    def _fresh(self, ids: Array) -> Array:
        """Return rows as the servers have them, beside the cache: training goes on with what it has."""
        values: Array = np.empty((ids.size, self._dim), self._table.dtype)
        for part in self._arrived(self._pull(ids, together=False)):
            values[np.searchsorted(ids, part.ids)] = part.values
        return values

    def _arrived(self, coming: _Coming) -> list[Rows]:
        try:
            coming.here.wait_to_read()
        finally:
            self._exchange.check()  # our error is better than the engine's
        return coming.rows
