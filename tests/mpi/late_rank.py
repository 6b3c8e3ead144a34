"""Three ranks of which one does not come to a collective, or dies; run by ``test_late_rank.py``.

Says what the others are told. Nobody ends before all have been told, since MPI ends with the first.
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


def main():
    how, told, design = sys.argv[1], Path(sys.argv[2]), DESIGNS[sys.argv[3]]
    group = TensorGroup(MpiCommunicator(), design=design)
    group.allreduce(Tensor([np.ones(100_000, np.float32)]), timeout=60)
    if group.rank == MISSING:
        if how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        for rank in (0, 2):  # until both others have been told
            (told / str(rank)).read_bytes()
    else:
        try:
            group.allreduce(Tensor([np.ones(100_000, np.float32)]), timeout=4)
        except DeadlineError as error:
            sys.stdout.write(f"{error}\n")
            sys.stdout.flush()
        if how == "stays away":
            (told / str(group.rank)).write_bytes(b"told")
    os._exit(0)  # a thread is in MPI, and does not come back


if __name__ == "__main__":
    main()
