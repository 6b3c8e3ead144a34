"""The stand-in for workers with which adapters are tested."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore_mpi.testing.fake_worker import LocalGroup


@pytest.mark.parametrize("num_servers", [0, 1])
def test_what_is_asked_after_the_end_is_answered(num_servers):
    """An engine may come to an operation when the test that has queued it is over; it must not stay."""
    group = LocalGroup(num_servers=num_servers)
    [worker] = group.workers
    store = worker.open_store("sync")
    buffer = worker.exchange_buffer(3, "float32")
    told = []
    worker.init(store, "w", (3,), buffer, told.append)
    group.close()
    assert told == [None]
    buffer[:] = 2
    worker.pushpull(store, "w", 0, told.append)
    assert told == [None, None]
    np.testing.assert_array_equal(buffer, 2)
