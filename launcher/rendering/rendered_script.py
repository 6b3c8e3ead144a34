"""The script for ``sbatch`` that runs a job, and what every workload manager is told of one. Pure.

Slurm signals the script before the time is over, and when it preempts the job; ``mpilaunch`` then lets the
ranks save, and ends with 75. With a folder for snapshots the job goes into the queue again, and goes on.
"""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass

from kvstore_mpi.errors import UsageError

AFTER_SAVING_SECONDS = 30
"""From the end of the ranks' grace to the end of the job's time."""


@dataclass(frozen=True)
class Job:
    """What is to be run.

    Attributes:
        name: Of the job.
        launcher: How mpilaunch is started.
        options: Of mpilaunch.
        command: What the ranks run, with what stands before it.
        nodes: Hosts.
        ranks: In all.
        grace: Seconds for ranks to save.
        snapshot_dir: Where servers save; empty if they do not.
    """

    name: str
    launcher: tuple[str, ...]
    options: tuple[str, ...]
    command: tuple[str, ...]
    nodes: int
    ranks: int
    grace: float
    snapshot_dir: str

    @property
    def ranks_per_node(self) -> int:
        """How many ranks the fullest host has."""
        return -(-self.ranks // self.nodes)


def sbatch_script(job: Job, time: str) -> str:
    """Return the script.

    Args:
        job: What it runs.
        time: How long the job may take, as Slurm writes it; the partition's own limit if empty.

    Raises:
        UsageError: ``time`` is of another form.
    """
    if time and not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", time):
        raise UsageError(f"--time {time!r} is not of the form MINUTES, HH:MM:SS or D-HH:MM:SS")
    asked = {
        "job-name": shlex.quote(job.name),
        "nodes": job.nodes,
        "ntasks-per-node": job.ranks_per_node,
        "output": "%x-%j.out",
        "open-mode": "append",
        "signal": f"B:USR1@{math.ceil(job.grace) + AFTER_SAVING_SECONDS}",
        **({"time": time} if time else {}),
    }
    options = [f"#SBATCH --{name}={value}" for name, value in asked.items()]
    options.append("#SBATCH --requeue" if job.snapshot_dir else "#SBATCH --no-requeue")
    head = "\n".join(["#!/bin/bash", *options])
    start = shlex.join([*job.launcher, "--backend", "slurm", *job.options])
    if job.snapshot_dir:
        start = f'{start} "${{resume[@]}}"'
    text = _REQUEUED if job.snapshot_dir else _ONCE
    # Below it, too: each part of a model that several ranks have is saved in a folder of its own.
    folder = f"./{job.snapshot_dir}" if job.snapshot_dir.startswith("-") else job.snapshot_dir
    find = shlex.join(["find", folder, "-maxdepth", "2", "-name", "*.snapshot", "-print"])
    return text.format(head=head, start=f"{start} {shlex.join(job.command)}".rstrip(), find=find)


_ONCE = """{head}

# Slurm signals what is started here, and with it mpilaunch, before the time is over: the ranks save.
exec {start}
"""

_REQUEUED = """{head}

# Before the time is over and at preemption Slurm signals this shell: ranks save, and the job goes on later.
again=
trap 'again=1; [ -z "$!" ] || kill -USR1 "$!"' USR1
trap : TERM # at scancel mpilaunch has this signal, too

resume=()
if [ "${{SLURM_RESTART_COUNT:-0}}" -gt 0 ] && [ -n "$({find} -quit)" ]; then
    resume=(--resume)
fi

{start} &
job=$!
wait "$job"
code=$?
while kill -0 "$job" 2>/dev/null; do # a signal has ended the waiting
    wait "$job"
    code=$?
done
if [ -n "$again" ] && [ "$code" = 75 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""
