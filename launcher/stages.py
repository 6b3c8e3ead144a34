"""The stages of a job's life and how long they may take.

::

    STARTING ---Ready--> RUNNING ---all clients 0--> FINISHING ---services gone--> DONE
        |                   |                            | grace over: TERM
        +--- a failure, a signal, the timeout -----------+
                            v
                          SAVING      SIGUSR1 to the clients; until all ranks are over or the grace is
                            v
                         SNAPSHOTS    SIGUSR1 to servers that save, unless something has failed; likewise
                            v
                        TERMINATING   SIGTERM to everybody
                            v
                          KILLING     SIGKILL to everybody ---all gone--> DONE
"""

from __future__ import annotations

import enum

START_SECONDS = 60.0
"""How long the scheduler may take to say where it listens."""

CLIENT_END_SECONDS = 5.0
"""How long an mpiexec may take to end after its ranks, and, where the grace is less, a client of which one
rank has failed; it takes milliseconds, but to disturb Hydra at it loses the exit codes."""

RANK_END_SECONDS = 30.0
"""How long the process of a rank may take to end once it has left the record that all is well. On a loaded
host MPI and Python need seconds to clean up; a rank that waits in MPI_Finalize for an mpiexec that is held
never ends."""

TERMINATE_SECONDS = 3.0
"""From SIGTERM to SIGKILL. Hydra kills its ranks 1.1 s after SIGTERM, Open MPI 0.5 s."""

KILL_SECONDS = 5.0
"""How long to wait for processes that were killed, before the reaper is left alone with them."""


class Stage(enum.Enum):
    """Where a job is in its life; see the picture above."""

    STARTING = enum.auto()
    RUNNING = enum.auto()
    FINISHING = enum.auto()
    SAVING = enum.auto()
    SNAPSHOTS = enum.auto()
    TERMINATING = enum.auto()
    KILLING = enum.auto()
    DONE = enum.auto()
