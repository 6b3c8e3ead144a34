"""Many processes of one job in one: their sessions are real, but they do nothing of their own.

They share a transport. What the scheduler does about them it does about as many real processes. It must not
know what is measured.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, final

from kvstore_mpi.records import SCHEDULER, NodeId, Role
from kvstore_mpi.transport.sockets import SocketTransport
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.endpoint import Endpoint
from kvstore_mpi.wire.events import Connected, Failed, Received
from kvstore_mpi.wire.handshake import Identity

from .jobs import JobError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvstore_mpi.interfaces import Link
    from kvstore_mpi.node import Job
    from kvstore_mpi.wire.events import Event
    from kvstore_mpi.wire.message import Message

SWEEP_S = 0.25
"""How often all members see to what is due; those that hear something do so at once."""

AT_ONCE = 200
"""Members that begin to connect before what has come is read: about what a listener's queue takes."""


@final
class Crowd:
    """The workers of a job, and one server, in so far as the scheduler sees them.

    Attributes:
        heard: How many messages of each type have come.
    """

    def __init__(self, job: Job, workers: int, heartbeat: float) -> None:
        """Make the members; nobody is connected."""
        self.heard: dict[str, int] = {}
        self._transport = SocketTransport("tcp")
        nodes = [NodeId(Role.SERVER, 0), *(NodeId(Role.WORKER, rank) for rank in range(workers))]
        self._members = [_endpoint(node, job.secret, heartbeat) for node in nodes]
        self._of_link: dict[Link, Endpoint] = {}
        self._next_sweep = 0.0
        self._connected = 0

    def connect(self, addresses: Sequence[str], deadline_s: float) -> None:
        """Connect all to the scheduler."""
        now = time.monotonic
        self._transport.screen(self._proves)
        for begin in range(0, len(self._members), AT_ONCE):
            for member in self._members[begin : begin + AT_ONCE]:
                link = self._transport.connect(addresses)
                self._of_link[link] = member
                member.connect(SCHEDULER, link, now())
                self._send(member, now())
            wanted = min(begin + AT_ONCE, len(self._members))
            self._until(lambda wanted=wanted: self._connected >= wanted, "connect", deadline_s)

    def say(self, message: Message, *, first: int = 0, last: int | None = None) -> None:
        """Send a message from each member, of which the first is the server, or from some."""
        now = time.monotonic()
        for member in self._members[first:last]:
            member.send(SCHEDULER, message)
            self._send(member, now)

    def hear(self, kind: type[Message], count: int, deadline_s: float) -> None:
        """Wait until ``count`` messages of a type have come in all.

        Raises:
            JobError: They have not come in time, or a session has failed.
        """
        name = kind.__name__
        self._until(lambda: self.heard.get(name, 0) >= count, f"hear {count} {name}", deadline_s)

    def live(self, seconds: float) -> None:
        """Give signs of life, and answer the scheduler's."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._pass(left)

    def close(self) -> None:
        """End all connections."""
        self._transport.close(0.0)

    def _proves(self, _first: memoryview) -> bool:
        return True  # only the scheduler is connected, by ourselves

    def _until(self, done: Callable[[], bool], what: str, deadline_s: float) -> None:
        end = time.monotonic() + deadline_s
        while not done():
            if time.monotonic() > end:
                raise JobError(f"the crowd did not {what} within {deadline_s:g} s; heard {self.heard}")
            self._pass(SWEEP_S)

    def _pass(self, most_s: float) -> None:
        wait = max(0.0, min(most_s, self._next_sweep - time.monotonic()))
        arrived = self._transport.receive(wait)
        now = time.monotonic()
        for link, frames in arrived:
            member = self._of_link[link]
            self._note(member.receive(link, frames, now))
            self._send(member, now)
        if now >= self._next_sweep:
            self._next_sweep = now + SWEEP_S
            for member in self._members:
                self._note(member.tick(now))
                self._send(member, now)

    def _note(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Received):
                name = type(event.message).__name__
                self.heard[name] = self.heard.get(name, 0) + 1
                if isinstance(event.message, m.Failure):
                    raise JobError(f"the scheduler says: {event.message.text}")
            elif isinstance(event, Connected):
                self._connected += 1
            elif isinstance(event, Failed):
                raise JobError(f"a session has failed: {event.error}")

    def _send(self, member: Endpoint, now: float) -> None:
        for link, frames in member.outgoing(now):
            self._transport.send(link, frames)


def _endpoint(node: NodeId, secret: bytes, heartbeat: float) -> Endpoint:
    identity = Identity(node, 0, secret, secrets.token_bytes)
    return Endpoint(identity, connect_timeout=60.0, heartbeat=heartbeat, peer_timeout=60.0)
