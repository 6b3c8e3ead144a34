"""A scheduler's state and the processes that speak to it, for unit tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvstore_mpi.records import Growth, KeySpec, NodeId, Role, Topology
from kvstore_mpi.scheduler.state import SchedulerState
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Send
from kvstore_mpi.wire.message import Message

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvstore_mpi.scheduler.state import Instructions
    from kvstore_mpi.wire.instructions import Log, Stop

TIMEOUT = 60.0
HELLO = m.Join(["memory://0"], "host7", 4711)


def worker(rank: int) -> NodeId:
    """Name a worker."""
    return NodeId(Role.WORKER, rank)


def server(index: int) -> NodeId:
    """Name a server."""
    return NodeId(Role.SERVER, index)


def declare(
    key: int | str = "w",
    *,
    shape: tuple[int, ...] = (3, 4),
    dtype: str = "float32",
    mode: str = "sync",
    store: int = 0,
    whole: bool = False,
    quorum: bool = False,
    partitions: int = 0,
    growth: Growth | None = None,
) -> m.Declare:
    """Declare a key of an ordinary store, unless told otherwise."""
    spec = KeySpec(store, key, shape, dtype, partitions=partitions, growth=growth)
    return m.Declare(spec, mode, whole, quorum)


def again(incarnation: int = 1) -> m.Join:
    """Join as a process that has been started again, on another host."""
    return m.Join([f"memory://{incarnation}"], "host8", 99, incarnation)


class Job:
    """A scheduler to which everybody of the topology has come, unless told otherwise."""

    def __init__(
        self,
        clients: int = 2,
        workers: int = 2,
        servers: int = 1,
        *,
        join: bool = True,
        start_with: int = 0,
    ) -> None:
        """Start; ``start_with`` clients are enough to begin, 0 for all."""
        self.topology = Topology(clients, workers, servers)
        self.state = SchedulerState(
            self.topology, slice_elements=5, connect_timeout=TIMEOUT, now=0.0, start_with=start_with
        )
        self.nodes = [worker(rank) for rank in range(workers)] + [server(index) for index in range(servers)]
        if join:
            for node in self.nodes:
                self.says(node, HELLO)

    def says(self, node: NodeId, message: m.ToScheduler, now: float = 1.0) -> Instructions:
        """Let a process say something; return what the scheduler does."""
        return self.state.handle(node, message, now)


def asynchronous_job(clients: int = 2, workers: int = 2, servers: int = 1, *, quorum: bool = False) -> Job:
    """Make a job whose rounds wait for nobody: asynchronous, or with a quorum."""
    job = Job(clients, workers, servers)
    job.says(worker(0), declare(mode="sync" if quorum else "async", quorum=quorum))
    return job


def sent(instructions: Iterable[Send | Log | Stop], kind: type[Any] = Message) -> dict[NodeId, Any]:
    """Return the messages of a kind by the processes to which they go."""
    return {i.peer: i.message for i in instructions if isinstance(i, Send) and isinstance(i.message, kind)}


def the_failure(instructions: Instructions) -> tuple[NodeId, m.Failure]:
    """Return the only message, which is a failure, and to whom it goes."""
    (send,) = instructions
    assert isinstance(send, Send)
    assert isinstance(send.message, m.Failure)
    return send.peer, send.message
