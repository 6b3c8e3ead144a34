"""Starts one worker and one server in every host, of either store.

It must not know what the workers do.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from .jobs import Job, JobError, Program

if TYPE_CHECKING:
    from pathlib import Path

    from .netns import Network

STOCK_PORT = "9091"
READY_S = 60.0
SERVICE = ("-m", "kvstore_mpi")
STOCK_SERVICE = (sys.executable, "-c", "import mxnet")

Settings = Mapping[str, str]


def start_stock(job: Job, network: Network, worker: Sequence[str], settings: Settings) -> None:
    """Start MXNet's own scheduler, servers and workers; importing mxnet runs the first two.

    Args:
        job: Where the processes belong.
        network: The hosts; the scheduler is on the bridge.
        worker: Command of a worker.
        settings: Environment of all.
    """
    common = {
        **settings,
        "DMLC_PS_ROOT_URI": network.hub_address,
        "DMLC_PS_ROOT_PORT": STOCK_PORT,
        "DMLC_NUM_WORKER": str(network.hosts),
        "DMLC_NUM_SERVER": str(network.hosts),
    }
    at_hub = {**common, "DMLC_ROLE": "scheduler", "DMLC_NODE_HOST": network.hub_address}
    job.start(Program("scheduler", network.in_hub(STOCK_SERVICE), at_hub))
    for role, command in (("server", STOCK_SERVICE), ("worker", worker)):
        for host in range(network.hosts):
            own = {**common, "DMLC_ROLE": role, "DMLC_NODE_HOST": network.address(host)}
            job.start(Program(f"{role}{host}", network.in_host(host, command), own))


def start_sockets(job: Job, network: Network, worker: Sequence[str]) -> None:
    """Start workers and servers that have plain sockets between them (``sockets_worker.py``).

    Args:
        job: Where the processes belong.
        network: The hosts.
        worker: Command of a worker, which becomes a server's by other options.

    Raises:
        JobError: A server did not come up.
    """
    listening = []
    for host in range(network.hosts):
        server = (*worker, "--number", str(host), "--interface", network.address(host))
        listening.append(start_ready(job, Program(f"server{host}", network.in_host(host, server))))
    for host in range(network.hosts):
        command = (*worker, "--number", str(host), "--servers", ",".join(listening))
        job.start(Program(f"worker{host}", network.in_host(host, command)))


def start_ours(
    job: Job,
    network: Network,
    worker: Sequence[str],
    settings: Settings,
    *,
    workers_on: Sequence[int] | None = None,
    servers_on: Sequence[int] | None = None,
) -> None:
    """Start our scheduler, then the servers and the workers, every worker a client by itself.

    Args:
        job: Where the processes belong.
        network: The hosts; the scheduler is on the bridge.
        worker: Command of a worker; its interpreter is that of all processes.
        settings: Environment of all.
        workers_on: The hosts of the workers; all by default.
        servers_on: The hosts of the servers; all by default.

    Raises:
        JobError: The scheduler did not come up.
    """
    workers = range(network.hosts) if workers_on is None else workers_on
    servers = range(network.hosts) if servers_on is None else servers_on
    counts = {"KVMPI_NUM_CLIENTS": str(len(workers)), "KVMPI_NUM_WORKERS": str(len(workers))}
    common = start_services(job, network, worker[0], {**settings, **counts}, servers)
    for index, host in enumerate(workers):
        own = {"KVMPI_ROLE": "worker", "KVMPI_CLIENT": str(index), "KVMPI_INTERFACE": network.address(host)}
        job.start(Program(f"worker{index}", named(network, host, worker), {**common, **own}))


def start_services(
    job: Job, network: Network, python: str, settings: Settings, servers: Sequence[int]
) -> dict[str, str]:
    """Start our scheduler and servers; return what their workers are told besides who they are.

    Args:
        job: Where the processes belong.
        network: The hosts; the scheduler is on the bridge.
        python: The interpreter.
        settings: Environment of all, with the numbers of clients and workers.
        servers: The hosts of the servers.

    Raises:
        JobError: The scheduler did not come up.
    """
    common = {
        **settings,
        "KVMPI_NUM_SERVERS": str(len(servers)),
        "KVMPI_JOB_FILE": write_job_file(job.log_dir / "job.json"),
    }
    common["KVMPI_SCHEDULER"] = start_scheduler(job, network, python, common)
    for index, host in enumerate(servers):
        own = {"KVMPI_ROLE": "server", "KVMPI_INDEX": str(index), "KVMPI_INTERFACE": network.address(host)}
        job.start(Program(f"server{index}", named(network, host, (python, *SERVICE)), {**common, **own}))
    return common


def named(network: Network, host: int, command: Sequence[str]) -> tuple[str, ...]:
    """Run a command in a host that has its own name too; all are the same process.

    By its name ours tells one host from another. Without it, transports that share memory within a host
    would share it between all of these, and gradients would not cross the links.
    """
    named = 'echo "$0" >/proc/sys/kernel/hostname && exec "$@"'
    return network.in_host(host, ("unshare", "--uts", "sh", "-c", named, network.name(host), *command))


def write_job_file(path: Path) -> str:
    """Write a file with a new secret that only this user may read; return its path."""
    path.touch(mode=0o600)
    path.write_text(json.dumps({"job": secrets.token_hex(8), "secret": secrets.token_hex(32)}))
    return str(path)


def start_scheduler(job: Job, network: Network, python: str, settings: Settings) -> str:
    """Start the scheduler on the bridge and return its addresses, separated by commas."""
    own = {**settings, "KVMPI_ROLE": "scheduler", "KVMPI_INTERFACE": network.hub_address}
    return start_ready(job, Program("scheduler", network.in_hub((python, *SERVICE)), own))


def start_ready(job: Job, program: Program) -> str:
    """Start a scheduler or server, and return its addresses, separated by commas, when it listens.

    Raises:
        JobError: It did not come up.
    """
    ready = job.log_dir / "ready"
    os.mkfifo(ready, 0o600)
    with os.fdopen(os.open(ready, os.O_RDONLY | os.O_NONBLOCK)) as pipe:
        os.set_blocking(pipe.fileno(), True)
        job.start(replace(program, environment={**program.environment, "KVMPI_READY_PIPE": str(ready)}))
        line = pipe.readline() if select.select([pipe], [], [], READY_S)[0] else ""
    ready.unlink()
    if not line:
        said = (job.log_dir / f"{program.name}.log").read_text(errors="replace")
        raise JobError(f"the {program.name} has not come up within {READY_S:.0f} s: {said}")
    return ",".join(json.loads(line)["addresses"])
