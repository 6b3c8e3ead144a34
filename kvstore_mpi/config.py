"""The configuration of one process, read once from the environment that the launcher sets.

``NodeConfig.from_mapping`` is the only reader of ``KVMPI_*``; everything else is given a ``NodeConfig``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from kvstore_mpi.errors import ConfigurationError, UsageError
from kvstore_mpi.hybrid.routes import Route, parse_force
from kvstore_mpi.p3.schedule import Schedule
from kvstore_mpi.p3.slicing import SLICE_ELEMENTS
from kvstore_mpi.records import Role, Topology
from kvstore_mpi.settings import AUTO, internal, knob, limit_errors, option, read_value, write_value
from kvstore_mpi.tensor_collectives.choice import Algorithm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvstore_mpi.settings import Spell

PREFIX = "KVMPI_"
TRANSPORTS = ("auto", "tcp", "ipc")

SCHEDULES = tuple(schedule.value for schedule in Schedule)
PLACEMENTS = ("least_loaded", "round_robin")
LEADERS = ("auto", "one", "all")
DENSE_BY = ("auto", "workers", "servers")
LOOKUPS = ("each", "together")
COLLECTIVES = tuple(algorithm.value for algorithm in Algorithm)

_WHO = ("role", "index", "client", "num_clients", "num_workers", "num_servers")
"""What a process is always told, also where it is the default: scripts look at it, too."""


def variable_of(name: str) -> str:
    """Return the variable of the environment from which a field is read."""
    return PREFIX + name.upper()


@dataclass(frozen=True)
class NodeConfig:
    """What a process of a job needs to know before it can meet the others.

    Each field ``name`` is read from ``KVMPI_NAME``; its metadata says what it means. Times are in seconds.
    """

    role: Role = field(default=Role.WORKER, metadata=internal("what this process does"))
    index: int = field(default=0, metadata=internal("number of a server; a worker's rank comes from MPI"))
    client: int = field(default=0, metadata=internal("the client that a worker belongs to"))
    num_clients: int = field(
        default=1, metadata=option("MPI jobs that meet the servers", "N", flag="--clients", least=1)
    )
    model_parallel: int = field(
        default=1,
        metadata=option("ranks of each worker, each of which has a part of the model", "M", least=1),
    )
    model_rank: int = field(default=0, metadata=internal("which part of the model; of a worker, MPI says"))
    num_servers: int = field(
        default=0, metadata=option("parameter servers; 0 is pure MPI", "M", flag="--servers", least=0)
    )
    num_workers: int = field(
        default=0,
        metadata=option(
            "workers over all clients (default: one per client)", "W", flag="--workers", least=0
        ),
    )
    # With semicolons between those for the ranks of a worker.
    scheduler: str = field(default="", metadata=internal("addresses of the scheduler, with commas between"))
    job_file: str = field(default="", metadata=internal("the 0600 file with the job's secret"))
    record_dir: str = field(
        default="", metadata=internal("private folder of the job, where processes report")
    )
    start_with: int = field(
        default=0,
        metadata=option(
            "begin when K clients are there, client 0 among them; others join later (default: all)",
            "K",
        ),
    )
    incarnation: int = field(default=0, metadata=internal("how often this process has been restarted"))
    ready_pipe: str = field(default="", metadata=internal("named pipe: where the scheduler listens"))
    news_pipe: str = field(default="", metadata=internal("named pipe: what is started again"))
    snapshot_dir: str = field(default="", metadata=option("servers save their parameters here", "DIR"))
    snapshot_every: float = field(
        default=60.0, metadata=option("seconds from one snapshot to the next", "S", above=0)
    )
    resume: bool = field(default=False, metadata=option("go on with the parameters in --snapshot-dir"))
    # Workers keep copies of the weights of asynchronous stores, for servers that lose theirs: those without
    # snapshots at once, others when one cannot be written.
    keep_values: bool = field(default=False, metadata=internal("keep copies for servers that lose values"))
    # auto takes shared memory and ipc within a host, tcp between hosts.
    transport: str = field(default="auto", metadata=option("between processes", choices=TRANSPORTS))
    encrypt: bool = field(
        default=False,
        metadata=option("encrypt what servers and workers of different hosts say to each other"),
    )
    collective: str = field(
        default="auto", metadata=option("how the ranks of a client sum", choices=COLLECTIVES)
    )
    # Rank 0 of each client reads the file for all of its ranks.
    collective_profile: str = field(
        default="",
        metadata=option(
            "what kvstore_mpi.calibrate has measured; or measure, to find out at the start",
            "FILE",
        ),
    )
    gpu_kernels: bool = field(
        default=False,
        metadata=option("sum the arrays of a worker's GPUs, if there are several, by kernels; needs CuPy"),
    )
    leaders: str = field(
        default=LEADERS[0],
        metadata=option(
            "ranks of a client that speak to the servers; auto: all where that relieves the busiest link, "
            "else one",
            choices=LEADERS,
        ),
    )
    lookups: str = field(
        default=LOOKUPS[0],
        metadata=option(
            "whether each rank of a client asks servers for the rows that it looks up, or those of a host "
            "together, once all ranks of the client have come to the lookup",
            choices=LOOKUPS,
        ),
    )
    dense: str = field(
        default=DENSE_BY[0],
        metadata=option(
            "who sums and updates dense keys where one client has servers; auto: workers if there are "
            "row-sparse keys and no snapshots, which have only what is on servers",
            choices=DENSE_BY,
        ),
    )
    routes: str = field(
        default="",
        metadata=option(
            "routes of keys where one client has servers, as NAME=servers, NAME=allreduce, or NAME=rows "
            "for a table whose rows the workers merge; a name of a parameter may be a pattern: embedding*",
            "NAME=ROUTE,...",
        ),
    )
    delay: int = field(
        default=1,
        metadata=option("batches whose gradients a DelayedTrainer adds up for an update", "K", least=1),
    )
    epochs_file: str = field(
        default="", metadata=internal("where report_epoch writes what a training has reached")
    )
    cut: str = field(default="", metadata=internal("the plan's cut of each worker's net, as JSON"))
    parts_file: str = field(
        default="", metadata=internal("where a trainer of parts writes what they cost, for mpilaunch plan")
    )
    take_over: bool = field(
        default=False, metadata=option("answer for MXNet's own store names, such as dist_sync")
    )
    # One call of C code can hold the interpreter for seconds (docs/adr/0002), and the launcher notices a
    # process that has died at once: this is for those that are cut off.
    peer_timeout: float = field(
        default=30.0,
        metadata=option("seconds of silence after which a process is dead", "S", flag="--lease"),
    )
    slice_elements: int = field(
        default=AUTO,
        metadata=knob(
            "most elements in one slice; auto: 50,000 (P3 section 5.6), more where a job has one host",
            least=0,
            auto=True,
        ),
    )
    partitions: int = field(
        default=0,
        metadata=knob(
            "pieces of a table that is large enough, where the script does not say it; 0: by its size",
            least=0,
        ),
    )
    schedule: str = field(default="p3", metadata=knob("in which order slices leave", choices=SCHEDULES))
    window_bytes: int = field(
        default=AUTO, metadata=knob("bytes under way to one peer", least=0, auto=True)
    )
    placement: str = field(default=PLACEMENTS[0], metadata=knob("of slices on servers", choices=PLACEMENTS))
    interface: str = field(default="127.0.0.1", metadata=knob("IP address to listen on"))
    # 64 ranks that import MXNet on two cores need more than a minute, and those on a slow file system may.
    connect_timeout: float = field(
        default=300.0, metadata=knob("how long a process waits for the others at the start", above=0)
    )
    step_timeout: float = field(
        default=600.0, metadata=knob("how long an operation may take before it is an error", above=0)
    )
    warn_after: float = field(
        default=10.0,
        metadata=knob("how long an operation may take before the log says what it waits for", least=0),
    )
    heartbeat: float = field(default=1.0, metadata=knob("from one sign of life to the next", above=0))
    finish_timeout: float = field(
        default=600.0, metadata=knob("how long a worker that finishes waits for its client", above=0)
    )
    trace: str = field(
        default="", metadata=internal("folder for what the processes record; empty for none")
    )

    @classmethod
    def from_mapping(cls, environment: Mapping[str, str]) -> NodeConfig:
        """Read ``KVMPI_*`` from an environment.

        Raises:
            ConfigurationError: Values are malformed or do not fit together; all are listed.
        """
        values: dict[str, Any] = {}
        errors = []
        for each in fields(cls):
            text = environment.get(variable_of(each.name))
            if text is None:
                continue
            try:
                values[each.name] = read_value(each, text)
            except ValueError as error:
                errors.append(f"{variable_of(each.name)}={error}")
        config = cls(**values)
        errors += [*config.validate(), *config._address_errors()]
        if errors:
            msg = "the environment of this process cannot work: " + "; ".join(errors)
            raise ConfigurationError(msg)
        return config

    def to_mapping(self) -> dict[str, str]:
        """Return the variables from which ``from_mapping`` reads this; most defaults need none."""
        told = {each.name: getattr(self, each.name) for each in fields(self)}
        defaults = {each.name: each.default for each in fields(self) if each.name not in _WHO}
        return {
            variable_of(name): write_value(value)
            for name, value in told.items()
            if name not in defaults or value != defaults[name]
        }

    def validate(self, spell: Spell = str) -> list[str]:
        """Return every error of the job's settings, in words; ``spell`` writes the names of fields."""
        errors = limit_errors(self, spell)
        return [*errors, *self._shape_errors(spell), *self._combination_errors(spell)]

    def _shape_errors(self, spell: Spell) -> list[str]:
        clients, workers = self.num_clients, self.num_workers
        if clients < 1:
            return []  # told already, and the rest is measured by it
        named_clients, named_servers = spell("num_clients"), spell("num_servers")
        errors = []
        if workers % clients:
            lower = workers // clients * clients
            nearest = f"{lower} or {lower + clients}" if lower else f"{clients}"
            errors.append(
                f"{spell('num_workers')} {workers} cannot be dealt to {clients} clients of equal size: "
                f"give a multiple of {clients}, for example {nearest}"
            )
        if self.num_servers == 0 and clients != 1:
            errors.append(
                f"{named_servers} 0 is pure MPI, which has one client and not {clients}: "
                f"give {named_servers} 1 or more, or {named_clients} 1"
            )
        if not 0 <= self.start_with <= clients:
            errors.append(
                f"{spell('start_with')} {self.start_with} must be between 1 and {named_clients} {clients}"
            )
        return errors

    def _combination_errors(self, spell: Spell) -> list[str]:
        checks = [
            (
                self.collective != Algorithm.SHM.value or self.transport == "auto",
                f"{spell('collective')} shm needs the shared memory of {spell('transport')} auto",
            ),
            (
                not self.resume or bool(self.snapshot_dir),
                f"{spell('resume')} needs {spell('snapshot_dir')}, where snapshots are",
            ),
            (
                self.dense != "servers" or self.num_servers > 0,
                f"{spell('dense')} servers: there are no servers: give {spell('num_servers')} 1 or more",
            ),
            (
                not self.incarnation or self.leaders != "all",
                (
                    f"{spell('leaders')} all does not go with processes that are started again: "
                    "the ranks of a client must agree on what was lost"
                ),
            ),
            (
                self.peer_timeout >= 2 * self.heartbeat,
                f"{spell('peer_timeout')} must be at least twice {spell('heartbeat')}",
            ),
        ]
        errors = [text for holds, text in checks if not holds]
        return [*errors, *self._model_errors(spell), *self._route_errors(spell)]

    def _model_errors(self, spell: Spell) -> list[str]:
        """Return what does not go together with workers of several ranks."""
        late = self.start_with and self.start_with != self.num_clients
        if late and self.model_parallel > 1:
            named = (
                f"{spell('start_with')} does not go with {spell('model_parallel')} {self.model_parallel}"
            )
            return [
                f"{named}: a late client would join the owners of each part of the model at another step"
            ]
        return []

    def _route_errors(self, spell: Spell) -> list[str]:
        try:
            forced = parse_force(self.routes)
        except UsageError as error:
            return [f"{spell('routes')}: {error}"]
        named, routes = spell("routes"), set(forced.values())
        among_workers = [route.value for route in routes if route.by_workers]
        if among_workers and self.num_clients > 1:
            clients = f"this job has {self.num_clients}: give {spell('num_clients')} 1"
            return [f"{named}: {among_workers[0]} is among the workers of one client, and {clients}"]
        if Route.SERVERS in routes and not self.num_servers:
            return [f"{named}: there are no servers: give {spell('num_servers')} 1 or more"]
        return self._snapshot_errors(forced, spell)

    def _snapshot_errors(self, forced: Mapping[str, Route], spell: Spell) -> list[str]:
        """Return what is left to the workers of one client in a job whose servers save."""
        if not (self.snapshot_dir and self.num_servers) or self.num_clients > 1:
            return []
        named = [
            f"{spell('routes')} {name}={route.value}" for name, route in forced.items() if route.by_workers
        ]
        if self.dense == "workers":
            named.insert(0, f"{spell('dense')} workers")
        return [
            f"{each} does not go with {spell('snapshot_dir')}: snapshots have what is on servers, and "
            f"{spell('resume')} would begin anew with what workers sum; leave one of the two out"
            for each in named
        ]

    def _address_errors(self) -> list[str]:
        """Return what a process lacks to find the others."""
        checks = [
            (
                self.num_servers == 0 or self.role is Role.SCHEDULER or bool(self.scheduler),
                "scheduler must be set when there are servers",
            ),
            (self.num_servers == 0 or bool(self.job_file), "job_file must be set when there are servers"),
        ]
        return [text for holds, text in checks if not holds]

    @property
    def largest_slice(self) -> int:
        """Elements of the largest slice, the same in all processes of the job."""
        return self.slice_elements or SLICE_ELEMENTS

    def all_push(self, client_size: int) -> bool:
        """Return whether each rank of a client of this size speaks to the servers, and not one for all."""
        return self.leaders == "all" and self.num_servers > 0 and client_size > 1

    @property
    def takes_up(self) -> frozenset[str]:
        """Modes of stores in which servers may have later values than this process's script begins with."""
        if self.resume:
            return frozenset(("sync", "async"))
        is_late = 0 < self.start_with < self.num_clients and self.client > 0
        return frozenset(("async",) if self.incarnation or is_late else ())

    @property
    def clients_come_later(self) -> bool:
        """A client may begin, or begin again, when others have trained for a while."""
        # Values are kept for servers where these are started again, and so are clients there.
        return self.num_clients > 1 and (self.keep_values or 0 < self.start_with < self.num_clients)

    @property
    def scheduler_addresses(self) -> list[str]:
        """Where the scheduler listens for those that have this part of the model."""
        return self.scheduler.split(";")[self.model_rank].split(",")

    def topology(self, client_size: int) -> Topology:
        """Return the job's shape, given how many workers this client's MPI says that it has."""
        workers = self.num_workers or client_size * self.num_clients
        shape = (self.num_clients, workers, self.num_servers)
        return Topology(*shape, self.model_parallel, self.model_rank)
