"""The calls of a worker that are about tables (``rows_interface.RowsWorker``): they post operations.

A part of ``worker.Worker``, of which it uses what every call needs.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.records import KeySpec, Mode, NodeId
from kvstore_mpi.worker import records as wr
from kvstore_mpi.worker.collectives import Kind
from kvstore_mpi.worker.key_creation import check_new
from kvstore_mpi.worker.lookups import Lookup
from kvstore_mpi.worker.store_calls import StoreCalls

if TYPE_CHECKING:
    from kvstore_mpi.config import NodeConfig
    from kvstore_mpi.interfaces import Done
    from kvstore_mpi.records import FetchedVersions, Growth, Key, RowCount, Rows
    from kvstore_mpi.wire.io_loop import IoLoop
    from kvstore_mpi.worker.io_thread import WorkerIo
    from kvstore_mpi.worker.optimizer_calls import OptimizerCalls
    from kvstore_mpi.worker.state import WorkerState
    from kvstore_mpi.worker.tables import Tables

Array = np.ndarray[Any, Any]


class TableCalls(StoreCalls):
    """What a worker can do with tables."""

    has_rows = True
    num_clients: int
    mpi_size: int
    client_hosts: int
    num_servers: int
    node: NodeId
    io: WorkerIo
    _config: NodeConfig
    _loop: IoLoop
    _optimizers: OptimizerCalls
    _state: WorkerState
    _tables: Tables
    _with_quorum: set[int]

    @property
    def unites_lookups(self) -> bool:
        """See ``rows_interface.RowsWorker``; where no ranks share a host, nothing would be saved."""
        return self._config.lookups == "together" and any(len(host) > 1 for host in self._state.hosts)

    def _begin(self, done: Done) -> Done:
        raise NotImplementedError

    def _is_loose(self, store: int) -> bool:
        raise NotImplementedError

    def init_rows(  # noqa: PLR0917  see ``rows_interface.RowsWorker``
        self,
        store: int,
        key: Key,
        shape: tuple[int, ...],
        dtype: str,
        value: Array | None,
        done: Done,
        *,
        partitions: int = 0,
        by: str = "mod",
        growth: Growth | None = None,
        anew: bool = False,
    ) -> None:
        """See ``rows_interface.RowsWorker``."""
        # A client's store has no table on servers either, though the job has some.
        local = not self.num_servers or self._mode_of(store) is Mode.CLIENT
        spec = KeySpec(
            store, key, tuple(shape), dtype, growth=growth, apart=self._is_apart(store, local=local)
        )
        check_new(spec, self.node, self._config, loose=self._is_loose(store))
        # After the check: a table that is refused must not be known, or a call that is right could not be
        # repeated.
        spec = self._tables.add(spec, value, partitions, by, local=local, anew=anew)
        # Made here and not by the I/O thread, as is all that a call sends: whoever passes wrong ids learns
        # it from the call.
        source = self._tables.first_request(store, key, value)
        operation = wr.Operation(Kind.INIT, 0, self._begin(done), source)
        self._loop.post(partial(self.io.add_table, spec, value, operation))

    def _is_apart(self, store: int, *, local: bool) -> bool:
        """Return whether each rank pushes rows of a store to the servers for itself.

        Ranks of one host merge their rows in shared memory, and less leaves it. Where each rank has a host
        of its own nothing is saved by merging: every row would cross one link on its way to the rank that
        merges it, as it does on its way to a server. So rows then wait for no collective, nor for the dense
        sums on the thread that does them. Only of one client: how the ranks of others are placed, a worker
        cannot know.
        """
        is_sync = self._mode_of(store) is Mode.SYNC and store not in self._with_quorum
        return not local and is_sync and self.num_clients == 1 < self.mpi_size == self.client_hosts

    def rows_are_pushed(self, store: int, key: Key) -> bool:
        """See ``rows_interface.RowsWorker``."""
        # Any thread may look. Whoever was at a barrier behind the first such push has been told: the
        # coordinator has said both, in this order.
        return (store, key) in self._state.keys.tables_elsewhere

    def release_rows(self, store: int, key: Key) -> None:
        """See ``rows_interface.RowsWorker``."""
        # Behind all operations that were called before: they are posted in the order of the calls.
        self._loop.post(partial(self.io.release, store, self._tables.release(store, key)))

    def row_states(self, store: int, key: Key) -> Any:
        """See ``rows_interface.RowsWorker``."""
        known = self._tables.name_of(store, key)
        # Placed, and so with a number: its initialisation has ended.
        key_id = self._state.keys.by_name[store, known].key_id
        return self._optimizers.states(store, [key_id]).get(known)

    def load_row_states(self, store: int, key: Key, states: Any) -> None:
        """See ``rows_interface.RowsWorker``."""
        known = self._tables.name_of(store, key)
        table = self._state.keys.by_name[store, known]
        # Pieces have states of their own, whatever the rule: each goes to the server that has the piece.
        homes = [(table, server, slice_) for server, slice_ in table.slices]
        self._optimizers.load_states(store, homes, {known: states})

    def push_rows(self, store: int, key: Key, rows: Rows, priority: int, done: Done) -> None:
        """See ``rows_interface.RowsWorker``."""
        source = self._tables.pushed(store, key, rows)
        self._submit_rows(wr.Operation(Kind.PUSH, priority, done, source), store, key)

    def pushpull_rows(  # noqa: PLR0917  see ``rows_interface.RowsWorker``
        self, store: int, key: Key, rows: Rows, priority: int, done: Done, out: list[Rows]
    ) -> None:
        """See ``rows_interface.RowsWorker``."""
        # ``out`` is the I/O thread's until ``done`` is called, and has the rows by then.
        source = self._tables.pushed(store, key, rows, answered=True)
        self._submit_rows(wr.Operation(Kind.PUSHPULL, priority, done, source, out=out), store, key)

    def pull_rows(  # noqa: PLR0917  see ``rows_interface.RowsWorker``
        self,
        store: int,
        key: Key,
        priority: int,
        done: Done,
        out: list[Rows],
        ids: Array | None = None,
        *,
        exact: bool = False,
        since: FetchedVersions | None = None,
        together: bool = False,
    ) -> None:
        """See ``rows_interface.RowsWorker``."""
        # Checked in the call, as what is pushed: later on wrong ids could only end the job.
        source = self._tables.wanted(store, key, ids, exact=exact, since=since)
        operation = wr.Operation(Kind.PULL, priority, done, source, out=out)
        # Only if it is asked for: a rank that looks up what others do not, as the one that validates, would
        # wait for them for ever. By what is the same on all ranks, or one of them would wait alone.
        together = together and self.unites_lookups and not exact
        if together and ids is not None:
            operation.kind, operation.lookup = Kind.LOOKUP, Lookup(ids)
        self._submit_rows(operation, store, key)

    def _submit_rows(self, operation: wr.Operation, store: int, key: Key) -> None:
        # Counted only now, when nothing of the call can be wrong any more: what was counted and never begun
        # would keep ``flush`` waiting for ever.
        operation.done = self._begin(operation.done)
        self._loop.post(partial(self.io.submit, store, self._tables.name_of(store, key), operation))

    def rows_counted(self, store: int) -> dict[Key, RowCount]:
        """See ``rows_interface.RowsWorker``."""
        # Under the callers' names: a key that was dense at first has another one among the processes.
        names = {known: key for key, known in self._tables.names(store)}
        # A copy of the list: the I/O thread may add a key meanwhile, and a dictionary that grows cannot be
        # gone over.
        keys = [key for key in list(self._state.keys) if key.spec.store == store]
        tables = [(names.get(key.spec.key), key.table) for key in keys]
        # One that was cut anew is there under its former name as well, until it is released.
        return {name: table.count for name, table in tables if name is not None and table is not None}
