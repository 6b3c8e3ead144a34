"""What messages between the ranks of a worker cost, measured: for cuts, placements and predicted steps."""

from __future__ import annotations

import time
from functools import partial
from itertools import cycle, islice
from statistics import median
from typing import TYPE_CHECKING

import mxnet as mx
import numpy as np

from kvstore_mpi.adapters.mxnet.bridge.arrays import array_of
from kvstore_mpi.planner.cluster import Link
from kvstore_mpi.planner.cuts import Handling

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvstore_mpi.comm.links import Links

SMALL, LARGE = 8, 4 << 20
"""Bytes of the messages from which latency and bandwidth follow."""

MESSAGES = 20
"""Of each size, of which the median counts."""

LEARNING = 5
"""Messages after which it is known how long one of the size takes, so that MPI is asked less often."""

PRODUCTS, SIDE = 8, 384
"""What both ranks compute between two messages, some 10 ms: products of matrices of this side."""


def measure_handling() -> Handling:
    """Measure what arrays take to be copied out of MXNet's memory, and into it; without any message."""

    def seconds(num_bytes: int) -> float:
        return median(_spent(partial(_copy, array))[0] for array in _arrays(num_bytes)) / 2

    seconds(SMALL)  # the first of a kind takes longer
    return _handling(seconds(SMALL), seconds(LARGE))


def measure_link(links: Links) -> tuple[Link, Handling]:
    """Measure messages from an array of MXNet to another, between the first two ranks of a worker.

    As steps have them: a message comes when both ranks have computed for a while. So no processor is idle
    while MPI is asked for it, and MPI is asked less often than for what comes at once. All must call this,
    and rank 0 knows.

    Returns:
        All of a message's way, and what of it the processors of either rank take, with all their threads: a
        rank that computes with all of its processors has no other for them.
    """
    (small, small_work), (large, large_work) = (_exchanged(links, each) for each in (SMALL, LARGE))
    return Link(LARGE / max(large - small, 1e-9), small), _handling(small_work, large_work)


def _copy(array: mx.nd.NDArray) -> None:
    array_of(array.asnumpy()).wait_to_read()


def _handling(small: float, large: float) -> Handling:
    return Handling(max(large - small, 0.0) / LARGE, max(small, 0.0))


def _exchanged(links: Links, num_bytes: int) -> tuple[float, float]:
    """Return by how much messages both ways make a computation longer, and half of their processor time."""
    if links.rank > 1:
        return 0.0, 0.0
    peer, compute = 1 - links.rank, _computation()

    def with_messages(array: mx.nd.NDArray) -> None:
        coming = np.empty(array.shape, np.float32)
        come = links.receive(coming, peer, 0)
        compute()
        leaving = links.send(array.asnumpy(), peer, 0)
        for each in (come, leaving):
            links.wait(each, lambda: "a message whose time is measured")
        array_of(coming)

    more = []
    for array in _arrays(num_bytes):
        took, worked = _spent(partial(with_messages, array))
        alone, computed = _spent(compute)
        more.append((took - alone, (worked - computed) / 2))
    seconds, work = (median(column) for column in zip(*more[LEARNING:]))
    return seconds, work


def _arrays(num_bytes: int) -> list[mx.nd.NDArray]:
    """Return arrays of memory that was not used just before, as an output's is not when it is to leave."""
    arrays = [mx.nd.ones((num_bytes // 4,)) for _ in range(LEARNING)]
    mx.nd.waitall()
    return [*islice(cycle(arrays), LEARNING + MESSAGES)]


def _computation() -> Callable[[], None]:
    matrix, out = mx.nd.ones((SIDE, SIDE)), mx.nd.zeros((SIDE, SIDE))

    def compute() -> None:
        for _ in range(PRODUCTS):
            mx.nd.dot(matrix, matrix, out=out)
        out.wait_to_read()

    compute()
    return compute


def _spent(compute: Callable[[], None]) -> tuple[float, float]:
    """Return the seconds that something takes, and those of this process's processors."""
    since, work = time.perf_counter(), time.process_time()
    compute()
    return time.perf_counter() - since, time.process_time() - work
