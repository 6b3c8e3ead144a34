"""What a stream socket keeps for a peer that reads more slowly than it is sent to."""

from __future__ import annotations

import selectors
import time

from kvstore_mpi.transport import streams
from kvstore_mpi.transport.tcp import TcpSockets

BEHIND, QUEUED, MESSAGES = 5, 8, 60
PAYLOAD = bytes(1 << 20)
"""More than the kernel takes at once."""


def poll(selector, timeout=0.0):
    messages = []
    for key, mask in selector.select(timeout):
        key.data(mask, messages)
    return len(messages)


def known(sender, link, ours, receiver, theirs):
    """Have the other side answer once: payloads are for who has shown who it is."""
    sender.send(link, [b"first"])
    while not link.parser.proven:
        poll(ours, 0.01)
        poll(theirs, 0.01)
        for each in receiver._connections:
            receiver.send(each, [b"answer"])


def test_messages_that_have_left_do_not_count(monkeypatch):
    """However many pass while there are always some that wait, none is dropped."""
    monkeypatch.setattr(streams, "MAX_QUEUED", QUEUED)
    with selectors.DefaultSelector() as ours, selectors.DefaultSelector() as theirs:
        sender, receiver = TcpSockets(ours), TcpSockets(theirs)
        for end in (sender, receiver):
            end.proves = lambda _first: True
        link = sender.connect(receiver.bind("127.0.0.1"))
        sent = came = waited = 0
        deadline = time.monotonic() + 60
        known(sender, link, ours, receiver, theirs)
        while came < MESSAGES and time.monotonic() < deadline:
            while sent < min(MESSAGES, came + BEHIND):
                sender.send(link, [b"first", PAYLOAD])
                sent += 1
            waited += bool(link.outgoing)
            poll(ours, 0.01)
            came += poll(theirs, 0.01)
        sender.close()
        receiver.close()
    assert (came, sender.dropped) == (MESSAGES, 0)
    assert waited > QUEUED
