"""Tables that go from the servers to the workers while a job trains, and back, because that is cheaper.

All ranks know the same densities, and so come to the same decision before the same push. A table then
leaves the servers with its value and its states, bit by bit, and is a dense key from that push on. Of such
a key the last push of each window is counted, too: it comes back when few rows are touched again.
"""

from __future__ import annotations

import logging
import math
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from kvstore_mpi.adapters.mxnet.bridge import native
from kvstore_mpi.adapters.mxnet.bridge.row_arrays import AllRows, PushedRows
from kvstore_mpi.adapters.mxnet.exchange.exchange import at_once
from kvstore_mpi.adapters.mxnet.exchange.row_tables import RowTable
from kvstore_mpi.adapters.mxnet.tables.plan import cluster_of
from kvstore_mpi.adapters.mxnet.updates.updates import travels_rounded
from kvstore_mpi.hybrid.cost import Table
from kvstore_mpi.hybrid.density import density_of
from kvstore_mpi.hybrid.routes import DENSE_ALLREDUCE, ROWS_SERVERS, Prices, Route, Router
from kvstore_mpi.server_optimizers import updates_exactly

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mxnet.ndarray import NDArray

    from kvstore_mpi.adapters.mxnet.bridge.arrays import Staging
    from kvstore_mpi.adapters.mxnet.exchange.exchange import Exchange
    from kvstore_mpi.adapters.mxnet.tables.row_counts import ClientCounts
    from kvstore_mpi.adapters.mxnet.updates.hybrid_updates import HybridUpdates
    from kvstore_mpi.records import Key
    from kvstore_mpi.rows_interface import RowsWorker

    Array = np.ndarray[Any, Any]

log = logging.getLogger("kvstore_mpi.mxnet")


class KeyMoves:
    """When tables of a store of one client leave the servers, and how."""

    def __init__(
        self,
        exchange: Exchange,
        updates: HybridUpdates,
        counts: ClientCounts,
        bring_up_to_date: Callable[[Key, RowTable], None],
        come_back: Callable[[Key, Array], None],
    ) -> None:
        """Begin with all tables on the servers.

        Args:
            exchange: Of the store.
            updates: Take over the states.
            counts: Say what is touched.
            bring_up_to_date: Brings a table's mirror to what the servers have, and waits for that.
            come_back: Makes a table of a key, with a value.
        """
        self._exchange = exchange
        self._updates = updates
        self._counts = counts
        self._bring_up_to_date = bring_up_to_date
        self._come_back = come_back
        self._worker = cast("RowsWorker", exchange.worker)
        self._routers: dict[Key, Router] = {}
        self._due: set[Key] = set()  # their windows have ended
        self._left: dict[Key, bool] = {}  # still on the servers; whether this worker has pushed elsewhere
        self._gone: set[Key] = set()  # tables that the workers have
        self._own: dict[Key, list[int]] = {}  # rows that this worker has in the last push of a window

    def window_ended(self, key: Key) -> None:
        """The last push of a table that is queued was that of a window's end."""
        self._due.add(key)

    def before_push(self, key: Key, table: RowTable) -> bool:
        """Decide about a table before its next push; return whether it is none any more."""
        if key not in self._due or not self._changes(key, table):
            return False
        self._move(key, table)
        return True

    def _changes(self, key: Key, staging: Staging) -> bool:
        """Decide about a key of which a window has ended."""
        self._due.discard(key)
        staging.array.wait_to_read()  # the counts of the window come behind its last push
        self._exchange.check()
        counted = self._counts.of(key)
        if counted is None or not self._counts.may_move(key):
            return False
        ranks = self._exchange.worker.mpi_size
        density = density_of(counted, staging.shape[0], ranks=ranks, apart=True)
        choice = self._router_of(key, staging).choose(density)
        if choice.changed and self._exchange.worker.rank == 0:
            others = [way for way in choice.seconds if way != choice.way]
            log.info(
                "key %r: a step touches %.0f %% of its rows; the %s from now on, as that takes %.3g bytes "
                "instead of %.3g",
                key,
                100 * density.job,
                "workers sum it" if choice.way == DENSE_ALLREDUCE else "servers have it",
                choice.seconds[choice.way],
                choice.seconds[others[0]],
            )
        return choice.changed

    def may_move(self, key: Key, table: RowTable) -> bool:
        """Return whether a table may leave the servers, as far as this rank knows."""
        routes = self._exchange.routes
        # Workers that have only some of its rows cannot make its update, nor go on from rounded ones.
        has_value = table.mirror is not None and not travels_rounded(self._updates.spec, table.dtype)
        return has_value and routes is not None and routes.wanted(key) is None

    def _router_of(self, key: Key, table: Staging) -> Router:
        if key in self._gone:  # as it was when it left
            return self._routers[key]
        row_bytes = math.prod(table.shape[1:]) * np.dtype(table.dtype).itemsize
        # The number of pieces may have changed.
        pieces = self._worker.rows_counted(table.store)[key].pieces
        sizes = Table(table.shape[0], row_bytes, pieces)
        if key not in self._routers:
            cluster, ways = cluster_of(self._exchange.worker), (ROWS_SERVERS, DENSE_ALLREDUCE)
            self._routers[key] = Router(sizes, cluster, Prices(), ways)
        self._routers[key].table = sizes
        return self._routers[key]

    def _move(self, key: Key, table: RowTable) -> None:
        """Let the workers have a table with its states; nothing of it is under way afterwards."""
        self._bring_up_to_date(key, table)
        states: Any = self._worker.row_states(table.store, key)
        self._exchange.move_to_workers(key, table.array)
        self._updates.move_to_workers(key, states)
        self._left[key] = False
        self._gone.add(key)

    def _move_back(self, key: Key) -> None:
        """Let the servers have a table again; nothing of it is under way on this worker."""
        weight, states = self._updates.move_to_servers(key)
        value = weight.asnumpy()
        self._exchange.check()
        self._exchange.leave_workers(key)
        self._gone.discard(key)
        self._come_back(key, value)
        # Rounds wait for rank 0's push, which follows its states.
        if self._exchange.worker.rank == 0 and states is not None:
            self._exchange.stagings[key].array.wait_to_read()
            self._exchange.check()
            self._worker.load_row_states(self._exchange.store, key, states)

    def before_dense_push(self, key: Key, values: Sequence[NDArray], route: Route | None) -> bool:
        """A key that is no table is about to be pushed; return whether it is one from now on.

        Args:
            key: Which one.
            values: An array for each device.
            route: Of the table that it becomes by this push, its first; ``None`` if it does not.
        """
        self._release(key)
        staging = self._exchange.stagings[key]
        if route is Route.SERVERS and not self._exchange.is_on_servers(key):
            self._move_back(key)
            return True
        if key not in self._gone:
            return False
        if key in self._due and self._changes(key, staging):
            self._move_back(key)
            return True
        if key in self._own:
            spec = self._updates.spec
            exact = spec is not None and updates_exactly(spec, staging.dtype)
            self._counts.add_up_dense(key, staging, self._own.pop(key), exact=exact)
            self._due.add(key)
        if self._counts.pushed_densely(key):
            self._own[key] = self._count(key, staging, values)
        return False

    def _count(self, key: Key, staging: Staging, values: Sequence[NDArray]) -> list[int]:
        """Queue the count of the rows that this worker is about to push; return where it will be."""
        count: list[int] = []
        if all(map(native.is_dense, values)):
            return [staging.shape[0]]
        has_dense = any(map(native.is_dense, values))
        pushed = AllRows(values, staging) if has_dense else PushedRows(key, values, staging)
        action = partial(at_once, lambda: count.append(len(pushed.rows().ids)))
        # Before what reads the count, which writes the array.
        self._exchange.queue(action, mutable=[staging.array], const=pushed.arrays, after_failures=False)
        return count

    def _release(self, key: Key) -> None:
        """Have the servers forget a table that has left, when all have pushed it elsewhere."""
        if self._left.get(key):
            # The push before this one has ended by then, and with it everybody's: all have gone.
            del self._left[key]
            self._exchange.after(key, partial(self._worker.release_rows, self._exchange.store, key))
        elif key in self._left:
            self._left[key] = True
