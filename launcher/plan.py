"""From a job to the list of its processes: name, argv and environment of each; and that list as text.

Pure. What is known only once the job runs (addresses, descriptors) is not in the plan.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mpilaunch.jobspec import FORBIDDEN_VARIABLES, OWN_VARIABLES, Target

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpilaunch.jobspec import JobSpec
    from mpilaunch.mpi import Mpi

SERVICE_COMMAND = (sys.executable, "-m", "kvstore_mpi")
WRAPPER = (sys.executable, "-m", "mpilaunch.rank.rank_main")
BECOME = (sys.executable, "-m", "mpilaunch.rank.exec_rank")

Environment = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Process:
    """One process that the launcher starts; ``env`` is what is added to the inherited environment."""

    name: str
    argv: tuple[str, ...]
    env: Environment


@dataclass(frozen=True)
class Paths:
    """Where the job's private files are (see ``run_dir``), and its trace if it is to have one."""

    job_file: str
    record_dir: str
    trace_dir: str = ""


@dataclass(frozen=True)
class Plan:
    """Every process of a job, in the order of their start.

    Attributes:
        scheduler: The first to start, unless the job is pure MPI.
        servers: Started once the scheduler listens.
        clients: One ``mpiexec`` each.
        client_size: Ranks in each client.
        wrapped: The ranks run a Python script or module under our wrapper and leave records.
        max_restarts: How often clients and servers that fail are started again, in all.
    """

    scheduler: Process | None
    servers: tuple[Process, ...]
    clients: tuple[Process, ...]
    client_size: int
    wrapped: bool
    max_restarts: int = 0

    @property
    def processes(self) -> tuple[Process, ...]:
        """All of them."""
        return (*((self.scheduler,) if self.scheduler else ()), *self.servers, *self.clients)


def make_plan(
    spec: JobSpec,
    mpi: Mpi,
    paths: Paths,
    service_command: tuple[str, ...] = SERVICE_COMMAND,
) -> Plan:
    """Lay out a job. ``service_command`` starts the scheduler and the servers."""
    shared = _shared_env(spec, paths)
    unbuffered = ("PYTHONUNBUFFERED", "1")
    servers = tuple(
        Process(
            f"server{index}",
            service_command,
            (("KVMPI_ROLE", "server"), ("KVMPI_INDEX", str(index)), *shared, unbuffered),
        )
        for index in range(spec.servers)
    )
    scheduler = Process("scheduler", service_command, (("KVMPI_ROLE", "scheduler"), *shared, unbuffered))
    return Plan(
        scheduler=scheduler if spec.servers else None,
        servers=servers,
        clients=tuple(_client(spec, mpi, paths, shared, index) for index in range(spec.clients)),
        client_size=spec.topology.client_size,
        wrapped=spec.target is not Target.EXECUTABLE,
        max_restarts=spec.max_restarts,
    )


def _shared_env(spec: JobSpec, paths: Paths) -> Environment:
    """Return what every process of the job is told."""
    return (
        ("KVMPI_NUM_CLIENTS", str(spec.clients)),
        ("KVMPI_NUM_WORKERS", str(spec.workers)),
        ("KVMPI_NUM_SERVERS", str(spec.servers)),
        *((("KVMPI_JOB_FILE", paths.job_file),) if spec.servers else ()),
        ("KVMPI_TRANSPORT", spec.transport),
        ("KVMPI_SLICE_ELEMENTS", str(spec.slice_elements)),
        ("KVMPI_SCHEDULE", spec.schedule),
        ("KVMPI_WINDOW_BYTES", str(spec.window_bytes)),
        ("KVMPI_PLACEMENT", spec.placement),
        ("KVMPI_COLLECTIVE", spec.collective),
        *((("KVMPI_COLLECTIVE_PROFILE", spec.collective_profile),) if spec.collective_profile else ()),
        ("KVMPI_LEADERS", spec.leaders),
        *((("KVMPI_TRACE", paths.trace_dir),) if paths.trace_dir else ()),
        *((("KVMPI_START_WITH", str(spec.start_with)),) if spec.start_with else ()),
        *_lease(spec),
        *_snapshots(spec),
    )


def _snapshots(spec: JobSpec) -> Environment:
    if not spec.snapshot_dir:
        return (("KVMPI_KEEP_VALUES", "1"),) if spec.max_restarts and spec.servers else ()
    return (
        ("KVMPI_SNAPSHOT_DIR", spec.snapshot_dir),
        ("KVMPI_SNAPSHOT_EVERY", f"{spec.snapshot_every:g}"),
        *((("KVMPI_RESUME", "1"),) if spec.resume else ()),
    )


def _lease(spec: JobSpec) -> Environment:
    if spec.lease is None:
        return ()
    heartbeat = min(1.0, spec.lease / 5)
    return (("KVMPI_PEER_TIMEOUT", f"{spec.lease:g}"), ("KVMPI_HEARTBEAT", f"{heartbeat:g}"))


def relaunched(process: Process, incarnation: int) -> Process:
    """Return a process as it is started again for the ``incarnation``-th time."""
    if not incarnation:
        return process
    return replace(process, env=(*process.env, ("KVMPI_INCARNATION", str(incarnation))))


def _client(spec: JobSpec, mpi: Mpi, paths: Paths, shared: Environment, index: int) -> Process:
    size = spec.topology.client_size
    return Process(
        f"client{index}",
        (mpi.mpiexec, *mpi.flavour.options, "-n", str(size), *_rank_command(spec)),
        (
            ("KVMPI_ROLE", "worker"),
            ("KVMPI_CLIENT", str(index)),
            *shared,
            ("KVMPI_RECORD_DIR", paths.record_dir),
            *((("KVMPI_TAKE_OVER", "1"),) if spec.take_over else ()),
            *mpi.flavour.env,
            *((name, paths.record_dir) for name in mpi.flavour.folder_variables),
            *spec.env,
        ),
    )


def _rank_command(spec: JobSpec) -> tuple[str, ...]:
    if spec.target is Target.EXECUTABLE:
        return (*BECOME, *spec.command)
    if spec.target is Target.MODULE:
        return (*WRAPPER, "-m", *spec.command)
    return (*WRAPPER, *spec.command)


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a job's processes inherit: everything but what another job left there."""
    dropped = OWN_VARIABLES | FORBIDDEN_VARIABLES
    return {name: value for name, value in environment.items() if name not in dropped}


def render(plan: Plan) -> str:
    """Return the plan as people read it: each process as the shell would be told to start it."""
    late = "KVMPI_SCHEDULER='(the scheduler says)'"
    blocks = []
    for process in plan.processes:
        env = [f"{name}={shlex.quote(value)}" for name, value in process.env]
        if process is plan.scheduler:
            env.append("KVMPI_READY_FD='(a pipe)'")
            env += ["KVMPI_NEWS_FD='(a pipe)'"] if plan.max_restarts else []
        elif plan.scheduler:
            env.append(late)
        lines = [f"{process.name}:", *(f"    {text} \\" for text in env), f"    {shlex.join(process.argv)}"]
        blocks.append("\n".join(lines))
    if plan.max_restarts:
        blocks.append(f"of clients and servers that fail, at most {plan.max_restarts} are started again")
    return "\n\n".join(blocks) + "\n"
