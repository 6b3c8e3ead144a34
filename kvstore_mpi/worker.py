"""The worker of this process: push, pull and pushpull for any framework (``interfaces.KVWorker``).

A thin shell around ``protocol/worker_state.py``. Three kinds of threads meet here and each owns one thing:
the callers', which only post operations; the I/O thread (``io_loop.py``), which owns the state and the
sockets; and, in clients of several ranks, one MPI thread, the only caller of MPI.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Sequence

import numpy as np

from .client_group import ClientGroup
from .collectives import Collectives
from .config import AUTO
from .errors import (
    DeadlineError,
    InternalError,
    KVStoreError,
    MismatchError,
    UnsupportedError,
    UsageError,
)
from .esgd.terms import check_terms
from .p3.schedule import Schedule
from .protocol import events as ep
from .protocol import messages as m
from .protocol import worker_records as wr
from .protocol.instructions import Log, Send, Stop
from .protocol.worker_state import WorkerState
from .records import ITEMSIZES, KeySpec, Mode, NodeId, Role, Topology
from .reference import Reference
from .requests import Parts, Requests
from .server_optimizers import OptimizerSpec, traits_of
from .state_pieces import assemble, pieces_for
from .tensor_collectives.choice import Algorithm
from .tensor_collectives.profile import BUILT_IN, Profile
from .transport.shared_memory import Arena

if TYPE_CHECKING:
    from .config import NodeConfig
    from .interfaces import Communicator, Done
    from .io_loop import IoLoop
    from .protocol.scheduler_state import SchedulerState
    from .records import Key
    from .tracing.recorder import Recorder

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
        scheduler: SchedulerState | None = None,
        recorder: Recorder | None = None,
        profile: Profile = BUILT_IN,
    ) -> None:
        """Make the worker; ``join`` then meets the others.

        Args:
            config: This process's configuration.
            topology: The shape of the job.
            communicator: The ranks of this client; owned from now on.
            loop: Owned from now on.
            scheduler: In pure MPI, the scheduler's state, which rank 0 runs beside its own.
            recorder: Takes what happens here, if the job has a trace.
            profile: By what the ranks of this client choose how to sum; the same on all of them.
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
        self._topology = topology
        self._loop = loop
        self._scheduler = scheduler
        self.recorder = recorder
        self.coordinator = NodeId(Role.SCHEDULER) if topology.num_servers else NodeId(Role.WORKER, 0)
        self._arena = Arena() if _shares(config, topology, communicator) else None
        locate = self._arena.place if self._arena is not None else lambda _buffer: None
        self._state = WorkerState(
            topology,
            self.rank,
            coordinator=self.coordinator,
            slice_elements=config.unit_elements,
            step_timeout=config.step_timeout + (SERVERS_FIRST_S if topology.num_servers else 0.0),
            place=locate,
            schedule=Schedule(config.schedule),
            window_bytes=config.window_bytes,
            tell_sizes=config.slice_elements == AUTO,
            all_push=config.leaders == "all",
            keep_values=config.keep_values,
            mark=recorder.mark if recorder is not None else None,
        )
        self._servers = [NodeId(Role.SERVER, index) for index in range(topology.num_servers)]
        self._local: deque[tuple[m.Message, bool]] = deque()
        algorithm = Algorithm(config.collective)
        group = ClientGroup(communicator, locate=locate, algorithm=algorithm, profile=profile)
        self._collectives = Collectives(group, self._collected, self._mpi_failed, recorder)
        self._keys: dict[tuple[int, Key], KeySpec] = {}
        self._modes: list[Mode] = []
        self._optimized: set[int] = set()  # stores that this worker has given an optimizer
        self._requests = Requests(
            lambda number, peer, parts: loop.post(partial(self._request, number, peer, parts)),
            lambda future, what: self._wait(future, config.step_timeout, what),
        )
        self._pending = 0
        self._settled = threading.Condition()
        self._awaited: set[NodeId] = set()  # whom this worker needs before it has joined
        self._connected: set[NodeId] = set()
        self._met = False
        self._joined: Future[None] = Future()
        self._may_end = threading.Event()
        self._closed = False
        self._carry: dict[type[Any], Callable[..., None]] = {
            Send: self._send,
            wr.Write: self._write,
            wr.Refer: self._refer,
            wr.Complete: self._complete,
            wr.Collect: lambda job, _now: self._collectives.put(job),
            wr.Resolve: lambda answer, _now: self._requests.resolve(answer),
            wr.Joined: self._meet,
            wr.Keep: self._keep,
            wr.Disconnect: lambda gone, _now: loop.endpoint.forget(gone.peer),
            wr.Failed: self._failed,
            Log: lambda entry, _now: log.log(entry.level, entry.text),
            Stop: self._stop,
        }

    # --- life ---

    def join(self, addresses: Sequence[str], listens_on: list[str]) -> None:
        """Start the threads and meet the others.

        Args:
            addresses: Where the coordinator listens; empty if it is this worker itself.
            listens_on: Where this worker listens, for the rest of its client.

        Raises:
            KVStoreError: Somebody did not come in time; the message says who.
        """
        self._loop.start(self, "kvstore-io")
        self._collectives.start()
        hello = m.Join(listens_on, socket.gethostname(), os.getpid(), self._config.incarnation)
        self._loop.post(partial(self._start_joining, addresses, hello))
        timeout = self._config.connect_timeout + self._config.peer_timeout
        self._wait(self._joined, timeout, lambda: f"joining the job; not met yet: {self._names_awaited()}")

    def _names_awaited(self) -> str:
        missing = sorted(self._awaited - self._connected)
        return ", ".join(map(str, missing)) or "the other workers"

    def _start_joining(self, addresses: Sequence[str], hello: m.Join, now: float) -> None:
        if self.coordinator != self.node:
            self._connect(self.coordinator, addresses, now)
            self._loop.endpoint.monitor(self.coordinator)
        self._do([Send(self.coordinator, hello)], now)

    def _connect(self, peer: NodeId, addresses: Sequence[str], now: float) -> None:
        self._awaited.add(peer)
        self._loop.endpoint.connect(peer, self._loop.transport.connect(addresses), now)

    def _meet(self, joined: wr.Joined, now: float) -> None:
        """Connect to the servers and to the leader; later, to servers that have come back elsewhere."""
        for server in self._servers:
            if str(server) in joined.addresses:
                self._connect(server, joined.addresses[str(server)], now)
        if not self._met:
            self._meet_client(joined, now)
        self._met = True
        self._check_joined()

    def _meet_client(self, joined: wr.Joined, now: float) -> None:
        leader = self._topology.leader_of(self.client)
        if self.node != leader != self.coordinator:
            self._connect(leader, joined.addresses[str(leader)], now)
        if self.node == leader:  # its members connect to it
            self._awaited.update(NodeId(Role.WORKER, r) for r in self._topology.members_of(self.client))
            self._awaited.discard(self.node)

    def _check_joined(self) -> None:
        if self._met and self._awaited <= self._connected and not self._joined.done():
            self._joined.set_result(None)

    def close(self) -> None:
        """See ``interfaces.KVWorker``; an error that shows only now is in ``failure()`` afterwards."""
        if self._closed:
            return
        self._closed = True
        if self._state.error is None and self._joined.done():
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
            self._loop.post(partial(self._fail, error))
            return
        self._loop.post(lambda now: self._do(self._state.close(now), now))
        if not self._may_end.wait(self._config.finish_timeout):
            text = (
                f"{self.node} has finished and waited {self._config.finish_timeout:g} s for the rest of "
                "its client to finish too; do all workers run the same number of batches?"
            )
            self._loop.post(partial(self._fail, DeadlineError(text)))
        left: Future[None] = Future()
        self._loop.post(partial(self._leave, left))
        self._wait(left, self._config.peer_timeout, lambda: "leaving")

    def _fail(self, error: KVStoreError, now: float) -> None:
        self._do(self._state.fail(error), now)

    def _leave(self, left: Future[None], now: float) -> None:
        if self._state.error is None:
            self._do(self._state.leave(), now)
        left.set_result(None)

    def interrupt(self, reason: str) -> None:
        """See ``interfaces.KVWorker``."""
        self._loop.post(lambda now: self._do(self._state.interrupt(reason), now))

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
        if kind is Mode.SYNC and self._config.incarnation and self.num_clients > 1:
            raise UsageError(
                f"client {self.client} was restarted and cannot take part in a synchronous store, whose "
                "rounds have gone on or failed without it; only async stores take restarted clients in"
            )
        number = len(self._modes)
        self._modes.append(kind)
        self._loop.post(lambda _now: self._state.open_store(number, kind))
        return number

    def exchange_buffer(self, size: int, dtype: str) -> Array:
        """See ``interfaces.KVWorker``; the buffer is aligned to 64 bytes, a cache line."""
        wanted = np.dtype(dtype)
        if self._arena is not None:
            return self._arena.allocate(size, wanted)
        raw = np.empty(size * wanted.itemsize + 64, np.uint8)
        start = -raw.ctypes.data % 64
        return raw[start : start + size * wanted.itemsize].view(wanted)

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
        self._keys[store, key] = spec
        operation = wr.Operation(wr.Kind.INIT, 0, done)
        self._count()

        def submit(now: float) -> None:
            self._state.add_key(spec, buffer, buffer.view(np.uint8).data, buffer.itemsize)
            self._do(self._state.submit(store, key, operation, now), now)

        self._loop.post(submit)

    def push(self, store: int, key: Key, priority: int, done: Done) -> None:
        """See ``interfaces.KVWorker``."""
        self._submit(wr.Kind.PUSH, store, key, priority, done)

    def pull(self, store: int, key: Key, priority: int, done: Done) -> None:
        """See ``interfaces.KVWorker``."""
        self._submit(wr.Kind.PULL, store, key, priority, done)

    def pushpull(self, store: int, key: Key, priority: int, done: Done) -> None:
        """See ``interfaces.KVWorker``."""
        self._submit(wr.Kind.PUSHPULL, store, key, priority, done)

    def _submit(self, kind: wr.Kind, store: int, key: Key, priority: int, done: Done) -> None:
        if (store, key) not in self._keys:
            raise UsageError(f"{kind.value} of key {key!r} by worker {self.rank} before its init")
        self._count()
        if self.recorder is not None:
            done = self.recorder.operation(kind.value, store, key, priority, done)
        operation = wr.Operation(kind, priority, done)
        self._loop.post(lambda now: self._do(self._state.submit(store, key, operation, now), now))

    def _count(self) -> None:
        if self._closed:
            raise UsageError(f"worker {self.rank} has left the job; no operation can follow close")
        with self._settled:
            self._pending += 1

    def flush(self, timeout: float | None = None) -> None:
        """See ``interfaces.KVWorker``."""
        with self._settled:
            if not self._settled.wait_for(lambda: self._pending == 0, timeout):
                raise DeadlineError(
                    f"worker {self.rank}: {self._pending} operations have not ended within {timeout:g} s"
                )

    # --- blocking requests ---

    def set_optimizer(self, store: int, spec: dict[str, Any]) -> dict[str, Any]:
        """See ``interfaces.KVWorker``; other workers wait for rank 0's where no push may come before it."""
        if not self.num_servers:
            raise UnsupportedError(
                f"there are no servers to give the optimizer {spec.get('name')!r} to; start the job with "
                "mpilaunch --servers 1 or more"
            )
        own = OptimizerSpec.from_dict(spec)
        warnings = check_terms(own, self._modes[store], self.num_clients)
        if self.rank == 0:
            for warning in warnings:
                log.warning(warning)
            first = store not in self._optimized
            self._optimized.add(store)
            self._ask("set_optimizer", lambda number: m.SetOptimizer(number, store, spec, first))
        elif self._modes[store] is Mode.ASYNC or traits_of(own).whole or traits_of(own).params:
            told = self._ask("rank 0's set_optimizer", lambda number: m.AwaitOptimizer(number, store))
            spec = told[0] or spec
        given = OptimizerSpec.from_dict(spec)
        if traits_of(given).params != traits_of(own).params:
            raise MismatchError(
                f"worker {self.rank} gave the store the optimizer {own.name!r}, and rank 0 {given.name!r}: "
                "one takes gradients, the other parameters; all workers must give the same one"
            )
        if given != own and traits_of(own).params:
            text = "worker %d: %s of this worker is not rank 0's %s, which counts"
            log.warning(text, self.rank, _told(own), _told(given))
        self._loop.post(lambda _now: self._state.note_optimizer(store, spec))
        self._loop.post(lambda _now: self._state.take_terms(store, _terms(given)))
        return spec

    def set_hyper(self, store: int, hyper: dict[str, Any]) -> None:
        """See ``interfaces.KVWorker``."""
        self._loop.post(lambda now: self._do(self._state.set_hyper(store, hyper), now))

    def optimizer_states(self, store: int) -> dict[Key, Any]:
        """See ``interfaces.KVWorker``; the states are ``state_pieces.KeyStates``."""
        answers = self._ask("optimizer states", lambda number: m.GetStates(number, store))
        return assemble(piece for answer in answers for piece in answer or ())

    def load_optimizer_states(self, store: int, states: dict[Key, Any]) -> None:
        """See ``interfaces.KVWorker``; keys that the store does not have are left out."""
        self.flush(self._config.step_timeout)
        homes = self._state.units(store)
        messages = {server: pieces_for(server, homes, states) for server in self._servers}
        self._requests.ask(
            "load of optimizer states",
            self._servers,
            lambda number, server: [
                (m.PutStates(number, store, pieces, last), payloads)
                for pieces, payloads, last in messages[server]
            ],
        )

    def barrier(self) -> None:
        """See ``interfaces.KVWorker``."""
        self._requests.barrier(self.coordinator)

    def _ask(self, what: str, message: Callable[[int], m.Message]) -> list[Any]:
        """Ask every server the same and wait for all answers."""
        return self._requests.ask(what, self._servers, lambda number, _server: [(message(number), ())])

    def _request(self, number: int, peer: NodeId, parts: Parts, now: float) -> None:
        if self._state.error is not None:
            self._requests.resolve(wr.Resolve(number, error=self._state.error))
            return
        sends = [Send(peer, message, payloads) for message, payloads in parts]
        self._do(self._state.request(number, sends), now)

    def _wait(self, future: Future[Any], timeout: float, what: Callable[[], str]) -> Any:
        try:
            return future.result(timeout)
        except FutureTimeoutError:
            error = DeadlineError(
                f"worker {self.rank} on {socket.gethostname()} waited {timeout:g} s for {what()}"
            )
            self._loop.post(partial(self._fail, error))  # so that it does not leave as if all were well
            raise error from None

    # --- the I/O thread ---

    def on_event(self, event: ep.Event, now: float) -> None:
        """See ``io_loop.Node``."""
        if isinstance(event, ep.Received):
            self._receive(event.peer, event.message, event.payloads, now)
        elif isinstance(event, ep.Connected):
            self._connected.add(event.peer)
            self._do(self._state.server_back(event.peer), now)
            self._check_joined()
        elif isinstance(event, ep.Failed):
            self._do(self._state.fail(event.error), now)
        else:
            self._do(self._state.lost(event.peer, f"silent for {event.seconds:.0f} s"), now)

    def _receive(self, peer: NodeId, message: m.Message, payloads: list[Any], now: float) -> None:
        if self._scheduler is not None and self._scheduler.accepts(message):
            self._do(self._scheduler.handle(peer, message, now), now)
            if not isinstance(message, m.Leave):
                return
        if isinstance(message, (m.ClockProbe, m.ClockAnswer)):
            self._clock(peer, message)
            return
        self._hand_over(peer, message, payloads, now)

    def _clock(self, peer: NodeId, message: m.ClockProbe | m.ClockAnswer) -> None:
        if isinstance(message, m.ClockProbe):
            self._loop.send(peer, m.ClockAnswer(message.sent_ns, time.monotonic_ns()))
        elif self.recorder is not None:
            self.recorder.clock.add(message.sent_ns, message.peer_ns, self.recorder.now())

    def _hand_over(self, peer: NodeId, message: m.Message, payloads: list[Any], now: float) -> None:
        self._do(self._state.received(peer, message, payloads, now), now)
        if self.recorder is not None:
            if type(message) is m.Values:
                self.recorder.mark("written", peer, message.entries)
            elif type(message) is m.Placed:
                self.recorder.name_key(message.key_id, message.store, message.key)

    @property
    def busy(self) -> bool:
        """See ``io_loop.Node``: what can be done is done in each pass."""
        return False

    @property
    def deadline(self) -> None:
        """See ``io_loop.Node``: nothing is due but the tick."""

    def on_pass(self, now: float) -> None:
        """See ``io_loop.Node``."""
        in_flight = self._loop.endpoint.bytes_in_flight
        self._do(self._state.flush(now, in_flight), now)
        if self.recorder is not None:
            for server in self._servers:
                self.recorder.in_flight(server, in_flight(server))
        if self._closed and self._state.may_end:
            self._may_end.set()

    def on_tick(self, now: float) -> None:
        """See ``io_loop.Node``."""
        self._do(self._state.tick(now), now)
        if self.recorder is not None and self.coordinator in self._connected:
            self._loop.send(self.coordinator, m.ClockProbe(self.recorder.now()))
        if self._scheduler is not None:
            self._do(self._scheduler.tick(now), now)

    def on_crash(self, error: BaseException) -> None:
        """See ``io_loop.Node``: the thread is gone, so everything pending ends here and now."""
        failure = InternalError(f"the I/O thread of worker {self.rank} has failed: {error!r}")
        self._do(self._state.fail(failure), 0.0)

    def _do(self, instructions: Sequence[Any], now: float) -> None:
        """Carry out instructions, and what they lead to in this process."""
        for instruction in instructions:
            self._carry[type(instruction)](instruction, now)
        while self._local:
            message, to_scheduler = self._local.popleft()
            if to_scheduler:
                self._receive(self.node, message, [], now)
            else:
                self._hand_over(self.node, message, [], now)

    def _send(self, send: Send, _now: float) -> None:
        if send.peer == self.node:
            to_scheduler = self._scheduler is not None and self._scheduler.accepts(send.message)
            self._local.append((send.message, to_scheduler))
        else:
            self._loop.send(send.peer, send.message, send.payloads)
            if self.recorder is not None and type(send.message) is m.Push:
                self.recorder.mark("sent", send.peer, send.message.entries)

    @staticmethod
    def _write(write: wr.Write, _now: float) -> None:
        write.view[:] = write.payload

    @staticmethod
    def _refer(refer: wr.Refer, _now: float) -> None:
        key, lo, hi, payload, bits = refer
        if payload is None:
            key.reference.forget(lo)
        else:
            key.reference.take(lo, hi, payload, bits)

    @staticmethod
    def _keep(keep: wr.Keep, _now: float) -> None:
        key = keep.key
        if key.kept is None:
            key.kept = bytearray(len(key.raw))
        key.kept[:] = key.raw

    def _complete(self, complete: wr.Complete, _now: float) -> None:
        complete.done(complete.error)
        with self._settled:
            self._pending -= 1
            if not self._pending:
                self._settled.notify_all()

    def _failed(self, failed: wr.Failed, _now: float) -> None:
        log.error("worker %d: %s", self.rank, failed.error)
        if not self._joined.done():
            self._joined.set_exception(failed.error)
        self._may_end.set()

    def _stop(self, stop: Stop, now: float) -> None:
        """The scheduler's state, run here in pure MPI, has nothing left to do, or has given up."""
        if stop.error is not None:
            self._do(self._state.fail(stop.error), now)

    # --- the MPI thread ---

    def _collected(self, jobs: Sequence[wr.Collect]) -> None:
        for job in jobs:
            if job.key.divisor > 1 and job.operation in (wr.Collective.REDUCE, wr.Collective.REDUCE_SHARE):
                self._average(job)

        def tell(now: float) -> None:
            for job in jobs:
                self._do(self._state.collected(job, now), now)

        self._loop.post(tell)

    def _average(self, job: wr.Collect) -> None:
        """Turn the sum of parameters over this client's ranks into the mean, where it is pushed."""
        key = job.key
        for rank, first, last in key.by_pusher(job.first, job.last):
            if rank == self.mpi_rank:
                key.buffer[key.slices[first][1].lo : key.slices[last - 1][1].hi] /= key.divisor

    def _mpi_failed(self, error: BaseException) -> None:
        if not isinstance(error, KVStoreError):
            error = InternalError(f"worker {self.rank}: a collective has failed: {error!r}")
        self._loop.post(partial(self._fail, error))


def _told(spec: OptimizerSpec) -> str:
    return f"{spec.name} {spec.params} quorum={spec.quorum} grace={spec.grace:g} compress={spec.compress}"


def _terms(spec: OptimizerSpec) -> wr.Terms:
    traits = traits_of(spec)
    refer = partial(Reference, bits=spec.compress, before=traits.before) if spec.compress else None
    return wr.Terms(traits.whole, traits.params, spec.quorum > 0, refer)


def _shares(config: NodeConfig, topology: Topology, communicator: Communicator) -> bool:
    """Tell whether exchange buffers are in shared memory: for servers, or for the ranks of one host.

    Not for MPI alone, which is slower there (``mpi shared`` in ``benchmarks/allreduce.py``).
    """
    if config.transport != "auto" or not Arena.available() or topology.num_workers == 1:
        return False
    return topology.num_servers > 0 or (
        config.collective in {"auto", "shm"} and len(communicator.hosts()) == 1
    )
