"""The worker of this process: push, pull and pushpull for any framework (``interfaces.KVWorker``).

Three kinds of threads meet here and each owns one thing: the callers', which only post operations; the I/O
thread (``io_thread.py``), which owns the state and the sockets; and, in clients of several ranks, one MPI
thread, the only caller of MPI.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.errors import InternalError, KVStoreError, UsageError
from kvstore_mpi.host_name import host_name
from kvstore_mpi.records import KeySpec, Mode, NodeId, Role, Topology
from kvstore_mpi.server_optimizers import OptimizerSpec, terms_of
from kvstore_mpi.tensor_collectives.hosts import place_on_host
from kvstore_mpi.wire import messages as m
from kvstore_mpi.worker import records as wr
from kvstore_mpi.worker.collectives import Kind
from kvstore_mpi.worker.exchange_buffers import ExchangeBuffers
from kvstore_mpi.worker.io_thread import WorkerIo
from kvstore_mpi.worker.key_creation import check_new, check_slices
from kvstore_mpi.worker.membership import Membership
from kvstore_mpi.worker.mpi_thread import MpiThread, make_mpi_thread
from kvstore_mpi.worker.optimizer_calls import OptimizerCalls
from kvstore_mpi.worker.rendezvous import Coordinator, Rendezvous
from kvstore_mpi.worker.requests import Requests
from kvstore_mpi.worker.servers import place_of
from kvstore_mpi.worker.state import WorkerState
from kvstore_mpi.worker.table_calls import TableCalls
from kvstore_mpi.worker.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.config import NodeConfig
    from kvstore_mpi.interfaces import Communicator, Done
    from kvstore_mpi.records import Key, OptimizerNumbers
    from kvstore_mpi.tensor_collectives.profile import Profile
    from kvstore_mpi.tracing.recorder import Recorder
    from kvstore_mpi.wire.io_loop import IoLoop

log = logging.getLogger("kvstore_mpi.worker")

Array = np.ndarray[Any, Any]


class Worker(TableCalls):
    """One worker of a job; implements ``interfaces.KVWorker``, whose docstrings describe the calls."""

    def __init__(
        self,
        config: NodeConfig,
        topology: Topology,
        communicator: Communicator,
        loop: IoLoop,
        *,
        scheduler: Coordinator | None = None,
        recorder: Recorder | None = None,
        profile: Profile | None = None,
    ) -> None:
        """Make the worker; ``join`` then meets the others.

        Args:
            config: This process's configuration.
            topology: The shape of the job.
            communicator: The ranks of this client; owned from now on.
            loop: Owned from now on.
            scheduler: In pure MPI, the scheduler's state, which rank 0 runs beside its own.
            recorder: Takes what happens here, if the job has a trace.
            profile: By what its client's ranks choose how to sum; else the MPI library's built-in one.
        """
        self.client = config.client
        self.mpi_rank, self.mpi_size = communicator.rank, communicator.size
        self.rank = self.client * topology.client_size + self.mpi_rank
        self.local_rank, self.client_hosts = place_on_host(hosts := communicator.hosts(), communicator.rank)
        self.num_workers, self.num_clients = topology.num_workers, topology.num_clients
        self.num_servers = topology.num_servers
        self.model_rank, self.model_parallel = topology.model_rank, topology.model_parallel
        self.gpu_kernels, self.dense, self.routes = config.gpu_kernels, config.dense, config.routes
        self.has_snapshots, self.takes_up = bool(config.snapshot_dir), config.takes_up
        self.node = NodeId(Role.WORKER, self.rank)
        self._config, self._loop, self._topology, self.recorder = config, loop, topology, recorder
        # Without servers there is no scheduler either: a process less, and rank 0 has time for it.
        self.coordinator = NodeId(Role.SCHEDULER) if topology.num_servers else NodeId(Role.WORKER, 0)
        self._keys: dict[tuple[int, Key], KeySpec] = {}
        self._tables = Tables(self.rank, topology.num_servers, self._keys, config.partitions)
        self._modes, self._closed_stores = [], set()
        self._with_quorum: set[int] = set()  # stores whose rounds do not wait for all clients
        self._numbers_noted: dict[tuple[int, int], OptimizerNumbers] = {}  # by store and optimizer
        self._closed, self._called, self._lost = False, {}, None
        # Operations that have not ended, under a lock of their own: callers of any thread begin them, and
        # the I/O thread ends them.
        self._pending, self._numbers, self._ended = {}, itertools.count(), 0
        self._settled = threading.Condition()
        self._buffers = buffers = ExchangeBuffers(config, topology, communicator)
        mark = recorder.mark if recorder is not None else None
        self._state = WorkerState(
            config, topology, self.rank, hosts, coordinator=self.coordinator, place=buffers.place, mark=mark
        )
        # By a lambda, because the I/O thread's half does not exist yet: it needs these requests itself.
        self._requests = Requests(
            lambda number, peer, parts: loop.post(partial(self.io.request, number, peer, parts)),
            self._wait_for_answer,
        )
        self._optimizers = OptimizerCalls(
            self.rank, self.num_clients, self._state.servers.nodes, self._requests
        )
        self._mpi_thread = self._make_mpi_thread(communicator, profile)
        self.io = self._make_io(topology, scheduler)

    def _make_io(self, topology: Topology, scheduler: Coordinator | None) -> WorkerIo:
        self._loop.receive_into(partial(place_of, self._state.keys.by_id))
        return WorkerIo(
            self._state,
            Membership(self._state, topology, self.rank, self.coordinator),
            Rendezvous(self.node, self.coordinator, topology, self._loop),
            self._loop,
            collect=self._mpi_thread.put,
            resolve=self._requests.resolve,
            abandon=self._abandon,
            coordinator=scheduler,
            recorder=self.recorder,
        )

    def _make_mpi_thread(self, communicator: Communicator, profile: Profile | None) -> MpiThread:
        return make_mpi_thread(communicator, self._config, self._buffers.place, profile, self.recorder)

    # --- life ---

    def join(self, addresses: Sequence[str], listens_on: list[str]) -> None:
        """Start the threads and meet the others.

        Args:
            addresses: Where the coordinator listens; empty if it is this worker itself.
            listens_on: Where this worker listens, for the rest of its client.

        Raises:
            KVStoreError: Somebody did not come in time; the message says who.
        """
        # The I/O thread first, to which the MPI thread reports. Both before the others are met, because
        # meeting them is the I/O thread's work.
        self._loop.start(self.io, "kvstore-io")
        self._mpi_thread.start(self.io.post_collected, self.io.post_mpi_failure)
        hello = m.Join(listens_on, host_name(), os.getpid(), self._config.incarnation)
        self._loop.post(partial(self.io.start_joining, addresses, hello))
        # Longer than the scheduler waits, whose error names all that are missing, not whom one needs.
        timeout = self._config.connect_timeout + self._config.peer_timeout
        who = self.io.rendezvous.names_awaited
        what = "joining the job; not met yet: {}".format
        self._wait(self.io.rendezvous.joined, timeout, lambda: what(who()), self.coordinator)

    def close(self) -> None:
        """See ``interfaces.KVWorker``; an error that shows only now is in ``failure()`` afterwards."""
        # Twice is no mistake: a script closes the store, and the exit handler closes it again.
        if self._closed:
            return
        self._closed = self.io.parting = True
        in_order = False
        try:
            # After an error nobody is waited for: they have the error, too, or are the cause of it.
            if self.failure() is None and self.io.rendezvous.joined.done():
                self._part()
            in_order = self.failure() is None
        finally:
            self._stop_threads(in_order=in_order)

    def _stop_threads(self, *, in_order: bool) -> None:
        # The loop after the MPI thread, which reports to it. Both are given time; neither can be forced.
        self._mpi_thread.stop()
        self._loop.stop()
        self._loop.join(self._config.peer_timeout)
        # After an error another rank may be dead, and this one stuck in a collective with it: freeing MPI's
        # group is a collective itself and would never return.
        if in_order:
            self._mpi_thread.close(self._config.peer_timeout)
        if self.recorder is not None:
            self.recorder.write()

    def _part(self) -> None:
        """Wait for the own operations, then for the rest of the client, then tell the servers."""
        try:
            # What nobody waits for any more is waited for here: a push whose ``done`` was ignored would
            # otherwise be cut off by the end of the process.
            self.flush(self._config.finish_timeout)
        except KVStoreError as error:
            self._loop.post(partial(self.io.fail, error))
            return
        self.tell_numbers()  # before the others may go: who differs from them is an error of theirs, too
        # Each step needs the one before: a rank that went too early would leave the others in a collective,
        # and servers that were told too early would not wait for this client's last pushes.
        self._loop.post(self.io.close)
        self._wait_to_end()
        left: Future[None] = Future()
        # Waited for below: the loop is stopped next, and what it has not been given by then is never said.
        self._loop.post(partial(self.io.leave, left))
        try:
            self._wait(left, self._config.peer_timeout, lambda: "leaving", self.coordinator)
        except KVStoreError:
            if self.failure() is None:  # else it is told there
                raise

    def interrupt(self, reason: str, error: KVStoreError | None = None) -> None:
        """See ``interfaces.KVWorker``."""
        # Posted, and nothing else: a signal's thread calls this while the caller's may hold any lock.
        self._loop.post(partial(self.io.interrupt, reason, error))

    # --- operations ---

    def exchange_buffer(self, size: int, dtype: str) -> Array:
        """See ``interfaces.KVWorker``."""
        return self._buffers.allocate(size, dtype)

    def init(
        self,
        store: int,
        key: Key,
        shape: tuple[int, ...],
        buffer: Array,
        done: Done,
        *,
        scratch: bool = False,
    ) -> None:
        """See ``interfaces.KVWorker``."""
        spec = KeySpec(store, key, tuple(shape), buffer.dtype.name, scratch=scratch)
        known = self._keys.get((store, key))
        if known is not None:
            raise UsageError(
                f"duplicate init of {known} by worker {self.rank}: it was initialised before"
                + ("" if known == spec else f", now with {spec.shape} {spec.dtype}")
            )
        check_new(spec, self.node, self._config, loose=self._is_loose(store))
        check_slices(spec, self._config.largest_slice)
        # Before it is posted: a push in the next line must find the key, though the coordinator has not
        # placed it yet.
        self._keys[store, key] = spec
        operation = wr.Operation(Kind.INIT, 0, self._begin(done))
        self._loop.post(partial(self.io.add_key, spec, buffer, operation))

    def push(self, store: int, key: Key, priority: int, done: Done, arrived: Done | None = None) -> None:
        """See ``interfaces.KVWorker``."""
        self._submit(Kind.PUSH, store, key, priority, done, arrived=arrived)

    def pull(self, store: int, key: Key, priority: int, done: Done) -> None:
        """See ``interfaces.KVWorker``."""
        self._submit(Kind.PULL, store, key, priority, done)

    def pushpull(
        self, store: int, key: Key, priority: int, done: Done, source: Array | None = None
    ) -> None:
        """See ``interfaces.KVWorker``."""
        # Bytes without a copy: the I/O thread cuts slices out of this view until ``done`` is called.
        raw = source.view(np.uint8).data if source is not None else None
        self._submit(Kind.PUSHPULL, store, key, priority, done, source=raw)

    def _is_loose(self, store: int) -> bool:
        # Rounds of such stores do not wait for a client: one that was restarted may come back to them.
        return self._mode_of(store) is not Mode.SYNC or store in self._with_quorum

    def sends_source(self, store: int, key: Key) -> bool:
        """See ``interfaces.KVWorker``."""
        return self._state.keys.sends_source(store, key)

    def _submit(
        self,
        kind: Kind,
        store: int,
        key: Key,
        priority: int,
        done: Done,
        *,
        source: memoryview | None = None,
        arrived: Done | None = None,
    ) -> None:
        # In the caller's thread: an error raised by the I/O thread could not name the line of the program.
        if (store, key) not in self._keys:
            self._check_open(store)
            raise UsageError(f"{kind.value} of key {key!r} by worker {self.rank} before its init")
        # Counted before it is posted, or ``flush`` could return between the two.
        done = self._begin(done)
        if self.recorder is not None:
            done = self.recorder.operation(kind.value, store, key, priority, done)
        operation = wr.Operation(kind, priority, done, source, arrived)
        # One rank decides for its client: they must agree on what a collective is.
        on_servers = self.num_servers > 0 and self._modes[store] is not Mode.CLIENT
        operation.given = arrived is not None and not self.mpi_rank and on_servers
        self._loop.post(partial(self.io.submit, store, key, operation))

    def _begin(self, done: Done) -> Done:
        """Note an operation; return what is to be called at its end instead of ``done``."""
        if self._closed:
            raise UsageError(f"worker {self.rank} has left the job; no operation can follow close")
        since, number = time.monotonic(), next(self._numbers)
        # By number: a function that knew itself would be garbage that only a collection finds.
        end = partial(self._end, number, since, done)
        with self._settled:
            if self._lost is not None:
                raise self._lost
            if not self._pending:
                self._pending_since = since
            self._pending[number] = end
        return end

    def _end(self, number: int, since: float, done: Done, error: BaseException | None) -> None:
        # First the caller's, then the note: whoever returns from ``flush`` may rely on every ``done``
        # having been called.
        try:
            done(error)
        except Exception as failure:
            # Not raised: this thread has the others' operations to end, too. But communication ends, or
            # nobody would miss what this caller was to hand on.
            text = f"worker {self.rank}: what was to be called at the end of an operation failed"
            log.exception(text)
            self._loop.post(partial(self.io.fail, InternalError(f"{text}: {failure!r}")))
        finally:
            self._note_end(number, since)

    def _note_end(self, number: int, since: float) -> None:
        with self._settled:
            now = time.monotonic()
            self._ended += 1
            self._operation_seconds += now - since
            self._pending.pop(number, None)
            if not self._pending:
                self._pending_seconds += now - self._pending_since
                self._settled.notify_all()

    # --- blocking requests ---

    def set_optimizer(self, store: int, spec: dict[str, Any]) -> dict[str, Any]:
        """See ``interfaces.KVWorker``; other workers wait for rank 0's."""
        mode = self._mode_of(store)
        self._tables.take_coding(store, OptimizerSpec.from_dict(spec).compress)
        spec = self._optimizers.give(store, mode, spec)
        terms = terms_of(OptimizerSpec.from_dict(spec))
        # Noted here as well as by the state, for ``init``, whose thread must not ask another.
        if terms.quorum:
            self._with_quorum.add(store)
        self._loop.post(partial(self.io.take_optimizer, store, spec, terms))
        return spec

    def set_hyper(self, store: int, hyper: dict[str, Any]) -> None:
        """See ``interfaces.KVWorker``."""
        self._check_open(store)
        self._loop.post(partial(self.io.set_hyper, store, hyper))

    def optimizer_states(self, store: int, *, arrays: bool = True) -> dict[Key, Any]:
        """See ``interfaces.KVWorker``; the states are ``state_parts.KeyStates``."""
        self._check_open(store)
        # Under the names of the script: those among the processes would not be found when it loads them.
        return self._tables.by_user_names(store, self._optimizers.states(store, arrays=arrays))

    def load_optimizer_states(self, store: int, states: dict[Key, Any]) -> None:
        """See ``interfaces.KVWorker``; keys that the store does not have are left out."""
        self._check_open(store)
        # Pushes under way would be applied to old states or to new ones, depending on which come first.
        self.flush(self._config.step_timeout)
        # Safe only now: after the flush nothing is under way that could add a key.
        units = self._state.keys.units(store)
        self._optimizers.load_states(store, units, self._tables.by_known_names(store, states))

    def barrier(self, *, settled: bool = False) -> None:
        """See ``interfaces.KVWorker``."""
        self.tell_numbers()
        self._requests.barrier(
            lambda number: self._loop.post(partial(self.io.arrive, number, settled=settled))
        )
