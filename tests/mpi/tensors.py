"""One rank that sums tensors by ``auto``; says by which ways; run by ``test_tensors.py``."""

import sys

import numpy as np

from kvstore_mpi.comm.mpi import MpiCommunicator
from kvstore_mpi.tensor_collectives.blocking import COMPARED_CALLS
from kvstore_mpi.tensor_collectives.designs import DESIGNS
from kvstore_mpi.tensor_collectives.tensor import Tensor
from kvstore_mpi.tensor_collectives.tensor_group import TensorGroup

SIZES = (1_000, 25_003)


class Noting(MpiCommunicator):
    """Notes by which ways ranks reach each other."""

    def __init__(self):
        super().__init__()
        self.ways = set()

    def allreduce(self, array):
        self.ways.add("library")
        super().allreduce(array)

    def exchange(self, sends, receives):
        self.ways.update(f"rank {peer}" for peer, _ in (*sends, *receives))
        super().exchange(sends, receives)

    def barrier(self, ranks):
        self.ways.add("memory")
        super().barrier(ranks)


def main():
    noting = Noting()
    group = TensorGroup(noting, design=DESIGNS["auto"])
    group._blocking._compared = COMPARED_CALLS  # whose messages are none of the tensors
    source = np.random.default_rng(group.rank)
    for size in SIZES:
        for count in (1, 2):
            noting.ways.clear()
            whole = [np.full(size, group.rank + number, np.float32) for number in range(count)]
            group.allreduce(Tensor(whole), timeout=60)
            wanted = sum(rank + number for rank in range(group.size) for number in range(count))
            for vector in whole:
                np.testing.assert_array_equal(vector, np.full(size, wanted))
            sys.stdout.write(f"rank {group.rank}, {size} x {count}: {', '.join(sorted(noting.ways))}\n")
            numbers = [source.standard_normal(size).astype(np.float16) for _ in range(count)]
            once, again = Tensor([each.copy() for each in numbers]), Tensor(numbers)
            works = [group.start_allreduce(each, "mean") for each in (once, again)]
            for work in works:
                work.wait(60)
            first = Tensor([once.vectors[0].copy()])
            group.broadcast(first, 0, timeout=60)
            for vector in (*once.vectors, *again.vectors):
                assert vector.tobytes() == first.vectors[0].tobytes()
    group.close()
    sys.stdout.flush()


main()
