"""The half of a worker that its I/O thread runs: events go to the state, what that decides is carried out.

A thin shell around ``state.py`` and ``membership.py``. Only the I/O thread (``wire/io_loop.py``) calls what
is here, but for the two methods of the MPI thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.errors import InternalError, KVStoreError, ToldToEndError
from kvstore_mpi.wire import events as ep
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Log, Send, Stop
from kvstore_mpi.wire.message import Message
from kvstore_mpi.worker import exchange_buffers
from kvstore_mpi.worker import instructions as wi
from kvstore_mpi.worker import records as wr

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Future

    from kvstore_mpi.records import Key, KeySpec, Mode, NodeId, StoreTerms
    from kvstore_mpi.tracing.recorder import Recorder
    from kvstore_mpi.wire.io_loop import IoLoop
    from kvstore_mpi.worker.membership import Membership
    from kvstore_mpi.worker.records import KeyState
    from kvstore_mpi.worker.rendezvous import Coordinator, Rendezvous
    from kvstore_mpi.worker.requests import Parts
    from kvstore_mpi.worker.state import WorkerState

log = logging.getLogger("kvstore_mpi.worker")


class WorkerIo:
    """A worker as its I/O loop sees it; implements ``io_loop.Node``.

    Attributes:
        rendezvous: How it meets the others.
        parting: The program is over: ``may_end`` is to be set when nobody needs this worker any more.
        may_end: Nobody does, or communication has ended with an error; any thread may wait for it.
    """

    def __init__(
        self,
        state: WorkerState,
        membership: Membership,
        rendezvous: Rendezvous,
        loop: IoLoop,
        *,
        collect: Callable[[wi.Collect], None],
        resolve: Callable[[wi.Resolve], None],
        abandon: Callable[[KVStoreError], None],
        coordinator: Coordinator | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """Start without having met anybody.

        Args:
            state: Decides about operations.
            membership: Decides about everything else.
            rendezvous: Meets the others.
            loop: Sends.
            collect: Has the MPI thread carry out a collective.
            resolve: Gives the answer to a blocking request to who waits for it.
            abandon: Ends all operations that have not ended.
            coordinator: In pure MPI, the scheduler's state, which rank 0 runs beside its own.
            recorder: Takes what happens here, if the job has a trace.
        """
        self.rendezvous = rendezvous
        self.parting = False
        self.may_end = threading.Event()
        self._node = rendezvous.node
        self._state, self._membership, self._loop = state, membership, loop
        self._collect, self._resolve, self._abandon = collect, resolve, abandon
        self._coordinator, self._recorder = coordinator, recorder
        # Messages to this process, and whether to its coordinator. Kept until the instructions at hand are
        # carried out: handled at once, in the middle of a list, they would change the state between a
        # decision and its effect.
        self._local: deque[tuple[Message, bool]] = deque()

    # --- what the MPI thread calls ---

    def post_collected(self, jobs: Sequence[wi.Collect]) -> None:
        """Collectives have been carried out: have the I/O thread go on with them."""
        # Posted, not done here: the state has one thread, and therefore needs no lock.
        self._loop.post(partial(self.collected, jobs))

    def post_mpi_failure(self, error: BaseException) -> None:
        """MPI has failed, and its thread has ended."""
        # The other ranks are stuck in the same collective and cannot be told by MPI; failing this worker is
        # what tells the job.
        if not isinstance(error, KVStoreError):
            error = InternalError(f"{self._node}: a collective has failed: {error!r}")
        self._loop.post(partial(self.fail, error))

    # --- what other threads post ---

    def start_joining(self, addresses: Sequence[str], hello: m.Join, now: float) -> None:
        """Begin to meet the others; the coordinator listens at ``addresses``."""
        self.rendezvous.begin(addresses, now)
        self.do([Send(self.rendezvous.coordinator, hello)], now)

    def open_store(self, store: int, mode: Mode, _now: float) -> None:
        """The user has opened a store."""
        self._state.keys.open_store(store, mode)

    def add_key(self, spec: KeySpec, buffer: Any, operation: wr.Operation, now: float) -> None:
        """The user has called ``init``; ``buffer`` is the key's exchange buffer."""
        # The view of its bytes is made once: each slice is cut out of it, and NumPy takes longer to cut.
        self._state.keys.add(spec, buffer, buffer.view(np.uint8).data)
        self.submit(spec.store, spec.key, operation, now)

    def add_table(self, spec: KeySpec, value: Any, operation: wr.Operation, now: float) -> None:
        """The user has called ``init_rows``; ``value`` is the table, or nothing."""
        # No bytes to cut slices out of: what travels of a table, each operation makes.
        self._state.keys.add(spec, value, None)
        self.submit(spec.store, spec.key, operation, now)

    def release(self, store: int, key: Key, now: float) -> None:  # noqa: D102  see ``Membership``
        self.do(self._membership.release(store, key), now)

    def close_store(self, store: int, closed: Future[list[KeyState]], _now: float) -> None:
        """All workers have come to close a store; the keys that it had are for the user's thread."""
        closed.set_result(self._membership.close_store(store))

    def take_optimizer(self, store: int, spec: dict[str, Any], terms: StoreTerms, _now: float) -> None:
        """The user has given a store an optimizer, and the servers have it."""
        self._membership.note_optimizer(store, spec)
        self._state.keys.take_terms(store, terms)

    def submit(self, store: int, key: Key, operation: wr.Operation, now: float) -> None:
        """The user has called an operation."""
        self.do(self._state.submit(store, key, operation, now), now)

    def arrive(self, number: int, now: float, *, settled: bool, closes: int = -1) -> None:
        """The user has come to a barrier, and begins nothing before it opens if ``settled``."""
        if self._state.error is not None:
            self._resolve(wi.Resolve(-number, error=self._state.error))
        else:
            self.do(self._membership.arrive(number, settled=settled, closes=closes), now)

    def request(self, number: int, peer: NodeId, parts: Parts, now: float) -> None:
        """Send a blocking request."""
        if self._state.error is not None:
            self._resolve(wi.Resolve(number, error=self._state.error))
            return
        sends = [Send(peer, message, payloads) for message, payloads in parts]
        self.do(self._membership.request(number, sends), now)

    def collected(self, jobs: Sequence[wi.Collect], now: float) -> None:
        """Collectives have been carried out."""
        for job in jobs:
            self.do(self._state.collected(job, now), now)

    def set_hyper(self, store: int, hyper: dict[str, Any], now: float) -> None:
        """The user's optimizer has new hyper-parameters."""
        self.do(self._membership.set_hyper(store, hyper), now)

    def fail(self, error: KVStoreError, now: float) -> None:
        """End all communication with an error."""
        self.do(self._state.fail(error), now)

    def give_up(self, awaited: Future[Any], error: KVStoreError, now: float) -> None:
        """A caller has waited too long: communication ends, unless an answer has come just now."""
        # Looked at here, in the thread that answers: the answer may have come between the caller's timeout
        # and now.
        if not awaited.done():
            self.fail(error, now)

    def interrupt(self, reason: str, error: KVStoreError | None, now: float) -> None:
        """This process has been told to end, or cannot go on because of an error."""
        self.do(self._membership.interrupt(reason, error), now)

    def close(self, now: float) -> None:
        """The user's program is over and its operations have ended."""
        self.do(self._membership.close(), now)

    def leave(self, left: Future[None], now: float) -> None:
        """Say that this worker leaves, and that it is said."""
        # After an error nobody is told: the scheduler would take it for a departure in order, and tell the
        # others that this worker had nothing more to do.
        if self._state.error is None:
            self.do(self._membership.leave(), now)
        left.set_result(None)

    # --- io_loop.Node ---

    def on_event(self, event: ep.Event, now: float) -> None:
        """See ``io_loop.Node``."""
        if isinstance(event, ep.Received):
            self._receive(event.peer, event.message, event.payloads, now)
        elif isinstance(event, ep.Connected):
            # First what a server that is back has lost: a caller that goes on may push, and that follows.
            self.do(self._membership.server_back(event.peer), now)
            self.rendezvous.connected(event.peer)
        elif isinstance(event, ep.Failed):
            self.do(self._state.fail(event.error), now)
        else:  # silent: who is watched for that is one that this worker cannot do without
            self.do(self._membership.lost(event.peer, f"silent for {event.seconds:.0f} s"), now)

    @property
    def busy(self) -> bool:
        """See ``io_loop.Node``: what can be done is done in each pass."""
        return False

    @property
    def deadline(self) -> None:
        """See ``io_loop.Node``: nothing is due but the tick."""

    def on_pass(self, now: float) -> None:
        """See ``io_loop.Node``."""
        # Once in a pass and not with each operation: what has come meanwhile is ordered by priority before
        # anything leaves, and neighbours share a message.
        in_flight = self._loop.endpoint.bytes_in_flight
        self.do(self._state.flush(now, in_flight), now)
        if self._recorder is not None:
            for server in self._state.servers.nodes:
                self._recorder.in_flight(server, in_flight(server))
        # Looked at in each pass, not where it changes: a departure, a release and an error all come here.
        if self.parting and self._membership.may_end:
            self.may_end.set()

    def on_tick(self, now: float) -> None:
        """See ``io_loop.Node``."""
        self.do(self._state.tick(now), now)
        coordinator = self.rendezvous.coordinator
        # For the trace: clocks of hosts differ by more than a slice takes, and drift while a job runs.
        if self._recorder is not None and self.rendezvous.is_connected(coordinator):
            self._loop.send(coordinator, m.ClockProbe(self._recorder.now()))
        if self._coordinator is not None:
            self.do(self._coordinator.tick(now), now)

    def on_crash(self, error: BaseException) -> None:
        """See ``io_loop.Node``: the thread is gone, so everything pending ends here and now."""
        failure = InternalError(f"the I/O thread of worker {self._node.index} has failed: {error!r}")
        try:
            self.fail(failure, 0.0)
        finally:  # what was taken out of the state in the middle of what failed, maybe of this, too
            self._abandon(failure)

    # --- messages ---

    def _receive(self, peer: NodeId, message: Message, payloads: list[Any], now: float) -> None:
        if self._coordinator is not None and isinstance(message, m.ToScheduler):
            self.do(self._coordinator.handle(peer, message, now), now)
            # A "leave" tells the scheduler that it has left the job, and the leader that a member has.
            if not isinstance(message, m.Leave):
                return
        self._hand_over(peer, message, payloads, now)

    def _hand_over(self, peer: NodeId, message: Message, payloads: list[Any], now: float) -> None:
        # Here, because to the state payloads are opaque; and all of an answer before any of it is written:
        # an operation that it ends would end well.
        if type(message) is m.Values and (error := wr.misfit(self._state.keys.by_id, message, payloads)):
            self.fail(error, now)
            return
        self.do(self.decide(peer, message, payloads, now), now)
        if self._recorder is not None:
            self._record(self._recorder, peer, message)

    def decide(  # noqa: C901, PLR0911, PLR0912  a case for each message
        self, peer: NodeId, message: Message, payloads: list[Any], now: float
    ) -> wi.Instructions:
        """React to a message; the frequent ones come first, because each case is a comparison."""
        state, membership = self._state, self._membership
        if state.error is not None:
            return []  # after a failure nothing matters any more
        match message:
            case m.Values():
                return state.values(message, payloads, now)
            case m.Announce():
                return state.announced(message)
            case m.Arrived():
                return state.arrived(message)
            case m.Ready():
                state.ready(peer, message.keys)
            case m.Applied():
                return state.applied(message, now)
            case m.HyperSet():  # ``on_pass`` then announces what has been held back
                state.servers.unconfirmed -= 1
            case m.StepNorm():
                return membership.step_norm(peer, message)
            case m.Placed() | m.PushesRows():
                return state.placed(message, now)
            case m.Shared():  # pushes from now on; those that wait travel as they were queued
                state.keys.note_shared(message.key_id, peer)
            case m.BarrierAwaits():
                return membership.barrier_awaits(message)
            case m.BarrierRelease():
                return membership.barrier_released(message)
            case m.Ok():
                return membership.answered(message)
            case m.States():
                return membership.states(message, payloads)
            case m.Peers():
                return [wi.Joined(message.addresses)]
            case m.PeerGone():
                return membership.peer_gone(message, now)
            case m.KeepValues():
                state.keys.keep_values()
            case m.Missing():
                return membership.missing(peer, message)
            case m.Failure():
                return membership.failure(peer, message)
            case m.Leave():
                return membership.peer_left(peer, message)
            case m.Released():
                state.shutdown.released()
            case m.ClockProbe():
                return [Send(peer, m.ClockAnswer(message.sent_ns, time.monotonic_ns()))]
            case m.ClockAnswer():
                pass  # `_record` takes it
            case _:
                raise InternalError(f"{self._node} cannot handle {type(message).__name__} of {peer}")
        return []

    @staticmethod
    def _record(recorder: Recorder, peer: NodeId, message: Message) -> None:
        match message:
            case m.Values():
                recorder.mark("written", peer, message.entries)
            case m.Placed():
                recorder.name_key(message.key_id, message.store, message.key, message.shards)
            case m.ClockAnswer():
                recorder.clock.add(message.sent_ns, message.peer_ns, recorder.now())

    # --- instructions ---

    def do(self, instructions: Iterable[wi.Instruction | Stop], now: float) -> None:
        """Carry out instructions, and what they lead to in this process."""
        for instruction in instructions:
            self._carry_out(instruction, now)
        # Only now, when the list has had all its effect: see ``_local``.
        while self._local:
            message, to_coordinator = self._local.popleft()
            if to_coordinator:
                self._receive(self._node, message, [], now)
            else:
                self._hand_over(self._node, message, [], now)

    def _carry_out(  # noqa: C901, PLR0912  a case for each instruction
        self, instruction: wi.Instruction | Stop, now: float
    ) -> None:
        """Do one thing that was decided; the frequent ones come first."""
        match instruction:
            case Send():
                self._send(instruction)
            case wi.Collect():
                self._collect(instruction)
            case wi.Complete():
                # In this thread, on which all keys wait: callbacks hand over and return.
                instruction.done(instruction.error)
            case wi.Write():
                exchange_buffers.write(instruction)
            case wi.Refer():
                exchange_buffers.refer(instruction)
            case wi.Keep():
                exchange_buffers.keep(instruction)
            case wi.Resolve():
                self._resolve(instruction)
            case wi.Joined():
                self.rendezvous.introduce(instruction, now)
            case wi.Disconnect():
                self._loop.endpoint.forget(instruction.peer)
            case wi.Failed():
                asked = isinstance(instruction.error, ToldToEndError)
                level = logging.DEBUG if asked else logging.ERROR
                log.log(level, "worker %d: %s", self._node.index, instruction.error)
                # Who waits to join, or to end, hears of it here: neither will come any more.
                self.rendezvous.fail(instruction.error)
                self.may_end.set()
            case Log():
                log.log(instruction.level, instruction.text)
            case Stop():  # the coordinator's state has nothing left to do, or has given up
                if instruction.error is not None:
                    self.do(self._state.fail(instruction.error), now)

    def _send(self, send: Send) -> None:
        # No process has a connection to itself, and in pure MPI rank 0 is its own coordinator.
        if send.peer == self._node:
            to_coordinator = self._coordinator is not None and isinstance(send.message, m.ToScheduler)
            self._local.append((send.message, to_coordinator))
        else:
            self._loop.send(*send)
            if self._recorder is not None and type(send.message) is m.Push:
                self._recorder.mark("sent", send.peer, send.message.entries)
