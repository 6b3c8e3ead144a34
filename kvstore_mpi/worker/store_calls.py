"""The calls of a worker that open and close stores; a part of ``worker.Worker``."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

from kvstore_mpi.errors import UsageError
from kvstore_mpi.records import Mode
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Send
from kvstore_mpi.worker.status import Observed

if TYPE_CHECKING:
    from kvstore_mpi.records import Key, KeySpec, OptimizerNumbers
    from kvstore_mpi.worker.exchange_buffers import ExchangeBuffers
    from kvstore_mpi.worker.records import KeyState
    from kvstore_mpi.worker.requests import Requests
    from kvstore_mpi.worker.tables import Tables


class StoreCalls(Observed):
    """What a worker can do with whole stores, and tells of their optimizers."""

    client: int
    num_servers: int
    _buffers: ExchangeBuffers
    _closed_stores: set[int]
    _keys: dict[tuple[int, Key], KeySpec]
    _modes: list[Mode]
    _numbers_noted: dict[tuple[int, int], OptimizerNumbers]
    _requests: Requests
    _tables: Tables
    _with_quorum: set[int]

    def note_numbers(self, numbers: OptimizerNumbers) -> None:
        """See ``interfaces.KVWorker``."""
        self._numbers_noted[numbers.store, numbers.given] = numbers

    def tell_numbers(self) -> None:
        """See ``interfaces.KVWorker``."""
        noted, self._numbers_noted = self._numbers_noted, {}
        # To whom all workers talk, and not among a client's ranks: their order of calls is left as it is.
        for each in noted.values():
            self._loop.post(partial(self.io.do, [Send(self.coordinator, m.Numbers(each))]))

    def open_store(self, mode: str) -> int:
        """See ``interfaces.KVWorker``."""
        kind = Mode(mode)
        # Without servers the ranks sum by collectives, in which all take part: none can push by itself.
        if kind is Mode.ASYNC and not self.num_servers:
            raise UsageError(
                "an async store needs servers: start the job with mpilaunch --servers 1 or more"
            )
        # Stores are numbered by the order in which they are opened, here as on every worker: nobody tells
        # the others. A program that opens them in another order is noticed when its keys are declared.
        number = len(self._modes)
        self._modes.append(kind)
        self._loop.post(partial(self.io.open_store, number, kind))
        return number

    def close_store(self, store: int, *, settled: bool = False) -> None:
        """See ``interfaces.KVWorker``."""
        # Twice is no mistake, as of a worker: who cleans up need not know what has been.
        if store in self._closed_stores:
            return
        # What a client does that runs its script from the beginning, while others are further, follows from
        # its own calls alone: the numbers of its stores and barriers would not be those of the others.
        if self._config.clients_come_later:
            raise UsageError(
                f"store {store} cannot be closed in a job with --max-restarts, or with --start-with below "
                "--clients, and several clients: one that is started again, or comes late, could not tell "
                "which stores are over; leave the option out, or start one job for each model"
            )
        # Before anything is given up: if it does not end in time, the store is as it was.
        self.flush(self._config.step_timeout)
        self._give_up(store)
        # Before the others may go on, as at a barrier: their weights would differ in silence.
        self.tell_numbers()
        # A barrier, so that whatever goes wrong there goes wrong in the same way: who ends instead, pushes
        # more often, dies or never comes.
        arrive = partial(self.io.arrive, settled=settled, closes=store)
        self._requests.barrier(
            lambda number: self._loop.post(partial(arrive, number)), f"the end of store {store}, as "
        )
        # All ranks of the client have come, so that no collective of theirs needs what is forgotten here.
        closed: Future[list[KeyState]] = Future()
        # By the thread that owns them; and waited for, so that whoever opens the next store has the room.
        self._loop.post(partial(self.io.close_store, store, closed))
        what = f"its own memory of store {store}"
        keys = self._wait(closed, self._config.peer_timeout, lambda: what, self.coordinator)
        buffers = [key.let_go() for key in keys if key.table is None]
        # It holds the other ranks' buffers, too, which are gone there only when all have let go of them.
        self._mpi_thread.forget(buffers)
        # Here and not by the I/O thread: this is the thread that makes buffers.
        for buffer in buffers:
            self._buffers.free(buffer)

    def _give_up(self, store: int) -> None:
        """Let this worker call nothing more of a store."""
        self._closed_stores.add(store)
        # By name: what is not known here is refused where it is called, and never reaches the state.
        for name in [name for name in self._keys if name[0] == store]:
            del self._keys[name]
        self._tables.close(store)
        self._with_quorum.discard(store)

    def _check_open(self, store: int) -> None:
        """Raise where a store is not in use any more.

        Raises:
            UsageError: It is closed.
        """
        # Here, where the line of the program is known: the state has forgotten the store, and would find no
        # key of it.
        if store in self._closed_stores:
            raise UsageError(f"store {store} of worker {self.rank} is closed; open another one")

    def _mode_of(self, store: int) -> Mode:
        """Return the mode of a store, as ``_check_open``."""
        self._check_open(store)
        return self._modes[store]
