"""Runs a program that goes wrong on every worker of a job in one process, and tells how each ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvstore_mpi.testing.cluster import Cluster
from kvstore_mpi.transport.memory import MemoryNetwork

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvstore_mpi.worker.worker import Worker

SHORT: dict[str, Any] = {
    "heartbeat": 0.2,
    "peer_timeout": 2.0,
    "connect_timeout": 3.0,
    "step_timeout": 0.8,
    "finish_timeout": 1.0,
    "slice_elements": 8,
    "transport": "tcp",
}


def outcomes(
    layout: tuple[int, int, int], program: Callable[[Worker], object], **config: Any
) -> list[BaseException | None]:
    """Run a program on every worker, close them all, and return what each ended with.

    That is the error of the program, or the one that only closing showed, or nothing.
    """
    clients, workers, servers = layout
    network = MemoryNetwork()
    job = Cluster(
        network.transport,
        clients=clients,
        workers_per_client=workers,
        servers=servers,
        **{**SHORT, **config},
    )

    def guarded(worker: Worker) -> BaseException | None:
        error: BaseException | None = None
        try:
            program(worker)
        except Exception as raised:  # noqa: BLE001  compared by the test
            error = raised
        worker.close()
        return error or worker.failure()

    ended = job.on_all(guarded)
    job.close()
    return ended


def check(error: BaseException | None, kind: type[BaseException], *parts: str) -> None:
    """Check the class of an error, and what its message names."""
    assert type(error) is kind, repr(error)
    for part in parts:
        assert part in str(error), f"{part!r} is not in: {error}"
