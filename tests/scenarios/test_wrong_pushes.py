"""Pushes that are not what they say: one error for the worker that sent them, and the server goes on."""

from __future__ import annotations

import pytest
from support.simulation import Simulation

from kvstore_mpi.records import NodeId, Role, Topology
from kvstore_mpi.wire import messages as m

SERVER = NodeId(Role.SERVER, 0)
SIZE = 20  # elements of the key, two slices


def run(entries, payloads):
    """Have a worker push by hand, then as it should; return how that ended, while the server goes on."""
    simulation = Simulation(Topology(1, 1, 1), seed=0, peer_timeout=60.0, slice_elements=SIZE // 2)
    (worker,) = simulation.workers
    made, ended = [], []

    def act():
        yield worker.joined
        worker.open_store("sync")
        buffer = worker.exchange_buffer(SIZE, "float32")
        buffer[...] = 1
        worker.init(0, "w", buffer.shape, buffer, made.append)
        yield lambda: made
        worker._loop.endpoint.send(SERVER, m.Push(entries, False, 0, 0), payloads)
        worker.pushpull(0, "w", 0, ended.append)
        yield lambda: ended

    worker.spawn(act())
    with pytest.raises(AssertionError, match=r"still running: scheduler, server0$"):
        simulation.run(10.0)
    return str(ended[0])


@pytest.mark.parametrize(
    ("entries", "sizes", "said"),
    [
        ([(0, 0, 10, 1, False)], [44], "'w': elements 0 to 10 of float32 are 40 bytes, but 44 came"),
        ([(0, 0, 20, 1, False)], [76], "'w': elements 0 to 20 of float32 are 80 bytes, but 76 came"),
        ([(0, 0, 10, 1, False), (0, 10, 20, 1, False)], [40], "a push of 2 runs came with 1 payloads"),
        (
            [(0, 5, 15, 1, False)],
            [40],
            "no slice from element 5 on that ends by element 15; slice_elements must be the same",
        ),
    ],
)
def test_a_push_of_another_size_is_an_error(entries, sizes, said):
    """Nothing is cut off, nothing is counted, and the server is not what dies of it."""
    assert said in run(entries, [bytes(size) for size in sizes])
