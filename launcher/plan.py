"""From a job to the list of its processes: name, argv and environment of each; and that list as text.

Pure. What is known only once the job runs (addresses, descriptors) is not in the plan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from kvstore_mpi.config import PREFIX, NodeConfig, variable_of
from kvstore_mpi.errors import UsageError
from kvstore_mpi.records import Role
from mpilaunch.events import Shape
from mpilaunch.jobspec import Target
from mpilaunch.mpi import PYTHON
from mpilaunch.options import FORBIDDEN_VARIABLES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpilaunch.hosts.hostlist import Placement
    from mpilaunch.hosts.reach import Reach
    from mpilaunch.jobspec import JobSpec
    from mpilaunch.mpi import Mpi

SERVICE_COMMAND = (*PYTHON, "-m", "kvstore_mpi")
WRAPPER = (*PYTHON, "-m", "mpilaunch.rank.rank_main")
BECOME = (*PYTHON, "-m", "mpilaunch.rank.exec_rank")

SHIELD = ("env", "--ignore-signal=TERM")
"""Ranks are to save before servers end."""

JOB_FILE = "job.json"
RECORDS = "records"
READY_PIPE = "ready"
NEWS_PIPE = "news"
"""Files of the private directory."""

Environment = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Process:
    """One process that the launcher starts.

    Attributes:
        name: What logs and messages call it.
        argv: Its command.
        env: What is added to the inherited environment.
        host: Where it is, as the user calls that host; nothing for the launcher's own.
    """

    name: str
    argv: tuple[str, ...]
    env: Environment
    host: str = ""


@dataclass(frozen=True)
class Paths:
    """Where the job's private files are, and its trace if it is to have one.

    Attributes:
        private: The private directory on the host of the job.
        trace_dir: For what the processes record.
    """

    private: str
    trace_dir: str = ""

    @property
    def job_file(self) -> str:
        """The file with the job's secret."""
        return f"{self.private}/{JOB_FILE}"

    @property
    def record_dir(self) -> str:
        """Where the ranks report."""
        return f"{self.private}/{RECORDS}"


class Sites(NamedTuple):
    """Where the processes of a job on several hosts are.

    Attributes:
        placement: The host of each.
        addresses: The address of each host on the network of the job.
        here: The launcher's own on that network.
        reach: How they are reached.
        script: The program that mpiexec reaches hosts by, if it does.
        cores: Of each host, where that is known.
        own: Names of the launcher's host, which MPI may not know it by.
        inherited: Names of the variables that all processes inherit.
    """

    placement: Placement
    addresses: dict[str, str]
    here: str
    reach: Reach
    script: str
    cores: Mapping[str, int]
    own: frozenset[str] = frozenset()
    inherited: frozenset[str] = frozenset()


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
        rank_hosts: The host of each rank, for each client; nothing where all are on the launcher's.
        shielded: Servers and scheduler ignore SIGTERM, which a workload manager sends to all processes.
    """

    scheduler: Process | None
    servers: tuple[Process, ...]
    clients: tuple[Process, ...]
    client_size: int
    wrapped: bool
    max_restarts: int = 0
    rank_hosts: tuple[tuple[str, ...], ...] = ()
    shielded: bool = False

    def host_of_rank(self, client: int, rank: int) -> str:
        """Return where a rank is, as ``Process.host``."""
        return self.rank_hosts[client][rank] if self.rank_hosts else ""

    @property
    def processes(self) -> tuple[Process, ...]:
        """All of them."""
        return (*((self.scheduler,) if self.scheduler else ()), *self.servers, *self.clients)


def make_plan(
    spec: JobSpec,
    mpi: Mpi,
    paths: Paths,
    service_command: tuple[str, ...] = SERVICE_COMMAND,
    sites: Sites | None = None,
) -> Plan:
    """Lay out a job.

    Args:
        spec: What the user asked for.
        mpi: Starts the ranks.
        paths: Of private files.
        service_command: Starts the scheduler and the servers.
        sites: Where the processes are, if not all on this host.

    Raises:
        UsageError: They could not reach each other.
    """
    if sites is not None:
        _check_transport(spec.node, sites.addresses)
    shared = _shared(spec, paths)
    shielded = sites is not None and sites.reach.shielded
    if shielded:
        service_command = (*SHIELD, *service_command)

    def service(name: str, node: NodeConfig, host: str) -> Process:
        if sites is not None:
            node = replace(node, interface=sites.addresses[host])
        node = replace(node, record_dir=paths.record_dir)
        env = (*node.to_mapping().items(), ("PYTHONUNBUFFERED", "1"))
        return Process(name, service_command, env, host)

    servers = tuple(
        service(
            f"server{index}",
            replace(shared, role=Role.SERVER, index=index),
            sites.placement.servers[index] if sites else "",
        )
        for index in range(shared.num_servers)
    )
    scheduler = _scheduler(spec, paths, shared)
    return Plan(
        scheduler=service("scheduler", scheduler, sites.placement.hosts[0] if sites else "")
        if servers
        else None,
        servers=servers,
        clients=tuple(
            _client(spec, mpi, paths, replace(shared, client=index), sites=sites)
            for index in range(shared.num_clients)
        ),
        client_size=spec.client_ranks,
        wrapped=spec.target is not Target.EXECUTABLE,
        max_restarts=spec.max_restarts,
        rank_hosts=sites.placement.ranks if sites else (),
        shielded=shielded,
    )


def _check_transport(node: NodeConfig, addresses: Mapping[str, str]) -> None:
    """Raise where processes of several hosts are to use sockets of one host."""
    # By address: one host may have several names.
    hosts = list({address: host for host, address in addresses.items()}.values())
    if node.num_servers and node.transport == "ipc" and len(hosts) > 1:
        raise UsageError(
            f"--transport ipc is for processes of one host, and this job has {' and '.join(hosts)}: give "
            "--transport auto, which takes it within each of them, or tcp"
        )


def _shared(spec: JobSpec, paths: Paths) -> NodeConfig:
    """Return what every process of the job is told."""
    node = spec.node
    return replace(
        node,
        job_file=paths.job_file if node.num_servers else "",
        trace=paths.trace_dir,
        heartbeat=min(node.heartbeat, node.peer_timeout / 5),  # several signs of life in a lease
        keep_values=bool(spec.max_restarts and node.num_servers),
    )


def _scheduler(spec: JobSpec, paths: Paths, shared: NodeConfig) -> NodeConfig:
    """Return what the scheduler is told: where it says that it is ready, and hears of restarts."""
    news = f"{paths.private}/{NEWS_PIPE}" if spec.max_restarts else ""
    return replace(shared, role=Role.SCHEDULER, ready_pipe=f"{paths.private}/{READY_PIPE}", news_pipe=news)


def relaunched(process: Process, incarnation: int) -> Process:
    """Return a process as it is started again for the ``incarnation``-th time."""
    if not incarnation:
        return process
    return replace(process, env=(*process.env, (variable_of("incarnation"), str(incarnation))))


def _client(spec: JobSpec, mpi: Mpi, paths: Paths, shared: NodeConfig, *, sites: Sites | None) -> Process:
    index = shared.client
    node = replace(shared, role=Role.WORKER, record_dir=paths.record_dir)
    env = (
        *node.to_mapping().items(),
        *mpi.flavour.env,
        *((name, paths.record_dir) for name in mpi.flavour.folder_variables),
        *spec.env,
    )
    if sites is None:
        starter: tuple[str, ...] = (mpi.mpiexec, *mpi.flavour.options, "-n", str(spec.client_ranks))
    else:
        hosts = ["localhost" if name in sites.own else name for name in sites.placement.ranks[index]]
        variables = {*sites.inherited, *dict(env), *_told_at_start(spec)}
        starter = sites.reach.ranks(mpi, hosts, sites.script, sites.here, variables)
    return Process(f"client{index}", (*starter, *_rank_command(spec)), env)


def _told_at_start(spec: JobSpec) -> list[str]:
    """Return the names of the variables that ranks are given beyond the plan's."""
    scheduler = ["scheduler"] if spec.node.num_servers else []
    return [variable_of(name) for name in (*scheduler, *(["incarnation"] if spec.max_restarts else []))]


def _rank_command(spec: JobSpec) -> tuple[str, ...]:
    if spec.target is Target.EXECUTABLE:
        return (*BECOME, *spec.command)
    if spec.target is Target.MODULE:
        return (*WRAPPER, "-m", *spec.command)
    return (*WRAPPER, *spec.command)


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a job's processes inherit: everything but our own variables, which the plan sets."""
    return {
        name: value
        for name, value in environment.items()
        if name not in FORBIDDEN_VARIABLES and not name.startswith(PREFIX)
    }


def shape_of(plan: Plan, host: str) -> Shape:
    """Return what the policy must know of a plan; ``host`` is the launcher's."""
    return Shape(
        scheduler=plan.scheduler is not None,
        servers=tuple(server.name for server in plan.servers),
        clients=tuple(client.name for client in plan.clients),
        client_size=plan.client_size,
        wrapped=plan.wrapped,
        host=host,
        rank_hosts=plan.rank_hosts,
    )
