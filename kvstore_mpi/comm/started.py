"""How this process was started, by its environment: by an MPI launcher, by Slurm alone, or by a rank."""

from __future__ import annotations

import os
import stat

from kvstore_mpi.host_name import host_name

SIZE_VARIABLES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_SIZE")
"""What launchers call the number of ranks."""

_RANK_VARIABLES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")
"""Slurm's PMIx tells a rank its number and not how many there are. Its own SLURM_PROCID would not do: the
process of a batch script has it, too."""

_PAIR = 2


def started_by_mpiexec() -> bool:
    """Return whether this process was started by an MPI launcher."""
    return any(name in os.environ for name in (*SIZE_VARIABLES, *_RANK_VARIABLES))


def alone_under_srun() -> str:
    """Return what is wrong if Slurm has started this process as one of several without a word to MPI."""
    told = os.environ.get("SLURM_STEP_NUM_TASKS", "")
    if started_by_mpiexec() or not told.isdigit() or int(told) < _PAIR:
        return ""
    return (
        f"srun has started {told} processes, each of which, as on {host_name()}, is alone in its "
        "COMM_WORLD: srun has told MPI nothing; say srun --mpi=pmi2 (srun --mpi=list shows what there is)"
    )


def started_by_a_rank() -> str:
    """Return what is wrong if a rank has started this process, which has its environment and is none."""
    number = os.environ.get("PMI_FD", "")
    if not number.isdigit() or _is_socket(int(number)):
        return ""
    return (
        f"process {os.getpid()} is no rank of the job: one has started it, as multiprocessing does where "
        "it spawns, and it has run the same script up to here; put what makes the store under "
        'if __name__ == "__main__", or let multiprocessing fork'
    )


def _is_socket(number: int) -> bool:
    """Return whether this is the process's way to the launcher, which Python closes in what it starts."""
    try:
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError:
        return False
