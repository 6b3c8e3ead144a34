"""``mpilaunch``: starts a job of MPI clients and parameter servers, watches it, and cleans up after it.

::

    cli              command line -> JobSpec -> Plan -> Supervisor
    options, help_text, jobfile, meant   P  the command line, its help, the job file, misspelt names
    library          launch(): a job from Python
    jobspec       P  what the user asked for, and everything that is wrong with it
    plan          P  JobSpec -> every process with its argv and environment
    mpi              which mpiexec belongs to the MPI that mpi4py runs on, and how that one is talked to
    cores            how many processors a process may use, by affinity and quota
    policy        P  what to do about each event: who ends whom, when, with which signal
    supervise        the event loop: starts processes, reads their lines, carries out what policy says
    printer          whole lines with the name of who said them; log files
    trace            the job's trace and report
    command_table, commands   what there is beside running a job; doctor checks the installation
    hosts/           where processes run: one interface; this host is its first implementation
    rank/            what runs inside a rank of a client
    outcome/      P  how a client and a job have ended, which failure came first, exit codes, the last block
    seeing/          what processes tell, stacks, and the commands top, inspect and compare
    planning/        how many workers, devices and servers a training gets, and what is measured for that
    rendering/       a job as a shell script, a script for sbatch, an MPIJob

P = pure. Nothing here imports mxnet, and only what runs inside a rank imports mpi4py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpilaunch.library import launch
    from mpilaunch.outcome.result import Result

__all__ = ["Result", "launch"]


def __getattr__(name: str) -> Any:
    """Load what users of the library need when they ask for it: every rank imports this package."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mpilaunch import library  # noqa: PLC0415  as the docstring says
    from mpilaunch.outcome import result  # noqa: PLC0415  likewise

    return {"launch": library.launch, "Result": result.Result}[name]
