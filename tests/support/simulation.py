"""A whole job in one thread and in virtual time: every run follows from its seed.

The real states, endpoints, I/O loops and shells of scheduler, servers and workers, over a network that
loses, repeats, delays and reorders messages and breaks connections. Instead of the threads there is a
random choice of who runs next; instead of MPI, ``SimulatedCommunicator``s.

What the job does is not known here: see ``simulated_training.py``.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import random
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from kvstore_mpi.config import NodeConfig
from kvstore_mpi.records import SCHEDULER, NodeId, Role, Topology
from kvstore_mpi.scheduler.scheduler import Scheduler
from kvstore_mpi.scheduler.state import SchedulerState
from kvstore_mpi.transport.memory import Faults, MemoryNetwork, MemoryTransport
from kvstore_mpi.wire.endpoint import Endpoint
from kvstore_mpi.wire.handshake import Identity
from kvstore_mpi.wire.io_loop import IoLoop, Node
from support.simulated_mpi import SimulatedCommunicator, SimulatedMpi
from support.simulated_shells import Disk, SimulatedServer, SimulatedWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvstore_mpi.interfaces import Link

SECRET = bytes(range(32))

PASS_TIME = 1e-6
"""Seconds that a pass of an I/O loop takes at least, so that no process can stop the time."""

LONGEST_START = 0.5
"""Seconds between the start of the first process and that of the last."""

LONGEST_COLLECTIVE = 0.003
"""Seconds by which one rank may come out of a collective later than another."""


@dataclass
class Process:
    """One process of the job.

    Attributes:
        due: When it has something to do if no message arrives before; in the beginning, when it starts.
    """

    id: NodeId
    node: Node
    loop: IoLoop
    transport: MemoryTransport
    due: float
    worker: SimulatedWorker | None = None
    started: bool = False

    def reckon(self) -> None:
        """Find out when it is due; to be called when something has happened in the process."""
        self.due = self.loop.next_wakeup(self.node)


class Simulation:
    """A job whose processes run by turns.

    Attributes:
        network: The network, its faults and the time.
        random: Decides everything that may be decided either way.
        workers: By global rank.
        servers: By index.
        scheduler: ``None`` without servers.
    """

    def __init__(
        self, topology: Topology, seed: int, *, late: Mapping[int, float] | None = None, **config: Any
    ) -> None:
        """Make all processes.

        Args:
            topology: Shape of the job.
            seed: Of everything that may be decided either way.
            late: By how many seconds clients start later than the others.
            config: Replaces defaults of ``NodeConfig``.
        """
        self.topology = topology
        self.network = MemoryNetwork(seed)
        self.random = random.Random(seed)
        # A server that comes back when all have gone waits for nobody longer than a simulated job may take.
        shape = {"num_servers": topology.num_servers, "connect_timeout": 60.0}
        self._config = {"transport": "tcp", "collective": "mpi", **shape, **config}
        self._alive: dict[NodeId, Process] = {}
        self._held: set[NodeId] = set()
        self.disk = Disk()
        self._incarnations: Counter[NodeId] = Counter()  # restarts, by leader or server
        self._links: list[Link] = []
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.scheduler = self._make_scheduler() if topology.num_servers else None
        self.servers = [self._make_server(index) for index in range(topology.num_servers)]
        self._mpi = [SimulatedMpi(topology.client_size, self._slow) for _ in range(topology.num_clients)]
        delays = late or {}
        self.workers = [
            self._make_worker(rank, delays.get(topology.client_of(rank), 0.0))
            for rank in range(topology.num_workers)
        ]

    # --- processes ---

    def _make_loop(self, node: NodeId, config: NodeConfig) -> IoLoop:
        source = self.random
        identity = Identity(
            node,
            config.incarnation,
            SECRET,
            lambda size: source.getrandbits(8 * size).to_bytes(size, "big"),
        )
        endpoint = Endpoint(
            identity,
            heartbeat=config.heartbeat,
            peer_timeout=config.peer_timeout,
            connect_timeout=config.connect_timeout,
        )
        return IoLoop(self._transport(), endpoint, lambda: self.network.now)

    def _transport(self) -> MemoryTransport:
        """Make a transport of which the connections are noted, to be broken."""
        transport = self.network.transport()
        connect = transport.connect

        def noting(addresses: Any) -> Link:
            self._links.append(connect(addresses))
            return self._links[-1]

        transport.connect = noting  # type: ignore[method-assign]
        return transport

    def _node_config(self, role: Role, index: int = 0, client: int = 0) -> NodeConfig:
        node = self.topology.leader_of(client) if role is Role.WORKER else NodeId(role, index)
        incarnation = self._incarnations[node]
        return NodeConfig(role=role, index=index, client=client, incarnation=incarnation, **self._config)

    def _scheduler_state(self, config: NodeConfig) -> SchedulerState:
        return SchedulerState(
            self.topology,
            slice_elements=config.largest_slice,
            connect_timeout=config.connect_timeout,
            now=0.0,
            round_robin=config.placement == "round_robin",
            start_with=config.start_with,
        )

    def _add(
        self,
        node: NodeId,
        shell: Node,
        loop: IoLoop,
        after: float = 0.0,
        worker: SimulatedWorker | None = None,
    ) -> None:
        start = self.network.now + after + self.random.uniform(0.0, LONGEST_START)
        transport = loop.transport
        assert isinstance(transport, MemoryTransport)
        self._alive[node] = Process(node, shell, loop, transport, start, worker)

    def _make_scheduler(self) -> Scheduler:
        config = self._node_config(Role.SCHEDULER)
        loop = self._make_loop(SCHEDULER, config)
        scheduler = Scheduler(self._scheduler_state(config), loop)
        self._coordinator = loop.transport.bind("")
        self._add(SCHEDULER, scheduler, loop)
        return scheduler

    def _make_server(self, index: int, after: float = 0.0) -> SimulatedServer:
        config = self._node_config(Role.SERVER, index)
        node = NodeId(Role.SERVER, index)
        loop = self._make_loop(node, config)
        server = SimulatedServer(self.disk, config, self.topology, loop, loop.transport.bind(""))
        server.meet(self._coordinator)
        self._add(node, server, loop, after)
        return server

    def _make_worker(self, rank: int, after: float = 0.0) -> SimulatedWorker:
        client = self.topology.client_of(rank)
        config = self._node_config(Role.WORKER, client=client)
        node = NodeId(Role.WORKER, rank)
        loop = self._make_loop(node, config)
        addresses = loop.transport.bind("")
        pure = not self.topology.num_servers
        scheduler = self._scheduler_state(config) if pure and rank == 0 else None
        communicator = SimulatedCommunicator(rank - self.topology.members_of(client)[0], self._mpi[client])
        worker = SimulatedWorker(config, self.topology, communicator, loop, scheduler)
        if scheduler is not None:
            self._coordinator = addresses
        worker.begin([] if worker.coordinator == node else self._coordinator, addresses)
        self._add(node, worker.io, loop, after, worker)
        return worker

    # --- what a test does to the job ---

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Make a call when some time has passed."""
        heapq.heappush(self._timers, (self.network.now + seconds, next(self._numbers), call))

    def _slow(self, call: Callable[[], None]) -> None:
        """Make a call when a rank is out of a collective."""
        self.later(self.random.uniform(0.0, LONGEST_COLLECTIVE), call)

    def break_a_link(self) -> None:
        """Break a connection and make it again; what is under way on it is lost."""
        if self._links:
            with contextlib.suppress(KeyError):  # one of its ends is gone
                self.network.reconnect(self.random.choice(self._links))

    def crash(self, nodes: list[NodeId]) -> None:
        """End processes as SIGKILL does."""
        for node in nodes:
            process = self._alive.pop(node, None)
            if process is not None:
                process.transport.close(0.0)

    def crash_and_restart(self, name: str, seconds: float) -> list[SimulatedWorker]:
        """End a client or a server as SIGKILL does, and start it again as the launcher does.

        Args:
            name: As the launcher has it: ``client1`` or ``server0``.
            seconds: How long it takes until the new processes begin to start.

        Returns:
            The new workers, if it was a client; their programs are for the caller to give.
        """
        assert self.scheduler is not None
        nodes = self.scheduler.named(name)
        self.crash(nodes)
        incarnation = self._incarnations[nodes[0]]
        self._incarnations[nodes[0]] += 1
        tell = partial(self.scheduler.restarting, name=name, incarnation=incarnation, why="simulated")
        self.later(self.random.uniform(0.0, seconds), lambda: self._post(SCHEDULER, tell))
        if nodes[0].role is Role.SERVER:
            self.servers[nodes[0].index] = self._make_server(nodes[0].index, seconds)
            return []
        client = self.topology.client_of(nodes[0].index)
        self._mpi[client] = SimulatedMpi(self.topology.client_size, self._slow)
        workers = [self._make_worker(node.index, seconds) for node in nodes]
        for worker in workers:
            self.workers[worker.rank] = worker
        return workers

    def _post(self, node: NodeId, call: Callable[[float], None]) -> None:
        if node in self._alive:
            self._alive[node].loop.post(call)

    def hold(self, node: NodeId) -> None:
        """Let a process stand still; what is sent to it arrives in its next pass, all at once."""
        self._held.add(node)

    def release(self, node: NodeId) -> None:
        """Let a process that stands still go on."""
        self._held.discard(node)

    def is_running(self, node: NodeId) -> bool:
        """Return whether a process has neither ended nor crashed."""
        return node in self._alive

    def disturb(self, faults: Faults, seconds: float, *, breaks: int = 0) -> None:
        """Have the network fail for some time, and ``breaks`` connections break early in it."""
        self.network.faults = faults
        self.later(seconds, partial(setattr, self.network, "faults", Faults()))
        for _ in range(breaks):
            self.later(self.random.uniform(0.0, 2.0), self.break_a_link)

    # --- time ---

    def run(self, limit: float) -> None:
        """Run until all processes have ended.

        Raises:
            AssertionError: They have not within ``limit`` seconds of virtual time.
        """
        while self._alive:
            if not self._run_ready():
                self._let_time_pass()
            if self.network.now > limit:
                names = ", ".join(map(str, self._alive))
                raise AssertionError(
                    f"after {self.network.now:.0f} s of virtual time still running: {names}"
                )

    def _moving(self) -> list[Process]:
        """Return the processes that do not stand still."""
        return [process for node, process in self._alive.items() if node not in self._held]

    def _run_ready(self) -> bool:
        now = self.network.now
        ready = [p for p in self._moving() if p.due <= now or (p.transport.inbox and p.started)]
        if len(ready) > 1:
            self.random.shuffle(ready)
        for process in ready:
            self._step(process)
        if ready:
            self._advance(PASS_TIME)
        return bool(ready)

    def _let_time_pass(self) -> None:
        """Go to the next moment at which something happens."""
        moments = [process.due for process in self._moving()]
        arrival = self.network.next_arrival()
        if arrival is not None:
            moments.append(arrival)
        if self._timers:
            moments.append(self._timers[0][0])
        self._advance(max(PASS_TIME, min(moments) - self.network.now))

    def _advance(self, seconds: float) -> None:
        self.network.advance(seconds)
        if self._timers and self._timers[0][0] <= self.network.now:
            while self._timers and self._timers[0][0] <= self.network.now:
                heapq.heappop(self._timers)[2]()
            for process in self._alive.values():
                if process.started:
                    process.reckon()

    def _step(self, process: Process) -> None:
        process.started = True
        process.loop.step(process.node, 0.0)
        if process.worker is not None:
            self._resume(process.worker)
        if process.loop.finished():
            process.loop.acknowledge()
            process.transport.close(0.0)
            del self._alive[process.id]
        else:
            process.reckon()

    def _resume(self, worker: SimulatedWorker) -> None:
        """Run the worker's programs as far as they come."""
        waiting, worker.programs = worker.programs, []
        self.random.shuffle(waiting)
        for program, condition in waiting:
            if not condition():
                worker.programs.append((program, condition))
                continue
            wanted = next(program, None)
            if wanted is not None:
                worker.programs.append((program, self._condition(worker, wanted)))
        if not worker.programs:
            worker.part()

    def _condition(self, worker: SimulatedWorker, wanted: float | Callable[[], bool]) -> Callable[[], bool]:
        if callable(wanted):
            return wanted
        due = self.network.now + wanted
        self.later(wanted, lambda: self._resume(worker))
        return lambda: self.network.now >= due
