"""A worker's decisions: which operation may start, which collective comes next, what is sent where.

Pure: buffers, payloads and callbacks pass through untouched. Operations on one key run one after the
other, in the order of the calls; operations on different keys overlap. The way of a pushpull::

    alone:    submit -> push slices -> values come back -> complete
    leader:   submit -> announce REDUCE -> slice reduced -> push it -> value: announce SHARE -> complete
    member:   submit -> wait for the announcement -> reduced -> wait -> shared -> complete
    pure MPI: submit -> announce ALLREDUCE -> reduced -> complete

The leader announces collectives in priority order and every rank of its client carries them out in that
order, waiting for an operation that its own program has not called yet (design: no votes). With
``leaders`` all, members push slices as well; the leader announces those, too, and is told when the values
have arrived.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kvstore_mpi.errors import KVStoreError, MismatchError, PeerLostError, error_from_wire
from kvstore_mpi.p3.schedule import Schedule
from kvstore_mpi.records import Key, Mode, NodeId, Role, Topology
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Log, Send
from kvstore_mpi.wire.runs import neighbours
from kvstore_mpi.worker.agenda import Agenda
from kvstore_mpi.worker.announcements import Announcements
from kvstore_mpi.worker.key_creation import declare
from kvstore_mpi.worker.keys import WorkerKeys
from kvstore_mpi.worker.operations import Operations
from kvstore_mpi.worker.pending_requests import PendingRequests
from kvstore_mpi.worker.push_queue import Mark, PushQueue
from kvstore_mpi.worker.records import (
    Collect,
    Collective,
    Complete,
    Failed,
    Instructions,
    Joined,
    KeyState,
    Kind,
    Operation,
    Refer,
    Write,
    collective_of,
)
from kvstore_mpi.worker.servers import Place, Servers
from kvstore_mpi.worker.shutdown import Farewell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ITERATIONS_TO_MEASURE = 5
"""After so many pushes of a key the windows have found their size."""


class WorkerState:
    """One worker of a job."""

    def __init__(
        self,
        topology: Topology,
        rank: int,
        *,
        coordinator: NodeId,
        slice_elements: int,
        step_timeout: float,
        place: Place,
        schedule: Schedule = Schedule.P3,
        window_bytes: int = 0,
        mark: Mark | None = None,
        tell_sizes: bool = False,
        all_push: bool = False,
        keep_values: bool = False,
    ) -> None:
        """Start before the others are known.

        Args:
            topology: The shape of the job.
            rank: Global rank of this worker.
            coordinator: Who agrees on keys and barriers: the scheduler, or rank 0 in pure MPI.
            slice_elements: Largest number of elements in a slice; the same on all processes.
            step_timeout: Seconds after which an operation that has not ended is an error.
            place: Where a buffer lies, if servers of this host can map it.
            schedule: The order in which slices leave.
            window_bytes: Bytes under way to one server; 0 to find out.
            tell_sizes: Log what size of messages has been chosen.
            all_push: Every rank of the client pushes slices, not the leader alone.
            keep_values: Keep copies of the weights of asynchronous stores, for servers that lose them.
            mark: Told that runs of slices are queued for a server, if the job has a trace.
        """
        self._topology = topology
        self._rank = rank
        self._coordinator = coordinator
        self._tell_sizes = tell_sizes
        self._client = topology.client_of(rank)
        self._leader = topology.leader_of(self._client)
        self._me = f"{topology.describe_worker(rank)} (rank {rank})"
        members = [NodeId(Role.WORKER, r) for r in topology.members_of(self._client)[1:]]
        self._leads = rank == self._leader.index
        self._alone = topology.client_size == 1
        self._mpi_rank = rank - self._leader.index
        num_pushers = topology.client_size if all_push and topology.num_servers else 1
        self._farewell = Farewell(self._leader, members, leads=self._leads, all_push=num_pushers > 1)
        self.keys = WorkerKeys(
            topology,
            mpi_rank=self._mpi_rank,
            num_pushers=num_pushers,
            slice_elements=slice_elements,
            in_slices=schedule.in_slices,
            keep_values=keep_values,
        )
        self._operations = Operations(self._me, str(coordinator), step_timeout)
        self._announcements = Announcements(members, slice_elements, by_priority=schedule.by_priority)
        self._agenda = Agenda(self._me)
        queue = PushQueue(schedule, slice_bytes=slice_elements * 4, window_bytes=window_bytes, mark=mark)
        self._servers = Servers(
            topology.num_servers,
            queue,
            place,
            num_pushers=num_pushers,
            mpi_rank=self._mpi_rank,
            slice_elements=slice_elements,
        )
        self._requests = PendingRequests()
        self._on: dict[type[Any], Callable[..., Instructions]] = {
            m.Peers: lambda _, message, __: [Joined(message.addresses)],
            m.Placed: self._placed,
            m.Announce: self._announcement,
            m.Arrived: self._arrived,
            m.HyperSet: self._hyper_set,
            m.Shared: self._shared,
            m.Missing: self._missing,
            m.Applied: self._applied,
            m.BarrierRelease: lambda _, message, __: [*self._requests.resolve(-message.number)],
            m.Ok: lambda _, message, __: [*self._requests.resolve(message.request, message.result)],
            m.Failure: self._failure,
            m.PeerGone: self._peer_gone,
            m.Leave: self._peer_left,
            m.Released: self._release,
        }
        self.error: KVStoreError | None = None

    # --- the user's calls ---

    def submit(self, store: int, key: Key, operation: Operation, now: float) -> Instructions:
        """The user calls an operation; it starts when those before it on the key have ended."""
        if self.error is not None:
            return [Complete(operation.done, self.error)]
        state = self.keys[store, key]
        state.queue.append(operation)
        return self._start(state, now) if len(state.queue) == 1 else []

    def _start(self, key: KeyState, now: float) -> Instructions:
        operation = self._operations.begin(key, now)
        if operation.kind is Kind.INIT:
            store = key.spec.store
            message = declare(key, whole=self.keys.is_whole(store), quorum=self.keys.has_quorum(store))
            return [Send(self._coordinator, message)]
        if operation.kind is Kind.PULL:
            if self._is_together(key):
                key.pulls += 1
                operation.sequence = key.pulls
            return self._start_pull(key, operation, now)
        key.pushes += 1
        operation.sequence = key.pushes
        operation.remaining = len(key.slices)
        operation.missed = self._servers.missed_by(key)
        out = self._fill_buffer(key, operation)
        if not self._alone:
            return out + self._agree(key, operation, now)
        if not key.on_servers:
            return out + self._end(key, now)
        return out + self._push(key, operation, range(len(key.slices)), now)

    def _fill_buffer(self, key: KeyState, operation: Operation) -> Instructions:
        """Copy what is pushed from elsewhere into the buffer, as far as it is read or worked on there."""
        source = operation.source
        if source is None:
            return []
        if not (self._alone and key.sends_source):
            operation.source = None
            return [Write(key.raw, source)]
        mapped = [piece for server, piece in key.slices if server in key.shared]
        return [Write(key.part(lo, hi), key.part(lo, hi, source)) for _, lo, hi in mapped]

    def _end(self, key: KeyState, now: float) -> Instructions:
        """The key's operation has ended: tell the caller and start the next one."""
        operation = key.queue[0]
        out = self._operations.end(key, keep=self.keys.keeps(key))
        if self._tell_sizes and operation.sequence == ITERATIONS_TO_MEASURE:
            self._tell_sizes = False
            out.append(Log(logging.INFO, f"slice_elements auto: {self._servers.sizes(key.itemsize)}"))
        return [*out, *self._start(key, now)] if key.queue else out

    # --- init ---

    def _placed(self, _sender: NodeId, message: m.Placed, now: float) -> Instructions:
        key, shards = self.keys.place(message)
        operation = key.queue[0]
        operation.remaining = len(key.slices)
        if key.on_servers:
            self._servers.expect(key, shards)
            share = self._servers.share(key)
            if self._rank == 0:
                operation.spreads = self._is_together(key)
                operation.awaited.update(range(len(key.slices)))
                return [*self._servers.present([*self._servers.create(key, shards), *share])]
            return [*self._servers.present(share), *self._start_pull(key, operation, now)]
        return self._end(key, now) if self._alone else self._agree(key, operation, now)

    def _shared(self, sender: NodeId, message: m.Shared, _now: float) -> Instructions:
        self.keys.numbered(message.key_id).shared.add(sender)
        return []

    # --- collectives inside the client ---

    def _agree(self, key: KeyState, operation: Operation, now: float) -> Instructions:
        """An operation of this rank is ready for its collective."""
        if not self._leads:
            return self._advance(now)
        what = collective_of(operation.kind, on_servers=key.on_servers)
        self._announcements.put(key, operation, what, range(len(key.slices)))
        return []

    def _announcement(self, _sender: NodeId, message: m.Announce, now: float) -> Instructions:
        self._agenda.put(message.entries)
        return self._advance(now)

    def _advance(self, now: float) -> Instructions:
        """A member carries out what is announced, in order, as far as its own program has come."""
        out: Instructions = []
        try:
            while (collect := self._agenda.next(self.keys.find)) is not None:
                out.append(collect)
        except MismatchError as error:
            return [*out, *self.fail(error)]
        return [*out, *self._unequal(now)]

    def collected(self, done: Collect, now: float) -> Instructions:
        """A collective has been carried out on slices of a key."""
        if self.error is not None:
            return []
        key, operation = done.key, done.key.queue[0]
        if self._leads:
            self._announcements.ended(done)
        ended = done.last - done.first
        out: Instructions = []
        operation.skipped |= done.operation is Collective.SKIP
        if done.operation in (Collective.REDUCE, Collective.REDUCE_SHARE):
            for rank, first, last in key.by_pusher(done.first, done.last):
                if rank == self._mpi_rank:
                    out += self._push(key, operation, range(first, last), now)
                    ended -= last - first
        self._settle(ended)
        if done.operation is not Collective.REDUCE_SHARE and ended:
            out += self._finished(key, ended, now)
        return [*out, *self._unequal(now)]

    def _settle(self, num_slices: int) -> None:
        """A member has nothing to wait for any more with slices that it had begun."""
        if not self._leads:
            self._agenda.ended(num_slices)

    def _arrived(self, _sender: NodeId, message: m.Arrived, _now: float) -> Instructions:
        """Values that a member pushed have come to it."""
        for key_id, first, last in message.entries:
            key = self.keys.numbered(key_id)
            self._announcements.put(key, key.queue[0], Collective.SHARE, range(first, last))
        return []

    # --- push, pull ---

    def _push(self, key: KeyState, operation: Operation, positions: range, now: float) -> Instructions:
        pulls, missed = self._servers.push(key, operation, positions)
        return [*pulls, *self._miss(key, operation, missed, now)]

    def set_hyper(self, store: int, hyper: dict[str, Any]) -> Instructions:
        """Tell the servers new numbers, before anything that this client pushes from now on."""
        if self.error is not None:
            return []
        return [*self._servers.set_hyper(store, hyper)]

    def _hyper_set(self, _sender: NodeId, _message: m.HyperSet, _now: float) -> Instructions:
        self._servers.hyper_confirmed()
        return []

    def _start_pull(self, key: KeyState, operation: Operation, now: float) -> Instructions:
        if not key.on_servers:
            return self._end(key, now)
        operation.remaining = len(key.slices)
        if self._is_together(key):
            if not self._leads:
                return self._advance(now)
            operation.spreads = True
        return [*self._servers.pull(key, operation)]

    def flush(self, now: float, in_flight: Callable[[NodeId], int]) -> Instructions:
        """End of a pass of the I/O loop: announce and send, by priority, what may leave now.

        Args:
            now: The time.
            in_flight: Payload bytes under way to a server.
        """
        if self.error is not None:
            return []
        announced = self._announcements.next() if self._servers.know_hypers else []
        return [*announced, *self._servers.messages(now, in_flight)]

    def received(self, sender: NodeId, message: m.Message, payloads: list[Any], now: float) -> Instructions:
        """React to a message; after a failure nothing matters any more."""
        if self.error is not None:
            return []
        if type(message) is m.Values:
            return self._values(sender, message, payloads, now)
        if type(message) is m.States:
            return [
                *self._requests.states(message, payloads, lambda key_id: self.keys.numbered(key_id).spec)
            ]
        return self._on[type(message)](sender, message, now)

    def _values(self, _sender: NodeId, message: m.Values, payloads: list[Any], now: float) -> Instructions:
        out: Instructions = []
        arrived: list[tuple[int, int, int]] = []
        for key, lo, hi, payload in self.keys.runs(message.entries, payloads, answers_push=message.base):
            operation = key.queue[0]
            refers = key.reference is not None and operation.kind is Kind.PUSHPULL
            if refers:
                known = payload if message.base else None
                out.append(Refer(key, lo, hi, known, message.bits))
            if not (message.shared or (refers and message.base)):
                out.append(Write(key.part(lo, hi), payload))
            indices = key.indices(lo, hi)
            operation.awaited.difference_update(indices)
            if operation.kind is not Kind.PUSHPULL or self._alone:
                out += self._finished(key, len(indices), now)
            elif self._leads:
                self._announcements.put(key, operation, Collective.SHARE, indices)
            else:
                self._settle(len(indices))
                arrived.append((key.key_id, indices.start, indices.stop))
        return [*out, Send(self._leader, m.Arrived(arrived))] if arrived else out

    def _applied(self, _sender: NodeId, message: m.Applied, now: float) -> Instructions:
        out: Instructions = []
        for key, lo, hi, _ in self.keys.runs(message.entries, [], answers_push=False):
            indices = key.indices(lo, hi)
            key.queue[0].awaited.difference_update(indices)
            self._settle(len(indices))
            out += self._finished(key, len(indices), now)
        return out

    def _finished(self, key: KeyState, num_slices: int, now: float) -> Instructions:
        """Slices of the key's operation are finished; the last ones end it."""
        operation = key.queue[0]
        operation.remaining -= num_slices
        if operation.remaining:
            return []
        if operation.spreads:
            operation.spreads = False
            operation.remaining = len(key.slices)
            return self._agree(key, operation, now)
        return self._end(key, now)

    def _is_together(self, key: KeyState) -> bool:
        """Return whether the ranks of a client pull a key together, so that they have the same bits.

        Parameters must not differ between the ranks, and others' pushes may come between two pulls.
        """
        return not self._alone and (
            key.is_exchanged or (key.queue[0].kind is Kind.INIT and key.mode is Mode.ASYNC)
        )

    # --- blocking requests ---

    def note_optimizer(self, store: int, spec: dict[str, Any]) -> None:
        """The user gives a store this update rule; rank 0 tells the servers."""
        self._servers.note_optimizer(store, spec)

    def request(self, number: int, parts: Sequence[Send] = ()) -> Instructions:
        """Begin a blocking request."""
        self._requests.note(number, list(parts))
        return [*self._servers.present(parts)]

    # --- servers that go and come back ---

    def _go_without(self, server: NodeId, message: m.PeerGone, now: float) -> Instructions:
        """An asynchronous store's server has died and will be back: what is under way to it is void."""
        out = self._servers.lose(server, message.reason, self.keys.on(server))
        for key, operation in self._operations.under_way():
            if operation.kind in (Kind.PUSH, Kind.PUSHPULL) and key.on_servers:
                operation.missed.update(key.servers & {server})
                lost = [p for p in key.positions_on({server}) if p in operation.awaited]
                out += self._miss(key, operation, lost, now)
        return out

    def _miss(self, key: KeyState, operation: Operation, missed: list[int], now: float) -> Instructions:
        """Slices were pushed to a server that was away.

        Gradients are dropped, and a value that was wanted as well is pulled when the server is back. An
        exchange of parameters does not wait: what was pushed stands for the center that it would have got,
        and a step towards that is none.
        """
        if not missed or (operation.kind is Kind.PUSHPULL and not key.is_exchanged):
            return []
        operation.awaited.difference_update(missed)
        if operation.kind is Kind.PUSHPULL:
            operation.skipped = True
            if not self._alone:
                for run in neighbours(missed):
                    self._announcements.put(key, operation, Collective.SKIP, run)
                return []
        return self._finished(key, len(missed), now)

    def server_back(self, server: NodeId) -> Instructions:
        """A server that was away is connected again: tell it what it may have lost, and ask again."""
        if not self._servers.is_away(server):
            return []
        keys = self.keys.on(server)
        out = self._servers.welcome(server, keys)
        out += self._requests.again(server)
        for key in keys:
            operation = self._operations.on(key)
            if operation is None:
                continue
            if operation.kind is Kind.INIT and self._rank == 0:
                out += self._servers.create_again(key, operation, server)
            else:
                out += self._servers.pull_again(key, operation, server, sorted(operation.awaited))
        return out

    def _missing(self, sender: NodeId, message: m.Missing, _now: float) -> Instructions:
        """A server has lost keys: give it the values that this client has; the first client's count."""
        out: Instructions = []
        for key_id in message.keys:
            key = self.keys.numbered(key_id)
            operation = self._operations.on(key)
            begins = operation is not None and operation.kind is Kind.INIT
            if begins and operation is not None and operation.awaited:
                continue  # this client has none yet
            value = key.raw if begins or key.is_exchanged else key.kept
            if value is None:
                text = (
                    f"{sender} has been started again without its value of {key.spec}; there is no "
                    "snapshot of it yet, and no worker has a copy"
                )
                return [*out, *self.fail(PeerLostError(text))]
            out += self._servers.seed(key, sender, value)
        return out

    # --- failures and departures ---

    def _failure(self, sender: NodeId, message: m.Failure, _now: float) -> Instructions:
        error = error_from_wire(message.error, f"{message.text} [reported by {sender}]")
        if message.request >= 0:
            return [*self._requests.refused(message.request, error)]
        return self.fail(error)

    def fail(self, error: KVStoreError) -> Instructions:
        """End all communication with an error: what is pending and what comes later ends with it."""
        if self.error is not None:
            return []
        self.error = error
        out: Instructions = [Failed(error), *self._operations.fail(self.keys, error)]
        self._agenda.clear()
        return [*out, *self._requests.fail(error)]

    def interrupt(self, reason: str) -> Instructions:
        """This process has been told to end: whoever waits for it must not go on waiting."""
        if self.error is not None:
            return []
        error = PeerLostError(f"{self._me} {reason}")
        return [Send(self._coordinator, m.Interrupted(reason)), *self.fail(error)]

    def _peer_gone(self, _sender: NodeId, message: m.PeerGone, now: float) -> Instructions:
        node = NodeId.parse(message.name)
        if message.orderly:
            return []
        another = node.role is Role.WORKER and self._topology.client_of(node.index) != self._client
        if another and self.keys.goes_on_without(message):
            return [Log(logging.WARNING, f"{message.reason}; training goes on without it")]
        if node.role is Role.SERVER and message.returns and self.keys.goes_on_without(message):
            return self._go_without(node, message, now)
        return self.fail(PeerLostError(message.reason))

    def lost(self, node: NodeId, why: str) -> Instructions:
        """A peer that this worker talks to itself cannot be reached any more."""
        return self.fail(PeerLostError(f"{self._me}: lost {node}: {why}"))

    def _peer_left(self, sender: NodeId, _message: m.Leave, now: float) -> Instructions:
        return [*self._farewell.left(sender), *self._unequal(now)]

    def _release(self, _sender: NodeId, _message: m.Released, _now: float) -> Instructions:
        self._farewell.released()
        return []

    def close(self, now: float) -> Instructions:
        """The user's program is over and its operations have ended: tell the rest of the client."""
        return [*self._farewell.close(), *self._unequal(now)]

    @property
    def may_end(self) -> bool:
        """After ``close``: nobody of this client needs this worker any more."""
        return self.error is not None or self._farewell.may_end

    def leave(self) -> Instructions:
        """The last word, once ``may_end``: the servers need not wait for this client any more."""
        return [*self._farewell.last_word(self._coordinator)]

    def _unequal(self, _now: float) -> Instructions:
        """Find operations that can never be carried out because one of the client has finished."""
        waiting = self._agenda.describe_first(self.keys.find) if self._farewell.closing else ""
        if waiting:
            return self.fail(MismatchError(f"{self._me} has finished, but {waiting}: {_UNEQUAL}"))
        if not self._farewell.leader_has_finished or not self._agenda.is_empty:
            return []
        waits = self._operations.waits_for_client()
        if waits:
            text = f"the leader of its client has finished, but {self._me} waits in {waits}: {_UNEQUAL}"
            return self.fail(MismatchError(text))
        return []

    # --- time ---

    def tick(self, now: float) -> Instructions:
        """Fail an operation that has waited too long."""
        error = self._operations.overdue(now)
        return self.fail(error) if error is not None else []


_UNEQUAL = (
    "the workers ran unequal numbers of batches; give every worker the same number, for example by "
    "dropping the remainder of the data"
)
