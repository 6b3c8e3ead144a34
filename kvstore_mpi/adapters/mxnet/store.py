"""MXNet's KVStore interface over MPI clients and parameter servers.

It brings the callers' many forms to one and says what each call means; the work is in ``exchange``,
``updates`` and ``tables``. This file must not know how anything travels.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mxnet as mx
from mxnet.base import _LIB, KVStoreHandle, check_call

from kvstore_mpi.adapters.mxnet import parameters
from kvstore_mpi.adapters.mxnet.bridge import engine, native
from kvstore_mpi.adapters.mxnet.bridge.arguments import group
from kvstore_mpi.adapters.mxnet.bridge.arrays import check_kinds, dense_ones
from kvstore_mpi.adapters.mxnet.bridge.mxnet_errors import raises_mxnet_errors
from kvstore_mpi.adapters.mxnet.exchange import lifecycle
from kvstore_mpi.adapters.mxnet.exchange.calls import checked
from kvstore_mpi.adapters.mxnet.exchange.exchange import Exchange
from kvstore_mpi.adapters.mxnet.exchange.key_routes import routes_of
from kvstore_mpi.adapters.mxnet.exchange.own_worker import own_worker
from kvstore_mpi.adapters.mxnet.exchange.row_weights import make_states_dense
from kvstore_mpi.adapters.mxnet.meetings import Meetings
from kvstore_mpi.adapters.mxnet.server_calls import ServerCalls, keeps_all_on_servers
from kvstore_mpi.adapters.mxnet.tables.plan import plan_of
from kvstore_mpi.adapters.mxnet.tables.rows import RowKeys
from kvstore_mpi.adapters.mxnet.taken_up import TakenUp
from kvstore_mpi.adapters.mxnet.updates.hybrid_updates import HybridUpdates
from kvstore_mpi.adapters.mxnet.updates.local_updates import LocalUpdates
from kvstore_mpi.adapters.mxnet.updates.server_updates import ServerUpdates
from kvstore_mpi.adapters.mxnet.updates.state_files import read_states, with_rows
from kvstore_mpi.adapters.mxnet.updates.updates import compression_of
from kvstore_mpi.adapters.place import Place
from kvstore_mpi.epoch_report import warn_of_idle_delay
from kvstore_mpi.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from kvstore_mpi.adapters.mxnet.client_store import ClientStore
    from kvstore_mpi.adapters.mxnet.exchange.key_routes import KeyRoutes
    from kvstore_mpi.adapters.mxnet.updates.updates import Updates
    from kvstore_mpi.hybrid.plan import Plan
    from kvstore_mpi.interfaces import KVWorker
    from kvstore_mpi.records import Key
    from kvstore_mpi.server_optimizers import OptimizerSpec


class KVStoreMPI(Meetings, ServerCalls, Place, mx.kv.KVStore):  # type: ignore[misc]
    """A distributed store, whose pushes, pulls and broadcasts return before the values have travelled.

    It is a subclass of MXNet's native store because MXNet takes row-sparse gradients to no other class. The
    native object behind it is a ``local`` store that does nothing. All calls must come from one thread.

    Args:
        mode: ``sync`` or ``async``; ``ClientStore`` is ``client``.
        worker: Carries the values; this process's own if not given.
        name: Under what name of MXNet's own the store was asked for, if it was.
    """

    @raises_mxnet_errors
    def __init__(self, mode: str = "sync", worker: KVWorker | None = None, name: str = "") -> None:
        """Open a store; all workers must open theirs in the same order."""
        self._worker = own_worker(type(self).__name__, mode) if worker is None else worker
        engine.prepare(self._worker.num_workers)
        handle = KVStoreHandle()
        check_call(_LIB.MXKVStoreCreate(b"local", ctypes.byref(handle)))
        super().__init__(handle)
        mx.profiler.set_kvstore_handle(handle)
        lifecycle.close_at_exit(self._worker)
        self._mode = mode
        self._type = name or f"dist_{mode}_mpi"
        self._exchange = Exchange(self._worker, mode)
        self._updates: Updates = LocalUpdates(self._exchange)
        if self._exchange.on_servers:
            self._updates = ServerUpdates(self._exchange, mode)
        self._tables = RowKeys(self._exchange, self._updates, mode)
        self._taken_up = TakenUp(self._worker, mode)
        self._client_stores: list[ClientStore] = []

    def __del__(self) -> None:
        """Free the native object, if there is one."""
        if hasattr(self, "handle"):
            super().__del__()

    # --- who and where ---

    @property
    def type(self) -> str:
        """``dist_sync_mpi`` or the like, from which MXNet reads its own behaviour; see ``--take-over``."""
        return self._type

    # --- values ---

    @checked
    def init(self, key: Any, value: Any) -> None:
        """Create keys with the values of rank 0.

        Args:
            key: A key or a list of keys.
            value: For each key an array; of a list, one per device, the first counts.
        """
        for each, values in group(key, value).items():
            self._create(each, values[0])

    @checked
    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Create keys with the values of rank 0, and copy those to all arrays of ``out``."""
        targets = group(key, out)
        for each, values in group(key, value).items():
            self._create(each, values[0])
            self._exchange.check_arrays(each, targets[each])
            if self._exchange.is_on_servers(each) and not self._updates.takes_params:
                self._taken_up.overwrite(each, values[0], targets[each])
            if each in self._tables:
                self._tables.deliver(each, dense_ones(targets[each]), priority)
            else:
                self._exchange.deliver(each, self._updates.value(each), dense_ones(targets[each]), priority)

    def _create(self, key: Key, value: NDArray) -> None:
        check_kinds(key, [value])
        if self._tables.has_any or not native.is_dense(value):
            self._divide()
        if not self._tables.init(key, value):
            self._exchange.init(key, value)
        self._updates.key_created(key)

    @checked
    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Add values to the sum over devices and workers; once all have come, the sum counts.

        Under a server optimizer that takes parameters those of a client count as they are: the mean over
        its ranks, and of several devices the first. The center moves; ``pull`` shows it as it is then.

        Args:
            key: A key or a list of keys.
            value: For each key an array, or a list of arrays, one per device; left as they are.
            priority: Larger goes first.
        """
        for each, values in group(key, value).items():
            if self._taken_up.leaves_out(each):
                continue
            if self._is_table(each, values):
                self._tables.push(each, values, priority)
            elif self._updates.needs_sums:
                self.pushpull_staged(each, values, priority)
            else:
                values = self._pushed(each, values)  # noqa: PLW2901
                self._updates.before_push(each)
                self._exchange.push(each, values, priority, brings=not self._updates.notes_values)
                self._updates.after_push(each, sparse=not native.is_dense(values[0]))

    @checked
    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Copy the keys' values, with all own pushes so far, to all arrays of ``out``.

        Under a server optimizer that takes parameters the value is the center, and all ranks of a client
        must call this together: they get the same bits, whatever other clients push meanwhile.

        Args:
            key: A key or a list of keys.
            out: For each key an array or a list of arrays, of the key's type or another floating-point one.
            priority: Larger goes first.
            ignore_sparse: Leave row-sparse arrays of ``out`` as they are; ``row_sparse_pull`` fills them.
        """
        for each, outs in group(key, out).items():
            wanted = dense_ones(outs) if ignore_sparse else outs
            self._exchange.check_arrays(each, wanted, converts=True)
            if wanted and self._is_pulled_as_table(each):
                self._tables.pull(each, wanted, priority)
            elif wanted:
                self._exchange.deliver(each, self._pulled(each, priority), wanted, priority)

    @checked
    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Push values, and copy the new ones to all arrays of ``out``, or back to those of ``value``.

        A gradient of 256 KB or more that goes to other hosts is sent from where it lies: what writes to
        it next waits until the new value is there. Workers that use one such array for several keys must
        push those in the same order, or push copies.

        Under a server optimizer that takes parameters this is one atomic exchange with the center
        (MXNET-MPI, figures 7 and 8, equations 2 and 3): the parameters go in, and ``out``, which must be
        given, becomes the center as it was before this exchange (``Elastic``) or as it is after it (all
        others), the same bits on all ranks of a client.
        """
        if out is None and self._updates.takes_params:
            raise parameters.missing_out(key)
        targets = group(key, value if out is None else out)
        pushed = group(key, value)
        for each in pushed:
            self._exchange.check_arrays(each, targets[each])
        # All are pushed before any is written: keys may have arrays in common.
        new = {each: self._pushpulled(each, values, priority) for each, values in pushed.items()}
        for each, staged in new.items():
            if staged is None:
                self._tables.pull(each, targets[each], priority)
            else:
                self._exchange.deliver(each, staged, targets[each], priority)

    def _pushpulled(self, key: Key, values: list[NDArray], priority: int) -> NDArray | None:
        if self._taken_up.leaves_out(key):
            return None if key in self._tables else self._pulled(key, priority)
        if not self._is_table(key, values):
            return self.pushpull_staged(key, values, priority)
        self._tables.push(key, values, priority)
        return None

    def _is_table(self, key: Key, values: list[NDArray]) -> bool:
        """Tell whether values are pushed to a table; this push can make the store's first."""
        check_kinds(key, values)
        had_none = not self._tables.has_any
        takes = self._tables.takes(key, values)
        # Without this a table could leave the servers only after another key had been initialised.
        if takes and had_none:
            self._divide()
        return takes

    def pushpull_staged(self, key: Key, values: list[NDArray], priority: int) -> NDArray:
        """Push values; return the store's own array of the key, in which the new one will be.

        That may be read, in operations that are queued before the next of this key.
        """
        values = self._pushed(key, values)
        self._updates.before_push(key)
        self._exchange.pushpull(key, values, priority, gradients=not self._updates.takes_params)
        self._updates.after_push(key, sparse=not native.is_dense(values[0]))
        return self._updates.value(key)

    def _pushed(self, key: Key, values: list[NDArray]) -> list[NDArray]:
        """Return which of the arrays given for a key are added up and pushed."""
        if not self._updates.takes_params:
            return values
        parameters.check(key, values[0], self._exchange.stagings.known(key).dtype)
        return values[:1]

    def _pulled(self, key: Key, priority: int) -> NDArray:
        """Queue a pull and return the array in which the value will be."""
        if not self._updates.needs_sums:
            self._exchange.pull(key, priority, takes=not self._updates.notes_values)
        return self._updates.value(key)

    # --- updates ---

    def is_capable(self, capability: str) -> bool:
        """Tell whether the store can do something that not every store can: ``optimizer``.

        Raises:
            ValueError: Nobody has heard of the capability.
        """
        if capability.lower() == self.OPTIMIZER:
            return True
        raise ValueError(f"unknown capability: {capability}")

    @checked
    def set_optimizer(
        self, optimizer: Any, *, quorum: int = 0, quorum_wait: float = 0.0, compress: str | None = None
    ) -> None:
        """Update the stored weights with an optimizer from now on; waits for the servers.

        Later changes of an MXNet optimizer's learning rate, weight decay, multipliers, ``rescale_grad`` and
        clipping count: on the servers those of rank 0's object, without servers each worker's own, which
        must agree.

        Args:
            optimizer: One of MXNet's, or one of ``kvstore_mpi.esgd``; of those that take parameters rank
                0's counts, and ``server_optimizer`` shows it.
            quorum: On ``sync-mpi``, for those that take parameters: this number of clients closes a round,
                ``quorum_wait`` seconds after the last of them has pushed, or as soon as all that are alive
                have; who comes later takes part in the next round. 0 waits for all, and fails when one is
                lost.
            quorum_wait: Seconds.
            compress: What travels between hosts. For those that take parameters ``"int8"`` or ``"int4"``:
                quantised differences to the last center received, both ways. For others ``"float16"`` or
                ``"bfloat16"``: gradients, and rows of tables both ways; or ``"2bit"``: dense gradients.

        Raises:
            UsageError: The job cannot train so.
        """
        warn_of_idle_delay(self._worker.rank)
        compress = compress or self._exchange.compress
        updates = self._updates.set_optimizer(optimizer, quorum, quorum_wait, compress)
        self._take(updates, self._routes(updates, optimizer, has_table=self._tables.has_any), optimizer)

    def _routes(self, updates: Updates, optimizer: Any, *, has_table: bool) -> KeyRoutes | None:
        servers_update, kept_for = not updates.on_workers, keeps_all_on_servers(updates.spec)
        options = {"servers_update": servers_update, "has_table": has_table}
        return routes_of(self._worker, optimizer, self._mode, kept_for=kept_for, **options)

    def _take(self, updates: Updates, routes: KeyRoutes | None, optimizer: Any) -> None:
        if routes is not None and isinstance(updates, ServerUpdates):
            self._exchange.take_routes(routes)
            updates = HybridUpdates(self._exchange, updates, optimizer)
        self._updates = updates
        self._tables.optimizer_set(self._updates)
        self._updater = self._updates.updater

    def _divide(self) -> None:
        """Let workers have the dense keys to come, if that is the rule of a store that has a table.

        Only a Trainer and most Modules say before that there will be one. All workers initialise the same
        keys in the same order, and so come to this at the same point; dense keys that are there stay.
        """
        updates, worker = self._updates, self._worker
        if self._exchange.routes is not None:
            if worker.dense == "auto":
                self._exchange.routes.table_is_known()
        elif isinstance(updates, ServerUpdates) and updates.updater is not None:
            optimizer = getattr(updates.updater, "optimizer", None)
            routes = self._routes(updates, optimizer, has_table=True)
            if routes is not None:
                self._take(updates, routes, optimizer)

    @checked
    def plan(self) -> Plan:
        """Return each key's route, density and bytes in a step; waits for all own operations so far.

        Predictions are of the machine that has most to send; payloads between a machine's workers and
        servers are measured. In clients of several ranks that is known after the first 20 steps. What sums
        among workers move is computed, and marked so.
        """
        self._exchange.drain()
        return plan_of(self._exchange, self._tables.counts)

    @property
    def server_optimizer(self) -> OptimizerSpec | None:
        """The servers' optimizer as rank 0 gave it; ``None`` if they have none."""
        return self._updates.spec

    @checked
    def _set_updater(self, updater: Any) -> None:
        """Update the weights with ``updater(key, sum, weight)``; without servers only."""
        self._updates.set_updater(updater)
        self._updater = updater

    @checked
    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write the optimizer's states, and itself if wanted, to a file of MXNet's format."""
        updater = self._states_owner("save")
        data = updater.get_states(dump_optimizer)
        sparse = {key: staging for key, staging in self._exchange.stagings.items() if staging.is_sparse}
        if sparse and isinstance(getattr(updater, "optimizer", None), mx.optimizer.Optimizer):
            data = with_rows(data, updater.optimizer, sparse)
        Path(fname).write_bytes(data)

    @checked
    def load_optimizer_states(self, fname: str) -> None:
        """Take the optimizer's states from a file of MXNet's format; all workers must call this.

        Raises:
            UsageError: There is no optimizer, or the file has no states, or those of another model.
        """
        updater = self._states_owner("load")
        # An updater of the user's, which need not have an optimizer, may have a format of its own.
        is_mxnets = hasattr(updater, "optimizer")
        keys = self._exchange.stagings
        updater.set_states(read_states(fname, updater, keys) if is_mxnets else Path(fname).read_bytes())
        if is_mxnets and self._updates.local is not None:
            make_states_dense(self._updates.local.states)

    def _states_owner(self, what: str) -> Any:
        if not hasattr(self._updater, "get_states"):
            raise UsageError(f"cannot {what} optimizer states: call set_optimizer first")
        return self._updater

    @checked
    def set_gradient_compression(self, compression_params: dict[str, Any]) -> None:
        """Let optimizers that are set afterwards, as by a Trainer, have their type as ``compress``."""
        self._exchange.compress = compression_of(compression_params)

    # --- all workers; see ``meetings`` ---

    @checked
    def client_store(self) -> ClientStore:
        """Open a store of the workers of this client alone; all workers must, in the same order."""
        from kvstore_mpi.adapters.mxnet.client_store import ClientStore  # noqa: PLC0415  it is one of these

        self._client_stores.append(ClientStore(self._worker))
        return self._client_stores[-1]

    @raises_mxnet_errors
    def _send_command_to_servers(self, head: int, body: str) -> None:
        """Refuse: the servers do what ``set_optimizer`` says and take no code."""
        text = f"the servers take no commands (head {head}, {len(body)} characters); use set_optimizer"
        raise UnsupportedError(text)
