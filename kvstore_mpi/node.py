"""The composition root: from a configuration to the worker, the server or the scheduler of this process.

The only file that chooses transports and communicators. A process has at most one worker, which all its
stores share.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import signal
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kvstore_mpi.comm import started
from kvstore_mpi.config import NodeConfig
from kvstore_mpi.errors import ConfigurationError, KVStoreError, NotSavedError
from kvstore_mpi.launcher_events import open_pipe, tell
from kvstore_mpi.metrics.stacks import write_on_signal
from kvstore_mpi.metrics.telling import Teller
from kvstore_mpi.records import NodeId, Role, Topology
from kvstore_mpi.scheduler.scheduler import Scheduler
from kvstore_mpi.scheduler.state import SchedulerState
from kvstore_mpi.scheduler.status import Awaited
from kvstore_mpi.server.server import Server
from kvstore_mpi.server.snapshot_sets import folder_of_part
from kvstore_mpi.tensor_collectives.calibration import agree_on_profile
from kvstore_mpi.tracing import annotation
from kvstore_mpi.tracing.recorder import Recorder
from kvstore_mpi.transport.sockets import SocketTransport
from kvstore_mpi.wakeups import WakeUps
from kvstore_mpi.wire.endpoint import Endpoint
from kvstore_mpi.wire.handshake import Identity
from kvstore_mpi.wire.io_loop import IoLoop
from kvstore_mpi.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvstore_mpi.comm.links import Links
    from kvstore_mpi.interfaces import Communicator, Transport
    from kvstore_mpi.metrics.status import Wait
    from kvstore_mpi.metrics.telling import Seen


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
    rank = config.model_rank if config.model_parallel > 1 else None
    return Recorder(node, config.trace, client=config.client, model_rank=rank) if config.trace else None


def make_scheduler_state(config: NodeConfig, topology: Topology) -> SchedulerState:
    """Make the state that decides about membership, keys and barriers."""
    return SchedulerState(
        topology,
        slice_elements=config.largest_slice,
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
        of_ranks = f", of {config.model_parallel} ranks each" if config.model_parallel > 1 else ""
        raise ConfigurationError(
            f"client {config.client} has {communicator.size * config.model_parallel} MPI ranks, but the "
            f"job has {topology.num_workers} workers in {topology.num_clients} clients of "
            f"{topology.client_size}{of_ranks}: mpiexec belongs to another MPI than mpi4py, or was started "
            "with another -n; mpilaunch doctor checks it"
        )
    rank = config.client * topology.client_size + communicator.rank
    node = NodeId(Role.WORKER, rank)
    leads = communicator.rank == 0 and communicator.size > 1
    listens_on = transport.bind(config.interface) if leads else []
    if topology.num_servers:
        job, addresses = Job.read(config.job_file), config.scheduler_addresses
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
    if recorder is not None:
        recorder.pending = lambda: worker.pending_seconds(loop.now())
    _tell(config, loop, topology.describe_worker(rank), _look_of(worker, scheduler, config, topology))
    try:
        worker.join([] if worker.coordinator == node else addresses, listens_on)
    except KVStoreError:
        worker.close()
        raise
    return worker


def _tell(config: NodeConfig, loop: IoLoop, name: str, look: Callable[[float], Seen]) -> None:
    """Have the launcher, if there is one, told about this process about once a second."""
    if config.record_dir:
        loop.tell_each_second(Teller(config.record_dir, name, config.incarnation, look))


def _look_of(
    worker: Worker, scheduler: SchedulerState | None, config: NodeConfig, topology: Topology
) -> Callable[[float], Seen]:
    """Return what gathers what there is to tell about a worker, which may be the scheduler, too."""
    waits: list[Callable[[float], list[Wait]]] = []
    if scheduler is not None:
        awaited = Awaited(scheduler, topology, time.monotonic(), join=config.connect_timeout)
        waits.append(partial(awaited.waits, config.step_timeout))
    if _links is not None:
        shapes = [replace(topology, model_rank=each) for each in range(_links.size)]
        waits.append(partial(_links.waits, [each.describe_worker(worker.rank) for each in shapes]))

    def look(now: float) -> Seen:
        seen = worker.look(now)
        return seen._replace(waits=[*seen.waits, *(wait for each in waits for wait in each(now))])

    return look


def _agree_on_job(communicator: Communicator, listens_on: list[str]) -> tuple[Job, list[str]]:
    """In pure MPI rank 0 makes up the job and tells the others over MPI."""
    job = Job.new()
    text = json.dumps([job.name, job.secret.hex(), listens_on])
    name, secret, addresses = json.loads(communicator.broadcast_bytes(text.encode(), 0))
    return Job(name, bytes.fromhex(secret)), addresses


_lock = threading.Lock()  # of the two below, which a process has once: so do MPI and the job see it
_worker: Worker | None = None
_links: Links | None = None


def process_config() -> NodeConfig:
    """Return what this process was told when it was started; defaults if nobody has told it anything.

    Raises:
        ConfigurationError: It cannot work.
    """
    return NodeConfig.from_mapping(os.environ)


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
            config = process_config()
            load = _loader(config, asked, mode)
            _worker = _in_thread(partial(_make_process_worker, config, load))
            if _worker.recorder is not None:
                annotation.install(_worker.recorder)
        return _worker


def process_links() -> Links | None:
    """Return what joins this rank to the others of its worker; a worker of one rank has none."""
    return _links


def _make_process_worker(
    config: NodeConfig, load: Callable[[], tuple[Communicator, Links | None]]
) -> Worker:
    global _links
    communicator, _links = load()
    config = replace(config, model_rank=_links.rank if _links is not None else 0)
    transport = SocketTransport(schemes=config.transport, encrypt=config.encrypt)
    return make_worker(config, communicator, transport)


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


def tell_launcher(config: NodeConfig, rank: int) -> None:
    """Let the launcher know that this worker joins: one that never does has trained alone."""
    if config.record_dir:
        with contextlib.suppress(OSError):  # the launcher is gone, and its reaper ends this process
            tell(config.record_dir, (config.client, rank, config.incarnation), "joins")


def existing_worker() -> Worker | None:
    """Return this process's worker if there is one."""
    return _worker


def _loader(config: NodeConfig, asked: str, mode: str) -> Callable[[], tuple[Communicator, Links | None]]:
    """Return what makes the communicators; MPI is initialised here, by the thread that ends it."""
    from kvstore_mpi.comm import mpi  # noqa: PLC0415  mpi4py initialises MPI at import: only where it is wanted

    problem = started.alone_under_srun() or started.started_by_a_rank()
    if problem:
        raise ConfigurationError(problem)
    # Processes of a job that was started wrongly would train apart, and their results look like any others.
    if config.num_servers == 0 and not config.num_workers and not started.started_by_mpiexec():
        script = Path(sys.argv[0]).name or "train.py"
        one = "--servers 1 --workers 1" if mode == "async" else "--workers 1"
        raise ConfigurationError(
            f"{asked} was asked for in a process that neither mpilaunch nor mpiexec has started. For four "
            f"workers type: mpilaunch --clients 2 --servers 1 --workers 4 {script}; for one: "
            f"mpilaunch {one} {script}"
        )
    # Told before the wait for the other ranks of the client: who waits for one that is late is not late.
    tell_launcher(config, mpi.load_mpi().COMM_WORLD.Get_rank())
    limits = config.connect_timeout, config.step_timeout, config.warn_after
    return partial(mpi.join, config.model_parallel, *limits)


# --- services --------------------------------------------------------------------------------------


def run_service(config: NodeConfig) -> None:
    """Run this process as the scheduler or a server, until the job is over.

    Where workers have several ranks, this process is one scheduler or server for each part of the model.
    Those share nothing but the process: the owners of a part are a job of their own (docs/adr/0011).

    Raises:
        KVStoreError: The job could not go on.
    """
    configs = [_for_model_rank(config, model_rank) for model_rank in range(config.model_parallel)]
    transports = [SocketTransport(schemes=config.transport, encrypt=config.encrypt) for _ in configs]
    addresses = [transport.bind(config.interface) for transport in transports]
    loops: list[IoLoop] = []
    if config.record_dir:
        node = NodeId(config.role, config.index)
        name = f"{node}~{config.incarnation}" if config.incarnation else str(node)
        wakeups = WakeUps()
        write_on_signal(config.record_dir, name, wakeups)
        _end_on_signal(wakeups, loops)
    _report_ready(config.ready_pipe, addresses)
    if len(configs) == 1:
        _serve(config, transports[0], addresses[0], loops)
    else:
        _serve_all([partial(_serve, *each, loops) for each in zip(configs, transports, addresses)])


def _stop(loop: IoLoop, _now: float) -> None:
    loop.stop()


def _end_on_signal(wakeups: WakeUps, loops: Sequence[IoLoop]) -> None:
    """At SIGUSR1 let servers end as if the job were over, so that they save."""

    def end() -> None:
        if not loops:  # a scheduler, or a server that starts and would not hear of it later
            os.kill(os.getpid(), signal.SIGTERM)
        for loop in loops:
            loop.post(partial(_stop, loop))

    # Without a handler in Python the signal would end the process; the thread of ``wakeups`` does the rest.
    signal.signal(signal.SIGUSR1, lambda *_: None)
    wakeups.on(signal.SIGUSR1, end)


def _for_model_rank(config: NodeConfig, model_rank: int) -> NodeConfig:
    if config.model_parallel == 1 or not config.snapshot_dir:
        return replace(config, model_rank=model_rank)
    (folder := folder_of_part(config.snapshot_dir, model_rank)).mkdir(exist_ok=True)
    return replace(config, model_rank=model_rank, snapshot_dir=str(folder))


def _serve(config: NodeConfig, transport: Transport, addresses: list[str], loops: list[IoLoop]) -> None:
    """Serve until the job is over; loops of servers, which a signal may end, are added to ``loops``."""
    topology = config.topology(1)
    job = Job.read(config.job_file)
    node = NodeId(config.role, config.index)
    recorder = make_recorder(config, node)
    loop = make_loop(config, node, job, transport)
    if config.role is Role.SCHEDULER:
        state = make_scheduler_state(config, topology)
        scheduler = Scheduler(state, loop)
        awaited = Awaited(state, topology, loop.now(), join=config.connect_timeout)
        limit = config.step_timeout
        if config.model_rank == 0:  # one of a process's services speaks for it
            _tell(config, loop, str(node), lambda now: awaited.look(scheduler, loop.endpoint, limit, now))
        if config.news_pipe:
            scheduler.listen(Path(config.news_pipe), Path(config.record_dir))
        scheduler.run()
        if recorder is not None:
            recorder.write()
    else:
        server = Server(config, topology, loop, addresses, recorder=recorder, job=job.name)
        loops.append(loop)
        if config.model_rank == 0:  # one of a process's services speaks for it
            _tell(config, loop, str(node), server.look)
        server.run(config.scheduler_addresses)


def _serve_all(services: Sequence[Callable[[], None]]) -> None:
    """Run services in threads, until all have ended or one has failed."""
    ends: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def run(service: Callable[[], None]) -> None:
        try:
            service()
        except BaseException as error:  # noqa: BLE001  raised again by who waits
            ends.put(error)
        else:
            ends.put(None)

    for service in services:
        # Daemons: when one has failed, the process ends with its error, and the others with the process.
        threading.Thread(target=run, args=(service,), name="kvstore-service", daemon=True).start()
    unsaved: BaseException | None = None
    for error in (ends.get() for _ in services):
        if error is not None and not isinstance(error, NotSavedError):
            raise error
        unsaved = unsaved or error
    if unsaved is not None:  # only now: the others may still have been saving
        raise unsaved


def _report_ready(pipe: str, addresses: Sequence[Sequence[str]]) -> None:
    if pipe:
        with os.fdopen(open_pipe(Path(pipe)), "w", encoding="ascii") as file:
            file.write(json.dumps({"addresses": [";".join(map(",".join, addresses))]}) + "\n")
