"""Measures latency and bandwidth between the ranks of an MPI job, for ``mpilaunch measure-links``.

One pair at a time, while all others wait: the first rank of each host with the first of each other, over
MPI and over TCP, and the first two ranks of each host over MPI. Rank 0 writes the TOML of
``planner.cluster``, in which the slowest pair of a kind counts, and all of them as a remark.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import time
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from kvstore_mpi.errors import PeerLostError, UsageError
from kvstore_mpi.node import process_config, tell_launcher
from kvstore_mpi.planner.cluster import Cluster, Link, write_cluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvstore_mpi.interfaces import Communicator

PINGS = 50
SMALL_BYTES = 8
LARGE_BYTES = 1 << 20
STREAM = 16
"""Large messages that go one after the other, so that buffers and token buckets on the way do not count."""
WAIT_S = 60.0
"""Nothing between two ranks takes a fraction of this; whoever waits longer for the other gives up."""


class Pair(NamedTuple):
    """What was measured between two ranks.

    Attributes:
        over: ``mpi`` or ``tcp``.
        hosts: Numbers of the two hosts, equal within one.
        latency_s: Seconds of a message of a few bytes, one way.
        bytes_per_s: Of large messages in one direction.
    """

    over: str
    hosts: tuple[int, int]
    latency_s: float
    bytes_per_s: float

    def __str__(self) -> str:
        """Say it on one line."""
        one, other = self.hosts
        where = f"within host {one}" if one == other else f"hosts {one} and {other}"
        return f"{self.over}, {where}: {1e6 * self.latency_s:.1f} us, {self.bytes_per_s / 1e6:.0f} MB/s"


class End:
    """One end of a pair: sends to the other and receives from it."""

    def __init__(self, send: Callable[[int], None], receive: Callable[[int], None]) -> None:
        """Use two functions of a number of bytes, at most ``LARGE_BYTES``."""
        self._send, self._receive = send, receive

    def lead(self) -> tuple[float, float]:
        """Measure; return seconds of a small message one way, and bytes a second of large ones."""
        latency = float(np.median([self._stream(1, SMALL_BYTES) for _ in range(PINGS)])) / 2
        self._stream(1, LARGE_BYTES)  # the first makes buffers and opens windows
        seconds = self._stream(STREAM, LARGE_BYTES) - latency
        return latency, STREAM * LARGE_BYTES / max(seconds, 1e-9)

    def follow(self) -> None:
        """Answer until the other end has measured."""
        for number, num_bytes in [(1, SMALL_BYTES)] * PINGS + [(1, LARGE_BYTES), (STREAM, LARGE_BYTES)]:
            for _ in range(number):
                self._receive(num_bytes)
            self._send(SMALL_BYTES)

    def _stream(self, number: int, num_bytes: int) -> float:
        """Send some messages and wait for one small answer; return the seconds."""
        started = time.perf_counter()
        for _ in range(number):
            self._send(num_bytes)
        self._receive(SMALL_BYTES)
        return time.perf_counter() - started


def measure(communicator: Communicator, hosts: list[list[int]], address: str) -> list[Pair]:
    """Measure all pairs; called by all ranks, which all get what was measured.

    Args:
        communicator: Of the job.
        hosts: The ranks of each host.
        address: Of this host, on which it can be reached by TCP.
    """
    first = {number: ranks[0] for number, ranks in enumerate(hosts)}
    between = [(pair, (first[pair[0]], first[pair[1]])) for pair in combinations(first, 2)]
    inside = [((number, number), (each[0], each[1])) for number, each in enumerate(hosts) if len(each) > 1]
    found = [_measure_pair(communicator, "mpi", "", *each) for each in (*between, *inside)]
    # Servers are reached by TCP; on a single host, what its own stack carries stands for a network.
    found += [_measure_pair(communicator, "tcp", address, *each) for each in between or inside]
    return found


def _measure_pair(
    communicator: Communicator, over: str, address: str, hosts: tuple[int, int], ranks: tuple[int, int]
) -> Pair:
    """Let two ranks measure while the others wait for the result."""
    leader, follower = ranks
    measured = b""
    if over == "mpi" and communicator.rank in ranks:
        other = follower if communicator.rank == leader else leader
        measured = _run(_over_mpi(communicator, other), leads=communicator.rank == leader)
    elif over == "tcp":
        measured = _over_tcp(communicator, ranks, address)
    return Pair(over, hosts, *msgspec.json.decode(communicator.broadcast_bytes(measured, leader)))


def _run(end: End, *, leads: bool) -> bytes:
    if leads:
        return msgspec.json.encode(end.lead())
    end.follow()
    return b""


def _over_mpi(communicator: Communicator, other: int) -> End:
    content = np.zeros(LARGE_BYTES, np.uint8)
    return End(
        lambda num_bytes: communicator.exchange([(other, content[:num_bytes])], []),
        lambda num_bytes: communicator.exchange([], [(other, content[:num_bytes])]),
    )


def _over_tcp(communicator: Communicator, ranks: tuple[int, int], address: str) -> bytes:
    """Connect two ranks by TCP and measure; the follower's address goes to all by MPI."""
    leader, follower = ranks
    with contextlib.ExitStack() as stack:
        listener = None
        place = b""
        if communicator.rank == follower:
            listener = stack.enter_context(socket.create_server((address, 0)))
            listener.settimeout(WAIT_S)
            place = msgspec.json.encode(listener.getsockname()[:2])
        place = communicator.broadcast_bytes(place, follower)
        if listener is not None:
            connection, _ = listener.accept()
        elif communicator.rank == leader:
            where, port = msgspec.json.decode(place, type=tuple[str, int])
            connection = socket.create_connection((where, port), WAIT_S)
        else:
            return b""
        stack.enter_context(connection)
        connection.settimeout(WAIT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return _run(_over_socket(connection), leads=communicator.rank == leader)


def _over_socket(connection: socket.socket) -> End:
    content = memoryview(bytearray(LARGE_BYTES))

    def receive(num_bytes: int) -> None:
        got = 0
        while got < num_bytes:
            count = connection.recv_into(content[got:num_bytes])
            if not count:
                raise PeerLostError("the other rank has closed the connection while links were measured")
            got += count

    return End(lambda num_bytes: connection.sendall(content[:num_bytes]), receive)


def cluster_of(pairs: list[Pair], hosts: list[list[int]]) -> Cluster:
    """Return the cluster in which the slowest pair of each kind counts.

    Args:
        pairs: All that were measured.
        hosts: The ranks of each host.
    """
    within = [each for each in pairs if each.over == "mpi" and each.hosts[0] == each.hosts[1]]
    network = [each for each in pairs if each not in within]
    return Cluster(
        len(hosts), _slowest(network), min(map(len, hosts)), _slowest(within) if within else None
    )


def _slowest(pairs: list[Pair]) -> Link:
    rate = min(each.bytes_per_s for each in pairs)
    return Link(float(f"{rate:.4g}"), float(f"{max(each.latency_s for each in pairs):.4g}"))


def main() -> None:
    """Measure with the ranks of this MPI job; rank 0 writes the file and says what it has found."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="where the cluster goes")
    path = parser.parse_args().output
    from kvstore_mpi.comm.mpi import MpiCommunicator  # noqa: PLC0415  importing it initialises MPI

    communicator = MpiCommunicator()
    if communicator.size < 2:  # noqa: PLR2004
        raise UsageError("one rank has no link: give --workers 2 or more, on all hosts that matter")
    config = process_config()
    tell_launcher(config, communicator.rank)
    hosts = communicator.hosts()
    pairs = measure(communicator, hosts, config.interface)
    if communicator.rank == 0:
        remark = "\n".join(
            ["measured by mpilaunch measure-links; the slowest of a kind counts", *map(str, pairs)]
        )
        path.write_text(write_cluster(cluster_of(pairs, hosts), remark), encoding="utf-8")
        print("\n".join(map(str, pairs)))


if __name__ == "__main__":
    main()
