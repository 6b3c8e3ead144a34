"""What MPI is told before a process loads it, whoever in the process does that first.

A rank of ``mpilaunch`` loads MPI before the store does, one of a plain ``mpiexec`` with the store. What
only one of them told, the other's ranks would not have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore_mpi.comm import memory_hooks, waits

if TYPE_CHECKING:
    from collections.abc import MutableMapping


def prepare(environment: MutableMapping[str, str]) -> None:
    """Tell it by variables that the user has not set."""
    memory_hooks.leave_out(environment)
    waits.sleep_between_hosts(environment)
