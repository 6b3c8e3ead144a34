"""The one thread of a process that owns the transport and the sessions over it.

It alternates between waiting for messages and handing them, with what other threads have posted, to the
*node*: the shell around the state of this process's role. It knows nothing of what messages mean.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from kvstore_mpi.wire.session import ACK_DELAY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvstore_mpi.interfaces import Clock, Transport
    from kvstore_mpi.records import NodeId
    from kvstore_mpi.wire.endpoint import Endpoint
    from kvstore_mpi.wire.events import Event
    from kvstore_mpi.wire.instructions import Send
    from kvstore_mpi.wire.message import Message

log = logging.getLogger("kvstore_mpi.io")

LINGER_S = 2.0
"""How long a closing process gives its last messages to leave."""


class Node(Protocol):
    """What the loop drives; all calls come from the loop's thread."""

    @property
    def busy(self) -> bool:
        """Whether there is work for the next pass that needs no message: it must not wait for one."""
        ...

    @property
    def deadline(self) -> float | None:
        """When the next pass is due at the latest, if nothing happens before; ``None`` for whenever."""
        ...

    def on_event(self, event: Event, now: float) -> None:
        """React to an event of the endpoint."""
        ...

    def on_pass(self, now: float) -> None:
        """End of a pass: everything that had arrived has been handed over."""
        ...

    def on_tick(self, now: float) -> None:
        """About once a second."""
        ...

    def on_crash(self, error: BaseException) -> None:
        """The loop has ended because of a bug."""
        ...


class IoLoop:
    """Runs a node over a transport, in the calling thread or in one of its own."""

    def __init__(self, transport: Transport, endpoint: Endpoint, clock: Clock = time.monotonic) -> None:
        """Take ownership of a transport and an endpoint."""
        self.transport = transport
        self.endpoint = endpoint
        transport.screen(endpoint.proves, endpoint.secret)
        self._clock = clock
        # The one way in from other threads. ``append`` and ``popleft`` are atomic, so there is no lock, and
        # the node, the endpoint and the transport need none either: a single thread calls them.
        self._inbox: deque[Callable[[float], None]] = deque()
        self._peers: set[NodeId] = set()
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._next_tick = 0.0
        self._each_second: Callable[[float], None] | None = None
        self._give_up_at: float | None = None

    def receive_into(self, place: Callable[[Message, int], memoryview | None]) -> None:
        """Have large payloads of messages written where ``place`` says; before the loop is started."""
        self.endpoint.place = place
        self.transport.receive_into(self.endpoint.place_of)

    def tell_each_second(self, tell: Callable[[float], None]) -> None:
        """Have ``tell(now)`` called at each tick, after the node's; before the loop is started."""
        self._each_second = tell

    # --- any thread ---

    def post(self, call: Callable[[float], None]) -> None:
        """Have ``call(now)`` run by the loop's thread, soon and in order."""
        # In this order: the loop may wake at once, and must then find the call. The transport remembers to
        # be woken, so nothing is lost either if the loop has looked at the inbox already and is about to
        # wait.
        self._inbox.append(call)
        self.transport.wake()

    def stop(self) -> None:
        """End the loop once all that was posted is done; messages that are queued still leave."""
        self._stopped = True
        self.transport.wake()

    def start(self, node: Node, name: str) -> None:
        """Run in a thread of its own."""
        # A daemon: the interpreter waits for all other threads before it runs exit handlers, and it is an
        # exit handler that closes a worker.
        self._thread = threading.Thread(target=self._run_guarded, args=(node,), name=name, daemon=True)
        self._thread.start()

    def join(self, timeout: float) -> bool:
        """Wait for the thread's end; say whether it has come."""
        if self._thread is not None:
            self._thread.join(timeout)
            return not self._thread.is_alive()
        return True

    # --- the loop's thread ---

    def now(self) -> float:
        """Return the time by which the endpoint lives."""
        return self._clock()

    def send(
        self,
        peer: NodeId,
        message: Message,
        payloads: Sequence[Any] = (),
        asks: bool = False,
    ) -> None:
        """Send a message, see ``Endpoint.send``; only the loop's thread may."""
        self._peers.add(peer)
        self.endpoint.send(peer, message, payloads, asks=asks)

    def reply(self, send: Send) -> None:
        """Send what a peer has asked for, unless its session has ended meanwhile."""
        if self.endpoint.is_connected(send.peer):
            self.send(*send)

    def _run_guarded(self, node: Node) -> None:
        try:
            self.run(node)
        # All exceptions: a thread that ends silently leaves every caller waiting for an answer for ever.
        except BaseException as error:
            log.exception("the I/O thread has failed")
            node.on_crash(error)

    def run(self, node: Node) -> None:
        """Serve until ``stop``; then give the last messages time to leave and close the transport."""
        _wake_without_preempting()
        try:
            while not self.finished():
                self.step(node, max(0.0, self.next_wakeup(node) - self._clock()))
            self.acknowledge()
        finally:
            self.transport.close(LINGER_S)

    def finished(self) -> bool:
        """Tell whether the loop was stopped and its last messages have arrived, or had time to."""
        # What was posted before ``stop`` may send something, such as a worker's last "leave".
        if not self._stopped or self._inbox:
            return False
        # Until the last messages have *arrived*: that they were handed to the kernel says nothing, and the
        # peer would count a process as lost that has left in order. A peer that is dead must not hold us
        # for ever.
        if self._give_up_at is None:
            self._give_up_at = self._clock() + LINGER_S
        return self._settled() or self._clock() >= self._give_up_at

    def next_wakeup(self, node: Node) -> float:
        """Return when the next pass is due if no message arrives before."""
        # A busy node does a bounded amount of work in a pass (a server: some updates), so that messages
        # that come meanwhile, maybe more urgent, are looked at between two of them.
        if self._inbox or node.busy:
            return self._clock()
        deadlines = (self._next_tick, self.endpoint.next_deadline(), self._give_up_at, node.deadline)
        return min(deadline for deadline in deadlines if deadline is not None)

    def step(self, node: Node, timeout: float) -> None:
        """Do one pass: wait for messages, hand over what there is, send what follows from it."""
        arrived = self.transport.receive(timeout)
        # One time for the whole pass, read after the wait: with that from before it every peer would seem
        # to have been silent for as long as this process has waited.
        now = self._clock()
        receive = self.endpoint.receive
        for link, frames in arrived:
            for event in receive(link, frames, now):
                node.on_event(event, now)
        # Messages before posted calls, and all of both before ``on_pass``: the node then chooses what
        # leaves first among everything that is there, as P3 wants it, not among what happened to come
        # first.
        inbox = self._inbox
        while inbox:
            inbox.popleft()(now)
        node.on_pass(now)
        # After the messages of the wait: whoever is declared silent must not have a frame in ``arrived``.
        for event in self.endpoint.tick(now):
            node.on_event(event, now)
        if now >= self._next_tick:
            self._next_tick = now + 1.0
            node.on_tick(now)
            # Once more: what the tick has made ready would otherwise wait for the next message or deadline.
            node.on_pass(now)
            if self._each_second is not None:
                self._each_second(now)
        # Last: acknowledgements ride on the answers of this pass, and frames of one pass leave together.
        self._flush(now)

    def _flush(self, now: float) -> None:
        send = self.transport.send
        for link, frames in self.endpoint.outgoing(now):
            send(link, frames)

    def acknowledge(self) -> None:
        """Before the end: acknowledge now what would be acknowledged soon, for somebody waits for it."""
        # By then every acknowledgement that is owed is due. Without it the peer, which may be ending as
        # well, waits LINGER_S for a process that is gone.
        self._flush(self._clock() + ACK_DELAY)

    def _settled(self) -> bool:
        return not any(map(self.endpoint.unacknowledged, self._peers))


def _wake_without_preempting() -> None:
    """Put the calling thread into Linux's batch class, unless somebody has chosen another for it.

    When a message wakes such a thread it does not take the processor from who sent it and has more to
    send, or from who computes (docs/adr/0005). That needs no privilege, and its share stays the same.
    """
    if not hasattr(os, "SCHED_BATCH"):  # not Linux
        return
    try:
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except OSError as error:  # some sandboxes forbid it
        log.debug("the I/O thread stays in its scheduling class: %s", error)
