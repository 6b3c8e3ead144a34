"""N nodes in one process: a network of which a test decides order, loss, repetition, delay and time.

Time is virtual: a message arrives when ``advance`` has moved the time to its arrival. Without delays
everything arrives at once, so real threads can run over it as well. All that is random comes from the
seed, in the order of the sends.

This file must not know what is in a message.
"""

from __future__ import annotations

import heapq
import random
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kvstore_mpi.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvstore_mpi.interfaces import Buffer, Link

SCHEME = "memory://"


@dataclass
class Faults:
    """What the network does to each message that is sent.

    Attributes:
        loss: Probability that it vanishes.
        duplication: Probability that it arrives a second time, after a delay of its own.
        delay: Longest delay in seconds of virtual time.
        reordering: Probability that it does not wait for those sent before it on its link.
    """

    loss: float = 0.0
    duplication: float = 0.0
    delay: float = 0.0
    reordering: float = 0.0


@dataclass
class _Direction:
    """Where a link leads: to whom, under which name there, and when its last message arrives."""

    node: MemoryTransport
    far_link: Link
    last_arrival: float = 0.0


class _Message(NamedTuple):
    arrival: float
    number: int
    node: MemoryTransport
    link: Link
    frames: list[bytes]


class MemoryNetwork:
    """Joins the transports that it made; safe to use from several threads.

    Attributes:
        faults: What happens to messages sent from now on; the test may change it at any time.
        now: Virtual time in seconds.
    """

    def __init__(self, seed: int = 0) -> None:
        """Make a network without faults, at time 0."""
        self.faults = Faults()
        self.now = 0.0
        self.condition = threading.Condition()
        self._random = random.Random(seed)  # noqa: S311  repeatable, and nothing to protect
        self._nodes: list[MemoryTransport] = []
        self._directions: dict[Link, _Direction] = {}
        self._numbers = 0
        self._under_way: list[_Message] = []

    def transport(self) -> MemoryTransport:
        """Make the transport of one more node."""
        with self.condition:
            self._nodes.append(MemoryTransport(self, len(self._nodes)))
            return self._nodes[-1]

    def advance(self, seconds: float) -> None:
        """Let virtual time pass; what arrives in it can be received afterwards."""
        with self.condition:
            self.now += seconds
            self._deliver()

    def next_arrival(self) -> float | None:
        """Return when the next message arrives, if one is under way."""
        with self.condition:
            return self._under_way[0].arrival if self._under_way else None

    def reconnect(self, link: Link) -> None:
        """Break a connection and make it again, as sockets do; what is under way on it is lost.

        Args:
            link: Its name at the side that connected, which keeps it; the other side sees a new one.
        """
        with self.condition:
            forth = self._directions[link]
            back = self._directions.pop(forth.far_link)
            lost = {link, forth.far_link}
            self._under_way = [message for message in self._under_way if message.link not in lost]
            heapq.heapify(self._under_way)
            self._join(link, back.node, forth.node)

    def connect(self, caller: MemoryTransport, address: str) -> Link:
        """Join a node to the one that listens at an address; return the caller's link."""
        with self.condition:
            link = self._number()
            self._join(link, caller, self._nodes[int(address[len(SCHEME) :])])
            return link

    def send(self, link: Link, frames: Sequence[Buffer]) -> None:
        """Put copies of frames on their way, subject to the faults."""
        with self.condition:
            direction = self._directions.get(link)
            if direction is None or self._chance(self.faults.loss):
                return
            copies = [bytes(frame) for frame in frames]
            arrival = self.now + self._random.uniform(0.0, self.faults.delay)
            if not self._chance(self.faults.reordering):
                arrival = direction.last_arrival = max(arrival, direction.last_arrival)
            self._post(arrival, direction, copies)
            if self._chance(self.faults.duplication):
                self._post(arrival + self._random.uniform(0.0, self.faults.delay), direction, copies)
            self._deliver()

    def leave(self, node: MemoryTransport) -> None:
        """End all connections of a node; what it sent still arrives."""
        with self.condition:
            gone = {link for link, direction in self._directions.items() if direction.node is node}
            gone |= {self._directions[link].far_link for link in gone}
            self._directions = {
                link: direction for link, direction in self._directions.items() if link not in gone
            }

    def _post(self, arrival: float, direction: _Direction, frames: list[bytes]) -> None:
        message = _Message(arrival, self._number(), direction.node, direction.far_link, frames)
        heapq.heappush(self._under_way, message)

    def _deliver(self) -> None:
        while self._under_way and self._under_way[0].arrival <= self.now:
            message = heapq.heappop(self._under_way)
            message.node.inbox.append((message.link, [memoryview(frame) for frame in message.frames]))
            self.condition.notify_all()

    def _join(self, link: Link, caller: MemoryTransport, listener: MemoryTransport) -> None:
        far_link = self._number()
        self._directions[link] = _Direction(listener, far_link)
        self._directions[far_link] = _Direction(caller, link)

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _chance(self, probability: float) -> bool:
        return probability > 0.0 and self._random.random() < probability


class MemoryTransport:
    """The ``Transport`` of one node of a ``MemoryNetwork``.

    ``receive`` waits in real time for what has arrived in virtual time; in a simulation, where one thread
    does everything, call it with a timeout of 0.
    """

    def __init__(self, network: MemoryNetwork, index: int) -> None:
        """Belong to a network, as its node number ``index``."""
        self.inbox: deque[tuple[Link, list[memoryview]]] = deque()
        self._network = network
        self._index = index
        self._woken = False

    def screen(self, proves: Callable[[memoryview], bool], secret: bytes = b"") -> None:
        """Do nothing: there are no strangers in this network."""

    def receive_into(self, place: Callable[[memoryview, int], memoryview | None]) -> None:
        """Do nothing: payloads are received where they were sent from."""

    def bind(self, interface: str) -> list[str]:  # noqa: ARG002  there is only one network
        """Return the address of this node."""
        return [f"{SCHEME}{self._index}"]

    def connect(self, addresses: Sequence[str]) -> Link:
        """Connect to the node at the first address of this kind.

        Raises:
            ConfigurationError: There is none.
        """
        for address in addresses:
            if address.startswith(SCHEME):
                return self._network.connect(self, address)
        raise ConfigurationError(f"none of the addresses {', '.join(addresses) or '(none)'} is in memory")

    def send(self, link: Link, frames: Sequence[Buffer]) -> None:
        """Send copies of the frames, so that the receiver's never change."""
        self._network.send(link, frames)

    def receive(self, timeout: float | None) -> list[tuple[Link, list[memoryview]]]:
        """Return what has arrived; wait in real time when there is nothing."""
        with self._network.condition:
            self._network.condition.wait_for(lambda: self.inbox or self._woken, timeout)
            self._woken = False
            messages = list(self.inbox)
            self.inbox.clear()
            return messages

    def wake(self) -> None:
        """Make a waiting ``receive`` return."""
        with self._network.condition:
            self._woken = True
            self._network.condition.notify_all()

    def close(self, linger: float) -> None:  # noqa: ARG002  what was sent is under way
        """Leave the network; what was sent arrives, what comes from now on vanishes."""
        self._network.leave(self)
