"""A whole job in one process: scheduler, servers and workers as threads over a transport of choice.

The threads are the real ones of each role; only the network and the MPI of each client are replaced.
"""

from __future__ import annotations

import tempfile
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvstore_mpi.comm.memory import memory_communicators
from kvstore_mpi.config import NodeConfig
from kvstore_mpi.node import Job, make_loop, make_scheduler_state, make_worker
from kvstore_mpi.records import NodeId, Role, Topology
from kvstore_mpi.scheduler.scheduler import Scheduler
from kvstore_mpi.server.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from kvstore_mpi.interfaces import Transport
    from kvstore_mpi.worker.worker import Worker

DEADLINE_S = 60.0
"""No test waits longer than this for anything."""


class Cluster:
    """A job of ``clients`` x ``workers_per_client`` workers and ``servers`` servers.

    Attributes:
        workers: The workers, by global rank.
        errors: What scheduler and servers ended with, by name.
    """

    def __init__(
        self,
        transport: Callable[[], Transport],
        /,
        *,
        clients: int = 1,
        workers_per_client: int = 1,
        servers: int = 0,
        hosts_apart: bool = False,
        hosts: list[list[int]] | None = None,
        **config: Any,
    ) -> None:
        """Start everything, over transports made here.

        Args:
            transport: Makes the transport of one process.
            clients: MPI jobs.
            workers_per_client: Ranks of each.
            servers: Servers.
            hosts_apart: Each rank of a client has a host of its own; otherwise they share one.
            hosts: Or the ranks of a client on each host.
            config: Replaces defaults of ``NodeConfig``.
        """
        self._transport = transport
        self._hosts = [[rank] for rank in range(workers_per_client)] if hosts_apart else hosts
        self._directory = tempfile.TemporaryDirectory()
        self._job = Job.new()
        job_file = Path(self._directory.name) / "job"
        job_file.touch(mode=0o600)
        job_file.write_text(f'{{"job": "{self._job.name}", "secret": "{self._job.secret.hex()}"}}')
        self.topology = Topology(clients, clients * workers_per_client, servers)
        self._config = NodeConfig(
            num_clients=clients,
            num_workers=self.topology.num_workers,
            num_servers=servers,
            job_file=str(job_file) if servers else "",
            **{"connect_timeout": 20.0, "step_timeout": 20.0, "finish_timeout": 20.0, **config},
        )
        self.errors: dict[str, BaseException] = {}
        self._threads: list[threading.Thread] = []
        self.servers: list[Server] = []
        if servers:
            self._start_services(servers)
        self.workers = self._start_workers(clients, workers_per_client)

    def _start_services(self, servers: int) -> None:
        transport = self._transport()
        addresses = transport.bind("127.0.0.1")
        self._config = replace(self._config, scheduler=",".join(addresses))
        config = replace(self._config, role=Role.SCHEDULER)
        loop = make_loop(config, NodeId(Role.SCHEDULER), self._job, transport)
        self._run("scheduler", Scheduler(make_scheduler_state(config, self.topology), loop).run)
        for index in range(servers):
            transport = self._transport()
            listens_on = transport.bind("127.0.0.1")
            config = replace(self._config, role=Role.SERVER, index=index)
            loop = make_loop(config, NodeId(Role.SERVER, index), self._job, transport)
            server = Server(config, self.topology, loop, listens_on, job=self._job.name)
            self.servers.append(server)
            self._run(f"server{index}", partial(server.run, addresses))

    def _start_workers(self, clients: int, per_client: int) -> list[Worker]:
        workers: dict[int, Worker] = {}

        def start(client: int, communicator: Any) -> None:
            config = replace(self._config, client=client)
            worker = make_worker(config, communicator, self._transport())
            workers[worker.rank] = worker

        starts = [
            partial(start, client, communicator)
            for client in range(clients)
            for communicator in memory_communicators(per_client, self._hosts)
        ]
        self.together(starts)
        return [workers[rank] for rank in sorted(workers)]

    def _run(self, name: str, target: Callable[[], Any]) -> threading.Thread:
        def guarded() -> None:
            try:
                target()
            except BaseException as error:  # noqa: BLE001  handed to the test
                self.errors[name] = error

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def together(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Make all calls at once, each in a thread; return their results or raise the first error."""
        results: list[Any] = [None] * len(calls)
        errors: list[BaseException] = []

        def call(index: int) -> None:
            try:
                results[index] = calls[index]()
            except BaseException as error:  # noqa: BLE001  raised below
                errors.append(error)

        threads = [threading.Thread(target=call, args=(i,), daemon=True) for i in range(len(calls))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        if errors:
            raise errors[0]
        if any(thread.is_alive() for thread in threads):
            raise TimeoutError("a call of the cluster has not returned")
        return results

    def on_all(self, call: Callable[[Worker], Any]) -> list[Any]:
        """Call something with every worker, each in a thread of its own."""
        return self.together([partial(call, worker) for worker in self.workers])

    def close(self) -> None:
        """End the job in order; check that every thread has ended."""
        self.together([worker.close for worker in self.workers])
        for thread in self._threads:
            thread.join(DEADLINE_S)
        self._directory.cleanup()
        alive = [thread.name for thread in self._threads if thread.is_alive()]
        if alive:
            raise TimeoutError(f"still running: {', '.join(alive)}")

    def __enter__(self) -> Cluster:  # noqa: PYI034  typing.Self needs Python 3.11
        """Return the cluster."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the job."""
        self.close()
