"""The bytes of a pushpull over plain TCP sockets and nothing else: how fast it could be between hosts.

Started by ``pushpull.py`` for each worker and server. The tensors are those of the same case, cut
into slices as ours are, dealt to the servers in turn; a server adds two workers' slices up, and sends the
sum to both. There are no messages, no priorities, no engine and no checks, and each process has one thread
that waits for its sockets; what is left is what the kernel and the sums take. Workers write
``worker<rank>.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import socket
import time
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from harness.cases import CASES, NUM_WORKERS, by_names
from harness.procfs import Load, job_pids
from pushpull_worker import key_shapes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from harness.cases import Case

    Array = np.ndarray[Any, Any]

SLICE_ELEMENTS = 50_000
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


def slices_of(arrays: Sequence[Array]) -> list[Array]:
    """Cut arrays into slices, which are views of them."""
    return [
        array[lo : lo + SLICE_ELEMENTS]
        for array in arrays
        for lo in range(0, max(1, array.size), SLICE_ELEMENTS)
    ]


class Stream:
    """One connection: writes slices that are queued, and reads into slices in a fixed order."""

    def __init__(self, connected: socket.socket, selector: selectors.BaseSelector) -> None:
        """Own a socket from now on."""
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setblocking(False)
        self._socket, self._selector = connected, selector
        self._outgoing: deque[memoryview] = deque()
        self._wanted: deque[memoryview] = deque()
        selector.register(connected, READ, self)

    def expect(self, slices: Sequence[Array]) -> None:
        """Read into these slices next."""
        self._wanted.extend(each.view(np.uint8).data for each in slices)

    def queue(self, slices: Sequence[Array]) -> None:
        """Write these slices behind the others."""
        if slices and not self._outgoing:
            self._selector.modify(self._socket, READ | WRITE, self)
        self._outgoing.extend(each.view(np.uint8).data for each in slices)

    def write(self) -> None:
        """Write what the kernel takes."""
        try:
            while self._outgoing:
                sent = self._socket.send(self._outgoing[0])
                rest = self._outgoing.popleft()[sent:]
                if rest.nbytes:
                    self._outgoing.appendleft(rest)
        except BlockingIOError:
            return
        self._selector.modify(self._socket, READ, self)

    def finish(self) -> None:
        """Wait until all that is queued has been written."""
        self._socket.setblocking(True)
        for rest in self._outgoing:
            self._socket.sendall(rest)

    def read(self) -> int:
        """Read what there is, of one slice at a time; return how many slices that has completed.

        Raises:
            ConnectionError: The other side has gone.
        """
        size = self._socket.recv_into(self._wanted[0])
        if not size:
            raise ConnectionError
        rest = self._wanted.popleft()[size:]
        if rest.nbytes:
            self._wanted.appendleft(rest)
        return 0 if rest.nbytes else 1


def turns(selector: selectors.BaseSelector) -> Iterator[tuple[Stream, int]]:
    """Wait, write and read for ever; yield whenever slices have come."""
    while True:
        for ready, mask in selector.select():
            stream: Stream = ready.data
            if mask & WRITE:
                stream.write()
            if mask & READ and (count := stream.read()):
                yield stream, count


def dealt(case: Case, number: int, of: int) -> list[Array]:
    """Return the slices of a case that one of the servers has, in memory that has been touched."""
    arrays = [np.ones(int(np.prod(shape)), np.float32) for shape in key_shapes(case)]
    return slices_of(arrays)[number::of]


def serve(cases: Sequence[Case], address: str, number: int) -> None:
    """Sum all rounds of all cases, until the workers go; tell by a pipe where this server listens."""
    listener = socket.create_server((address, 0))
    listens_on = {"addresses": [f"{address}:{listener.getsockname()[1]}"]}
    Path(os.environ["KVMPI_READY_PIPE"]).write_text(json.dumps(listens_on) + "\n")
    selector = selectors.DefaultSelector()
    streams = [Stream(listener.accept()[0], selector) for _ in range(NUM_WORKERS)]
    for case in cases:
        gradients = {stream: dealt(case, number, NUM_WORKERS) for stream in streams}
        sums = dealt(case, number, NUM_WORKERS)
        ready = turns(selector)
        for _ in range(case.warmup + case.iterations):
            for stream in streams:
                stream.expect(gradients[stream])
            _sum(sums, gradients, ready)
    for stream in streams:
        stream.finish()


def _sum(
    sums: list[Array], gradients: dict[Stream, list[Array]], ready: Iterator[tuple[Stream, int]]
) -> None:
    come = dict.fromkeys(gradients, 0)
    done = 0
    first, second = gradients.values()
    while done < len(sums):
        stream, count = next(ready)
        come[stream] += count
        while done < min(come.values()):
            np.add(first[done], second[done], out=sums[done])
            for each in gradients:
                each.queue(sums[done : done + 1])
            done += 1


def work(cases: Sequence[Case], addresses: Sequence[str], rank: int) -> dict[str, Any]:
    """Exchange all tensors of each case, again and again; return what ``pushpull_worker`` does."""
    selector = selectors.DefaultSelector()
    ends = [address.split(":") for address in addresses]
    streams = [Stream(socket.create_connection((host, int(port))), selector) for host, port in ends]
    return {case.name: _measure(case, streams, selector, rank) for case in cases}


def _measure(
    case: Case, streams: Sequence[Stream], selector: selectors.BaseSelector, rank: int
) -> dict[str, Any]:
    shapes = key_shapes(case)
    gradients, weights = ([np.ones(int(np.prod(each)), np.float32) for each in shapes] for _ in range(2))
    pushed, pulled = (
        [slices_of(arrays)[number :: len(streams)] for number in range(len(streams))]
        for arrays in (gradients, weights)
    )
    num_slices = sum(map(len, pulled))
    ready = turns(selector)
    times, load = [], []
    pids = job_pids() if rank == 0 else []
    for iteration in range(case.warmup + case.iterations):
        if pids and iteration == case.warmup:
            load.append(asdict(Load.now(pids)))
        for gradient in gradients:
            gradient[...] = iteration * (rank + 1)
        begin = time.monotonic()
        for stream, own, results in zip(streams, pushed, pulled):
            stream.expect(results)
            stream.queue(own)
        called = time.monotonic()
        left = num_slices
        while left:
            left -= next(ready)[1]
        times.append((begin, called, time.monotonic()))
        expected = iteration * NUM_WORKERS * (NUM_WORKERS + 1) / 2
        for weight in weights:
            assert weight.min() == weight.max() == expected, f"{case.name}: a sum is wrong"
    load += [asdict(Load.now(pids))] if pids else []
    num_bytes = sum(each.nbytes for each in gradients)
    return {"bytes": num_bytes, "keys": len(shapes), "times": times[case.warmup :], "load": load}


def main() -> None:
    """Be a worker or a server, as the environment says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", required=True, help="comma-separated names")
    parser.add_argument("--divisor", type=int, default=1, help="divide the numbers of iterations by this")
    parser.add_argument("--results", type=Path, default=Path(), help="directory for worker<rank>.json")
    parser.add_argument("--number", type=int, required=True, help="of the worker or server")
    parser.add_argument("--servers", default="", help="their addresses, for a worker")
    parser.add_argument("--interface", help="be a server that listens there, instead of a worker")
    arguments = parser.parse_args()
    cases = [case.shortened(arguments.divisor) for case in by_names(arguments.cases, CASES)]
    number = arguments.number
    if arguments.interface:
        serve(cases, arguments.interface, number)
        return
    measured = work(cases, arguments.servers.split(","), number)
    (arguments.results / f"worker{number}.json").write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
