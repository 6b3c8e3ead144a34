"""``mpilaunch``: starts a job of MPI clients and parameter servers, watches it, and cleans up after it.

::

    cli          command line -> JobSpec -> Plan -> Supervisor
    jobfile   P  the job file, and what is wrong with it
    library      launch(): a job from Python
    result    P  how a job has ended, for programs
    script    P  Plan -> a shell script
    command_table P  the commands beside running a job; commands runs one
    meant     P  which name was meant by one that is not known
    help_text P  what stands around the options in the help
    jobspec   P  what the user asked for, and everything that is wrong with it
    plan      P  JobSpec -> every process with its argv and environment
    mpi          which mpiexec belongs to the MPI that mpi4py runs on, and how that one is talked to
    policy    P  what to do about each event: who ends whom, when, with which signal
    client_exit P  how one client has ended, from what its ranks and its mpiexec tell
    root_cause P  which of several failures came first, and the job's exit code
    exit_codes P  what each exit code means, and what to do
    report    P  the words of the last block
    supervise    the event loop: starts processes, reads their lines, carries out what policy says
    printer      whole lines with the name of who said them; log files
    hosts/       where processes run: one interface; this host is its first implementation
    rank/        what runs inside a rank of a client
    seeing/      what processes tell, stacks, and the commands top, inspect and compare
    plan_command, plan_picture   how many workers, devices and servers to give to a training
    planned   P  what a plan sets of a job
    step_profile P  what a script computes and sends, from its trace
    measure_epochs, measure_links   what a plan needs to know
    doctor       checks the installation, here or on the hosts of a job
    trace        the job's trace and report

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
    from mpilaunch import library  # noqa: PLC0415
    from mpilaunch.outcome import result  # noqa: PLC0415

    return {"launch": library.launch, "Result": result.Result}[name]
