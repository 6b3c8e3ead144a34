"""The worker of this process: push, pull and pushpull for any framework (``interfaces.KVWorker``).

Three kinds of threads meet here and each owns one thing: the callers', which only post operations; the I/O
thread (``io_thread.py``), which owns the state and the sockets; and, in clients of several ranks, one MPI
thread, the only caller of MPI.
"""

from __future__ import annotations

import logging
import os
import socket
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.errors import DeadlineError, InternalError, KVStoreError, UnsupportedError, UsageError
from kvstore_mpi.p3.schedule import Schedule
from kvstore_mpi.records import ITEMSIZES, KeySpec, Mode, NodeId, Role, Topology
from kvstore_mpi.server_optimizers import OptimizerSpec, terms_of
from kvstore_mpi.settings import AUTO
from kvstore_mpi.tensor_collectives.choice import Algorithm
from kvstore_mpi.tensor_collectives.group import ClientGroup
from kvstore_mpi.wire import messages as m
from kvstore_mpi.worker import exchange_buffers
from kvstore_mpi.worker import records as wr
from kvstore_mpi.worker.exchange_buffers import ExchangeBuffers
from kvstore_mpi.worker.io_thread import Coordinator, WorkerNode
from kvstore_mpi.worker.mpi_thread import Collectives
from kvstore_mpi.worker.optimizer_calls import OptimizerCalls
from kvstore_mpi.worker.pending_operations import PendingOperations
from kvstore_mpi.worker.requests import Requests
from kvstore_mpi.worker.state import WorkerState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvstore_mpi.config import NodeConfig
    from kvstore_mpi.interfaces import Communicator, Done
    from kvstore_mpi.records import Key
    from kvstore_mpi.tensor_collectives.profile import Profile
    from kvstore_mpi.tracing.recorder import Recorder
    from kvstore_mpi.wire.io_loop import IoLoop

log = logging.getLogger("kvstore_mpi.worker")

Array = np.ndarray[Any, Any]

SERVERS_FIRST_S = 3.0
"""By so many seconds a server's deadline for a push comes before its worker's: a server knows, and says,
whom it waits for. Both are checked once a second."""


class Worker:
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
            profile: By what the ranks of this client choose how to sum, the same on all of them; otherwise
                the MPI library's built-in one.
        """
        self.client = config.client
        self.mpi_rank = communicator.rank
        self.mpi_size = communicator.size
        self.rank = self.client * topology.client_size + communicator.rank
        self.local_rank = communicator.local_rank()
        self.num_workers = topology.num_workers
        self.num_clients = topology.num_clients
        self.num_servers = topology.num_servers
        self.node = NodeId(Role.WORKER, self.rank)
        self._config = config
        self._loop = loop
        self.recorder = recorder
        self.coordinator = NodeId(Role.SCHEDULER) if topology.num_servers else NodeId(Role.WORKER, 0)
        self._buffers = ExchangeBuffers(config, topology, communicator)
        self._state = WorkerState(
            topology,
            self.rank,
            coordinator=self.coordinator,
            slice_elements=config.unit_elements,
            step_timeout=config.step_timeout + (SERVERS_FIRST_S if topology.num_servers else 0.0),
            place=self._buffers.place,
            schedule=Schedule(config.schedule),
            window_bytes=config.window_bytes,
            tell_sizes=config.slice_elements == AUTO,
            all_push=config.leaders == "all",
            keep_values=config.keep_values,
            mark=recorder.mark if recorder is not None else None,
        )
        algorithm = Algorithm(config.collective)
        group = ClientGroup(communicator, locate=self._buffers.place, algorithm=algorithm, profile=profile)
        self._collectives = Collectives(group, self._collected, self._mpi_failed, recorder)
        self._keys: dict[tuple[int, Key], KeySpec] = {}
        self._modes: list[Mode] = []
        self._with_quorum: set[int] = set()  # stores whose rounds do not wait for all clients
        self._requests = Requests(
            lambda number, peer, parts: loop.post(partial(self.io_node.request, number, peer, parts)),
            lambda future, what: self._wait(future, config.step_timeout, what),
        )
        servers = [NodeId(Role.SERVER, index) for index in range(topology.num_servers)]
        self._optimizers = OptimizerCalls(self.rank, self.num_clients, servers, self._requests)
        self._pending = PendingOperations()
        self._closed = False
        self.io_node = WorkerNode(
            self.node,
            self.coordinator,
            topology,
            self._state,
            loop,
            collect=self._collect,
            resolve=self._requests.resolve,
            scheduler=scheduler,
            recorder=recorder,
        )

    # --- life ---

    def join(self, addresses: Sequence[str], listens_on: list[str]) -> None:
        """Start the threads and meet the others.

        Args:
            addresses: Where the coordinator listens; empty if it is this worker itself.
            listens_on: Where this worker listens, for the rest of its client.

        Raises:
            KVStoreError: Somebody did not come in time; the message says who.
        """
        self._loop.start(self.io_node, "kvstore-io")
        self._collectives.start()
        hello = m.Join(listens_on, socket.gethostname(), os.getpid(), self._config.incarnation)
        self._loop.post(partial(self.io_node.start_joining, addresses, hello))
        timeout = self._config.connect_timeout + self._config.peer_timeout
        who = self.io_node.meeting.names_awaited
        self._wait(self.io_node.meeting.joined, timeout, lambda: f"joining the job; not met yet: {who()}")

    def close(self) -> None:
        """See ``interfaces.KVWorker``; an error that shows only now is in ``failure()`` afterwards."""
        if self._closed:
            return
        self._closed = self.io_node.parting = True
        if self._state.error is None and self.io_node.meeting.joined.done():
            self._part()
        self._collectives.stop()
        self._loop.stop()
        self._loop.join(self._config.peer_timeout)
        if self._state.error is None:
            self._collectives.close(self._config.peer_timeout)
        if self.recorder is not None:
            self.recorder.write()

    def _part(self) -> None:
        """Wait for the own operations, then for the rest of the client, then tell the servers."""
        try:
            self.flush(self._config.finish_timeout)
        except KVStoreError as error:
            self._loop.post(partial(self.io_node.fail, error))
            return
        self._post(self._state.close)
        if not self.io_node.may_end.wait(self._config.finish_timeout):
            text = (
                f"{self.node} has finished and waited {self._config.finish_timeout:g} s for the rest of "
                "its client to finish too; do all workers run the same number of batches?"
            )
            self._loop.post(partial(self.io_node.fail, DeadlineError(text)))
        left: Future[None] = Future()
        self._loop.post(partial(self.io_node.leave, left))
        self._wait(left, self._config.peer_timeout, lambda: "leaving")

    def interrupt(self, reason: str) -> None:
        """See ``interfaces.KVWorker``."""
        self._post(lambda _now: self._state.interrupt(reason))

    def failure(self) -> KVStoreError | None:
        """See ``interfaces.KVWorker``."""
        return self._state.error

    # --- operations ---

    def open_store(self, mode: str) -> int:
        """See ``interfaces.KVWorker``."""
        kind = Mode(mode)
        if kind is Mode.ASYNC and not self.num_servers:
            raise UsageError(
                "an async store needs servers: start the job with mpilaunch --servers 1 or more"
            )
        number = len(self._modes)
        self._modes.append(kind)
        self._loop.post(lambda _now: self._state.keys.open_store(number, kind))
        return number

    def exchange_buffer(self, size: int, dtype: str) -> Array:
        """See ``interfaces.KVWorker``."""
        return self._buffers.allocate(size, dtype)

    def init(self, store: int, key: Key, shape: tuple[int, ...], buffer: Array, done: Done) -> None:
        """See ``interfaces.KVWorker``."""
        spec = KeySpec(store, key, tuple(shape), buffer.dtype.name)
        known = self._keys.get((store, key))
        if known is not None:
            raise UsageError(
                f"duplicate init of {known} by worker {self.rank}: it was initialised before"
                + ("" if known == spec else f", now with {spec.shape} {spec.dtype}")
            )
        if spec.dtype not in ITEMSIZES:
            raise UnsupportedError(f"{spec} of worker {self.rank}: only {', '.join(ITEMSIZES)} can travel")
        restarted = self._config.incarnation and self.num_clients > 1
        if restarted and self._modes[store] is Mode.SYNC and store not in self._with_quorum:
            raise UsageError(
                f"client {self.client} was restarted and cannot take part in a synchronous store, whose "
                "rounds have gone on or failed without it; only async stores, and stores to which "
                "set_optimizer has given a quorum before, take restarted clients in"
            )
        self._keys[store, key] = spec
        operation = wr.Operation(wr.Kind.INIT, 0, self._begin(done))

        def submit(now: float) -> list[Any]:
            self._state.keys.add(spec, buffer, buffer.view(np.uint8).data, buffer.itemsize)
            return self._state.submit(store, key, operation, now)

        self._post(submit)

    def push(self, store: int, key: Key, priority: int, done: Done) -> None:
        """See ``interfaces.KVWorker``."""
        self._submit(wr.Kind.PUSH, store, key, priority, done)

    def pull(self, store: int, key: Key, priority: int, done: Done) -> None:
        """See ``interfaces.KVWorker``."""
        self._submit(wr.Kind.PULL, store, key, priority, done)

    def pushpull(
        self, store: int, key: Key, priority: int, done: Done, source: Array | None = None
    ) -> None:
        """See ``interfaces.KVWorker``."""
        raw = source.view(np.uint8).data if source is not None else None
        self._submit(wr.Kind.PUSHPULL, store, key, priority, done, source=raw)

    def sends_source(self, store: int, key: Key) -> bool:
        """See ``interfaces.KVWorker``."""
        return self._state.keys.sends_source(store, key)

    def _submit(
        self,
        kind: wr.Kind,
        store: int,
        key: Key,
        priority: int,
        done: Done,
        *,
        source: memoryview | None = None,
    ) -> None:
        if (store, key) not in self._keys:
            raise UsageError(f"{kind.value} of key {key!r} by worker {self.rank} before its init")
        done = self._begin(done)
        if self.recorder is not None:
            done = self.recorder.operation(kind.value, store, key, priority, done)
        operation = wr.Operation(kind, priority, done, source)
        self._post(lambda now: self._state.submit(store, key, operation, now))

    def _begin(self, done: Done) -> Done:
        if self._closed:
            raise UsageError(f"worker {self.rank} has left the job; no operation can follow close")
        return self._pending.begin(done)

    def _post(self, decide: Callable[[float], list[Any]]) -> None:
        """Have the I/O thread ask the state for a decision, and carry it out."""
        self._loop.post(lambda now: self.io_node.do(decide(now), now))

    def flush(self, timeout: float | None = None) -> None:
        """See ``interfaces.KVWorker``."""
        left = self._pending.wait(timeout)
        if left:
            raise DeadlineError(
                f"worker {self.rank}: {left} operations have not ended within {timeout:g} s"
            )

    # --- blocking requests ---

    def set_optimizer(self, store: int, spec: dict[str, Any]) -> dict[str, Any]:
        """See ``interfaces.KVWorker``; other workers wait for rank 0's where no push may come before it."""
        spec = self._optimizers.give(store, self._modes[store], spec)
        terms = terms_of(OptimizerSpec.from_dict(spec))
        if terms.quorum:
            self._with_quorum.add(store)
        self._loop.post(lambda _now: self._state.note_optimizer(store, spec))
        self._loop.post(lambda _now: self._state.keys.take_terms(store, terms))
        return spec

    def set_hyper(self, store: int, hyper: dict[str, Any]) -> None:
        """See ``interfaces.KVWorker``."""
        self._post(lambda _now: self._state.set_hyper(store, hyper))

    def optimizer_states(self, store: int) -> dict[Key, Any]:
        """See ``interfaces.KVWorker``; the states are ``state_pieces.KeyStates``."""
        return self._optimizers.states(store)

    def load_optimizer_states(self, store: int, states: dict[Key, Any]) -> None:
        """See ``interfaces.KVWorker``; keys that the store does not have are left out."""
        self.flush(self._config.step_timeout)
        self._optimizers.load_states(store, self._state.keys.units(store), states)

    def barrier(self) -> None:
        """See ``interfaces.KVWorker``."""
        self._requests.barrier(self.coordinator)

    def _wait(self, future: Future[Any], timeout: float, what: Callable[[], str]) -> Any:
        try:
            return future.result(timeout)
        except FutureTimeoutError:
            error = DeadlineError(
                f"worker {self.rank} on {socket.gethostname()} waited {timeout:g} s for {what()}"
            )
        # The I/O thread decides, before the caller goes on: otherwise what the others do once they see this
        # worker give up could arrive first, and be taken for the cause.
        self._loop.post(partial(self.io_node.give_up, future, error))
        try:
            return future.result(self._config.peer_timeout)
        except FutureTimeoutError:  # the I/O thread does nothing any more
            raise error from None

    # --- the MPI thread ---

    def _collect(self, job: wr.Collect) -> None:
        """Called by the I/O thread: there is work for the MPI thread."""
        self._collectives.put(job)

    def _collected(self, jobs: Sequence[wr.Collect]) -> None:
        for job in jobs:
            if job.key.divisor > 1 and job.operation in (wr.Collective.REDUCE, wr.Collective.REDUCE_SHARE):
                exchange_buffers.average(job, self.mpi_rank)
        self._loop.post(partial(self.io_node.collected, jobs))

    def _mpi_failed(self, error: BaseException) -> None:
        if not isinstance(error, KVStoreError):
            error = InternalError(f"worker {self.rank}: a collective has failed: {error!r}")
        self._loop.post(partial(self.io_node.fail, error))
