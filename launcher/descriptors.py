"""How many files a job has open in one process, and the limit of this process and of all that it starts.

Where the limit is met in the middle of a job, some call of somebody fails, and nothing is saved.
"""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

from kvstore_mpi.errors import ConfigurationError

if TYPE_CHECKING:
    from mpilaunch.jobspec import JobSpec

LAUNCHER = 32
"""Of the launcher's own: standard streams, signals, pipes of the job, and what it takes to start one."""

METRICS = 8
"""Connections at a time to the port of ``--metrics``; a server of Prometheus makes one now and then."""

STARTED = 48
"""Of a worker without peers; MPI and MXNet make up most of it."""

SAVED = 65
"""Files in which one server has saved tables; each server of a resumed job has those of all open."""


def needed(spec: JobSpec) -> int:
    """Return how many files one process of a job may have open."""
    shape = spec.topology
    ranks = spec.client_ranks * shape.num_clients
    services = shape.num_servers + (1 if shape.num_servers else 0)
    processes = services + shape.num_clients
    # Output, errors, stacks and a log of each, and of ranks what tells of their end. Earlier logs stay.
    logs = spec.max_restarts * (1 + spec.client_ranks)
    launcher = LAUNCHER + 3 * processes + services + 5 * ranks + logs
    launcher += METRICS + 2 if spec.metrics else 0  # the listener, and one that waits for room
    saved = SAVED * shape.num_servers if spec.node.resume else 0
    return max(launcher, STARTED + saved + 4 * (shape.num_servers + ranks))


def check(count: int) -> None:
    """Make sure that this process's limit may be raised so far; leave it as it is.

    Raises:
        ConfigurationError: It may not.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        raise ConfigurationError(
            f"a process of this job may have {count} files open, and the limit is {hard}: raise it "
            f"(ulimit -n {count}), or start fewer workers"
        )


def allow(count: int) -> None:
    """Raise this process's limit where it is lower; see ``check``."""
    check(count)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
