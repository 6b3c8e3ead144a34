"""The configuration of one process, read once from the environment that the launcher sets.

``NodeConfig.from_mapping`` is the only reader of ``KVMPI_*``; everything else is given a ``NodeConfig``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from kvstore_mpi.errors import ConfigurationError
from kvstore_mpi.p3.schedule import Schedule
from kvstore_mpi.records import Role, Topology
from kvstore_mpi.tensor_collectives.choice import Algorithm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PREFIX = "KVMPI_"
TRANSPORTS = ("auto", "tcp", "ipc", "direct")

SHARING_TRANSPORTS = frozenset({"auto", "direct"})
"""Those with which processes of one host share exchange buffers."""

SCHEDULES = tuple(schedule.value for schedule in Schedule)
PLACEMENTS = ("least_loaded", "round_robin")
LEADERS = ("one", "all")
COLLECTIVES = tuple(algorithm.value for algorithm in Algorithm)
AUTO = 0
"""Value of ``slice_elements`` and ``window_bytes`` that leaves them to what is measured."""

AUTO_SLICE_ELEMENTS = 12_500
"""With ``slice_elements`` auto: the pieces out of which messages are made up, as large as the window allows
(``p3/send_queue.py``). A quarter of the paper's optimum, so that it can go below it as well as above."""


@dataclass(frozen=True)
class NodeConfig:
    """What a process of a job needs to know before it can meet the others.

    Each field ``name`` is read from ``KVMPI_NAME``. Times are in seconds.

    Attributes:
        role: What this process does.
        index: Of a server, its number; of a worker nothing (its rank comes from MPI).
        client: Of a worker, the client that it belongs to.
        num_clients: Clients in the job.
        num_workers: Workers in the job; 0 means as many as this client's MPI has ranks (which is
            how a script runs without the launcher).
        num_servers: Servers in the job; 0 is pure MPI.
        scheduler: Comma-separated addresses of the scheduler; unused without servers.
        job_file: Path of the 0600 file with the job's secret; unused without servers.
        snapshot_dir: Folder in which servers save their shards; empty for no snapshots.
        snapshot_every: Seconds from one snapshot to the next.
        keep_values: Workers keep copies of asynchronous stores' weights, for servers that lose theirs.
        resume: Servers begin with the snapshots of an earlier job.
        start_with: Clients, client 0 among them, that begin without waiting for the others; 0 for all.
        incarnation: How often this process has been restarted.
        news_fd: File descriptor on which the launcher tells a scheduler who has died, or -1.
        ready_fd: File descriptor on which a scheduler or server reports its addresses, or -1.
        interface: IP address to listen on.
        transport: ``auto`` takes shared memory and ipc within a host and ZeroMQ over tcp between hosts,
            ``direct`` the same within and TCP sockets without ZeroMQ between; ``ipc`` and ``tcp`` use
            nothing but that.
        slice_elements: Largest number of elements in one slice (P3 section 5.6: optimum 50,000); ``AUTO``
            lets the size follow from what is measured.
        schedule: In which order slices leave (``p3.schedule.Schedule``): ``p3``, ``slicing`` or ``fifo``.
        window_bytes: Bytes under way to one peer; ``AUTO`` lets each window find its size.
        placement: How keys are spread over servers: ``least_loaded`` bytes, or ``round_robin`` as in P3.
        collective: How the ranks of a client reduce (``tensor_collectives.choice.Algorithm``): ``ring``,
            ``multiring``, ``shm``, ``mpi``, ``nccl`` or ``auto``.
        collective_profile: File with what this machine takes for them (``kvstore_mpi.calibrate``), by which
            ``auto`` chooses; empty for the built-in one, ``measure`` to find out at the start. Rank 0 of
            each client reads it for all.
        leaders: Which ranks of a client push: ``one``, or ``all``, each its own slices.
        connect_timeout: How long a process waits for the others at the start.
        step_timeout: How long an operation may take before it is an error.
        warn_after: How long an operation may take before the log says what it waits for.
        heartbeat: Interval of the sign of life to the scheduler.
        peer_timeout: Silence after which a peer counts as dead; at least twice ``heartbeat``. One call of
            C code can hold the interpreter for seconds (docs/adr/0002), and the launcher notices a process
            that has died at once.
        finish_timeout: How long a finishing worker waits for the rest of its client.
        trace: Folder in which the processes of the job leave what they have recorded; empty for no trace.
    """

    role: Role = Role.WORKER
    index: int = 0
    client: int = 0
    num_clients: int = 1
    num_workers: int = 0
    num_servers: int = 0
    scheduler: str = ""
    job_file: str = ""
    snapshot_dir: str = ""
    snapshot_every: float = 60.0
    resume: bool = False
    keep_values: bool = False
    start_with: int = 0
    incarnation: int = 0
    news_fd: int = -1
    ready_fd: int = -1
    interface: str = "127.0.0.1"
    transport: str = "auto"
    slice_elements: int = 50_000
    schedule: str = "p3"
    window_bytes: int = AUTO
    placement: str = "least_loaded"
    collective: str = "auto"
    collective_profile: str = ""
    leaders: str = "one"
    connect_timeout: float = 60.0
    step_timeout: float = 600.0
    warn_after: float = 10.0
    heartbeat: float = 1.0
    peer_timeout: float = 30.0
    finish_timeout: float = 600.0
    trace: str = ""

    @classmethod
    def from_mapping(cls, environment: Mapping[str, str]) -> NodeConfig:
        """Read ``KVMPI_*`` from an environment.

        Raises:
            ConfigurationError: Values are malformed or do not fit together; all are listed.
        """
        values: dict[str, Any] = {}
        errors = []
        for field in fields(cls):
            text = environment.get(PREFIX + field.name.upper())
            if text is None:
                continue
            try:
                values[field.name] = _PARSERS[str(field.type)](text)
            except (ValueError, KeyError):
                errors.append(f"{PREFIX}{field.name.upper()}={text!r} is not a valid {field.type}")
        config = cls(**values)
        errors += config.validate()
        if errors:
            msg = "the environment of this process cannot work: " + "; ".join(errors)
            raise ConfigurationError(msg)
        return config

    def validate(self) -> list[str]:
        """Return every error, in words."""
        checks = [
            (self.num_clients >= 1, "num_clients must be at least 1"),
            (self.num_servers >= 0, "num_servers must not be negative"),
            (
                self.num_servers > 0 or self.num_clients == 1,
                f"num_servers=0 is pure MPI and needs one client, not {self.num_clients}",
            ),
            (
                self.num_workers == 0 or self.num_workers % self.num_clients == 0,
                f"num_workers={self.num_workers} is not a multiple of num_clients={self.num_clients}",
            ),
            (
                self.num_servers == 0 or self.role is Role.SCHEDULER or bool(self.scheduler),
                "scheduler must be set when there are servers",
            ),
            (self.num_servers == 0 or bool(self.job_file), "job_file must be set when there are servers"),
            (
                self.transport in TRANSPORTS,
                f"transport must be one of {', '.join(TRANSPORTS)}, not {self.transport!r}",
            ),
            (self.slice_elements >= AUTO, "slice_elements must be at least 1, or 0 for auto"),
            (
                self.schedule in SCHEDULES,
                f"schedule must be one of {', '.join(SCHEDULES)}, not {self.schedule!r}",
            ),
            (self.window_bytes >= 0, "window_bytes must not be negative"),
            (
                self.placement in PLACEMENTS,
                f"placement must be one of {', '.join(PLACEMENTS)}, not {self.placement!r}",
            ),
            (
                self.collective in COLLECTIVES,
                f"collective must be one of {', '.join(COLLECTIVES)}, not {self.collective!r}",
            ),
            (
                self.collective != Algorithm.SHM.value or self.transport in SHARING_TRANSPORTS,
                f"collective shm needs the shared memory of transport auto or direct, not {self.transport}",
            ),
            (self.leaders in LEADERS, f"leaders must be one of {', '.join(LEADERS)}, not {self.leaders!r}"),
            (
                0 <= self.start_with <= self.num_clients,
                f"start_with={self.start_with} must be between 1 and num_clients={self.num_clients}",
            ),
            (self.snapshot_every > 0, "snapshot_every must be more than 0 seconds"),
            (not self.resume or bool(self.snapshot_dir), "resume needs snapshot_dir"),
            (self.peer_timeout >= 2 * self.heartbeat, "peer_timeout must be at least twice heartbeat"),
        ]
        return [text for holds, text in checks if not holds]

    @property
    def unit_elements(self) -> int:
        """Elements of the pieces in which keys are summed and updated: slices, or less with auto."""
        return AUTO_SLICE_ELEMENTS if self.slice_elements == AUTO else self.slice_elements

    def topology(self, client_size: int) -> Topology:
        """Return the job's shape, given how many ranks this client's MPI says that it has."""
        workers = self.num_workers or client_size * self.num_clients
        return Topology(self.num_clients, workers, self.num_servers)


def _bool(text: str) -> bool:
    return {"1": True, "0": False}[text]


_PARSERS: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "str": str,
    "Role": Role,
    "bool": _bool,
}
