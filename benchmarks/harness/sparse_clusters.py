"""Starts jobs whose workers are ranks of MPI: one client over all hosts, or a client of several in each.

It must not know what the workers do.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .clusters import named, start_services
from .jobs import Job, Program
from .netns import BRIDGE, LINK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .clusters import Settings
    from .netns import Network

OVER_LINKS = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": LINK, "MPIR_CVAR_NOLOCAL": "1"}
"""Without them MPICH finds that all ranks are on one machine, and sends through its memory."""

WITHIN_A_HOST = {"UCX_NET_DEVICES": "lo"}
ENTER = """#!/bin/sh
# Stands for ssh: runs a command in a host, which has a name of its own.
while [ "${1#-}" != "$1" ]; do shift; done
host=$((${1##*.} - 1))
export KVMPI_INTERFACE="$1"
shift
named='echo "$0" >/proc/sys/kernel/hostname && eval "$1"'
exec ip netns exec "%(prefix)s$host" unshare --uts sh -c "$named" "%(prefix)s$host" "$*"
"""


def start_one_client(
    job: Job, network: Network, worker: Sequence[str], settings: Settings, *, servers: Sequence[int] = ()
) -> None:
    """Start one client with a rank on each host, and servers.

    Args:
        job: Where the processes belong.
        network: The hosts.
        worker: Command of a rank.
        settings: Environment of all.
        servers: The hosts of the servers; without any the job is pure MPI, or none of ours.
    """
    start_wide_clients(job, network, worker, settings, hosts=network.hosts, servers=servers)


def start_wide_clients(
    job: Job,
    network: Network,
    worker: Sequence[str],
    settings: Settings,
    *,
    hosts: int,
    servers: Sequence[int],
) -> None:
    """Start clients of ``hosts`` neighbouring hosts, with a rank on each; see ``start_one_client``."""
    clients = network.hosts // hosts
    counts = {"KVMPI_NUM_CLIENTS": str(clients), "KVMPI_NUM_WORKERS": str(clients * hosts)}
    common = {**settings, **counts, "KVMPI_NUM_SERVERS": "0"}
    if servers:
        common = start_services(job, network, worker[0], common, servers)
    enter = job.log_dir / "enter"
    enter.write_text(ENTER % {"prefix": network.name(0).removesuffix("0")})
    enter.chmod(0o700)
    for client in range(clients):
        addresses = ",".join(map(network.address, range(client * hosts, (client + 1) * hosts)))
        options = ("-launcher", "ssh", "-launcher-exec", str(enter), "-iface", BRIDGE, "-hosts", addresses)
        command = (_mpiexec(worker), *options, "-n", str(hosts), *worker)
        environment = {**common, **OVER_LINKS, "KVMPI_ROLE": "worker", "KVMPI_CLIENT": str(client)}
        job.start(Program(f"client{client}", network.in_hub(command), environment))


def start_clients(
    job: Job, network: Network, worker: Sequence[str], settings: Settings, *, ranks: int
) -> None:
    """Start a server and a client of several ranks, which share memory, on each host."""
    hosts = range(network.hosts)
    counts = {"KVMPI_NUM_CLIENTS": str(len(hosts)), "KVMPI_NUM_WORKERS": str(ranks * len(hosts))}
    common = start_services(job, network, worker[0], {**settings, **counts}, hosts)
    for host in hosts:
        own = {"KVMPI_CLIENT": str(host), "KVMPI_INTERFACE": network.address(host)}
        environment = {**common, **WITHIN_A_HOST, **own, "KVMPI_ROLE": "worker"}
        options = ("-launcher", "fork", "-hosts", "localhost", "-n", str(ranks))
        command = named(network, host, (_mpiexec(worker), *options, *worker))
        job.start(Program(f"client{host}", command, environment))


def _mpiexec(worker: Sequence[str]) -> str:
    """Return the mpiexec of the environment of the worker's interpreter."""
    return str(Path(worker[0]).parent / "mpiexec")
