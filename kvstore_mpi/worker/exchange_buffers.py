"""The exchange buffers of a worker: where they lie, and what instructions do to their content.

A buffer belongs to its key's operation from the call until its end, and to the caller otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.transport.shared_memory import Arena, alignment_of

if TYPE_CHECKING:
    from kvstore_mpi.config import NodeConfig
    from kvstore_mpi.interfaces import Communicator
    from kvstore_mpi.records import Topology
    from kvstore_mpi.transport.shared_memory import Place
    from kvstore_mpi.worker import instructions as wi

Array = np.ndarray[Any, Any]


class ExchangeBuffers:
    """Makes the buffers of one worker, in shared memory where that pays."""

    def __init__(self, config: NodeConfig, topology: Topology, communicator: Communicator) -> None:
        """Choose where buffers are made."""
        self._arena = Arena() if _shares(config, topology, communicator) else None

    def allocate(self, size: int, dtype: str) -> Array:
        """Make a buffer, aligned to a cache line or, if it is large, to a page.

        Args:
            size: In elements.
            dtype: Of the elements.
        """
        wanted = np.dtype(dtype)
        if self._arena is not None:
            return self._arena.allocate(size, wanted)
        num_bytes = size * wanted.itemsize
        # NumPy promises 16 bytes only, and wide loads of a sum would cross cache lines.
        alignment = alignment_of(num_bytes)
        # Not zeros: that would touch every page once more, and the key's initial value overwrites them all.
        raw = np.empty(num_bytes + alignment, np.uint8)
        start = -raw.ctypes.data % alignment
        return raw[start : start + num_bytes].view(wanted)

    def free(self, buffer: Array) -> None:
        """Give up a buffer, which nobody uses any more."""
        if self._arena is not None:  # else it goes with the last who knows it
            self._arena.free(buffer)

    def place(self, buffer: Array) -> Place | None:
        """Return where a buffer lies, for processes of this host, if they can map it."""
        # Without a place the slices travel as bytes, which is always right and only slower.
        return self._arena.place(buffer) if self._arena is not None else None


def _shares(config: NodeConfig, topology: Topology, communicator: Communicator) -> bool:
    """Tell whether exchange buffers are in shared memory: for servers, or for ranks that share a host.

    Not for MPI alone, which is slower there (``mpi shared`` in ``benchmarks/allreduce.py``).
    """
    # With --transport tcp the user has said that nothing is to be shared, and a server would not map it. A
    # single worker has nobody to share with.
    if config.transport != "auto" or not Arena.available() or topology.num_workers == 1:
        return False
    return topology.num_servers > 0 or (
        config.collective in {"auto", "shm"} and len(communicator.hosts()) < communicator.size
    )


def write(instruction: wi.Write) -> None:
    """See ``instructions.Write``; fails if the two differ in size."""
    # The one copy of a value on its way back, unless it was received where it belongs.
    if instruction.payload.obj is not instruction.view.obj:
        instruction.view[:] = instruction.payload


def refer(instruction: wi.Refer) -> None:
    """See ``instructions.Refer``."""
    base, lo, hi, payload, coding = instruction
    # Without a value that both sides know, what is pushed next goes whole: a difference to anything else
    # would be decoded to wrong parameters, and nobody would notice.
    if payload is None:
        base.forget(lo)
    else:
        base.take(lo, hi, payload, coding)


def keep(instruction: wi.Keep) -> None:
    """See ``instructions.Keep``."""
    key = instruction.key
    # Made once and written again: this runs at the end of every operation, and must not allocate each time.
    if key.kept is None:
        key.kept = bytearray(len(key.raw))
    key.kept[:] = key.raw


def average(job: wi.Collect, mpi_rank: int) -> None:
    """Turn the sum of parameters over this client's ranks into the mean, where this rank pushes it."""
    # In place and only where this rank pushes: the other slices hold sums that are nobody's, until values
    # come.
    key = job.key
    for rank, first, last in key.by_pusher(job.first, job.last):
        if rank == mpi_rank:
            key.buffer[key.slices[first][1].lo : key.slices[last - 1][1].hi] /= key.divisor
