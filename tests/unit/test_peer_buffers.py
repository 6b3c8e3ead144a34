"""The buffers of other processes that a server works on: mapped as long as their process is there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvstore_mpi.records import NodeId, Role
from kvstore_mpi.server.peer_buffers import PeerBuffers
from kvstore_mpi.transport.shared_memory import Arena
from kvstore_mpi.wire import messages as m

FIRST, SECOND = (NodeId(Role.WORKER, rank) for rank in range(2))

pytestmark = pytest.mark.skipif(not Arena.available(), reason="needs anonymous memory files")


def num_mappings():
    """Return how many memory files this process has mapped."""
    return Path("/proc/self/maps").read_text(encoding="utf-8").count("memfd:kvstore_mpi")


def share(buffers, peer, key_id, arena, buffer):
    assert buffers.open(peer, m.Share(key_id, tuple(arena.place(buffer))))


def test_the_memory_of_a_process_that_is_gone_is_given_back():
    """That of its successor, and of others, stays; keys of one file share its mapping."""
    buffers, old, new = PeerBuffers(), Arena(), Arena()
    mine = [old.allocate(10, np.dtype("float32")) for _ in range(2)]
    others = new.allocate(10, np.dtype("float32"))
    before = num_mappings()
    for key_id, buffer in enumerate(mine):
        share(buffers, FIRST, key_id, old, buffer)
    share(buffers, SECOND, 0, new, others)
    assert num_mappings() == before + 2
    buffers.forget({FIRST})
    assert num_mappings() == before + 1
    others[:] = 7
    assert np.frombuffer(buffers.views[SECOND, 0], np.float32).tolist() == [7] * 10
    buffers.forget({SECOND})
    assert num_mappings() == before
