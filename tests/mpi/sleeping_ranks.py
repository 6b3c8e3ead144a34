"""Ranks of a host that wait for another one in a collective sleep; run by ``test_late_rank.py``.

The last rank does not come before Linux says of all others that they sleep: if one of them looked again and
again instead, it would wait until its deadline.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np

from kvstore_mpi.comm.mpi import MpiCommunicator

DEADLINE_S = 30.0
SLEEPS = "S"


def state_of(process):
    """Return the letter of what a process does: its main thread, which waits here."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


def await_sleep(processes):
    """Wait until all sleep at the same time."""
    until = time.monotonic() + DEADLINE_S
    while {state_of(process) for process in processes} != {SLEEPS}:
        assert time.monotonic() < until, f"{[state_of(process) for process in processes]}"
        os.sched_yield()


def main():
    comm = MpiCommunicator()
    last = comm.size - 1
    processes = [int(comm.broadcast_bytes(str(os.getpid()).encode(), rank)) for rank in range(comm.size)]
    everyone = tuple(range(comm.size))
    array = np.ones(100, np.float32)
    for wait in (
        lambda: comm.barrier(everyone),
        lambda: comm.minimum(comm.rank),
        lambda: comm.allreduce(array),
        comm.prepare_allreduce(array),
    ):
        if comm.rank == last:
            await_sleep(processes[:last])
        wait()
    if comm.rank == last:
        sys.stdout.write(f"{last} ranks slept\n")
    comm.close()


if __name__ == "__main__":
    main()
