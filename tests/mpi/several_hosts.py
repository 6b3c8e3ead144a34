"""One rank of a client on two hosts, as MPICH sees them: sums in the way that ``auto`` takes."""

import numpy as np

from kvstore_mpi.comm.mpi import MpiCommunicator
from kvstore_mpi.tensor_collectives.group import Group
from kvstore_mpi.tensor_collectives.runs import BufferRun
from kvstore_mpi.transport.shared_memory import Arena

SIZES = (1, 50_003, 2_200_001)


class Noting(MpiCommunicator):
    """Notes to whom it sends, and that the library sums nothing."""

    def __init__(self):
        super().__init__()
        self.peers = set()
        self.library_sums = 0

    def exchange(self, sends, receives):
        self.peers.update(peer for peer, _ in (*sends, *receives))
        super().exchange(sends, receives)

    def prepare_allreduce(self, array):
        self.library_sums += 1
        return super().prepare_allreduce(array)


def main():
    communicator = Noting()
    rank, size = communicator.rank, communicator.size
    hosts = communicator.hosts()
    assert hosts == [list(range(0, size, 2)), list(range(1, size, 2))], hosts
    arena = Arena()
    group = Group(communicator, locate=arena.place)
    numbers = np.random.default_rng(rank)
    for elements in SIZES:
        buffer = arena.allocate(elements, np.dtype(np.float32))
        own = (np.arange(elements) % 7 + rank).astype(np.float32)
        wanted = size * (np.arange(elements) % 7) + sum(range(size))
        buffer[:] = own
        group.allreduce(buffer, 0, elements)
        np.testing.assert_array_equal(buffer, wanted)
        for root in range(size):
            buffer[:] = own
            group.reduce(buffer, 0, elements, root)
            if rank == root:
                np.testing.assert_array_equal(buffer, wanted)
            group.broadcast(buffer, 0, elements, root)
            np.testing.assert_array_equal(buffer, wanted)
        buffer[:] = numbers.standard_normal(elements)
        again = arena.allocate(elements, np.dtype(np.float32))
        again[:] = buffer
        group.allreduce(buffer, 0, elements)
        others = [BufferRun(arena.allocate(number, again.dtype), 0, number) for number in (9, 60_000)]
        list(group.carry_out("allreduce", [others[0], BufferRun(again, 0, elements), others[1]]))
        assert again.tobytes() == buffer.tobytes()
        assert communicator.broadcast_bytes(buffer.tobytes(), 0) == buffer.tobytes()
    [host] = [ranks for ranks in hosts if rank in ranks]
    assert not communicator.peers & set(host), "a rank sends to one of its host"
    assert bool(communicator.peers) is (host.index(rank) < min(map(len, hosts)))
    assert not communicator.library_sums
    print("SUMMED", flush=True)  # noqa: T201


main()
