"""Where exchange buffers begin."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from kvstore_mpi.comm.memory import memory_communicators
from kvstore_mpi.config import NodeConfig
from kvstore_mpi.records import Topology
from kvstore_mpi.transport.shared_memory import ALIGNMENT, LARGE_BYTES, SEGMENT_BYTES, Arena
from kvstore_mpi.worker.exchange_buffers import ExchangeBuffers


@pytest.fixture(params=["shared", "private"])
def allocate(request):
    """What makes buffers, from a number of bytes."""
    if request.param == "shared":
        arena = Arena()
        yield lambda size: arena.allocate(size, np.dtype(np.uint8))
        arena.close()
    else:
        buffers = ExchangeBuffers(NodeConfig(), Topology(1, 1, 0), memory_communicators(1)[0])
        yield lambda size: buffers.allocate(size, "uint8")


def test_large_ones_have_no_page_in_common(allocate):
    """A GPU takes a page but once; small ones only begin with a cache line."""
    sizes = [1, LARGE_BYTES, 70, LARGE_BYTES + 1, LARGE_BYTES - 1, LARGE_BYTES + 9, SEGMENT_BYTES]
    kept = [allocate(size) for size in sizes]
    pages = []
    for buffer in kept:
        address = buffer.ctypes.data
        assert address % ALIGNMENT == 0
        if buffer.size >= LARGE_BYTES:
            assert address % mmap.PAGESIZE == 0
            pages += range(address // mmap.PAGESIZE, -(-(address + buffer.size) // mmap.PAGESIZE))
        buffer[:] = 1  # it is all there
    assert len(pages) == len(set(pages))


def open_files():
    """Return how many descriptors are of such memory: one of who mapped it, and one of the mapping."""
    return sum(each.is_symlink() and "kvstore_mpi" in str(each.readlink()) for each in FILES.iterdir())


FILES = Path("/proc/self/fd")


def test_memory_that_is_given_up_goes_with_the_last_buffer_of_its_file():
    """Others find it no more; what lies beside it stays, and new buffers overlap with none."""
    arena, before, whole = Arena(), open_files(), np.dtype(np.uint8)
    large = [arena.allocate(SEGMENT_BYTES * 2 // 3, whole) for _ in range(2)]
    large.append(arena.allocate(SEGMENT_BYTES // 2, whole))
    small, nothing = arena.allocate(64, whole), arena.allocate(0, whole)
    small[:] = 7
    assert open_files() == before + 2 * 3
    arena.free(large.pop(0))
    assert open_files() == before + 2 * 2
    last = large.pop()
    for buffer in (last, nothing, np.empty(64, np.uint8)):  # the others are none, and somebody else's
        arena.free(buffer)
    assert arena.place(last) is None
    assert arena.place(small) is not None
    assert open_files() == before + 2 * 2
    arena.free(small)
    assert open_files() == before + 3
    assert (small == 7).all()  # as long as somebody has it
    del small, last, nothing, buffer
    assert open_files() == before + 2
    large[0][:] = 5
    for each in [arena.allocate(SEGMENT_BYTES // 4, whole) for _ in range(2)]:
        each[:] = 1
    assert (large[0] == 5).all()
    arena.close()
