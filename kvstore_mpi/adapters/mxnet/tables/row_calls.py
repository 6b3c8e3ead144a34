"""The calls of a store that are about rows of tables; a part of ``store.KVStoreMPI``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from kvstore_mpi.adapters.mxnet.bridge import native
from kvstore_mpi.adapters.mxnet.bridge.arguments import group_ids, group_rows
from kvstore_mpi.adapters.mxnet.bridge.row_arrays import row_numbers, rows_of
from kvstore_mpi.adapters.mxnet.exchange.calls import checked
from kvstore_mpi.adapters.mxnet.exchange.gluon_parameters import parameter_of
from kvstore_mpi.adapters.mxnet.exchange.row_tables import RowTable
from kvstore_mpi.errors import UsageError

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from kvstore_mpi.adapters.mxnet.exchange.exchange import Exchange
    from kvstore_mpi.adapters.mxnet.tables.rows import RowKeys
    from kvstore_mpi.adapters.mxnet.updates.updates import Updates
    from kvstore_mpi.records import Key
    from kvstore_mpi.rows_interface import RowsWorker


class RowCalls:
    """What a store can do with tables."""

    _exchange: Exchange
    _mode: str
    _tables: RowKeys
    _updates: Updates

    def _pulled(self, key: Key, priority: int) -> NDArray:
        raise NotImplementedError

    def _all_have_met(self) -> None:
        """Behind a barrier every pull shows what others had pushed; rows that came before may lack it."""
        if self._mode == "async":
            for staging in self._exchange.stagings.values():
                if isinstance(staging, RowTable):
                    staging.others_pushed = True
            self._tables.prefetched.all_have_met()

    def _is_pulled_as_table(self, key: Key) -> bool:
        """Tell whether a key is a table now; it may have become one by what another worker has pushed."""
        if key in self._tables or self._mode != "async":
            return key in self._tables
        # Otherwise nothing that is pushed would ever come to who only pulls: it is in the table.
        worker, store = cast("RowsWorker", self._exchange.worker), self._exchange.store
        is_told = getattr(worker, "has_rows", False) and worker.rows_are_pushed(store, key)
        return is_told and self._tables.follow(key)

    @checked
    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> None:
        """Copy some rows of the keys' values to row-sparse arrays; waits for those of keys that are dense.

        Args:
            key: A key or a list of keys.
            out: For each key a row-sparse array or a list of them; types as for ``pull``.
            priority: Larger goes first.
            row_ids: Numbers of rows, in the form of ``out`` or one array for all: of any type and shape,
                unsorted, repeated or none.
        """
        for each, outs, ids in group_rows(key, out, row_ids):
            self._exchange.check_arrays(each, outs, converts=True)
            if not (all(map(native.is_row_sparse, outs)) and native.is_dense(ids)):
                raise UsageError(
                    f"row_sparse_pull of key {each!r} needs row-sparse arrays in out and dense row_ids; "
                    "use pull for dense arrays"
                )
            if self._is_pulled_as_table(each):
                self._tables.pull_rows(each, outs, ids, priority)
                continue
            rows = rows_of(each, self._pulled(each, priority), ids)
            for array in outs:
                rows.copyto(array)

    @checked
    def prefetch(self, key: Any, row_ids: Any) -> None:
        """Say which rows the next ``row_sparse_pull`` will ask for: they travel while others compute.

        An intent, which changes no value: that call gets the rows as it would without. They are fetched at
        once; behind each push, those alone that have changed since. Rows that were pulled for this step are
        fetched behind its push only. What is not pulled stays wanted. Nothing is fetched of what every
        worker has, as of dense weights.

        Args:
            key: A key or a list of keys.
            row_ids: For each key an array of numbers of rows, as of ``row_sparse_pull``; waits for these.

        Raises:
            UsageError: There is no such key, or no such row.
        """
        for each, ids in group_ids(key, row_ids):
            staging = self._exchange.stagings.known(each)
            numbers = row_numbers(each, ids, staging.shape[0])
            if each in self._tables:
                self._tables.prefetch(each, numbers)

    @checked
    def partitioner(self, name: Any, pieces: int | str, by: str = "mod") -> None:
        """Say how tables of this name or pattern are cut, before ``init``; see docs/sparse.md."""
        stagings = self._exchange.stagings
        tables = [key for key, each in stagings.items() if isinstance(each, RowTable)]
        names = {key: str(getattr(parameter_of(self._updates.updater, key), "name", key)) for key in tables}
        self._tables.partitions.say(name, pieces, by, stagings, names)
