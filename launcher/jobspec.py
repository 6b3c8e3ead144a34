"""What the user asked for, as one frozen record, and everything that is wrong with it.

Pure: what depends on the file system is asked through functions that the caller gives.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvstore_mpi.config import PREFIX, TRANSPORTS
from kvstore_mpi.records import Topology
from kvstore_mpi.tensor_collectives.profile import MEASURE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


OWN_VARIABLES = frozenset(
    PREFIX + name
    for name in (
        "ROLE",
        "INDEX",
        "CLIENT",
        "NUM_CLIENTS",
        "NUM_WORKERS",
        "NUM_SERVERS",
        "JOB_FILE",
        "SCHEDULER",
        "READY_FD",
        "NEWS_FD",
        "SNAPSHOT_DIR",
        "SNAPSHOT_EVERY",
        "RESUME",
        "KEEP_VALUES",
        "INCARNATION",
        "TRANSPORT",
        "SLICE_ELEMENTS",
        "SCHEDULE",
        "WINDOW_BYTES",
        "PLACEMENT",
        "TRACE",
        "RECORD_DIR",
        "TAKE_OVER",
    )
)
"""What the launcher sets for its processes; nothing of it is inherited from outside."""

FORBIDDEN_VARIABLES = frozenset({"DMLC_ROLE"})
"""With it, importing mxnet starts MXNet's own server loop and never returns."""


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
        clients: MPI jobs that meet the servers as one party each.
        servers: Processes that hold shards; 0 is pure MPI.
        workers: Processes over all clients.
        env: What is added to the environment of the ranks.
        timeout: How long the whole job may take; ``None`` means for ever.
        grace: How long ranks may take to save once they have been told to end.
        log_dir: Where the folder with this run's logs is made.
        transport: ``auto``, ``tcp``, ``ipc`` or ``direct``.
        slice_elements: Largest number of elements in one slice; 0 for auto.
        schedule: In which order slices leave: ``p3``, ``slicing`` or ``fifo``.
        window_bytes: Bytes under way to one peer; 0 to find out.
        placement: How keys are spread over servers: ``least_loaded`` or ``round_robin``.
        leaders: Which ranks of a client speak to the servers: ``one`` or ``all``.
        collective: How the ranks of a client sum: ``ring``, ``multiring``, ``shm``, ``mpi``, ``nccl``
            or ``auto``.
        collective_profile: File by which ``auto`` chooses, ``measure``, or nothing.
        take_over: Answer for the names of MXNet's own distributed stores, too.
        trace: Folder for the job's trace, or nothing.
        report: Say at the end where the time of the iterations went.
        start_with: So many clients begin without waiting for the others; 0 for all.
        max_restarts: How often clients and servers that fail are started again, in all.
        snapshot_dir: Folder in which servers save their shards, or nothing.
        snapshot_every: Seconds from one snapshot to the next.
        resume: Go on with the snapshots of an earlier job.
        lease: Silence after which a process counts as dead; ``None`` leaves it to the default.
    """

    target: Target
    command: tuple[str, ...]
    clients: int = 1
    servers: int = 0
    workers: int = 1
    env: tuple[tuple[str, str], ...] = ()
    timeout: float | None = None
    grace: float = 25.0
    log_dir: str = "mpilaunch-logs"
    transport: str = "auto"
    slice_elements: int = 50_000
    schedule: str = "p3"
    window_bytes: int = 0
    placement: str = "least_loaded"
    collective: str = "auto"
    collective_profile: str = ""
    leaders: str = "one"
    take_over: bool = False
    trace: str = ""
    report: bool = False
    start_with: int = 0
    max_restarts: int = 0
    snapshot_dir: str = ""
    snapshot_every: float = 60.0
    resume: bool = False
    lease: float | None = None

    @property
    def topology(self) -> Topology:
        """The shape of the job."""
        return Topology(self.clients, self.workers, self.servers)


def with_threads(spec: JobSpec, cores: int, environment: Mapping[str, str]) -> JobSpec:
    """Let each rank compute with its share of the host's cores, where nobody has said otherwise.

    With as many OpenMP threads as cores in every rank, four ranks on two cores took six to nine times as
    long for the digits example as with one thread each.
    """
    name = "OMP_NUM_THREADS"
    if name in environment or name in dict(spec.env):
        return spec
    return replace(spec, env=((name, str(max(1, cores // spec.workers))), *spec.env))


def parse_env(items: Iterable[str]) -> tuple[tuple[tuple[str, str], ...], list[str]]:
    """Split ``K=V`` texts; return the pairs and what is wrong with the rest."""
    pairs, errors = [], []
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name:
            errors.append(f"--env {item!r} is not of the form K=V")
        elif name in FORBIDDEN_VARIABLES:
            errors.append(f"--env {name} would make mxnet run a server of its own inside your script")
        elif name in OWN_VARIABLES:
            errors.append(f"--env {name} is set by mpilaunch itself; use the option of that name")
        else:
            pairs.append((name, value))
    return tuple(pairs), errors


def validate(
    spec: JobSpec,
    is_file: Callable[[str], bool],
    find_executable: Callable[[str], str | None],
) -> list[str]:
    """Return everything that is wrong with a job, in words that say what to do."""
    errors = [*_shape_errors(spec), *_number_errors(spec), *_command_errors(spec, is_file, find_executable)]
    if spec.collective_profile not in ("", MEASURE) and not is_file(spec.collective_profile):
        errors.append(
            f"--collective-profile {spec.collective_profile}: there is no such file; make one with "
            f"mpiexec -n 2 python -m mpi4py -m kvstore_mpi.calibrate --output FILE, or say {MEASURE}"
        )
    return errors


def _shape_errors(spec: JobSpec) -> list[str]:
    if spec.clients < 1:
        return [f"--clients {spec.clients}: there must be at least one client"]
    lower = spec.workers // spec.clients * spec.clients
    nearest = f"{lower} or {lower + spec.clients}" if lower else f"{spec.clients}"
    checks = [
        (spec.servers >= 0, f"--servers {spec.servers} must not be negative"),
        (
            spec.workers >= 1 and spec.workers % spec.clients == 0,
            (
                f"--workers {spec.workers} cannot be dealt to {spec.clients} clients of equal size: "
                f"give a multiple of {spec.clients}, for example {nearest}"
            ),
        ),
        (
            spec.servers != 0 or spec.clients == 1,
            (
                f"--servers 0 is pure MPI, which has one client and not {spec.clients}: "
                "give --servers 1 or more, or --clients 1"
            ),
        ),
    ]
    return [text for holds, text in checks if not holds]


def _number_errors(spec: JobSpec) -> list[str]:
    checks = [
        (spec.timeout is None or spec.timeout > 0, f"--timeout {spec.timeout} must be more than 0 seconds"),
        (spec.grace >= 0, f"--grace {spec.grace} must not be negative"),
        (spec.slice_elements >= 0, f"--slice-elements {spec.slice_elements} must be at least 1, or auto"),
        (spec.window_bytes >= 0, f"--window-bytes {spec.window_bytes} must not be negative"),
        (spec.snapshot_every > 0, f"--snapshot-every {spec.snapshot_every} must be more than 0 seconds"),
        (
            not spec.snapshot_dir or spec.servers > 0,
            "--snapshot-dir is for servers, which pure MPI does not have: save in the script, from rank 0",
        ),
        (not spec.resume or bool(spec.snapshot_dir), "--resume needs --snapshot-dir, where snapshots are"),
        (
            0 <= spec.start_with <= spec.clients,
            f"--start-with {spec.start_with} must be between 1 and --clients {spec.clients}",
        ),
        (spec.max_restarts >= 0, f"--max-restarts {spec.max_restarts} must not be negative"),
        (
            not spec.max_restarts or spec.leaders == "one",
            "--max-restarts needs --leaders one: the ranks of a client must agree on what was lost",
        ),
        (
            spec.lease is None or spec.lease >= 1,
            f"--lease {spec.lease} must be at least 1 second: it may just be busy",
        ),
        (spec.transport in TRANSPORTS, f"--transport must be one of {', '.join(TRANSPORTS)}"),
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
    if spec.target is Target.SCRIPT and not is_file(name):
        return [f"the script {name!r} does not exist; is the path right?"]
    if spec.target is Target.EXECUTABLE and find_executable(name) is None:
        return [f"the executable {name!r} does not exist, is not on PATH or may not be executed"]
    return []
