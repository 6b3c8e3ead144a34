"""Where exchange buffers begin."""

from __future__ import annotations

import mmap

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
