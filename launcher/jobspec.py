"""What the user asked for, as one frozen record, and everything that is wrong with it.

Pure: what depends on the file system is asked through functions that the caller gives.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kvstore_mpi.comm import waits
from kvstore_mpi.config import NodeConfig
from kvstore_mpi.settings import limit_errors, option
from kvstore_mpi.tensor_collectives.profile import MEASURE
from mpilaunch.command_table import COMMANDS
from mpilaunch.hosts.allocation import AUTO, BACKENDS
from mpilaunch.hosts.hostlist import FIRST, SPREAD
from mpilaunch.meant import meant

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvstore_mpi.records import Topology
    from kvstore_mpi.settings import Spell


_PYTHON = re.compile(r"(.*/)?python[0-9.]*")
_WORD = re.compile("[A-Za-z-]+")


class Target(enum.Enum):
    """What the ranks run."""

    SCRIPT = "script"
    MODULE = "module"
    EXECUTABLE = "executable"


@dataclass(frozen=True)
class JobSpec:
    """One job. Times are in seconds.

    Attributes:
        target: What ``command`` starts with.
        command: Script, module or executable, then its arguments.
        node: What all processes of the job are told.
        env: What is added to the environment of the ranks.
        planned_ranks: Most ranks on a host of the cluster that the job was planned for; 0: not known.
    """

    target: Target
    command: tuple[str, ...]
    node: NodeConfig = field(default_factory=lambda: NodeConfig(num_workers=1))
    env: tuple[tuple[str, str], ...] = ()
    planned_ranks: int = 0
    backend: str = field(
        default=AUTO,
        metadata=option(
            "how hosts are reached; auto: as an allocation says, if there is one", choices=BACKENDS
        ),
    )
    hosts: str = field(
        default="", metadata=option("run on these hosts: NAME:N,... with N ranks at most on each", "LIST")
    )
    hostfile: str = field(default="", metadata=option("the same, a host in each line", "FILE"))
    server_hosts: str = field(
        default=SPREAD,
        metadata=option("hosts of the servers: spread over all, first, or names with commas", "LIST"),
    )
    network: str = field(
        default="",
        metadata=option(
            "network between the hosts: name of an interface, or ADDRESS/BITS", "NAME", flag="--interface"
        ),
    )
    ssh: str = field(default="ssh", metadata=option("command that reaches other hosts", "COMMAND"))
    secret_file: str = field(
        default="",
        metadata=option("take the job's secret from FILE, which others cannot read, and make none", "FILE"),
    )
    timeout: float | None = field(
        default=None, metadata=option("end the job after S seconds (default: never)", "S", above=0)
    )
    grace: float = field(default=25.0, metadata=option("seconds for ranks to save", "S", least=0))
    max_restarts: int = field(
        default=0,
        metadata=option("start clients and servers that fail again, at most K times in all", "K", least=0),
    )
    join_warning: float = field(
        default=60.0, metadata=option("seconds after which workers without a store are named", "S", above=0)
    )
    plan: str = field(
        default="",
        metadata=option("lay the job out as planned: a file that mpilaunch plan has written", "FILE"),
    )
    log_dir: str = field(default="mpilaunch-logs", metadata=option("one folder per run", "DIR"))
    trace: str = field(default="", metadata=option("write DIR/trace.json, which Perfetto opens", "DIR"))
    report: bool = field(
        default=False, metadata=option("say at the end where the time of the iterations went")
    )
    metrics: str = field(
        default="",
        metadata=option(
            "Prometheus endpoint of the job; 0 chooses a port, and the address is 127.0.0.1 if not given",
            "[ADDRESS:]PORT",
        ),
    )

    @property
    def topology(self) -> Topology:
        """The shape of the job."""
        return self.node.topology(1)

    @property
    def client_ranks(self) -> int:
        """MPI ranks of each client."""
        return self.topology.client_size * self.node.model_parallel


_OWN_FILES = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""Where the same name is another file in each process; in a rank it would be an empty one."""


def with_threads(spec: JobSpec, cores: int, environment: Mapping[str, str]) -> JobSpec:
    """Let each rank compute with its share of the host's cores, where nobody has said otherwise.

    With as many OpenMP threads as cores in every rank, four ranks on two cores took six to nine times as
    long for the digits example as with one thread each.
    """
    threads = str(max(1, cores // (spec.node.num_workers * spec.node.model_parallel)))
    return with_defaults(spec, (("OMP_NUM_THREADS", threads),), environment)


def with_sleeping_waits(spec: JobSpec, environment: Mapping[str, str]) -> JobSpec:
    """Let ranks of one worker sleep while they wait for each other, as they do for most of a bubble.

    MPICH polls otherwise, and takes the core from ranks that have something to compute.
    """
    if spec.node.model_parallel == 1:
        return spec
    return with_defaults(spec, ((waits.VARIABLE, "1"),), environment)


def with_defaults(
    spec: JobSpec, defaults: Sequence[tuple[str, str]], environment: Mapping[str, str]
) -> JobSpec:
    """Add to the environment of the ranks what the user has set neither there nor in his own."""
    known = {*environment, *dict(spec.env)}
    return replace(spec, env=(*(pair for pair in defaults if pair[0] not in known), *spec.env))


def validate(
    spec: JobSpec,
    spell: Spell,
    is_file: Callable[[str], bool],
    find_executable: Callable[[str], str | None],
) -> list[str]:
    """Return everything that is wrong with a job, in words that say what to do.

    Args:
        spec: The job.
        spell: Writes the name of a field as the user does.
        is_file: Tells whether a file exists.
        find_executable: Finds a program on PATH.
    """
    errors = [
        *spec.node.validate(spell),
        *limit_errors(spec, spell),
        *_job_errors(spec, spell),
        *_command_errors(spec, is_file, find_executable),
    ]
    profile = spec.node.collective_profile
    if profile not in ("", MEASURE) and not is_file(profile):
        errors.append(
            f"{spell('collective_profile')} {profile}: there is no such file; make one with "
            f"mpiexec -n 2 python -m mpi4py -m kvstore_mpi.calibrate --output FILE, or say {MEASURE}"
        )
    return errors


def alone_errors(spec: JobSpec, spell: Spell) -> list[str]:
    """Return what is said of hosts in a job that runs on this one alone."""
    said = {"network": bool(spec.network), "server_hosts": spec.server_hosts not in (SPREAD, FIRST)}
    return [
        f"{spell(name)} {getattr(spec, name)} is for a job on several hosts, and this one runs here: say "
        f"which with {spell('hosts')} or {spell('hostfile')}, or leave it out"
        for name, is_said in said.items()
        if is_said
    ]


_ABOUT_SERVERS = ("leaders", "lookups", "peer_timeout")


def idle_options(spec: JobSpec, spell: Spell) -> list[str]:
    """Return a line for each option that has no effect in this job, or less than one may think."""
    node = spec.node
    if node.num_servers:
        is_idle = node.dense == "workers" and node.num_clients > 1
        why = f"only servers know the sum over {node.num_clients} clients"
        return [f"{spell('dense')} workers has no effect: {why}"] if is_idle else []
    idle = {name: getattr(node, name) for name in _ABOUT_SERVERS}
    said = {name: value for name, value in idle.items() if value != getattr(NodeConfig, name)}
    if spec.server_hosts != SPREAD:
        said["server_hosts"] = spec.server_hosts
    lines = [
        f"{spell(name)} {value} has no effect: this job has no servers" for name, value in said.items()
    ]
    if node.encrypt:
        what = "by which all gradients and weights of this job travel: it has no servers"
        lines.append(f"{spell('encrypt')} does not cover MPI, {what}")
    return lines


def _job_errors(spec: JobSpec, spell: Spell) -> list[str]:
    """Return what fits one process and does not fit a job."""
    node = spec.node
    checks = [
        (node.num_workers != 0, f"{spell('num_workers')} must be at least 1, not 0"),
        (
            not node.snapshot_dir or node.num_servers > 0,
            (
                f"{spell('snapshot_dir')} is for servers, which pure MPI does not have: "
                "save in the script, from rank 0"
            ),
        ),
        (
            bool(node.snapshot_dir) or node.snapshot_every == NodeConfig.snapshot_every,
            f"{spell('snapshot_every')} {node.snapshot_every} needs {spell('snapshot_dir')}, for snapshots",
        ),
        (
            not spec.max_restarts or node.leaders != "all",
            (
                f"{spell('max_restarts')} does not go with {spell('leaders')} all: "
                "the ranks of a client must agree on what was lost"
            ),
        ),
        (
            not spec.max_restarts or node.model_parallel == 1,
            (
                f"{spell('max_restarts')} does not go with {spell('model_parallel')} "
                f"{node.model_parallel}: the owners of each part of the model would go on from another step"
            ),
        ),
        (
            node.peer_timeout >= 1,
            f"{spell('peer_timeout')} must be at least 1, not {node.peer_timeout}: it may just be busy",
        ),
    ]
    return [text for holds, text in checks if not holds]


def _command_errors(
    spec: JobSpec,
    is_file: Callable[[str], bool],
    find_executable: Callable[[str], str | None],
) -> list[str]:
    if not spec.command:
        return ["there is nothing to run: give a script, -m MODULE, or an executable after --"]
    name = spec.command[0]
    if spec.target is Target.SCRIPT and name.startswith(_OWN_FILES):
        return [f"the script {name!r} is mpilaunch's own, and ranks cannot read it: save it as a file"]
    if spec.target is Target.SCRIPT and _PYTHON.fullmatch(name):
        return [f"leave out {name!r}: a script is run by the Python of mpilaunch"]
    if spec.target is Target.SCRIPT and not is_file(name) and not is_file(f"{name}/__main__.py"):
        told = f"the script {name!r} does not exist, or is a folder without __main__.py; is the path right?"
        return [told + _command_hint(name)]
    if spec.target is Target.EXECUTABLE and find_executable(name) is None:
        return [f"the executable {name!r} does not exist, is not on PATH or may not be executed"]
    return []


def _command_hint(name: str) -> str:
    """Return which commands there are, where a word may have been meant as one."""
    if not _WORD.fullmatch(name):
        return ""
    hint = meant(name, COMMANDS)
    return (
        f" Commands, which stand first, are {', '.join(COMMANDS)}; {hint or 'mpilaunch --help tells more'}"
    )
