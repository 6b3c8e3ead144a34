"""What a small message costs, by transport and by signature: the figures behind docs/adr/0003.

Two clients send 100 bytes to a server and get them back when both have come, in bare Python at all ends,
over ZeroMQ (ipc, and tcp on the loopback interface) and over Unix sockets; and the time to sign one frame.

python benchmarks/small_messages.py
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import json
import multiprocessing
import os
import secrets
import selectors
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zmq
from harness.machine import describe

if TYPE_CHECKING:
    from collections.abc import Callable

BYTES = 100
CLIENTS = 2
WARM_UP = 200
RESULTS = Path(__file__).resolve().parent / "results"


def timed(exchange: Callable[[], object], rounds: int) -> float:
    """Return the median seconds of an exchange."""
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        exchange()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[WARM_UP:])


# --- ZeroMQ ---


def zeromq_server(address: str, rounds: int, listens: Any) -> None:
    """Answer all when all have come."""
    router = zmq.Context.instance().socket(zmq.ROUTER)
    router.bind(address)
    listens.set()
    for _ in range(rounds):
        for message in [router.recv_multipart() for _ in range(CLIENTS)]:
            router.send_multipart(message)
    router.close(linger=1_000)


def zeromq_client(address: str, rounds: int, result: Any) -> None:
    """Send and wait for the answer."""
    dealer = zmq.Context.instance().socket(zmq.DEALER)
    dealer.connect(address)

    def exchange() -> None:
        dealer.send(bytes(BYTES))
        dealer.recv()

    result.send(timed(exchange, rounds))
    dealer.close(linger=0)


# --- Unix sockets ---


def unix_server(address: str, rounds: int, listens: Any) -> None:
    """Answer all when all have come; one wait for all connections, as in the I/O loop."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    listens.set()
    selector = selectors.DefaultSelector()
    for _ in range(CLIENTS):
        selector.register(listener.accept()[0], selectors.EVENT_READ)
    for _ in range(rounds):
        arrived: list[Any] = []
        while len(arrived) < CLIENTS:
            arrived += [(key.fileobj, key.fileobj.recv(4_096)) for key, _ in selector.select()]
        for connected, data in arrived:
            connected.send(data)


def unix_client(address: str, rounds: int, result: Any) -> None:
    """Send and wait for the answer."""
    connected = socket.socket(socket.AF_UNIX)
    connected.connect(address)

    def exchange() -> None:
        connected.send(bytes(BYTES))
        connected.recv(4_096)

    result.send(timed(exchange, rounds))


# --- the comparison ---


def free_port() -> int:
    """Return a port of the loopback interface that nobody uses now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def address_of(kind: str, folder: str) -> str:
    """Return a fresh address."""
    name = f"{folder}/{secrets.token_hex(4)}"
    return {"ipc": f"ipc://{name}", "tcp": f"tcp://127.0.0.1:{free_port()}", "unix": name}[kind]


def round_trip(kind: str, rounds: int) -> float:
    """Return the median seconds of a round trip, the mean of the clients."""
    serve, client = (unix_server, unix_client) if kind == "unix" else (zeromq_server, zeromq_client)
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        address = address_of(kind, folder)
        pipes = [context.Pipe(duplex=False) for _ in range(CLIENTS)]
        listens = context.Event()
        server = context.Process(target=serve, args=(address, rounds, listens), daemon=True)
        server.start()
        if not listens.wait(60):
            sys.exit(f"{kind}: the server does not listen after 60 s")
        clients = [
            context.Process(target=client, args=(address, rounds, writer), daemon=True)
            for _, writer in pipes
        ]
        for process in clients:
            process.start()
        times = []
        for reader, _ in pipes:
            if not reader.poll(60):
                sys.exit(f"{kind}: no result within 60 s")
            times.append(reader.recv())
        for process in (server, *clients):
            process.join(10)
    return statistics.fmean(times)


def signing(repeats: int) -> dict[str, list[float]]:
    """Return seconds to sign one frame, by each method, for each repeat."""
    key, frame = os.urandom(32), os.urandom(BYTES)
    methods: dict[str, Callable[[], bytes]] = {
        "keyed BLAKE2s": lambda: hashlib.blake2s(frame, key=key, digest_size=16).digest(),
        "HMAC-SHA256": lambda: hmac.digest(key, frame, "sha256"),
        "HMAC-SHA256, hmac.new": lambda: hmac.new(key, frame, "sha256").digest(),
    }
    calls = 20_000
    times: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(repeats):
        for name, method in methods.items():
            begin = time.perf_counter()
            for _ in range(calls):
                method()
            times[name].append((time.perf_counter() - begin) / calls)
    return times


def main() -> None:
    """Measure, print and write."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="fresh processes for each figure")
    parser.add_argument("--rounds", type=int, default=3_000, help="exchanges in each repeat")
    parser.add_argument("--json", type=Path, default=RESULTS / "small-messages.json", help="where to write")
    arguments = parser.parse_args()
    trips: dict[str, list[float]] = {"ipc": [], "tcp": [], "unix": []}
    for _ in range(arguments.repeats):
        for kind, times in trips.items():
            times.append(round_trip(kind, arguments.rounds + WARM_UP))
    signed = signing(arguments.repeats)
    print("what                      median us   least - most of the repeats")
    for name, times in {**trips, **signed}.items():
        low, mid, high = (1e6 * value for value in (min(times), statistics.median(times), max(times)))
        print(f"{name:24} {mid:10.2f}   {low:.2f} - {high:.2f}")
    result = {**describe(), "round_trip_s": trips, "sign_s": signed}
    arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written: {arguments.json}")


if __name__ == "__main__":
    main()
