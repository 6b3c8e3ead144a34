"""What the ranks of a client count of their tables, added up, so that all of them know the same.

Of a client of several ranks each counts what it has sent itself, and the rank that merges for the others
counts their union. At the end of a window of pushes the counts are added up among the ranks, behind the
push that ended the window; until then nobody waits.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

from kvstore_mpi.hybrid.density import Counted, ends_window

if TYPE_CHECKING:
    import numpy as np

    from kvstore_mpi.adapters.mxnet.bridge.arrays import Staging
    from kvstore_mpi.adapters.mxnet.exchange.exchange import Exchange
    from kvstore_mpi.adapters.mxnet.exchange.row_tables import RowTable
    from kvstore_mpi.interfaces import Done
    from kvstore_mpi.records import Key
    from kvstore_mpi.rows_interface import RowsWorker


class ClientCounts:
    """The counts of the tables of one store."""

    def __init__(self, exchange: Exchange) -> None:
        """Start without tables."""
        self._exchange = exchange
        self._worker = cast("RowsWorker", exchange.worker)
        self._store: int | None = None  # in which counts are added up
        self._windows: dict[Key, _Window] = {}

    def created(self, key: Key) -> None:
        """Begin with a table; all workers call this for the same tables in the same order."""
        if key in self._windows:  # it comes back, and its sums of counts have their place
            self.cut_anew(key)
            return
        worker = self._exchange.worker
        buffer = None
        if worker.mpi_size > 1 and self._exchange.on_servers:
            if self._store is None:
                self._store = self._exchange.open_further("client")
            buffer = worker.exchange_buffer(len(Counted._fields) + 1, "float64")
            worker.init(self._store, key, buffer.shape, buffer, _nothing)
        self._windows[key] = _Window(key, buffer)

    def pushed(self, key: Key, table: RowTable, *, may_move: bool) -> bool:
        """Take notice of a push that is queued; return whether a window ends with it.

        ``may_move``: from this rank's view the table may leave the servers; see ``may_move``.
        """
        if key not in self._windows:  # made of a dense key: by its first push, on all ranks of the client
            self.created(key)
        window = self._windows[key]
        window.pushes += 1
        if not ends_window(window.pushes):
            return False
        self._exchange.queue(partial(self._add_up, key, window, may_move=may_move), mutable=[table.array])
        return True

    def _add_up(self, key: Key, window: _Window, done: Done, *, may_move: bool) -> None:
        """Add the counts of a window up; in an operation of the engine, after the push that ended it."""
        now = self._own(key)
        own = Counted(*(new - old for new, old in zip(now, window.before)))
        window.before = now
        apart = self._worker.rows_counted(self._exchange.stagings[key].store)[key].apart
        self._sum(window, own, done, may_move=may_move, apart=apart)

    def _sum(self, window: _Window, own: Counted, done: Done, *, may_move: bool, apart: bool) -> None:
        if window.buffer is None or self._store is None:
            window.last, window.may_move = own, may_move
            done(None)
            return
        window.buffer[:] = (*own, may_move)

        def end(error: BaseException | None) -> None:
            if error is None:
                assert window.buffer is not None
                *counted, number = window.buffer.tolist()
                ranks = self._exchange.worker.mpi_size
                window.last = _of_each_rank(Counted(*counted), ranks, apart=apart)
                window.may_move = number == ranks
            done(error)

        self._exchange.worker.pushpull(self._store, window.key, 0, end)

    def pushed_densely(self, key: Key) -> bool:
        """Take notice that a key that was a table is to be pushed; return whether a window ends with it."""
        window = self._windows[key]
        window.pushes += 1
        return ends_window(window.pushes)

    def add_up_dense(self, key: Key, staging: Staging, own: list[int], *, exact: bool) -> None:
        """Queue the count of the last push, of which the sum is in the key's array and the own rows known.

        Which rows were touched a sum does not say, only which are not zero in it. Of ``exact`` updates
        servers would say that all rows have changed.
        """
        window = self._windows[key]

        def count(done: Done) -> None:
            touched = int(staging.buffer.reshape(staging.shape[0], -1).any(axis=1).sum())
            first = self._exchange.worker.rank == 0  # for all: they have the same sum
            union, rows = (touched, staging.shape[0]) if first or window.buffer is None else (0, 0)
            job = rows if exact else union
            self._sum(window, Counted(1, own[0], union, job, 0, 0), done, may_move=True, apart=False)

        self._exchange.queue(count, mutable=[staging.array])

    def cut_anew(self, key: Key) -> None:
        """A table was cut anew, of which nothing was counted yet; nothing of it is under way."""
        self._windows[key].before = Counted(0, 0, 0, 0, 0, 0)

    def may_move(self, key: Key) -> bool:
        """Return whether the table might leave the servers from every rank's view at the window's end.

        If scripts differ, as in what they compress, one rank would go where the others do not.
        """
        return self._windows[key].may_move

    def _own(self, key: Key) -> Counted:
        count = self._worker.rows_counted(self._exchange.stagings[key].store)[key]
        return Counted(count.pushes, count.rank, count.client, count.job, count.sent, count.received)

    def of(self, key: Key) -> Counted | None:
        """Return what is known of a table: of several ranks, of the last window that has ended."""
        window = self._windows.get(key)
        if window is None:  # as above, and not pushed
            return None
        if window.buffer is not None:
            return window.last
        own = self._own(key)
        return own if own.pushes else None


class _Window:
    """The counts of one table.

    Attributes:
        key: Of the table.
        pushes: Queued so far.
        before: The own counts when the last window ended.
        buffer: In which they are added up; ``None`` of a rank that is alone.
        last: Of the last window, the same on all ranks.
        may_move: Likewise.
    """

    def __init__(self, key: Key, buffer: np.ndarray[Any, Any] | None) -> None:
        self.key = key
        self.pushes = 0
        self.before = Counted(0, 0, 0, 0, 0, 0)
        self.buffer = buffer
        self.last: Counted | None = None
        self.may_move = False


def _of_each_rank(total: Counted, ranks: int, *, apart: bool) -> Counted:
    """Return the sums with what every rank has counted alike only once."""
    mean = total._replace(pushes=total.pushes / ranks)
    # Each rank was told of all that changed, and what the others pushed besides it does not know.
    return mean._replace(client=total.client / ranks, job=total.job / ranks) if apart else mean


def _nothing(_error: BaseException | None) -> None:
    """The first sum comes after the initialisation, and has its error."""
