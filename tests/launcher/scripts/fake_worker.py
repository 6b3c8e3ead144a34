"""Lets a script join and leave as a worker does, without a store: imported by the other scripts here."""

import os
import socket
import sys
import types

from kvstore_mpi.launcher_events import tell
from mpilaunch.rank.reporter import rank_and_size


class Worker:
    """Holds a connection to the fake scheduler while it is in the job."""

    def __init__(self, failure=None):
        self._failure = failure
        self._connection = None
        self.interrupted = []
        if os.environ.get("KVMPI_SCHEDULER"):
            host, port = os.environ["KVMPI_SCHEDULER"].split(",")[0][len("tcp://") :].split(":")
            self._connection = socket.create_connection((host, int(port)))
            self._connection.send(b"w")

    def close(self):
        if self._connection is not None:
            self._connection.close()

    def interrupt(self, reason):
        """Note what a real one would fail all operations with."""
        self.interrupted.append(reason)

    def failure(self):
        return self._failure


def join(failure=None):
    """Do what making a store does: the launcher is told, and from now on this process has a worker."""
    if os.environ.get("KVMPI_RECORD_DIR"):
        rank, _ = rank_and_size(os.environ)
        name = (int(os.environ["KVMPI_CLIENT"]), rank, int(os.environ.get("KVMPI_INCARNATION", "0")))
        tell(os.environ["KVMPI_RECORD_DIR"], name, "joins")
    node = types.ModuleType("kvstore_mpi.node")
    worker = Worker(failure)
    node.existing_worker = lambda: worker
    sys.modules["kvstore_mpi.node"] = node
    return worker
