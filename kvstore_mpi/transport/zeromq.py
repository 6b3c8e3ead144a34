"""Messages between processes of different hosts: ZeroMQ over tcp.

One ROUTER socket listens, one DEALER socket stands for each connection made from here. What is lost when
libzmq reconnects, and who is at the other end, is not known here: sessions see to both.
"""

from __future__ import annotations

import math
import selectors
from typing import TYPE_CHECKING

import zmq

# Imported only to be imported before any close function of ours is registered with atexit: pyzmq registers
# one there that ends zero-copy sending, and the last registered runs first.
import zmq.utils.garbage

from kvstore_mpi.errors import ConfigurationError
from kvstore_mpi.transport.listening import cannot_listen, check_interface
from kvstore_mpi.wire.codec import MAX_FRAME_BYTES
from kvstore_mpi.wire.session import MAX_IN_FLIGHT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.interfaces import Buffer, Link
    from kvstore_mpi.transport.streams import Messages

OLDEST_LIBZMQ = (4, 3, 5)
"""Releases up to 4.3.2 can be crashed or taken over before a peer is known (CVE-2019-6250, 2019-13132,
2020-15166); 4.3.5 is the one that all figures and tests here were made with."""

ZERO_COPY_BYTES = 1 << 17
"""Frames from this size on are sent from where they lie. For smaller ones that costs more than the copy:
when libzmq has done with such a frame, it wakes a thread of pyzmq's that needs the interpreter's lock."""

MESSAGES_PER_SOCKET = 32
"""Messages taken from one socket in one ``receive``: enough to spread the cost of a pass over the loop, few
enough (6 MB of 200 KB slices, some ms) that acknowledgements and urgent sends do not wait long."""

_OPTIONS = {
    zmq.LINGER: 0,
    zmq.IPV6: 0,
    # Without it a stranger's header of nine bytes makes libzmq reserve what the header says.
    zmq.MAXMSGSIZE: MAX_FRAME_BYTES,
    # In messages, each way. A session has at most MAX_IN_FLIGHT on the wire, and as many again when it
    # repeats; so only a peer that breaks the protocol, or one with a queue of a lost connection, meets it.
    zmq.SNDHWM: 4 * MAX_IN_FLIGHT,
    zmq.RCVHWM: 4 * MAX_IN_FLIGHT,
    # Milliseconds. A connection that never says a word of ZMTP is closed; libzmq's default is 30 s.
    zmq.HANDSHAKE_IVL: 5_000,
    # Heartbeats below the session's notice that a connection is dead, so that libzmq makes a new one. The
    # timeout is long because each one that is wrong costs a repetition of all that was in flight.
    zmq.HEARTBEAT_IVL: 5_000,
    zmq.HEARTBEAT_TIMEOUT: 30_000,
    zmq.RECONNECT_IVL: 100,
    zmq.RECONNECT_IVL_MAX: 1_000,
}

_ROUTER_OPTIONS = {
    # Say so when a link is gone, instead of dropping in silence.
    zmq.ROUTER_MANDATORY: 1,
    # All workers of a job connect at the same moment; libzmq's default of 100 makes the rest retry.
    zmq.BACKLOG: 1_024,
}

# Plain numbers: combining members of pyzmq's enumerations costs a microsecond each time.
_NOBLOCK, _SNDMORE, _POLLIN = int(zmq.NOBLOCK), int(zmq.SNDMORE), int(zmq.POLLIN)

_DROPPED = (zmq.EAGAIN, zmq.EHOSTUNREACH)


class ZeroMQSockets:
    """ZeroMQ's sockets of one process.

    A link is the routing id that the ROUTER gave to a connection (bytes), or the number of one of our own
    connections (int).

    Attributes:
        dropped: Messages that could not be sent.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        """Use a selector, whose data is the function to call when a descriptor is ready.

        Raises:
            ConfigurationError: libzmq is too old.
        """
        if zmq.zmq_version_info() < OLDEST_LIBZMQ:
            oldest = ".".join(map(str, OLDEST_LIBZMQ))
            raise ConfigurationError(
                f"pyzmq runs on libzmq {zmq.zmq_version()}, but {oldest} or newer is needed for security; "
                "install a newer pyzmq, whose wheels bring their libzmq along"
            )
        self._selector = selector
        self._context = zmq.Context(io_threads=1)
        self._router: zmq.Socket[bytes] | None = None
        self._dealers: list[zmq.Socket[bytes]] = []
        self._numbers: dict[object, int] = {}
        self._unannounced: dict[zmq.Socket[bytes], None] = {}
        self.dropped = 0

    def bind(self, interface: str) -> str:
        """Listen on an IPv4 address, port chosen by the system; return the endpoint.

        Raises:
            ConfigurationError: The address is not one of this host, or stands for all of them.
        """
        check_interface(interface)
        router = self._router = self._open(zmq.ROUTER)
        for option, value in _ROUTER_OPTIONS.items():
            router.setsockopt(option, value)
        try:
            router.bind(f"tcp://{interface}:*")
        except zmq.ZMQError as error:
            raise cannot_listen(interface, error.strerror) from error
        return router.getsockopt_string(zmq.LAST_ENDPOINT)

    def connect(self, endpoint: str) -> Link:
        """Start to connect; return the link."""
        dealer = self._open(zmq.DEALER)
        dealer.connect(endpoint)
        self._numbers[dealer] = len(self._dealers)
        self._dealers.append(dealer)
        return self._numbers[dealer]

    def send(self, link: Link, frames: Sequence[Buffer]) -> None:
        """Queue one message for libzmq's thread; drop it when the link is gone or full.

        Frames below ``ZERO_COPY_BYTES`` are copied.
        """
        try:
            if isinstance(link, bytes):
                assert self._router is not None
                target = self._router
                target.send(link, _SNDMORE | _NOBLOCK)
            else:
                assert isinstance(link, int)
                target = self._dealers[link]
            _send_frames(target, frames)
        except zmq.ZMQError as error:
            if error.errno not in _DROPPED:
                raise
            self.dropped += 1
        self._unannounced[target] = None

    def take_unannounced(self, messages: Messages) -> bool:
        """Take messages that no descriptor will announce; say whether there were any.

        libzmq's descriptors tell of changes only, and any other call on the socket may see them first.
        """
        before = len(messages)
        for source in list(self._unannounced):
            self._take(source, messages)
        return len(messages) > before

    def close(self, linger: float) -> None:
        """Close all sockets; wait at most ``linger`` seconds until what is queued has left."""
        for each in (self._router, *self._dealers):
            if each is not None:
                self._selector.unregister(int(each.getsockopt(zmq.FD)))
                each.close(linger=math.ceil(linger * 1e3))
        self._context.term()

    def _open(self, kind: int) -> zmq.Socket[bytes]:
        opened = self._context.socket(kind)
        for option, value in _OPTIONS.items():
            opened.setsockopt(option, value)
        self._selector.register(
            int(opened.getsockopt(zmq.FD)),
            selectors.EVENT_READ,
            lambda _mask, messages: self._take(opened, messages),
        )
        return opened

    def _take(self, source: zmq.Socket[bytes], messages: Messages) -> None:
        """Take some messages from a socket; if it may have more, it is looked at before the next wait."""
        number = self._numbers.get(source)
        for _ in range(MESSAGES_PER_SOCKET):
            if not int(source.getsockopt(zmq.EVENTS)) & _POLLIN:
                self._unannounced.pop(source, None)
                return
            link: Link = source.recv(_NOBLOCK) if number is None else number
            messages.append((link, _receive_frames(source)))
        self._unannounced[source] = None


def _send_frames(target: zmq.Socket[bytes], frames: Sequence[Buffer]) -> None:
    """Send the frames of one message; only the first can fail, for libzmq keeps messages whole."""
    last = len(frames) - 1
    target.send(frames[0], _NOBLOCK | (_SNDMORE if last else 0))
    for index in range(1, last + 1):
        frame = frames[index]
        copy = memoryview(frame).nbytes < ZERO_COPY_BYTES
        target.send(frame, _NOBLOCK | (_SNDMORE if index < last else 0), copy=copy)


def _receive_frames(source: zmq.Socket[bytes]) -> list[memoryview]:
    frame = source.recv(_NOBLOCK, copy=False)
    frames = [frame.buffer]
    while frame.more:
        frame = source.recv(_NOBLOCK, copy=False)
        frames.append(frame.buffer)
    return frames
