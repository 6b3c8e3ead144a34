"""Measures what one TCP connection really carries over a link, and the link's latency.

Run as a script it is one end of the measurement: ``goodput.py receive ADDRESS`` prints the port that it
listens on, then the bytes per second that came; ``goodput.py send ADDRESS PORT`` prints the seconds of one
way. Only the standard library, so that it starts at once.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .netns import Network

WARM_UP_S = 0.4
MEASURE_S = 1.0
PINGS = 20
ATTEMPTS = 3
"""Whatever disturbs a measurement makes a link look slower, and the ideal with it; the fastest is right."""
CHUNK = bytes(1 << 16)
TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Link:
    """What a link does.

    Attributes:
        bytes_per_s: Payload of TCP in one direction.
        latency_s: Seconds of one way, when nothing else is on the link.
    """

    bytes_per_s: float
    latency_s: float


def measure(network: Network) -> Link:
    """Return what the links do at their present rate: from host 0 to host 1, the best of some attempts."""
    links = [_measure_once(network) for _ in range(ATTEMPTS)]
    return Link(max(link.bytes_per_s for link in links), min(link.latency_s for link in links))


def _measure_once(network: Network) -> Link:
    """Send from host 0 to host 1 for a moment."""
    script = (sys.executable, "-I", "-S", __file__)
    address = network.address(1)
    with subprocess.Popen(
        network.in_host(1, (*script, "receive", address)), stdout=subprocess.PIPE, text=True
    ) as receiver:
        assert receiver.stdout is not None
        port = receiver.stdout.readline().strip()
        sender = subprocess.run(
            network.in_host(0, (*script, "send", address, port)),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=TIMEOUT_S,
        )
        return Link(float(receiver.stdout.readline()), float(sender.stdout))


def receive(address: str) -> float:
    """Answer the pings of one sender, then return the bytes per second of the rest, warm-up left out."""
    with socket.create_server((address, 0)) as server:
        server.settimeout(TIMEOUT_S)
        print(server.getsockname()[1], flush=True)
        connection, _ = server.accept()
    with connection:
        connection.settimeout(TIMEOUT_S)
        for _ in range(PINGS):
            connection.sendall(connection.recv(1))
        return _rate(connection)


def _rate(connection: socket.socket) -> float:
    """Return the bytes per second that come after the warm-up, until the sender is done."""
    begin = time.monotonic() + WARM_UP_S
    first = last = begin
    count = 0
    buffer = bytearray(len(CHUNK))
    while size := connection.recv_into(buffer):
        last = time.monotonic()
        if last < begin:
            first = last
        else:
            count += size
    return count / (last - first)


def send(address: str, port: int) -> float:
    """Ping, then send as fast as it goes for a while; return the seconds of one way."""
    with socket.create_connection((address, port), TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        trips = [_ping(connection) for _ in range(PINGS)]
        end = time.monotonic() + WARM_UP_S + MEASURE_S
        while time.monotonic() < end:
            connection.sendall(CHUNK)
    return median(trips) / 2


def _ping(connection: socket.socket) -> float:
    """Return the seconds until one byte has come back."""
    begin = time.monotonic()
    connection.sendall(b".")
    connection.recv(1)
    return time.monotonic() - begin


def main(arguments: Sequence[str]) -> None:
    """Be one end."""
    if arguments[0] == "receive":
        print(receive(arguments[1]))
    else:
        print(send(arguments[1], int(arguments[2])))


if __name__ == "__main__":
    main(sys.argv[1:])
