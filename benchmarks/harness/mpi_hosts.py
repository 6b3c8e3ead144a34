"""Runs one MPI program with a rank in each of several hosts, over TCP on a chosen link.

``mpiexec`` is told to reach hosts through a script that enters their namespaces, where it would use ssh.
MPICH only: its wheels carry UCX, and are told here which link it may use, and not to take the memory that
the namespaces share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpilaunch.mpi import find_mpi

from .netns import LINK, Network

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ENTER = """#!/bin/sh
# Called by mpiexec as it would call ssh: options, host, words of a command.
while [ "${1#-}" != "$1" ]; do shift; done
number=${1##*.}
shift
export KVMPI_INTERFACE=@SERVERS@.$number
exec ip netns exec @PREFIX@$((number - 1)) sh -c "$*"
"""


def environment(device: str) -> dict[str, str]:
    """Return what ranks are told, so that MPI's traffic crosses this link and nothing else."""
    return {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": device}


def in_hosts(network: Network, hosts: int, folder: Path, command: Sequence[str]) -> tuple[str, ...]:
    """Return the command that runs another one as rank 0 in host 0, rank 1 in host 1, and so on.

    Args:
        network: The hosts.
        hosts: How many of them, from the first on.
        folder: Gets the script; must be there as long as the program runs.
        command: What each rank runs. It is told its host's address for the store in ``KVMPI_INTERFACE``.
    """
    script = folder / "enter.sh"
    here = ENTER.replace("@PREFIX@", network.name(0)[:-1])
    script.write_text(here.replace("@SERVERS@", network.address(0).rpartition(".")[0]))
    script.chmod(0o700)
    names = ",".join(network.address(host, LINK) for host in range(hosts))
    launcher = ("-launcher", "ssh", "-launcher-exec", str(script), "-localhost", network.hub_address)
    start = (find_mpi().mpiexec, *launcher, "-hosts", names, "-ppn", "1", "-n", str(hosts))
    return network.in_hub((*start, *command))
