"""Messages between processes over ZeroMQ: ipc within a host, tcp between hosts.

One ROUTER socket listens, one DEALER socket stands for each connection made from here. What is lost when
libzmq reconnects, and who is at the other end, is not known here: sessions see to both.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import math
import secrets
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import zmq

# Imported only to be imported before any close function of ours is registered with atexit: pyzmq registers
# one there that ends zero-copy sending, and the last registered runs first.
import zmq.utils.garbage

from kvstore_mpi.errors import ConfigurationError
from kvstore_mpi.protocol.codec import MAX_FRAME_BYTES
from kvstore_mpi.protocol.session import MAX_IN_FLIGHT

if TYPE_CHECKING:
    from typing import Sequence

    from kvstore_mpi.interfaces import Buffer, Link

OLDEST_LIBZMQ = (4, 3, 5)
"""Releases up to 4.3.2 can be crashed or taken over before a peer is known (CVE-2019-6250, 2019-13132,
2020-15166); 4.3.5 is the one that all figures and tests here were made with."""

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


class ZeroMQTransport:
    """A ``Transport`` over ZeroMQ.

    A link is the routing id that the ROUTER gave to a connection (bytes), or the number of one of our own
    connections (int).
    """

    def __init__(self, schemes: str = "auto") -> None:
        """Make a transport that neither listens nor is connected.

        Args:
            schemes: ``ipc`` or ``tcp`` allow only one of them; ``auto`` takes ipc within a host.

        Raises:
            ConfigurationError: libzmq is too old, or ipc is asked for where there is none.
        """
        if zmq.zmq_version_info() < OLDEST_LIBZMQ:
            oldest = ".".join(map(str, OLDEST_LIBZMQ))
            raise ConfigurationError(
                f"pyzmq runs on libzmq {zmq.zmq_version()}, but {oldest} or newer is needed for security; "
                "install a newer pyzmq, whose wheels bring their libzmq along"
            )
        self._host = _host_identity()
        self._schemes = _allowed_schemes(schemes, has_ipc=bool(self._host))
        self._context = zmq.Context(io_threads=1)
        self._poller = zmq.Poller()
        self._router: zmq.Socket[bytes] | None = None
        self._dealers: list[zmq.Socket[bytes]] = []
        self._numbers: dict[object, int] = {}
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._poller.register(self._wake_reader.fileno(), zmq.POLLIN)
        self._woken = False
        self.dropped = 0

    def bind(self, interface: str) -> list[str]:
        """Listen on an IPv4 address, port chosen by the system, and within the host; ipc comes first.

        Raises:
            ConfigurationError: The address is not one of this host, or stands for all of them.
        """
        _check_interface(interface)
        router = self._router = self._open(zmq.ROUTER)
        for option, value in _ROUTER_OPTIONS.items():
            router.setsockopt(option, value)
        addresses = []
        if "ipc" in self._schemes:
            endpoint = f"ipc://@kvstore_mpi-{secrets.token_hex(16)}"
            router.bind(endpoint)
            addresses.append(f"{endpoint}#{self._host}")
        if "tcp" in self._schemes:
            try:
                router.bind(f"tcp://{interface}:*")
            except zmq.ZMQError as error:
                raise ConfigurationError(
                    f"cannot listen on {interface}: {error.strerror}; give an address of this host"
                ) from error
            addresses.append(router.getsockopt_string(zmq.LAST_ENDPOINT))
        return addresses

    def connect(self, addresses: Sequence[str]) -> Link:
        """Start to connect to the first of the addresses that can be used from here.

        Raises:
            ConfigurationError: None can be used.
        """
        endpoint = next(filter(None, map(self._endpoint, addresses)), None)
        if endpoint is None:
            raise ConfigurationError(
                f"none of the addresses {', '.join(addresses) or '(none)'} can be used from this host with "
                f"{' and '.join(self._schemes)}; allow tcp (--transport auto or tcp) between hosts"
            )
        dealer = self._open(zmq.DEALER)
        dealer.connect(endpoint)
        self._numbers[dealer] = len(self._dealers)
        self._dealers.append(dealer)
        return self._numbers[dealer]

    def send(self, link: Link, frames: Sequence[Buffer]) -> None:
        """Queue one message for libzmq's thread; drop it when the link is gone or full.

        The first frame is copied, later ones only below 64 KiB (pyzmq's threshold, see ``COPY_THRESHOLD``).
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

    def receive(self, timeout: float | None) -> list[tuple[Link, list[memoryview]]]:
        """Wait for messages, a wake-up or the timeout; frames are views of libzmq's memory.

        Sockets are served in turn, each for at most ``MESSAGES_PER_SOCKET`` messages.
        """
        # Rounded up: a rest of less than a millisecond must not become a loop without waiting.
        milliseconds = None if timeout is None else math.ceil(max(0.0, timeout) * 1e3)
        messages: list[tuple[Link, list[memoryview]]] = []
        for ready, _ in self._poller.poll(milliseconds):
            if isinstance(ready, zmq.Socket):
                self._take(ready, messages)
            else:
                self._fall_asleep()
        return messages

    def wake(self) -> None:
        """Make a waiting ``receive`` return; any thread may call this, also after ``close``."""
        if not self._woken:
            self._woken = True
            # A closed socket needs no wake-up, and a full one is awake.
            with contextlib.suppress(OSError):
                self._wake_writer.send(b"\0")

    def close(self, linger: float) -> None:
        """Close all sockets; wait at most ``linger`` seconds until what is queued has left."""
        for each in (self._router, *self._dealers):
            if each is not None:
                each.close(linger=math.ceil(linger * 1e3))
        self._context.term()
        self._wake_reader.close()
        self._wake_writer.close()

    def _open(self, kind: int) -> zmq.Socket[bytes]:
        opened = self._context.socket(kind)
        for option, value in _OPTIONS.items():
            opened.setsockopt(option, value)
        self._poller.register(opened, zmq.POLLIN)
        return opened

    def _endpoint(self, address: str) -> str | None:
        """Return what libzmq calls the address, or None when it cannot be used from here."""
        endpoint, _, host = address.partition("#")
        scheme = endpoint.partition(":")[0]
        if scheme not in self._schemes or (scheme == "ipc" and host != self._host):
            return None
        return endpoint

    def _take(self, ready: zmq.Socket[bytes], messages: list[tuple[Link, list[memoryview]]]) -> None:
        number = self._numbers.get(ready)
        for _ in range(MESSAGES_PER_SOCKET):
            link: Link = ready.recv(_NOBLOCK) if number is None else number
            messages.append((link, _receive_frames(ready)))
            # Half the price of a receive that fails.
            if not int(ready.getsockopt(zmq.EVENTS)) & _POLLIN:
                return

    def _fall_asleep(self) -> None:
        """Take the wake-ups and allow new ones, in this order: the other way round one could be lost."""
        with contextlib.suppress(BlockingIOError):
            self._wake_reader.recv(64)
        self._woken = False


def _send_frames(target: zmq.Socket[bytes], frames: Sequence[Buffer]) -> None:
    """Send the frames of one message; only the first can fail, for libzmq keeps messages whole."""
    last = len(frames) - 1
    target.send(frames[0], _NOBLOCK | (_SNDMORE if last else 0))
    for index in range(1, last + 1):
        target.send(frames[index], _NOBLOCK | (_SNDMORE if index < last else 0), copy=False)


def _receive_frames(source: zmq.Socket[bytes]) -> list[memoryview]:
    frame = source.recv(_NOBLOCK, copy=False)
    frames = [frame.buffer]
    while frame.more:
        frame = source.recv(_NOBLOCK, copy=False)
        frames.append(frame.buffer)
    return frames


def _check_interface(interface: str) -> None:
    try:
        wildcard = ipaddress.IPv4Address(interface).is_unspecified
    except ValueError as error:
        raise ConfigurationError(
            f"cannot listen on {interface!r}: not an IPv4 address ({error})"
        ) from error
    if wildcard:
        raise ConfigurationError(
            f"will not listen on {interface}, which is every network of this host; give the one address "
            "that the other hosts of the job can reach"
        )


def _allowed_schemes(schemes: str, *, has_ipc: bool) -> tuple[str, ...]:
    if schemes == "ipc" and not has_ipc:
        raise ConfigurationError(f"transport ipc needs Linux, this is {sys.platform}; use auto or tcp")
    if schemes == "auto":
        return ("ipc", "tcp") if has_ipc else ("tcp",)
    return (schemes,)


def _host_identity() -> str:
    """Name what two processes must share to meet in the abstract namespace; empty where there is none.

    The kernel keeps one such namespace for each network namespace, so the host's name is not enough.
    """
    if not sys.platform.startswith("linux"):
        return ""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    parts = f"{boot}|{socket.gethostname()}|{Path('/proc/self/ns/net').readlink()}"
    return hashlib.sha256(parts.encode()).hexdigest()[:16]
