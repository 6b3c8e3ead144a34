"""What stands on the wire with ``encrypt`` and without, and what becomes of who changes it."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore_mpi.errors import ConfigurationError, FrameError
from kvstore_mpi.testing.transport_contract import DEADLINE, receive
from kvstore_mpi.transport import records, sockets
from kvstore_mpi.transport.sockets import SocketTransport
from kvstore_mpi.transport.tcp import TcpSockets

SECRET = b"s" * 32
PATTERN = np.full(1000, 1.2345678, np.float32).tobytes()
"""A gradient that anybody recognises."""


class Tap:
    """Somebody on the path between two hosts: passes on what comes, notes it, and may change a byte."""

    def __init__(self, address, change=-1):
        self.seen = bytearray()
        self._to = address.rpartition(":")[2]
        self._change = change
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", int(self._to)))
                threading.Thread(target=self._pass, args=(far, near, False), daemon=True).start()
                threading.Thread(target=self._pass, args=(near, far, True), daemon=True).start()

    def _pass(self, source, sink, counts):
        with contextlib.suppress(OSError):
            while data := bytearray(source.recv(65536)):
                at = self._change - len(self.seen)
                if counts and 0 <= at < len(data):
                    data[at] ^= 1
                if counts:
                    self.seen += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def close(self):
        self._listener.close()


@pytest.fixture
def join():
    """Return a function that makes two transports and a tap between them."""
    made = []

    def join(*, encrypt, change=-1, secrets=(SECRET, SECRET)):
        listener, caller = (SocketTransport("tcp", encrypt=encrypt) for _ in range(2))
        listener.screen(lambda _first: True, secrets[0])
        caller.screen(lambda _first: True, secrets[1])
        tap = Tap(listener.bind("127.0.0.1")[0], change)
        made.extend([listener, caller])
        taps.append(tap)
        return listener, caller, caller.connect([tap.address]), tap

    taps = []
    yield join
    for each in made:
        each.close(0)
    for tap in taps:
        tap.close()


@pytest.mark.parametrize("encrypt", [False, True])
def test_a_gradient_on_the_wire(join, encrypt):
    """Whoever listens in sees it without encryption, and nothing of it with."""
    listener, caller, link, tap = join(encrypt=encrypt)
    caller.send(link, [b"hello"])
    [(back, _)] = receive(listener, 1, caller)
    listener.send(back, [b"welcome"])
    receive(caller, 1)
    for _ in range(3):
        caller.send(link, [b"head of a message", PATTERN * 200])
    messages = receive(listener, 3, caller)
    assert all(bytes(frames[1]) == PATTERN * 200 for _, frames in messages)
    assert (PATTERN[:16] in tap.seen) is not encrypt
    assert (b"head of a message" in tap.seen) is not encrypt


@pytest.mark.parametrize("change", [3, 32, 36, 60, 700])
def test_who_changes_a_byte_ends_the_connection(join, change):
    """In the greeting, a length, or a record; nothing of what was changed is taken."""
    listener, caller, link, _ = join(encrypt=True, change=change)
    caller.send(link, [b"head" + PATTERN])
    end = time.monotonic() + DEADLINE
    arrived = []
    while not listener.refused and time.monotonic() < end:
        assert caller.receive(0) == []
        arrived += listener.receive(0.01)
    assert (listener.refused, arrived) == (1, [])


def test_records_that_were_read_together_are_all_taken():
    """The kernel does not wake the receiver once more for what it has given already."""
    listener, caller = (SocketTransport("tcp", encrypt=True) for _ in range(2))
    for each in (listener, caller):
        each.screen(lambda _first: True, SECRET)
    link = caller.connect(listener.bind("127.0.0.1"))
    caller.send(link, [b"hello"])
    receive(listener, 1, caller)
    for number in range(3):
        caller.send(link, [bytes([number])])
    # All that has come: a record that was read with the first and left would be in no later answer.
    messages = listener.receive(DEADLINE)
    assert [bytes(frames[0]) for _, frames in messages] == [b"\0", b"\1", b"\2"]
    caller.close(0)
    listener.close(0)


def test_another_job_is_refused(join):
    """Who does not know the secret cannot say a word."""
    listener, caller, link, _ = join(encrypt=True, secrets=(SECRET, b"x" * 32))
    caller.send(link, [b"head"])
    end = time.monotonic() + DEADLINE
    while not listener.refused and time.monotonic() < end:
        caller.receive(0)
        assert listener.receive(0.01) == []
    assert listener.refused == 1


def test_who_speaks_in_clear_is_refused(join):
    """Also if it knows all else, as a process of this job that was told otherwise."""
    listener, _, _, _ = join(encrypt=True)
    plain = SocketTransport("tcp")
    link = plain.connect(listener.bind("127.0.0.1"))
    plain.send(link, [b"x" * 100])
    end = time.monotonic() + DEADLINE
    while not listener.refused and time.monotonic() < end:
        plain.receive(0)
        assert listener.receive(0.01) == []
    plain.close(0)
    assert listener.refused == 1


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    """On which host, and how."""
    monkeypatch.setitem(sockets.sys.modules, "kvstore_mpi.transport.sealed", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'kvstore_mpi\[encrypt\]' on all hosts"):
        SocketTransport("tcp", encrypt=True)


def test_without_the_option_nothing_is_different():
    """The same class as ever sends and receives, and the library is not loaded."""
    transport = SocketTransport()
    assert type(transport._tcp) is TcpSockets
    transport.close(0)
    code = "import sys, kvstore_mpi.node; print('cryptography' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def opened(stream, key, sizes):
    """Feed a stream in pieces; return what its records hold."""
    opener = records.Opener()
    opener.use(key)
    found, at = [], 0
    for size in [*sizes, len(stream)]:
        piece = stream[at : at + size]
        while piece:
            room = opener.room()
            count = min(len(piece), room.nbytes)
            room[:count] = piece[:count]
            room.release()
            opener.filled(count)
            piece, at = piece[count:], at + count
            while (plain := opener.record()) is not None:
                found.append(plain)
    return b"".join(found)


@given(
    st.lists(st.binary(min_size=1, max_size=3000), min_size=1, max_size=5),
    st.lists(st.integers(1, 2000), max_size=8),
)
def test_records_open_however_they_are_cut(parts, sizes):
    """All bytes, in order; the first record is small."""
    connector, acceptor = records.derive(SECRET, b"a" * 32, b"b" * 32)
    assert connector != acceptor
    sealer, stream, rest = records.Sealer(connector), b"", b"".join(parts)
    while rest:
        record, size = sealer.seal([rest[:7], rest[7:]])
        assert 0 < size <= (records.RECORD_BYTES if stream else records.FIRST_BYTES)
        stream, rest = stream + b"".join(record), rest[size:]
    assert opened(stream, connector, sizes) == b"".join(parts)
    with pytest.raises(FrameError):
        opened(stream, acceptor, sizes)


@given(st.data())
def test_a_record_that_is_changed_moved_or_repeated_does_not_open(data):
    """The number of a record is part of what is authenticated, and so is its length."""
    key, _ = records.derive(SECRET, b"a" * 32, b"b" * 32)
    sealer = records.Sealer(key)
    made = [b"".join(sealer.seal([bytes([number]) * 50])[0]) for number in range(3)]
    kind = data.draw(st.sampled_from(["change", "swap", "repeat", "drop"]))
    if kind == "change":
        at = data.draw(st.integers(0, len(made[0]) - 1))
        made[0] = made[0][:at] + bytes([made[0][at] ^ data.draw(st.integers(1, 255))]) + made[0][at + 1 :]
    made = {"change": made, "swap": [made[1], made[0]], "repeat": [made[0], made[0]], "drop": made[1:]}[
        kind
    ]
    with pytest.raises(FrameError):
        assert opened(b"".join(made) + bytes(2000), key, []) == b""
