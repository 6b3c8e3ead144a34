"""Asynchronous trainings in which clients and servers die and are started again, from seeds.

What a worker pushes in each incarnation and round is a digit in base 4, so that the digits of a value
tell which pushes are in it: 1 is once, 2 would be twice.

Run ``python -m support.simulated_returns FIRST [END]`` to repeat the runs of seeds.
"""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.errors import PeerError
from kvstore_mpi.records import NodeId, Topology
from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec
from kvstore_mpi.transport.memory import Faults
from support.returning_keys import DenseKey, TableKey
from support.seeds import carry_out, parser, run_range
from support.simulation import Simulation

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.simulated_shells import Program, SimulatedWorker

Array = np.ndarray[Any, Any]

LAYOUTS = ((1, 1, 1), (2, 1, 1), (2, 1, 2), (2, 2, 1), (2, 2, 2), (3, 1, 2))
"""Clients, workers of each, servers."""

SLICE_ELEMENTS = 4
SIZES = (1, 4, 9)
ROUNDS = 2
INCARNATIONS = 3
"""Of a client at most; with the rounds and clients they fit the digits of a float64."""

INITIALS = (0.25, 0.5, 0.75)
"""What each incarnation of rank 0 gives as initial value; pushes are whole numbers."""

GARBAGE = 99.0
CALM_AFTER = 20.0
LIMIT = 90.0
SPEC = OptimizerSpec(name="sgd", hyper=HyperParameters(lr=1.0)).to_dict()
"""weight -= gradient."""


@dataclass(frozen=True)
class Plan:
    """What a seed decides, but for who runs when.

    Attributes:
        deaths: Who dies, as the launcher has it, and when after the beginning of the training.
        barriers: The workers meet after init and at the end.
        snapshots: Servers save their shards; otherwise the workers keep copies.
        has_tables: Every second key is a table; these are in snapshots, and no worker keeps copies of them.
        disk_is_full: No snapshot can be written, which the servers notice when they try.
    """

    seed: int
    topology: Topology
    sizes: tuple[int, ...]
    kinds: tuple[str, ...]
    faults: Faults
    deaths: tuple[tuple[str, float], ...]
    barriers: bool
    snapshots: bool
    has_tables: bool
    disk_is_full: bool = False


def plan_of(seed: int) -> Plan:
    """Return the plan of a seed."""
    choose = random.Random(f"returns {seed}")
    clients, per_client, servers = choose.choice(LAYOUTS)
    snapshots = choose.choice([True, False])
    victims = [f"server{index}" for index in range(servers)]
    if not snapshots:  # a server then needs the others' copies
        victims = choose.choice([victims, []])
    if snapshots or not victims:
        victims = [*victims, *(f"client{index}" for index in range(clients))]
    return Plan(
        seed=seed,
        topology=Topology(clients, clients * per_client, servers),
        sizes=tuple(choose.choice(SIZES) for _ in range(choose.randint(1, 3))),
        kinds=tuple(choose.choice(("push", "pushpull", "push pull")) for _ in range(ROUNDS)),
        faults=Faults(
            loss=choose.choice([0.0, 0.0, 0.02]),
            duplication=choose.choice([0.0, 0.0, 0.3]),
            delay=choose.choice([0.0, 0.001, 0.05]),
            reordering=choose.choice([0.0, 0.0, 0.3]),
        ),
        deaths=tuple(
            (choose.choice(victims), choose.choice([0.0, 0.05, 0.5]) * choose.uniform(0.0, 1.0))
            for _ in range(choose.randint(1, INCARNATIONS - 1))
        ),
        barriers=choose.choice([True, False]),
        snapshots=snapshots,
        has_tables=snapshots or "server0" not in victims,
    )


def plan_without_disk(seed: int) -> Plan:
    """Return the plan of a seed for servers that cannot save, of which one dies when there are copies."""
    choose = random.Random(f"full {seed}")
    plan = plan_of(seed)
    server = f"server{choose.randrange(plan.topology.num_servers)}"
    deaths = tuple((server, 0.01 * number) for number in range(100))
    return dataclasses.replace(plan, snapshots=True, has_tables=False, disk_is_full=True, deaths=deaths)


class Training:
    """One run of a plan."""

    def __init__(self, plan: Plan) -> None:
        """Make the job; ``run`` runs it."""
        self.plan = plan
        self.simulation = Simulation(
            plan.topology,
            plan.seed,
            slice_elements=SLICE_ELEMENTS,
            heartbeat=0.1,
            peer_timeout=60.0,
            snapshot_dir="simulated" if plan.snapshots else "",
            snapshot_every=0.05,
            keep_values=True,
        )
        self.simulation.disk.is_full = plan.disk_is_full
        self.losses = False  # a server has died with what it had been pushed
        self.incarnations = [0] * plan.topology.num_clients
        self._begun = False
        self._kills = 0  # of servers
        self._pushed: set[tuple[NodeId, int]] = set()
        self._finished: set[tuple[NodeId, int]] = set()
        self._endings: list[tuple[str, list[BaseException | None]]] = []
        self._initialised: set[NodeId] = set()
        self._initials: dict[int, Array] = {}

    def run(self) -> None:
        """Run the job to its end and check everything.

        Raises:
            AssertionError: Something that must be true is not.
        """
        simulation = self.simulation
        simulation.disturb(self.plan.faults, CALM_AFTER)
        for worker in simulation.workers:
            worker.spawn(self._script(worker, 0))
        simulation.run(LIMIT)
        self._check()

    def _begin(self) -> None:
        """Everybody has met: from now on somebody may die."""
        if not self._begun:
            self._begun = True
            for name, seconds in self.plan.deaths:
                self.simulation.later(seconds, lambda name=name: self._kill(name))  # type: ignore[misc]

    def _kill(self, name: str) -> None:
        """Kill a process that has not ended, and start it again."""
        simulation, topology = self.simulation, self.plan.topology
        if name.startswith("server"):
            self._kill_server(int(name[len("server") :]))
            return
        client = int(name[len("client") :])
        workers = [simulation.workers[rank] for rank in topology.members_of(client)]
        if any(worker.parting or not simulation.is_running(worker.node) for worker in workers):
            return
        self.incarnations[client] += 1
        for worker in simulation.crash_and_restart(name, seconds=0.5):
            worker.spawn(self._script(worker, self.incarnations[client]))

    def _kill_server(self, index: int) -> None:
        """Kill a server that has something to come back with, in a training that is not over."""
        simulation = self.simulation
        saved = simulation.disk.get(index)
        initialised = self._initialised >= {worker.node for worker in simulation.workers}
        if self.plan.disk_is_full:
            leaders = [worker for worker in simulation.workers if worker.mpi_rank == 0]
            safe = initialised and all(worker.has_copies for worker in leaders) and not self.losses
        elif self.plan.snapshots:
            safe = saved is not None and len(saved[-1].header.keys) == simulation.servers[index].num_keys
        else:
            safe = initialised
        if safe and not any(worker.parting for worker in simulation.workers):
            self.losses = True
            self._kills += 1
            simulation.crash_and_restart(f"server{index}", seconds=0.5)

    # --- what a worker does ---

    def _digit(self, client: int, incarnation: int, number: int) -> float:
        """Return what a client pushes: a power of four of its own."""
        return float(4 ** ((client * INCARNATIONS + incarnation) * ROUNDS + number))

    def _script(self, worker: SimulatedWorker, incarnation: int) -> Program:
        yield worker.joined
        if all(each.joined() for each in self.simulation.workers):
            self._begin()
        worker.open_store("async")
        worker.set_optimizer(0, SPEC)
        yield worker.answered
        keys = list(range(len(self.plan.sizes)))
        # The ranks of a client must use the same order, because each call waits for its end.
        random.Random(f"{self.plan.seed} {worker.client} {incarnation}").shuffle(keys)
        runs = [self._key(worker, key) for key in keys]
        for run in runs:
            yield from self._init(worker, incarnation, run)
        self._initialised.add(worker.node)
        yield from self._meet(worker)
        for number in range(ROUNDS):
            for run in runs:
                yield from self._round(worker, incarnation, run, number)
        yield from self._meet(worker)
        self._pushed.add((worker.node, incarnation))
        for run in runs if self.plan.barriers else ():
            yield self._all_have_pushed
            yield from self._look_again(worker, run)
        if worker.failure() is None:
            self._finished.add((worker.node, incarnation))

    def _meet(self, worker: SimulatedWorker) -> Program:
        if self.plan.barriers:
            worker.barrier()
            yield worker.answered

    def _key(self, worker: SimulatedWorker, number: int) -> DenseKey | TableKey:
        is_table = self.plan.has_tables and (number + self.plan.seed) % 2 == 0
        return (TableKey if is_table else DenseKey)(worker, number, self.plan.sizes[number])

    def _init(self, worker: SimulatedWorker, incarnation: int, key: DenseKey | TableKey) -> Program:
        ending = self._ending(f"{worker.node} incarnation {incarnation} init")
        key.init(INITIALS[incarnation] if worker.rank == 0 else GARBAGE, ending.append)
        yield lambda: bool(ending)
        self._look(worker, incarnation, key, 0)

    def _round(
        self, worker: SimulatedWorker, incarnation: int, key: DenseKey | TableKey, number: int
    ) -> Program:
        if self.simulation.random.choice([True, False]):
            yield self.simulation.random.uniform(0.0, 0.1)
        key.give(self._digit(worker.client, incarnation, number) if worker.mpi_rank == 0 else 0.0)
        kinds = self.plan.kinds[number]
        for kind in kinds.split():
            what = f"{worker.node} incarnation {incarnation} {kind} {number} of key {key.number}"
            ending = self._ending(what)
            key.call(kind, ending.append)
            yield lambda ending=ending: bool(ending)  # type: ignore[misc]
        if "pull" in kinds:
            key.take()
            self._look(worker, incarnation, key, number + 1)

    def _all_have_pushed(self) -> bool:
        """Tell whether nobody pushes any more, unless somebody dies."""
        workers = self.simulation.workers
        return all((each.node, self.incarnations[each.client]) in self._pushed for each in workers)

    def _deaths(self) -> int:
        return self._kills + sum(self.incarnations)

    def _look_again(self, worker: SimulatedWorker, key: DenseKey | TableKey) -> Program:
        """Nobody pushes any more: what has changed since the last pull is all that was missing."""
        deaths = self._deaths()
        ending = self._ending(f"{worker.node} looks again at key {key.number}")
        whole = key.look_again(ending.append)
        yield lambda: bool(ending)
        key.take()
        unchanged = self._deaths() == deaths and worker.failure() is None
        if unchanged and any(np.any(key.value[ids] != rows[:, 0]) for ids, rows in whole):
            raise AssertionError(f"{worker.node} has {key.value} of key {key.number}, and not {whole}")

    def _ending(self, what: str) -> list[BaseException | None]:
        ending: list[BaseException | None] = []
        self._endings.append((what, ending))
        return ending

    def _look(
        self, worker: SimulatedWorker, incarnation: int, key: DenseKey | TableKey, pushed: int
    ) -> None:
        """Check a value that a worker sees: no push twice, and all of its client's incarnation so far."""
        if worker.failure() is not None:
            return
        value, name = key.value, key.number
        initial = value - np.floor(value)
        if not self.losses and np.any(self._initials.setdefault(name, initial) != initial):
            raise AssertionError(f"key {name} was initialised again: {self._initials[name]} -> {initial}")
        digits = self._digits(value)
        own = digits[worker.client, incarnation]
        if (np.any(own[:pushed] != 1) and not self.losses) or np.any(own[pushed:] != 0):
            raise AssertionError(
                f"{worker.node} in incarnation {incarnation} sees {own} after {pushed} pushes"
            )

    def _digits(self, value: Array) -> Array:
        """Return how often each push is in each element: (client, incarnation, round, element)."""
        whole = -np.floor(value).astype(np.int64)
        if not np.all(np.isin(value + whole, INITIALS)) or np.any(whole < 0):
            raise AssertionError(f"value {value} is not what pushes can make of {INITIALS}")
        shape = (self.plan.topology.num_clients, INCARNATIONS, ROUNDS)
        count = int(np.prod(shape))
        digits = (whole[None, :] >> (2 * np.arange(count))[:, None]) & 3
        if np.any(digits > 1):
            raise AssertionError(f"value {value} has a push twice")
        return digits.reshape(*shape, value.size)

    # --- what must be true in the end ---

    def _check(self) -> None:
        simulation, topology = self.simulation, self.plan.topology
        for worker in simulation.workers:
            incarnation = self.incarnations[worker.client]
            if (worker.node, incarnation) not in self._finished:
                raise AssertionError(f"{worker.node} has not finished: {worker.failure()!r}")
        for what, ending in self._endings:
            if any(error is not None for error in ending) or len(ending) > 1:
                raise AssertionError(f"{what} ended with {ending}")
        # A server that is started again when all the others have finished finds nobody.
        for service in (*simulation.servers, simulation.scheduler):
            too_late = self.losses and isinstance(service.error if service else None, PeerError)
            if service is not None and service.error is not None and not too_late:
                raise AssertionError("a server or the scheduler has failed") from service.error
        for server in simulation.servers:
            for value in server.values():
                self._check_value(value, range(topology.num_clients))

    def _check_value(self, value: Array, clients: range) -> None:
        """Everything of last incarnations is in it; of those before, what came first."""
        digits = self._digits(value)
        for client in clients:
            last = self.incarnations[client]
            if self.losses:
                continue
            if np.any(digits[client, last] != 1) or np.any(digits[client, last + 1 :] != 0):
                raise AssertionError(f"client {client} in its incarnation {last}: {digits[client]}")
            if np.any(np.diff(digits[client, :last], axis=1) > 0):
                raise AssertionError(f"client {client}: pushes out of order: {digits[client]}")


def run_seed(seed: int, planned: Callable[[int], Plan] = plan_of) -> Training:
    """Run the training that is planned for a seed.

    Raises:
        AssertionError: Something went wrong; the message tells how to repeat it.
    """
    command = f"{__spec__.name} {seed}"
    return carry_out(Training(planned(seed)), seed, command)


def main() -> None:
    """Run the seeds that the command line names, and say how fast."""
    arguments = parser(__doc__)
    run_range(arguments.parse_args(), run_seed)


if __name__ == "__main__":
    main()
