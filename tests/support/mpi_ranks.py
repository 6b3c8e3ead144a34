"""The MPI thread of a rank by itself, over threads for ranks."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.comm.memory import MemoryCommunicator
from kvstore_mpi.comm.sums import MESSAGES, DirectSums
from kvstore_mpi.comm.waits import patience_with_several
from kvstore_mpi.config import NodeConfig
from kvstore_mpi.records import KeySpec, Shard
from kvstore_mpi.worker.instructions import Collect
from kvstore_mpi.worker.mpi_thread import make_mpi_thread
from kvstore_mpi.worker.records import KeyState
from support.fake_messages import FakeComm, FakeNetwork

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.worker.collectives import Collective

DEADLINE_S = 20.0
SMALL = 100


class Rank:
    """The MPI thread of one rank; reports arrive in a queue."""

    def __init__(self, communicator: Any, *, all_push: bool = False) -> None:
        """Own a communicator; its thread is not started."""
        self.rank = communicator.rank
        self.reports: queue.Queue[Any] = queue.Queue()
        config = NodeConfig(leaders="all" if all_push else "one", num_servers=1)
        self.collectives = make_mpi_thread(communicator, config, lambda _buffer: None, None, None)

    def job(self, what: Collective, number: int, size: int = SMALL) -> Collect:
        """Make a collective on a key of its own; every element of its buffer is the number of the rank."""
        buffer = np.full(size, self.rank, np.float32)
        key = KeyState(KeySpec(0, number, (size,), "float32"), buffer, buffer.data)
        key.place(number, [Shard(0, 0, size)], size)
        key.pushers = [0]
        return Collect(what, key, 1, 0, 1)

    def bucket(self, what: Collective, numbers: Sequence[int]) -> list[Collect]:
        """Make collectives that were announced together."""
        jobs = [self.job(what, number) for number in numbers]
        return [job._replace(together=len(jobs) - index) for index, job in enumerate(jobs)]

    def put(self, jobs: Sequence[Collect]) -> None:
        """Queue collectives."""
        for job in jobs:
            self.collectives.put(job)

    def report(self) -> list[int]:
        """Return the numbers of the keys that are reported next, at once."""
        jobs = self.reports.get(timeout=DEADLINE_S)
        assert not isinstance(jobs, BaseException), jobs
        return [job.key.key_id for job in jobs]


class Direct(MemoryCommunicator):
    """Sums as ranks with a host each do."""

    def __init__(self, inner: MemoryCommunicator, network: FakeNetwork) -> None:
        """Be that rank, with messages over this network."""
        super().__init__(inner.rank, inner._shared)
        comm = FakeComm(network, self.rank)
        self._sums = DirectSums(comm, comm, patience_with_several(MESSAGES))

    def begin_allreduce(self, array: Any) -> Any:
        """See ``interfaces.Communicator``."""
        return self._sums.begin(array)

    def begin_reduce(self, array: Any, root: int) -> Any:
        """See ``interfaces.Communicator``."""
        return self._sums.begin_reduce(array, root)

    def begin_broadcast(self, array: Any, root: int) -> Any:
        """See ``interfaces.Communicator``."""
        return self._sums.begin_broadcast(array, root)
