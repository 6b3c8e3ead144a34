"""What MPI is told before a process loads it, whoever in the process does that first.

A rank of ``mpilaunch`` loads MPI before the store does, one of a plain ``mpiexec`` with the store. What
only one of them told, the other's ranks would not have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore_mpi.comm import memory_hooks, waits

if TYPE_CHECKING:
    from collections.abc import MutableMapping

UCX_DEBUG_SIGNAL = "UCX_DEBUG_SIGNO"
"""UCX's variable for the signal that turns on its debug log."""


def prepare(environment: MutableMapping[str, str]) -> None:
    """Tell it by variables that the user has not set."""
    # UCX would take SIGHUP, also where nohup has it ignored, and write a log of megabytes from then on.
    environment.setdefault(UCX_DEBUG_SIGNAL, "")
    memory_hooks.leave_out(environment)
    waits.sleep_between_hosts(environment)
