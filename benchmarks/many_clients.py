"""What a server does for up to a thousand clients: processor time of a push, memory and descriptors.

A real scheduler and a real server; the clients are workers of one rank in this process, over TCP. Prints a
table and writes JSON. See README.md beside this file.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.clusters import SERVICE, start_ready, write_job_file
from harness.jobs import HOST, Job, JobError, Program, allow_descriptors
from harness.procfs import cpu_seconds, num_descriptors, resident_bytes
from harness.results import Results, begin, load, make_parser, report
from harness.table import align, quartiles

from kvstore_mpi.comm.memory import memory_communicators
from kvstore_mpi.config import NodeConfig
from kvstore_mpi.node import make_worker
from kvstore_mpi.transport.sockets import SocketTransport

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from kvstore_mpi.worker.worker import Worker

WHAT = "many-clients"
CLIENTS = (2, 32, 100, 1_000)
ROUNDS, WARMUP = 20, 3
KEY = "weight"
DEADLINE_S = 120.0
DESCRIPTORS_OF_EACH = 8
HEAD = (
    "clients",
    "KB",
    "server us a push",
    "range",
    "ms a round",
    "server cores",
    "KB a client",
    "descriptors",
)


class Clients:
    """The workers of a job, each a client by itself, and one key that they all have.

    Attributes:
        workers: By rank.
    """

    def __init__(self, settings: dict[str, str], clients: int, elements: int) -> None:
        """Join, and create the key."""

        def join(index: int) -> Worker:
            mine = {**settings, "KVMPI_ROLE": "worker", "KVMPI_CLIENT": str(index)}
            [alone] = memory_communicators(1)
            return make_worker(NodeConfig.from_mapping(mine), alone, SocketTransport("tcp"))

        with ThreadPoolExecutor(clients) as pool:
            self.workers = list(pool.map(join, range(clients)))
        self._ended = threading.Semaphore(0)
        self._errors: list[BaseException] = []
        [self._store] = {worker.open_store("sync") for worker in self.workers}
        self._buffers = [worker.exchange_buffer(elements, "float32") for worker in self.workers]
        for worker, buffer in zip(self.workers, self._buffers):
            worker.init(self._store, KEY, (elements,), buffer, self._done)
        self._wait()

    def exchange(self) -> None:
        """Push ones from each, and wait until each has their sum."""
        for buffer in self._buffers:
            buffer.fill(1.0)
        for worker in self.workers:
            worker.pushpull(self._store, KEY, 0, self._done)
        self._wait()
        wrong = [rank for rank, buffer in enumerate(self._buffers) if (buffer != len(self.workers)).any()]
        if wrong:
            raise JobError(f"wrong sums at workers {wrong[:10]}")

    def close(self) -> None:
        """Leave, all at once: each waits for nobody."""
        with ThreadPoolExecutor(len(self.workers)) as pool:
            list(pool.map(lambda worker: worker.close(), self.workers))

    def _done(self, error: BaseException | None) -> None:
        if error is not None:
            self._errors.append(error)
        self._ended.release()

    def _wait(self) -> None:
        end = time.monotonic() + DEADLINE_S
        for _ in self.workers:
            if not self._ended.acquire(timeout=max(0.0, end - time.monotonic())):
                raise JobError(f"a round has not ended within {DEADLINE_S:g} s")
        if self._errors:
            raise JobError(f"{len(self._errors)} operations have failed, first: {self._errors[0]}")


def measure(clients: int, elements: int) -> dict[str, Any]:
    """Run one job; return what its server took."""
    with tempfile.TemporaryDirectory(prefix="clients-") as name, Job(Path(name)) as job:
        settings = {
            "KVMPI_INTERFACE": HOST,
            "KVMPI_TRANSPORT": "tcp",
            "KVMPI_NUM_CLIENTS": str(clients),
            "KVMPI_NUM_WORKERS": str(clients),
            "KVMPI_NUM_SERVERS": "1",
            "KVMPI_CONNECT_TIMEOUT": str(DEADLINE_S),
            "KVMPI_JOB_FILE": write_job_file(Path(name) / "job.json"),
        }
        command = (sys.executable, *SERVICE)
        scheduler = Program("scheduler", command, {**settings, "KVMPI_ROLE": "scheduler"})
        settings["KVMPI_SCHEDULER"] = start_ready(job, scheduler)
        start_ready(
            job, Program("server", command, {**settings, "KVMPI_ROLE": "server", "KVMPI_INDEX": "0"})
        )
        pid = job.pid("server")
        before = resident_bytes(pid)
        crowd = Clients(settings, clients, elements)
        for _ in range(WARMUP):
            crowd.exchange()
        began, spent = time.monotonic(), cpu_seconds(pid)
        for _ in range(ROUNDS):
            crowd.exchange()
        cost = {"seconds": time.monotonic() - began, "server_s": cpu_seconds(pid) - spent}
        held = {"bytes": resident_bytes(pid) - before, "descriptors": num_descriptors(pid)}
        crowd.close()
        usage = job.wait(DEADLINE_S)
    return {"clients": clients, "elements": elements, **cost, **held, **asdict(usage)}


def measure_all(arguments: argparse.Namespace, sizes: Sequence[int]) -> Results:
    """Run one job for each number of clients and repeat."""
    allow_descriptors(DESCRIPTORS_OF_EACH * max(sizes))
    results = begin(WHAT, arguments)
    for repeat in range(arguments.repeats):
        for clients in sizes:
            results.add({"repeat": repeat, **measure(clients, arguments.elements)})
            report(f"repeat {repeat + 1}/{arguments.repeats}: {clients} clients")
    return results


def table(runs: Sequence[dict[str, Any]]) -> str:
    """Return medians over the runs of each number of clients."""
    rows = []
    for clients in sorted({run["clients"] for run in runs}):
        same = [run for run in runs if run["clients"] == clients]
        pushes = ROUNDS * clients
        spent = quartiles([1e6 * run["server_s"] / pushes for run in same])
        wall = quartiles([run["seconds"] for run in same]).median
        rows.append(
            (
                str(clients),
                f"{4 * same[0]['elements'] / 1e3:g}",
                f"{spent.median:.0f}",
                spent.text(0),
                f"{1e3 * wall / ROUNDS:.1f}",
                f"{quartiles([run['server_s'] for run in same]).median / wall:.2f}",
                f"{quartiles([run['bytes'] for run in same]).median / clients / 1e3:.1f}",
                str(same[0]["descriptors"]),
            )
        )
    return align([HEAD, *rows])


def main() -> None:
    """Measure or load, print and write."""
    assert __doc__
    parser = make_parser(WHAT, __doc__, repeats="3", plot=False)
    default = ",".join(map(str, CLIENTS))
    parser.add_argument("--clients", default=default, help=f"numbers of clients (default: {default})")
    parser.add_argument("--elements", type=int, default=1_000, help="of the key (default: 1000, 4 KB)")
    arguments = parser.parse_args()
    arguments.repeats = arguments.repeats or 3
    sizes = [int(word) for word in arguments.clients.split(",")]
    try:
        results = load(arguments.load) if arguments.load else measure_all(arguments, sizes)
    except JobError as error:
        sys.exit(f"{WHAT}: {error}")
    results.show(table(results.runs))
    results.close()


if __name__ == "__main__":
    main()
