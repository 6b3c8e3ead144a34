"""Exchanges with a center in a simulated job, and what must be true of them whatever the network does.

Run ``python -m support.simulated_exchange FIRST [END]`` for seeds, ``--crash`` for misfortunes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvstore_mpi.errors import KVStoreError, PeerError, SkippedError
from kvstore_mpi.records import NodeId, Role
from support.seeds import carry_out, check, parser, run_range
from support.simulated_client_key import GARBAGE, ClientKey
from support.simulated_exchange_plan import SLICE_ELEMENTS, Plan, initial, plan_of
from support.simulation import Simulation

if TYPE_CHECKING:
    from kvstore_mpi.records import Slice
    from kvstore_mpi.server.records import Update
    from support.simulated_shells import Program, SimulatedServer, SimulatedWorker

Array = np.ndarray[Any, Any]

CALM_AFTER = 20.0
"""Virtual time at which the network stops to fail, so that every run must end."""

LIMIT = 90.0
"""Virtual time by which every run must have ended."""

PEER_TIMEOUT = 5.0
"""Silence after which a client counts as dead, in runs in which one dies."""


class Entry(NamedTuple):
    """One update of one slice, as a server carried it out.

    Attributes:
        incarnation: How often the server had been started again.
        before: The center until then.
        params: What each client has pushed; empty where that was compressed.
    """

    time: float
    incarnation: int
    number: int
    clients: list[int]
    sequences: list[int]
    before: Array
    params: list[Array]


class ExchangeRun:
    """One run of a plan."""

    def __init__(self, plan: Plan) -> None:
        """Make the job; ``run`` runs it."""
        self.plan = plan
        self.simulation = Simulation(
            plan.topology,
            plan.seed,
            slice_elements=SLICE_ELEMENTS,
            heartbeat=0.1,
            peer_timeout=60.0 if plan.victim is None else PEER_TIMEOUT,
            leaders=plan.leaders,
            snapshot_dir="simulated" if plan.snapshots else "",
            snapshot_every=0.05,
            start_with=plan.topology.num_clients - 1 if plan.late else 0,
            late=dict([plan.late] if plan.late else ()),
        )
        self.journal: dict[tuple[int, int], list[Entry]] = {}
        self._keys: dict[int, list[ClientKey]] = {}
        self._key_numbers: dict[int, int] = {}
        self._finished: set[int] = set()
        self.victims: list[NodeId] = []
        self.returned: int | None = None  # the client that was started again
        self._joined_at: dict[int, float] = {}  # by rank
        self._incarnations = [0] * plan.topology.num_servers
        for index in range(plan.topology.num_servers):
            self._watch(index)

    def run(self) -> None:
        """Run the job to its end and check everything.

        Raises:
            AssertionError: Something that must be true is not.
        """
        simulation = self.simulation
        simulation.disturb(self.plan.faults, CALM_AFTER, breaks=self.plan.breaks)
        for worker in simulation.workers:
            worker.spawn(self._script(worker, 0))
        simulation.run(LIMIT)
        self._check()

    def _watch(self, index: int) -> None:
        server, incarnation = self.simulation.servers[index], self._incarnations[index]
        server.watch = lambda update: self._note(server, incarnation, update)

    def _note(self, server: SimulatedServer, incarnation: int, update: Update) -> None:
        """Write down what a server is about to do."""
        for position, piece in enumerate(update.unit.slices):
            payloads = [c.payloads[position] for c in update.contributions]
            raw = [] if self.plan.compress else [np.frombuffer(p, np.float32).copy() for p in payloads]
            entry = Entry(
                self.simulation.network.now,
                incarnation,
                update.number,
                update.clients,
                [c.sequence for c in update.contributions],
                server.value(update.unit, piece.lo, piece.hi).copy(),
                raw,
            )
            self._key_numbers[piece.key_id] = int(update.unit.key.key)
            self.journal.setdefault((piece.key_id, piece.lo), []).append(entry)

    @property
    def skipped(self) -> int:
        """How many exchanges were left out, in part or as a whole, because a server was down."""
        endings = [ending[0] for keys in self._keys.values() for key in keys for ending in key.endings]
        return sum(isinstance(ending, SkippedError) for ending in endings)

    @property
    def began_without_all(self) -> bool:
        """Whether somebody had exchanged before everybody was there."""
        first = min(entries[0].time for entries in self.journal.values())
        return first < max(self._joined_at.values())

    # --- what a worker does ---

    def _script(self, worker: SimulatedWorker, incarnation: int) -> Program:
        plan = self.plan
        yield worker.joined
        self._joined_at[worker.rank] = self.simulation.network.now
        worker.open_store(plan.mode)
        worker.set_optimizer(0, plan.spec)
        yield worker.answered
        keys = [ClientKey(worker, number, plan) for number in range(len(plan.sizes))]
        self._keys[worker.rank] = keys
        late = plan.late is not None and worker.client == plan.late[0]
        for key in keys:  # all ranks of a client in the same order, as they wait for each other
            yield from key.init(GARBAGE * incarnation, adopts=late)
        if plan.victim is not None or plan.server_deaths:
            worker.barrier()
            yield worker.answered
            if worker.rank == 0 and not incarnation:
                self._plan_deaths()
        under_way = set(keys)
        for key in keys:
            worker.spawn(self._train(key, under_way))
        yield lambda: not under_way
        if plan.looks_back:
            worker.barrier()
            yield worker.answered
            for key in keys:
                yield from key.look()
        self._finished.add(worker.rank)

    def _train(self, key: ClientKey, under_way: set[ClientKey]) -> Program:
        for _ in range(self.plan.rounds):
            if self.simulation.random.choice([True, False]):
                yield self.simulation.random.uniform(0.0, 0.3)
            yield from key.exchange()
        under_way.discard(key)

    def _plan_deaths(self) -> None:
        if self.plan.victim is not None:
            self.simulation.later(self.plan.death, self._kill)
        for index, seconds in self.plan.server_deaths:
            self.simulation.later(seconds, lambda index=index: self._kill_server(index))  # type: ignore[misc]

    def _kill_server(self, index: int) -> None:
        """Kill a server, unless the job ends or, with snapshots, it would have none."""
        simulation = self.simulation
        saved = simulation.disk.get(index)
        whole = saved is not None and len(saved[-1].header.keys) == simulation.servers[index].num_keys
        if (whole or not self.plan.snapshots) and not any(w.parting for w in simulation.workers):
            simulation.crash_and_restart(f"server{index}", seconds=0.5)
            self._incarnations[index] += 1
            self._watch(index)

    def _kill(self) -> None:
        members = self.plan.topology.members_of(self.plan.victim or 0)
        nodes = [NodeId(Role.WORKER, rank) for rank in members]
        alive = all(map(self.simulation.is_running, nodes))
        if alive and not self.plan.returns:
            self.victims = nodes
            self.simulation.crash(nodes)
        elif alive and not any(self.simulation.workers[rank].parting for rank in members):
            self.returned = self.plan.victim
            for worker in self.simulation.crash_and_restart(f"client{self.returned}", seconds=0.5):
                worker.spawn(self._script(worker, 1))

    # --- what must be true in the end ---

    def _check(self) -> None:
        lost = {node.index for node in self.victims}
        for worker in self.simulation.workers:
            if worker.rank not in lost:
                check(
                    worker.rank in self._finished and worker.failure() is None,
                    f"{worker.node} has not finished: {worker.failure()!r}",
                )
        for service in (*self.simulation.servers, self.simulation.scheduler):
            error: KVStoreError | None = service.error if service is not None else None
            named = self.victims and service is self.simulation.scheduler  # a lost client fails the job
            # A server that is started again when all the others have finished finds nobody.
            named = named or (any(self._incarnations) and isinstance(error, PeerError))
            check(error is None or named, f"a server or the scheduler has failed: {error!r}")
        self._check_ranks(lost)
        self._check_journal(lost)
        self._check_beginnings(lost)
        if self.plan.elastic and self.plan.looks_back and not any(self._incarnations):
            self._check_sum()

    def _check_ranks(self, lost: set[int]) -> None:
        """The ranks of a client have been answered the same, and have the same parameters."""
        for client in range(self.plan.topology.num_clients):
            ranks = [rank for rank in self.plan.topology.members_of(client) if rank not in lost]
            told = [
                [array.tobytes() for key in self._keys[rank] for array in (*key.answers, key.params)]
                for rank in ranks
            ]
            check(all(each == told[0] for each in told), f"the ranks of client {client} differ")
            whole = all(np.all(np.isfinite(a)) for r in ranks for k in self._keys[r] for a in k.answers)
            check(whole, f"client {client} has been told less than it asked for")

    def _check_beginnings(self, lost: set[int]) -> None:
        """Who comes late or again begins with a center that is no older than its coming, and trains it."""
        topology = self.plan.topology
        for server in self.simulation.servers:
            for unit in server.units(0):
                for piece in unit.slices:
                    end = server.value(unit, piece.lo, piece.hi)
                    for client in range(topology.num_clients):
                        self._check_beginning(client, piece, end, lost)

    def _check_beginning(self, client: int, piece: Slice, end: Array, lost: set[int]) -> None:
        members = self.plan.topology.members_of(client)
        entries = self.journal.get((piece.key_id, piece.lo), [])
        if not entries or lost.intersection(members):
            return
        since = min(self._joined_at[rank] for rank in members)  # the leader asks for all of them
        later = [entry for entry in entries if entry.time >= since]
        centers = {each.tobytes() for each in (*(entry.before for entry in later), end)}
        for rank in members:
            key = self._keys[rank][self._key_numbers[piece.key_id]]
            if key.begun_with is not None:
                begun = key.begun_with[piece.lo : piece.hi]
                check(begun.tobytes() in centers, f"worker {rank}, {piece}: begins with {begun}, no center")
        first = next((e for e in later if (client, 1) in zip(e.clients, e.sequences)), None)
        if first is not None and first.params and key.first_given is not None:
            given = first.params[first.clients.index(client)]
            wanted = key.first_given[piece.lo : piece.hi]
            check(given.tobytes() == wanted.tobytes(), f"client {client}, {piece}: {given} is not {wanted}")

    def _check_journal(self, lost: set[int]) -> None:
        """Each exchange counts once, in order; replayed one by one they give the same bits."""
        lost_clients = {self.plan.topology.client_of(rank) for rank in lost}
        for (key_id, lo), entries in self.journal.items():
            where = f"key {self._key_numbers[key_id]} from {lo}"
            for incarnation in range(entries[-1].incarnation + 1):
                numbers = [entry.number for entry in entries if entry.incarnation == incarnation]
                start = numbers[0] if incarnation and numbers else 1
                check(numbers == list(range(start, start + len(numbers))), f"{where}: updates {numbers}")
            for client in range(self.plan.topology.num_clients):
                counted = [s for e in entries for c, s in zip(e.clients, e.sequences) if c == client]
                most = self.plan.rounds if client not in lost_clients else len(counted)
                if client == self.returned:  # both incarnations count from the start
                    first = len(counted) - most
                    check(
                        counted[:first] == list(range(1, first + 1)),
                        f"{where}: first incarnation: {counted}",
                    )
                    counted = counted[first:]
                if any(self._incarnations):  # what a server has lost is lost, and nothing counts twice
                    check(counted == sorted(set(counted)), f"{where}: client {client}: {counted}")
                else:
                    check(counted == list(range(1, most + 1)), f"{where}: client {client}: {counted}")
            if not self.plan.compress:
                self._replay(key_id, lo, entries, lost)

    def _replay(self, key_id: int, lo: int, entries: list[Entry], lost: set[int]) -> None:
        """Do the same by the book, and compare what clients were told, and the center in the end."""
        plan = self.plan
        number = self._key_numbers[key_id]
        size = len(entries[0].params[0])
        center = initial(number, plan.sizes[number])[lo : lo + size].copy()
        rate = np.float32(plan.rate)
        incarnation = 0
        centers = {0: center}  # by the number of updates
        former = (
            sum(self.returned in entry.clients for entry in entries) - plan.rounds
        )  # in its first incarnation
        for entry in entries:
            if (
                entry.incarnation != incarnation
            ):  # it goes on from a snapshot; without, a client has given a value
                incarnation = entry.incarnation
                center = centers[entry.number - 1] if entry.number > 1 else entry.before
            before = center
            check(before.tobytes() == entry.before.tobytes(), f"key {number} from {lo}: {entry}")
            step = before - entry.params[0]
            for params in entry.params[1:]:
                step = step + (before - params)
            if not plan.elastic and len(entry.params) > 1:
                step = step / np.float32(len(entry.params))
            center = centers[entry.number] = before - rate * step
            for client, sequence, params in zip(entry.clients, entry.sequences, entry.params):
                rank = plan.topology.leader_of(client).index
                former -= client == self.returned
                if rank in lost or (client == self.returned and former >= 0):
                    continue
                answer = sequence if client == self.returned else sequence - 1  # it begins with the center
                told = self._keys[rank][number].answers[answer][lo : lo + size]
                # Without a base the answer is the value when it leaves, which others may have moved on.
                exact = plan.elastic or (plan.mode == "sync" and not plan.quorum)
                expected = before if plan.elastic else center
                skipped = any(self._incarnations) and told.tobytes() == params.tobytes()
                check(
                    not exact or skipped or told.tobytes() == expected.tobytes(),
                    f"client {client}, key {number} from {lo}, exchange {sequence}: {told} not {expected}",
                )
        self._check_end(
            key_id, lo, centers, certain=plan.snapshots or incarnation == max(self._incarnations)
        )
        for rank, keys in self._keys.items():
            if rank not in lost and plan.looks_back and not any(self._incarnations):
                pulled = keys[number].buffer[lo : lo + size]
                check(pulled.tobytes() == center.tobytes(), f"rank {rank}: {pulled} is not {center}")

    def _check_end(self, key_id: int, lo: int, centers: dict[int, Array], *, certain: bool) -> None:
        """What a server has in the end belongs to the number of its updates, also when it was restored."""
        for server in self.simulation.servers if certain else ():
            for unit in server.units(0):
                if unit.slices[0][:2] == (key_id, lo):
                    value = server.value(unit, lo, unit.slices[-1].hi)
                    same = value.tobytes() == centers[unit.updates].tobytes()
                    check(same, f"{server.node} has {value} after {unit.updates} updates, not {centers}")

    def _check_sum(self) -> None:
        """The sum of all clients' parameters and the center changes by what clients learn only."""
        plan = self.plan
        leaders = [plan.topology.leader_of(client).index for client in range(plan.topology.num_clients)]
        for number, size in enumerate(plan.sizes):
            start = initial(number, size).astype(np.float64)
            found = self._keys[0][number].buffer.astype(np.float64)
            for rank in leaders:
                key = self._keys[rank][number]
                source = np.random.RandomState([plan.seed, key.worker.client, number])
                start += source.normal(size=size).astype(np.float32)
                start += key.learned
                found += key.params
            worst = np.abs(found - start).max()
            check(worst < 1e-5 * (plan.rounds + 1), f"key {number}: the sum has changed by {worst}")


def run_seed(seed: int, *, crash: str = "") -> ExchangeRun:
    """Run the exchanges of a seed.

    Raises:
        AssertionError: Something went wrong; the message tells how to repeat it.
    """
    command = f"{__spec__.name} {seed}{f' --crash {crash}' if crash else ''}"
    return carry_out(ExchangeRun(plan_of(seed, crash=crash)), seed, command)


def main() -> None:
    """Run the seeds that the command line names, and say how fast."""
    arguments = parser(__doc__)
    arguments.add_argument("--crash", choices=("client", "server", "return", "late"), default="")
    run_range(arguments.parse_args(), run_seed)


if __name__ == "__main__":
    main()
