"""The composition root: from a configuration to the worker, the server or the scheduler of this process.

The only file that chooses transports and communicators. A process has at most one worker, which all its
stores share.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
import threading
import time
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kvstore_mpi.config import NodeConfig
from kvstore_mpi.errors import ConfigurationError, KVStoreError
from kvstore_mpi.launcher_events import open_pipe, tell
from kvstore_mpi.records import NodeId, Role, Topology
from kvstore_mpi.scheduler.scheduler import Scheduler
from kvstore_mpi.scheduler.state import SchedulerState
from kvstore_mpi.server.server import Server
from kvstore_mpi.tensor_collectives.calibration import agree_on_profile
from kvstore_mpi.tracing import annotation
from kvstore_mpi.tracing.recorder import Recorder
from kvstore_mpi.transport.sockets import SocketTransport
from kvstore_mpi.wire.endpoint import Endpoint
from kvstore_mpi.wire.handshake import Identity
from kvstore_mpi.wire.io_loop import IoLoop
from kvstore_mpi.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvstore_mpi.interfaces import Communicator, Transport


class Job(NamedTuple):
    """What the processes of a job share and strangers do not know."""

    name: str
    secret: bytes

    @classmethod
    def new(cls) -> Job:
        """Make up a job."""
        return cls(secrets.token_hex(8), secrets.token_bytes(32))

    @classmethod
    def read(cls, path: str) -> Job:
        """Read the file that the launcher made.

        Raises:
            ConfigurationError: It cannot be read, or others may read it.
        """
        try:
            if Path(path).stat().st_mode & 0o077:
                raise ConfigurationError(f"the job file {path} may be read by others; chmod 600 it")
            fields = json.loads(Path(path).read_text(encoding="ascii"))
            return cls(fields["job"], bytes.fromhex(fields["secret"]))
        except (OSError, ValueError, KeyError) as error:
            raise ConfigurationError(f"the job file {path} cannot be read: {error!r}") from error


def make_loop(config: NodeConfig, node: NodeId, job: Job, transport: Transport) -> IoLoop:
    """Put a transport and an endpoint together."""
    identity = Identity(node, config.incarnation, job.secret, secrets.token_bytes)
    endpoint = Endpoint(
        identity,
        heartbeat=config.heartbeat,
        peer_timeout=config.peer_timeout,
        connect_timeout=config.connect_timeout,
    )
    return IoLoop(transport, endpoint)


def make_recorder(config: NodeConfig, node: NodeId) -> Recorder | None:
    """Make what records for a process, if its job is to have a trace."""
    return Recorder(node, config.trace, client=config.client) if config.trace else None


def make_scheduler_state(config: NodeConfig, topology: Topology) -> SchedulerState:
    """Make the state that decides about membership, keys and barriers."""
    return SchedulerState(
        topology,
        slice_elements=config.unit_elements,
        connect_timeout=config.connect_timeout,
        now=time.monotonic(),
        round_robin=config.placement == "round_robin",
        start_with=config.start_with,
    )


# --- worker ----------------------------------------------------------------------------------------


def make_worker(config: NodeConfig, communicator: Communicator, transport: Transport) -> Worker:
    """Make this process's worker and meet the others.

    Raises:
        KVStoreError: The configuration does not fit, or somebody did not come in time.
    """
    topology = config.topology(communicator.size)
    if communicator.size != topology.client_size:
        raise ConfigurationError(
            f"client {config.client} has {communicator.size} MPI ranks, but the job has "
            f"{topology.num_workers} workers in {topology.num_clients} clients of {topology.client_size}: "
            "mpiexec belongs to another MPI than mpi4py, or was started with another -n; "
            "mpilaunch doctor checks it"
        )
    rank = config.client * topology.client_size + communicator.rank
    node = NodeId(Role.WORKER, rank)
    leads = communicator.rank == 0 and communicator.size > 1
    listens_on = transport.bind(config.interface) if leads else []
    if topology.num_servers:
        job, addresses = Job.read(config.job_file), config.scheduler.split(",")
        scheduler = None
    else:
        job, addresses = _agree_on_job(communicator, listens_on)
        scheduler = make_scheduler_state(config, topology) if rank == 0 else None
    loop = make_loop(config, node, job, transport)
    recorder = make_recorder(config, node)
    profile = agree_on_profile(config.collective_profile, communicator)
    worker = Worker(
        config, topology, communicator, loop, scheduler=scheduler, recorder=recorder, profile=profile
    )
    try:
        worker.join([] if worker.coordinator == node else addresses, listens_on)
    except KVStoreError:
        worker.close()
        raise
    return worker


def _agree_on_job(communicator: Communicator, listens_on: list[str]) -> tuple[Job, list[str]]:
    """In pure MPI rank 0 makes up the job and tells the others over MPI."""
    job = Job.new()
    text = json.dumps([job.name, job.secret.hex(), listens_on])
    name, secret, addresses = json.loads(communicator.broadcast_bytes(text.encode(), 0))
    return Job(name, bytes.fromhex(secret)), addresses


_lock = threading.Lock()
_worker: Worker | None = None


def process_worker(asked: str, mode: str) -> Worker:
    """Return this process's worker; the first call makes it and meets the others.

    Args:
        asked: What the user has asked for, which needs it.
        mode: Of the store: ``sync``, ``async`` or ``client``.

    Raises:
        KVStoreError: Nobody has started this process as a worker, or the job could not begin.
    """
    global _worker  # noqa: PLW0603  MPI and the job see a process once, however many stores it has
    with _lock:
        if _worker is None:
            config = NodeConfig.from_mapping(os.environ)
            communicators = _communicators(config, asked, mode)
            _worker = _in_thread(partial(_make_process_worker, config, communicators))
            if _worker.recorder is not None:
                annotation.install(_worker.recorder)
        return _worker


def _make_process_worker(config: NodeConfig, communicators: Callable[[], Communicator]) -> Worker:
    communicator = communicators()
    _tell_launcher(config, communicator.rank)
    return make_worker(config, communicator, SocketTransport(schemes=config.transport))


def _in_thread(make: Callable[[], Worker]) -> Worker:
    """Make the worker in a thread of its own, and wait so that a signal's handler can end the wait.

    The ranks of a client wait for each other in MPI here, and no handler of Python's runs in a thread that
    does. Who is told to end could not save if another rank had been told before it came here.
    """
    made: Future[Worker] = Future()

    def run() -> None:
        try:
            made.set_result(make())
        except BaseException as error:  # noqa: BLE001  raised again where it is waited for
            made.set_exception(error)

    threading.Thread(target=run, name="kvstore-join", daemon=True).start()
    return made.result()


def _tell_launcher(config: NodeConfig, rank: int) -> None:
    """Let the launcher know that this worker joins: one that never does has trained alone."""
    if config.record_dir:
        with contextlib.suppress(OSError):  # the launcher is gone, and its reaper ends this process
            tell(config.record_dir, (config.client, rank, config.incarnation), "joins")


def existing_worker() -> Worker | None:
    """Return this process's worker if there is one."""
    return _worker


def _communicators(config: NodeConfig, asked: str, mode: str) -> Callable[[], Communicator]:
    """Return what makes the communicator; MPI is initialised here, by the thread that ends it."""
    from kvstore_mpi.comm import mpi  # noqa: PLC0415  mpi4py initialises MPI at import: only where it is wanted

    # Processes of a job that was started wrongly would train apart, and their results look like any others.
    if config.num_servers == 0 and not config.num_workers and not mpi.started_by_mpiexec():
        script = Path(sys.argv[0]).name or "train.py"
        one = "--servers 1 --workers 1" if mode == "async" else "--workers 1"
        raise ConfigurationError(
            f"{asked} was asked for in a process that neither mpilaunch nor mpiexec has started. For four "
            f"workers type: mpilaunch --clients 2 --servers 1 --workers 4 {script}; for one: "
            f"mpilaunch {one} {script}"
        )
    mpi.load_mpi()
    return mpi.MpiCommunicator


# --- services --------------------------------------------------------------------------------------


def run_service(config: NodeConfig) -> None:
    """Run this process as the scheduler or a server, until the job is over.

    Raises:
        KVStoreError: The job could not go on.
    """
    topology = config.topology(1)
    transport = SocketTransport(schemes=config.transport)
    job = Job.read(config.job_file)
    node = NodeId(config.role, config.index)
    recorder = make_recorder(config, node)
    loop = make_loop(config, node, job, transport)
    addresses = transport.bind(config.interface)
    _report_ready(config.ready_pipe, addresses)
    if config.role is Role.SCHEDULER:
        scheduler = Scheduler(make_scheduler_state(config, topology), loop)
        if config.news_pipe:
            scheduler.listen(Path(config.news_pipe))
        scheduler.run()
        if recorder is not None:
            recorder.write()
    else:
        server = Server(config, topology, loop, addresses, recorder=recorder, job=job.name)
        server.run(config.scheduler.split(","))


def _report_ready(pipe: str, addresses: Sequence[str]) -> None:
    if pipe:
        with os.fdopen(open_pipe(Path(pipe)), "w", encoding="ascii") as file:
            file.write(json.dumps({"addresses": list(addresses)}) + "\n")
