"""What every ``Transport`` has to do, as tests: subclass ``TransportContract`` and give it a ``make``.

This file must not know how any transport works.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from kvstore_mpi.interfaces import Buffer, Link, Transport

DEADLINE = 20.0
"""Seconds after which something that should have arrived counts as lost."""

BIG = 64_000_000
"""Bytes of the largest payload of the suite; below ``codec.MAX_FRAME_BYTES``."""


class Pair(NamedTuple):
    """A transport that listens, one that has connected to it, and the links of both."""

    listener: Transport
    caller: Transport
    to_caller: Link
    to_listener: Link


def receive(
    transport: Transport, count: int, sender: Transport | None = None
) -> list[tuple[Link, list[memoryview]]]:
    """Receive that many messages, or fail when they do not come.

    Large ones leave only while the sender waits as well, which is what its loop would do.
    """
    end = time.monotonic() + DEADLINE
    messages: list[tuple[Link, list[memoryview]]] = []
    while len(messages) < count:
        left = end - time.monotonic()
        assert left > 0, f"only {len(messages)} of {count} messages came within {DEADLINE:g} s"
        if sender is None:
            messages += transport.receive(left)
        else:
            assert sender.receive(0) == []
            messages += transport.receive(0.001)
    return messages


def contents(messages: list[tuple[Link, list[memoryview]]]) -> list[list[bytes]]:
    """Return the frames of messages as bytes."""
    return [[bytes(frame) for frame in frames] for _, frames in messages]


class TransportContract:
    """The suite; every test gets fresh transports."""

    def make(self) -> Transport:
        """Return a new transport of the kind under test."""
        raise NotImplementedError

    def open(self) -> Transport:
        """Return a new transport that takes everybody for one of the job."""
        transport = self.make()
        transport.screen(lambda _first: True)
        return transport

    @pytest.fixture
    def pair(self) -> Iterator[Pair]:
        """Join two transports: one message each way shows that the links work."""
        listener, caller = self.open(), self.open()
        to_listener = caller.connect(listener.bind("127.0.0.1"))
        caller.send(to_listener, [b"hello"])
        [(to_caller, _)] = receive(listener, 1, caller)
        listener.send(to_caller, [b"welcome"])
        assert contents(receive(caller, 1)) == [[b"welcome"]]
        yield Pair(listener, caller, to_caller, to_listener)
        caller.close(0)
        listener.close(0)

    def test_a_message_arrives_whole(self, pair: Pair) -> None:
        """Frames arrive as they were cut, empty ones and other kinds of buffers included."""
        sent: list[Buffer] = [b"head", b"", memoryview(b"abc"), bytearray(5), b""]
        pair.caller.send(pair.to_listener, sent)
        [(link, frames)] = receive(pair.listener, 1)
        assert [bytes(frame) for frame in frames] == [bytes(frame) for frame in sent]
        assert all(isinstance(frame, memoryview) for frame in frames)
        assert link == pair.to_caller

    def test_a_typed_buffer_arrives_as_its_bytes(self, pair: Pair) -> None:
        """An array of numbers needs no conversion before it is sent."""
        numbers: Any = memoryview(bytes(range(64))).cast("f")
        pair.caller.send(pair.to_listener, [b"head", numbers])
        assert contents(receive(pair.listener, 1)) == [[b"head", bytes(range(64))]]

    def test_answers_come_back_on_the_same_link(self, pair: Pair) -> None:
        """The side that connected hears the answer under the link that it was given."""
        pair.listener.send(pair.to_caller, [b"answer"])
        [(link, frames)] = receive(pair.caller, 1)
        assert (link, bytes(frames[0])) == (pair.to_listener, b"answer")

    def test_a_big_payload_arrives(self, pair: Pair) -> None:
        """A payload of 64 MB arrives unchanged."""
        block = bytes(range(250))
        payload = bytearray(block * (BIG // len(block)))
        pair.caller.send(pair.to_listener, [b"head", payload])
        [(_, frames)] = receive(pair.listener, 1, pair.caller)
        assert frames[1] == payload

    def test_what_was_received_stays_as_it_was(self, pair: Pair) -> None:
        """Frames are not overwritten by messages that come later."""
        pair.caller.send(pair.to_listener, [b"first", bytes(100_000)])
        [(_, first)] = receive(pair.listener, 1)
        for number in range(1, 20):
            pair.caller.send(pair.to_listener, [b"later", bytes([number]) * 100_000])
        receive(pair.listener, 19, pair.caller)
        assert (bytes(first[0]), bytes(first[1])) == (b"first", bytes(100_000))

    def test_order_holds_within_a_link(self, pair: Pair) -> None:
        """Small and large messages of one link arrive in the order of the sends."""
        payloads = [bytes(100_000 if number % 3 == 0 else 10) for number in range(300)]
        for number, payload in enumerate(payloads):
            pair.caller.send(pair.to_listener, [number.to_bytes(4, "little"), payload])
        arrived = receive(pair.listener, 300, pair.caller)
        assert [int.from_bytes(frames[0], "little") for _, frames in arrived] == list(range(300))
        assert [frames[1].nbytes for _, frames in arrived] == [len(payload) for payload in payloads]

    def test_connections_are_told_apart(self) -> None:
        """Each connection has its own link at both sides, and answers go where they belong."""
        listener, callers = self.open(), [self.open() for _ in range(3)]
        addresses = listener.bind("127.0.0.1")
        arrived = []
        for number, caller in enumerate(callers):
            caller.send(caller.connect(addresses), [bytes([number])])
            arrived += receive(listener, 1, caller)
        assert len({link for link, _ in arrived}) == 3  # noqa: PLR2004  three callers
        for link, frames in arrived:
            listener.send(link, [b"to", frames[0]])
        for number, caller in enumerate(callers):
            assert contents(receive(caller, 1)) == [[b"to", bytes([number])]]
        for transport in (listener, *callers):
            transport.close(0)

    def test_receive_gives_up_in_time(self, pair: Pair) -> None:
        """With nothing to receive, a timeout returns nothing, and zero does not wait."""
        assert pair.listener.receive(0) == []
        start = time.monotonic()
        assert pair.listener.receive(0.05) == []
        assert 0.04 < time.monotonic() - start < DEADLINE  # noqa: PLR2004  clocks may be a little apart

    def test_wake_ends_a_wait(self, pair: Pair) -> None:
        """Another thread can end a wait without a timeout, and again after that."""
        for _ in range(2):
            waker = threading.Timer(0.02, pair.listener.wake)
            waker.start()
            assert pair.listener.receive(None) == []
            waker.join()

    def test_a_wake_before_the_wait_is_not_lost(self, pair: Pair) -> None:
        """However often it was called before, the next wait returns at once and the one after waits."""
        for _ in range(1_000):
            pair.listener.wake()
        assert pair.listener.receive(None) == []
        start = time.monotonic()
        assert pair.listener.receive(0.05) == []
        assert time.monotonic() - start > 0.04  # noqa: PLR2004  clocks may be a little apart

    def test_a_send_to_nobody_is_dropped(self, pair: Pair) -> None:
        """A link of a peer that has gone takes messages without an error and without waiting."""
        pair.caller.close(0)
        for _ in range(10_000):
            pair.listener.send(pair.to_caller, [b"head", b"payload"])
        assert pair.listener.receive(0) == []

    def test_close_lets_queued_messages_leave(self, pair: Pair) -> None:
        """What was sent before ``close`` arrives if the linger allows."""
        for number in range(100):
            pair.caller.send(pair.to_listener, [bytes([number]), bytes(100_000)])
        closer = threading.Thread(target=pair.caller.close, args=(DEADLINE,))
        closer.start()
        arrived = receive(pair.listener, 100)
        closer.join(DEADLINE)
        assert [frames[0][0] for _, frames in arrived] == list(range(100))

    def test_close_twice_and_wake_after(self) -> None:
        """A second ``close`` does nothing, and a late ``wake`` of another thread does no harm."""
        transport = self.make()
        transport.bind("127.0.0.1")
        transport.close(0)
        transport.wake()
        transport.close(0)
