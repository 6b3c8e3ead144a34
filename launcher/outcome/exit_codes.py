"""What each exit code of a job means, and what to do: for the last block, the help and the docs. Pure."""

from __future__ import annotations

import signal

DEFECT = "this is a defect of kvstore_mpi; please report it with the log files"

MEANINGS = {
    0: "success",
    64: "wrong use",
    69: "timeout or lost process",
    70: "defect of kvstore_mpi",
    71: "no memory, files or threads left",
    73: "the last snapshot could not be written",
    74: "reading or writing failed",
    75: "told to end, has saved",
    76: "workers disagree",
    77: "the job's secret is not known",
    78: "the installation or the environment cannot work",
}
"""Of the codes that are ours; others are those of the process that failed first."""

STAY_WRONG = {64, 73, 78}
"""Of processes that would fail in the same way again."""

REMEDIES = {
    1: "the script ended with an exception or sys.exit(1); the lines above say where",
    64: "the store or a command was called in a way that cannot work, maybe with a wrong file; the message "
    "says how to call it",
    69: "a process or the network was lost, and nobody else has reported why; see the logs of the others. "
    "If all were alive: each worker needs the same number of batches",
    70: DEFECT,
    71: "memory, files, processes or threads ran out, as the message says: use fewer workers per host, "
    "raise the limit (ulimit -a), or, where a disk is full, choose another place with TMPDIR",
    73: "a server has not saved what the job has come to: see that the folder of --snapshot-dir is there "
    "and has room, or raise --grace if it was too slow; then go on with --resume from an older snapshot",
    74: "reading or writing failed; is the disk full?",
    75: "it was told to end and has saved; start the job again to go on",
    76: "the workers disagree, with each other or with the job that is resumed; start all of them with the "
    "same model, optimizer, data types and versions, and give each worker the same number of batches",
    77: "a process does not know the job's secret; start all of them with one mpilaunch",
    78: "an option, the environment or the script cannot work, as the message says; mpilaunch doctor "
    "checks the installation",
    128 + signal.SIGABRT: "native code gave up (an assertion, memory corruption, or no more threads: "
    "ulimit -u); its last lines say why",
    128 + signal.SIGKILL: "somebody killed it; most often that is the kernel, when memory runs out "
    "(dmesg tells): use a smaller batch or fewer workers per host",
    128 + signal.SIGSEGV: "native code crashed; run the script with PYTHONFAULTHANDLER=1 to see where",
    128
    + signal.SIGBUS: "native code crashed, often because /dev/shm is full; mpilaunch doctor shows its size",
    128 + signal.SIGTERM: "somebody outside of mpilaunch ended it",
}
"""What to do where the failure itself does not tell."""
