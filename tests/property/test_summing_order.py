"""In which order numbers are added up in shared memory: it decides the last bits of a sum."""

from __future__ import annotations

import functools
import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.simulated_ranks import run_together

from kvstore_mpi.tensor_collectives import hosts
from kvstore_mpi.tensor_collectives.executor import Memory, execute
from kvstore_mpi.tensor_collectives.steps import in_place
from kvstore_mpi.tensor_collectives.tensor import OPERATIONS


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(0, 200), st.integers(0, 2**32 - 1))
def test_ranks_of_one_host_are_added_in_their_order(ranks, size, seed):
    """So that a sum has the same bits whatever the size of a part and whatever lies beside it."""
    source = np.random.default_rng(seed)
    buffers = [source.normal(size=size).astype(np.float32) for _ in range(ranks)]
    wanted = functools.reduce(np.add, buffers).tobytes()
    runs = []
    for rank, buffer in enumerate(buffers):
        program = in_place(hosts.shared_memory(range(ranks), rank, (0, size)))
        memory = Memory(buffer, peers=dict(enumerate(buffers)))
        runs.append(execute(program, None, memory, OPERATIONS["sum"]))
    run_together(runs, random.Random(seed))
    assert [buffer.tobytes() for buffer in buffers] == [wanted] * ranks
