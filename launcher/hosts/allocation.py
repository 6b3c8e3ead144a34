"""Which back end a job uses, and which hosts: what the user says, and what a workload manager has given.

Slurm, LSF and the MPI operator of Kubernetes tell the hosts of a job by variables and files. Pure: the
environment and a function that reads files are passed in.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from kvstore_mpi.config import variable_of
from kvstore_mpi.errors import UsageError
from mpilaunch.hosts.hostlist import Slots, parse_hostfile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

AUTO, LOCAL, SSH, SLURM, LSF = "auto", "local", "ssh", "slurm", "lsf"
BACKENDS = (AUTO, LOCAL, SSH, SLURM, LSF)

OPERATOR_FILE = "/etc/mpi/hostfile"
OPERATOR_VARIABLES = ("OMPI_MCA_orte_default_hostfile", "I_MPI_HYDRA_HOST_FILE", "HYDRA_HOST_FILE")
"""Where the MPI operator says which pods there are; a variable comes first."""


POD_VARIABLE = "KUBERNETES_SERVICE_HOST"
"""Kubernetes sets it in each container."""


COPIES_VARIABLES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
"""How MPICH's and Open MPI's launchers tell what they start how many of it there are."""


class Allocation(NamedTuple):
    """What a workload manager has given to a job.

    Attributes:
        backend: How its hosts are reached.
        name: Of the job, for people.
        hosts: With the ranks that each takes; 0 where it is not said.
        source: Where that was read.
    """

    backend: str
    name: str
    hosts: tuple[Slots, ...]
    source: str

    def __str__(self) -> str:
        """Return how it was understood."""
        return f"{self.name} has {_told(self.hosts)} ({self.source})"


class Choice(NamedTuple):
    """How the hosts of a job are reached, which they are, and what to tell of it.

    Attributes:
        backend: One of ``BACKENDS`` but ``auto``.
        hosts: None where the job runs on this host alone.
        told: How an allocation was understood, if there is one.
    """

    backend: str
    hosts: tuple[Slots, ...] = ()
    told: str = ""


def choose_backend(
    wanted: str, given: Sequence[Slots], env: Mapping[str, str], read: Callable[[str], str | None]
) -> Choice:
    """Choose a back end.

    Args:
        wanted: One of ``BACKENDS``.
        given: The hosts that the user has named; none if he has not.
        env: The environment of the launcher.
        read: Returns the text of a file, or ``None`` if there is none.

    Raises:
        UsageError: What the user says, or what the environment says, is wrong or contradicts the other.
    """
    if wanted == LOCAL:
        if given:
            raise UsageError(
                f"--backend {LOCAL} and named hosts contradict each other: leave one of them out"
            )
        return Choice(LOCAL)
    if wanted == SSH and given:
        return Choice(SSH, tuple(given))
    found = _allocations(wanted, env, read)
    if len(found) > 1:
        names = " and ".join(each.name for each in found)
        raise UsageError(f"this is {names} at once: choose with --backend")
    if found and not (found[0].backend == SSH and given):
        hosts = _within(found[0], given) if given else found[0].hosts
        return Choice(found[0].backend, hosts, str(found[0]))
    if wanted == SSH and env.get(POD_VARIABLE):
        raise UsageError(_told_pod(env))
    if wanted in _MISSING:
        raise UsageError(f"--backend {wanted}: {_MISSING[wanted]}")
    return Choice(SSH, tuple(given)) if given else Choice(LOCAL)


def check_started_once(env: Mapping[str, str]) -> None:
    """Refuse to be one of several copies, each of which would run the whole job.

    What a rank of a job of ours starts is a job of its own, and nothing is wrong with it.

    Args:
        env: The environment of the launcher.

    Raises:
        UsageError: An MPI launcher has started several.
    """
    if variable_of("role") in env:
        return
    for variable in COPIES_VARIABLES:
        copies = env.get(variable, "")
        if copies.isdigit() and int(copies) > 1:
            raise UsageError(
                f"mpiexec or srun has started mpilaunch {copies} times, as {variable} says: start it once, "
                "without them; it starts the ranks. Where one of several ranks starts a job of its own, "
                f"unset {variable} for that"
            )


_MISSING = {
    SSH: "say which hosts with --hosts or --hostfile",
    SLURM: "this is no Slurm job, SLURM_JOB_ID is not set: start mpilaunch under salloc or in a script "
    "for sbatch, which mpilaunch render writes",
    LSF: "this is no LSF job, LSB_JOBID is not set: start mpilaunch with bsub",
}


def _allocations(
    wanted: str, env: Mapping[str, str], read: Callable[[str], str | None]
) -> list[Allocation]:
    """Return what there is; the operator's file only where no manager runs the job."""
    found = []
    if wanted in (AUTO, SLURM) and _job_of(env, "SLURM_JOB_ID", "SLURM_JOBID"):
        found.append(_slurm(env))
    if wanted in (AUTO, LSF) and _job_of(env, "LSB_JOBID"):
        found.append(_lsf(env, read))
    if not found and wanted in (AUTO, SSH):
        found += _operator(env, read)
    return found


def _job_of(env: Mapping[str, str], *names: str) -> str:
    return next((env[name] for name in names if env.get(name)), "")


def _within(allocation: Allocation, given: Sequence[Slots]) -> tuple[Slots, ...]:
    """Return the hosts that the user wants of an allocation.

    Raises:
        UsageError: It lacks one, or has fewer slots there.
    """
    there = {host.name: host.slots for host in allocation.hosts}
    for host in given:
        if host.name not in there:
            raise UsageError(
                f"host {host.name!r} is not one of {allocation.name}, which has {_told(allocation.hosts)}: "
                f"name some of these, or leave --hosts out, or say --backend {SSH}"
            )
        if host.slots > there[host.name] > 0:
            raise UsageError(
                f"{host.name}:{host.slots} is more than {allocation.name} has there, "
                f"{host.name}:{there[host.name]}"
            )
    return tuple(Slots(host.name, host.slots or there[host.name]) for host in given)


def _told(hosts: Sequence[Slots]) -> str:
    return ", ".join(f"{host.name}:{host.slots}" if host.slots else host.name for host in hosts)


# --- Slurm -----------------------------------------------------------------------------------------


def _slurm(env: Mapping[str, str]) -> Allocation:
    """Read the variables that Slurm sets in a job.

    Raises:
        UsageError: They are wrong, or this is one of several copies in a step.
    """
    name = f"Slurm job {_job_of(env, 'SLURM_JOB_ID', 'SLURM_JOBID')}"
    copies = env.get("SLURM_STEP_NUM_TASKS", "1")
    if copies != "1":
        raise UsageError(
            f"srun has started mpilaunch {copies} times: start it once, in the script for sbatch itself or "
            "after salloc; it starts the ranks by srun"
        )
    variable = "SLURM_JOB_NODELIST" if env.get("SLURM_JOB_NODELIST") else "SLURM_NODELIST"
    text, per_node = env.get(variable, ""), env.get("SLURM_TASKS_PER_NODE", "")
    if not text:
        raise UsageError(f"{name} does not say which hosts it has: SLURM_JOB_NODELIST is not set")
    hosts, source = expand_nodes(text, variable), f"{variable}={text}"
    if not per_node:
        return Allocation(SLURM, name, tuple(Slots(host, 0) for host in hosts), source)
    tasks = expand_tasks(per_node, "SLURM_TASKS_PER_NODE")
    source += f" SLURM_TASKS_PER_NODE={per_node}"
    if len(tasks) != len(hosts):
        raise UsageError(
            f"{name}: {source} contradict each other, {len(hosts)} hosts and {len(tasks)} numbers: "
            "start mpilaunch in the script for sbatch or after salloc, not in a step of the job"
        )
    return Allocation(SLURM, name, tuple(map(Slots, hosts, tasks)), source)


_PART = re.compile(r"(?P<before>[^\[\],\s]*)(?:\[(?P<ranges>[0-9,-]+)\])?")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")
MOST_HOSTS = 100_000
"""More in one range are taken for a mistake."""


def expand_nodes(text: str, where: str) -> list[str]:
    """Return the hosts of a list as Slurm writes it: ``n[1-3,07-09],m5`` or ``r[0-1]c[0-3]``.

    Args:
        text: The list.
        where: It was read, for errors.

    Raises:
        UsageError: It is of another form.
    """
    hosts = [host for part in _parts(text, where) for host in _expand(part, text, where)]
    twice = [host for host, same in groupby(sorted(hosts)) if len(list(same)) > 1]
    if twice:
        raise UsageError(f"{where}={text} names host {twice[0]!r} more than once")
    return hosts


def _parts(text: str, where: str) -> list[str]:
    """Cut a list at the commas that are not in brackets."""
    parts = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text)
    if not parts or ",".join(parts) != text:
        raise UsageError(f"{where}={text} is no list of hosts such as n[1-3,07-09],m5")
    return parts


def _expand(part: str, text: str, where: str) -> list[str]:
    found = [""]
    at = 0
    while at < len(part):
        match = _PART.match(part, at)
        if match is None or match.end() == at:
            raise UsageError(f"{where}={text}: {part!r} is no host or range of hosts such as n[1-3,07-09]")
        at = match.end()
        numbers = _numbers(match["ranges"], part, where) if match["ranges"] else [""]
        found = [f"{begun}{match['before']}{number}" for begun in found for number in numbers]
    return found


def _numbers(ranges: str, part: str, where: str) -> list[str]:
    """Return the numbers of ``1-3,07-09``, with the zeros that they begin with."""
    found: list[str] = []
    for each in ranges.split(","):
        match = _RANGE.fullmatch(each)
        first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
        if not int(first) <= int(last) < int(first) + MOST_HOSTS:
            raise UsageError(f"{where}: {each!r} in {part!r} is no range of numbers such as 1-3")
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return found


def expand_tasks(text: str, where: str) -> list[int]:
    """Return the number for each host of a list as Slurm writes it: ``2(x3),1``.

    Raises:
        UsageError: It is of another form.
    """
    found: list[int] = []
    for part in text.split(","):
        match = _TASKS.fullmatch(part.strip())
        if match is None or not int(match[1]) or not 0 < int(match[2] or 1) <= MOST_HOSTS:
            raise UsageError(f"{where}={text}: {part!r} is no number of tasks such as 2 or 2(x3)")
        found += [int(match[1])] * int(match[2] or 1)
    return found


# --- LSF -------------------------------------------------------------------------------------------


def _lsf(env: Mapping[str, str], read: Callable[[str], str | None]) -> Allocation:
    """Read the variables that LSF sets in a job; those of CSM are not needed.

    Raises:
        UsageError: They are wrong, or there are none.
    """
    name = f"LSF job {env['LSB_JOBID']}"
    if env.get("LSB_MCPU_HOSTS"):
        words = env["LSB_MCPU_HOSTS"].split()
        counts = words[1::2]
        if len(words) % 2 or not all(each.isdecimal() and int(each) for each in counts):
            raise UsageError(f"LSB_MCPU_HOSTS={env['LSB_MCPU_HOSTS']} is not of the form HOST N HOST N ...")
        return _counted(
            name, [host for host, n in zip(words[::2], counts) for _ in range(int(n))], "LSB_MCPU_HOSTS"
        )
    if env.get("LSB_DJOB_HOSTFILE"):
        text = read(env["LSB_DJOB_HOSTFILE"])
        if text is None:
            raise UsageError(f"{name}: LSB_DJOB_HOSTFILE={env['LSB_DJOB_HOSTFILE']} cannot be read")
        return _counted(name, text.split(), f"LSB_DJOB_HOSTFILE={env['LSB_DJOB_HOSTFILE']}")
    if env.get("LSB_HOSTS"):
        return _counted(name, env["LSB_HOSTS"].split(), "LSB_HOSTS")
    raise UsageError(
        f"{name} does not say which hosts it has: none of LSB_MCPU_HOSTS, LSB_DJOB_HOSTFILE and "
        f"LSB_HOSTS is set; name them with --backend {SSH} --hosts, or say --backend {LOCAL}"
    )


def _counted(name: str, words: Sequence[str], source: str) -> Allocation:
    """Count a host for each slot that it has."""
    if not words:
        raise UsageError(f"{name}: {source} names no host")
    hosts = tuple(Slots(host, words.count(host)) for host in dict.fromkeys(words))
    return Allocation(LSF, name, hosts, source)


# --- Kubernetes ------------------------------------------------------------------------------------


def _told_pod(env: Mapping[str, str]) -> str:
    """Return what is wrong where a pod has no workers: nothing has run the job's MPI for it."""
    return (
        f"host {env.get('HOSTNAME', '?')} is a pod of Kubernetes without {OPERATOR_FILE}, written by an "
        "operator that can run this MPI: give the MPI operator an MPIJob, which mpilaunch render makes "
        "(Kubeflow's Trainer cannot run MPICH), or name the hosts with --hosts"
    )


def _operator(env: Mapping[str, str], read: Callable[[str], str | None]) -> list[Allocation]:
    """Read the file with the workers of an MPIJob, if there is one.

    Raises:
        UsageError: A variable names a file that is not there, or one of its lines is wrong.
    """
    variable = next((name for name in OPERATOR_VARIABLES if env.get(name)), "")
    path = env[variable] if variable else OPERATOR_FILE
    text = read(path)
    if text is None and variable:
        raise UsageError(f"{variable}={path}: there is no such file; unset it, or say --backend {LOCAL}")
    if text is None:
        return []
    return [Allocation(SSH, "the MPIJob", tuple(parse_hostfile(text, path)), path)]
