"""``mpilaunch``: starts a job of MPI clients and parameter servers, watches it, and cleans up after it.

::

    cli          command line -> JobSpec -> Plan -> Supervisor
    jobspec   P  what the user asked for, and everything that is wrong with it
    plan      P  JobSpec -> every process with its argv and environment
    mpi          which mpiexec belongs to the MPI that mpi4py runs on, and how that one is talked to
    policy    P  what to do about each event: who ends whom, when, with which signal
    client_exit P  how one client has ended, from what its ranks and its mpiexec tell
    root_cause P  which of several failures came first, and the job's exit code
    report    P  the words of the last block
    supervise    the event loop: starts processes, reads their lines, carries out what policy says
    printer      whole lines with the name of who said them; log files
    hosts/       where processes run: one interface; this host is its first implementation
    rank/        what runs inside a rank of a client
    doctor       checks the installation
    trace        the job's trace and report

P = pure. Nothing here imports mxnet, and only what runs inside a rank imports mpi4py.
"""
