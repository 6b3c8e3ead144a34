"""The half of a worker that its I/O thread runs: events go to the state, what that decides is carried out.

A thin shell around ``worker/state.py``. Only the I/O thread (``io_loop.py``) calls what is here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from kvstore_mpi.errors import InternalError
from kvstore_mpi.records import NodeId, Role, Topology
from kvstore_mpi.wire import events as ep
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Log, Send, Stop
from kvstore_mpi.worker import exchange_buffers
from kvstore_mpi.worker import records as wr
from kvstore_mpi.worker.rendezvous import Meeting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Future

    from kvstore_mpi.errors import KVStoreError
    from kvstore_mpi.tracing.recorder import Recorder
    from kvstore_mpi.wire.io_loop import IoLoop
    from kvstore_mpi.worker.requests import Parts
    from kvstore_mpi.worker.state import WorkerState

log = logging.getLogger("kvstore_mpi.worker")


class Coordinator(Protocol):
    """The scheduler's state, as rank 0 sees it when it runs that beside its own, in pure MPI."""

    def accepts(self, message: m.Message) -> bool:
        """Return whether a message is the scheduler's."""

    def handle(self, sender: NodeId, message: m.Message, now: float) -> Iterable[Any]:
        """React to a message."""

    def tick(self, now: float) -> Iterable[Any]:
        """See to what is overdue."""


class WorkerNode:
    """A worker as its I/O loop sees it; implements ``io_loop.Node``.

    Attributes:
        meeting: How it meets the others.
        parting: The program is over: ``may_end`` is to be set when nobody needs this worker any more.
        may_end: Nobody does, or communication has ended with an error; any thread may wait for it.
    """

    def __init__(
        self,
        node: NodeId,
        coordinator: NodeId,
        topology: Topology,
        state: WorkerState,
        loop: IoLoop,
        *,
        collect: Callable[[wr.Collect], None],
        resolve: Callable[[wr.Resolve], None],
        scheduler: Coordinator | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """Start without having met anybody.

        Args:
            node: This worker.
            coordinator: Who introduces the others: the scheduler, or rank 0 in pure MPI.
            topology: The shape of the job.
            state: Decides.
            loop: Sends.
            collect: Has the MPI thread carry out a collective.
            resolve: Gives the answer to a blocking request to who waits for it.
            scheduler: In pure MPI, the scheduler's state, which rank 0 runs beside its own.
            recorder: Takes what happens here, if the job has a trace.
        """
        self.meeting = Meeting(node, coordinator, topology, loop)
        self.parting = False
        self.may_end = threading.Event()
        self._node = node
        self._coordinator = coordinator
        self._servers = [NodeId(Role.SERVER, index) for index in range(topology.num_servers)]
        self._state = state
        self._loop = loop
        self._resolve = resolve
        self._scheduler = scheduler
        self._recorder = recorder
        self._local: deque[tuple[m.Message, bool]] = deque()  # to this process; whether to its scheduler
        self._carry: dict[type[Any], Callable[..., None]] = {
            Send: self._send,
            wr.Write: lambda change, _now: exchange_buffers.write(change),
            wr.Refer: lambda change, _now: exchange_buffers.refer(change),
            wr.Complete: lambda complete, _now: complete.done(complete.error),
            wr.Collect: lambda job, _now: collect(job),
            wr.Resolve: lambda answer, _now: resolve(answer),
            wr.Joined: self.meeting.introduce,
            wr.Keep: lambda change, _now: exchange_buffers.keep(change),
            wr.Disconnect: lambda gone, _now: loop.endpoint.forget(gone.peer),
            wr.Failed: self._failed,
            Log: lambda entry, _now: log.log(entry.level, entry.text),
            Stop: self._stop,
        }

    # --- what other threads post ---

    def start_joining(self, addresses: Sequence[str], hello: m.Join, now: float) -> None:
        """Begin to meet the others; the coordinator listens at ``addresses``."""
        self.meeting.begin(addresses, now)
        self.do([Send(self._coordinator, hello)], now)

    def request(self, number: int, peer: NodeId, parts: Parts, now: float) -> None:
        """Send a blocking request."""
        if self._state.error is not None:
            self._resolve(wr.Resolve(number, error=self._state.error))
            return
        sends = [Send(peer, message, payloads) for message, payloads in parts]
        self.do(self._state.request(number, sends), now)

    def collected(self, jobs: Sequence[wr.Collect], now: float) -> None:
        """Collectives have been carried out."""
        for job in jobs:
            self.do(self._state.collected(job, now), now)

    def fail(self, error: KVStoreError, now: float) -> None:
        """End all communication with an error."""
        self.do(self._state.fail(error), now)

    def give_up(self, awaited: Future[Any], error: KVStoreError, now: float) -> None:
        """A caller has waited too long: communication ends, unless an answer has come just now."""
        if not awaited.done():
            self.fail(error, now)

    def leave(self, left: Future[None], now: float) -> None:
        """Say the last word, and that it is said."""
        if self._state.error is None:
            self.do(self._state.leave(), now)
        left.set_result(None)

    # --- io_loop.Node ---

    def on_event(self, event: ep.Event, now: float) -> None:
        """See ``io_loop.Node``."""
        if isinstance(event, ep.Received):
            self._receive(event.peer, event.message, event.payloads, now)
        elif isinstance(event, ep.Connected):
            self.do(self._state.server_back(event.peer), now)
            self.meeting.connected(event.peer)
        elif isinstance(event, ep.Failed):
            self.do(self._state.fail(event.error), now)
        else:
            self.do(self._state.lost(event.peer, f"silent for {event.seconds:.0f} s"), now)

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
        self.do(self._state.flush(now, in_flight), now)
        if self._recorder is not None:
            for server in self._servers:
                self._recorder.in_flight(server, in_flight(server))
        if self.parting and self._state.may_end:
            self.may_end.set()

    def on_tick(self, now: float) -> None:
        """See ``io_loop.Node``."""
        self.do(self._state.tick(now), now)
        if self._recorder is not None and self.meeting.is_connected(self._coordinator):
            self._loop.send(self._coordinator, m.ClockProbe(self._recorder.now()))
        if self._scheduler is not None:
            self.do(self._scheduler.tick(now), now)

    def on_crash(self, error: BaseException) -> None:
        """See ``io_loop.Node``: the thread is gone, so everything pending ends here and now."""
        self.fail(InternalError(f"the I/O thread of worker {self._node.index} has failed: {error!r}"), 0.0)

    # --- messages ---

    def _receive(self, peer: NodeId, message: m.Message, payloads: list[Any], now: float) -> None:
        if self._scheduler is not None and self._scheduler.accepts(message):
            self.do(self._scheduler.handle(peer, message, now), now)
            if not isinstance(message, m.Leave):
                return
        if isinstance(message, (m.ClockProbe, m.ClockAnswer)):
            self._clock(peer, message)
            return
        self._hand_over(peer, message, payloads, now)

    def _clock(self, peer: NodeId, message: m.ClockProbe | m.ClockAnswer) -> None:
        if isinstance(message, m.ClockProbe):
            self._loop.send(peer, m.ClockAnswer(message.sent_ns, time.monotonic_ns()))
        elif self._recorder is not None:
            self._recorder.clock.add(message.sent_ns, message.peer_ns, self._recorder.now())

    def _hand_over(self, peer: NodeId, message: m.Message, payloads: list[Any], now: float) -> None:
        self.do(self._state.received(peer, message, payloads, now), now)
        if self._recorder is not None:
            if type(message) is m.Values:
                self._recorder.mark("written", peer, message.entries)
            elif type(message) is m.Placed:
                self._recorder.name_key(message.key_id, message.store, message.key)

    # --- instructions ---

    def do(self, instructions: Iterable[Any], now: float) -> None:
        """Carry out instructions, and what they lead to in this process."""
        for instruction in instructions:
            self._carry[type(instruction)](instruction, now)
        while self._local:
            message, to_scheduler = self._local.popleft()
            if to_scheduler:
                self._receive(self._node, message, [], now)
            else:
                self._hand_over(self._node, message, [], now)

    def _send(self, send: Send, _now: float) -> None:
        if send.peer == self._node:
            to_scheduler = self._scheduler is not None and self._scheduler.accepts(send.message)
            self._local.append((send.message, to_scheduler))
        else:
            self._loop.send(send.peer, send.message, send.payloads)
            if self._recorder is not None and type(send.message) is m.Push:
                self._recorder.mark("sent", send.peer, send.message.entries)

    def _failed(self, failed: wr.Failed, _now: float) -> None:
        log.error("worker %d: %s", self._node.index, failed.error)
        self.meeting.fail(failed.error)
        self.may_end.set()

    def _stop(self, stop: Stop, now: float) -> None:
        """The scheduler's state, run here in pure MPI, has nothing left to do, or has given up."""
        if stop.error is not None:
            self.do(self._state.fail(stop.error), now)
