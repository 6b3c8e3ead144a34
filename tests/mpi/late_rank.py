"""Three ranks of which one does not come to a collective, or dies; run by ``test_late_rank.py``.

Each of the others writes what it is told into a file of its own. Nobody ends before all have been told,
since MPI ends the job with the first: the missing rank hears both before it lets either go.
"""

import os
import signal
import sys
from pathlib import Path

import numpy as np

from kvstore_mpi.comm.mpi import MpiCommunicator
from kvstore_mpi.errors import DeadlineError
from kvstore_mpi.tensor_collectives.designs import DESIGNS
from kvstore_mpi.tensor_collectives.tensor import Tensor
from kvstore_mpi.tensor_collectives.tensor_group import TensorGroup

MISSING = 1


def meet(fifo, writes):
    """Wait for the other process at a named pipe: opening one end waits until the other is opened."""
    with fifo.open("wb" if writes else "rb"):
        pass


def main():
    how, told, design = sys.argv[1], Path(sys.argv[2]), DESIGNS[sys.argv[3]]
    group = TensorGroup(MpiCommunicator(), design=design)
    group.allreduce(Tensor([np.ones(100_000, np.float32)]), timeout=60)
    if group.rank == MISSING:
        if how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        for step in ("told", "end"):
            for rank in (0, 2):
                meet(told / f"{step}-{rank}", writes=step == "end")
    else:
        try:
            group.allreduce(Tensor([np.ones(100_000, np.float32)]), timeout=4)
        except DeadlineError as error:
            (told / f"error-{group.rank}").write_text(str(error))
        if how == "stays away":
            meet(told / f"told-{group.rank}", writes=True)
            meet(told / f"end-{group.rank}", writes=False)
    os._exit(0)  # a thread is in MPI, and does not come back


if __name__ == "__main__":
    main()
