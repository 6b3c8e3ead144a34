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
from collections import deque
from typing import Any, Callable, Iterator, Sequence

from ..errors import (
    DeadlineError,
    KVStoreError,
    MismatchError,
    PeerLostError,
    SkippedError,
    error_from_wire,
)
from ..p3.schedule import Schedule
from ..p3.send_queue import BUNDLE_BYTES
from ..records import Key, KeySpec, Mode, NodeId, Role, Shard, Slice, Topology
from . import messages as m
from .absences import Absences, ask_again, servers_of
from .announcements import Announcements
from .farewell import Farewell
from .instructions import Log, Send
from .pending_requests import PendingRequests
from .placement import cut, deal_to_ranks
from .push_queue import Mark, PushQueue
from .runs import merge, neighbours
from .worker_records import (
    WANTED,
    Collect,
    Collective,
    Complete,
    Disconnect,
    Failed,
    Instructions,
    Joined,
    Keep,
    KeyState,
    Kind,
    Operation,
    Refer,
    Terms,
    Write,
)

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
        place: Callable[[Any], tuple[str, str, bytes, int, int, int] | None],
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
        self._slice_elements = slice_elements
        self._step_timeout = step_timeout
        self._in_slices = schedule.in_slices
        self._place = place
        self._tell_sizes = tell_sizes
        self._client = topology.client_of(rank)
        self._leader = topology.leader_of(self._client)
        self._members = [
            NodeId(Role.WORKER, r) for r in topology.members_of(self._client) if r != self._leader.index
        ]
        self._leads = rank == self._leader.index
        self._alone = topology.client_size == 1
        self._mpi_rank = rank - self._leader.index
        self._num_pushers = topology.client_size if all_push and topology.num_servers else 1
        self._farewell = Farewell(
            self._leader, self._members, leads=self._leads, all_push=self._num_pushers > 1
        )
        self._unconfirmed = 0  # servers that may not know the newest numbers of an optimizer
        self._keys: dict[tuple[int, Key], KeyState] = {}
        self._by_id: dict[int, KeyState] = {}
        self._modes: dict[int, Mode] = {}
        self._terms: dict[int, Terms] = {}
        self._active: dict[KeyState, Operation] = {}
        self._announcements = Announcements(self._members, slice_elements, by_priority=schedule.by_priority)
        self._announced: deque[m.Announced] = deque()
        self._collecting = 0  # slices that a member has begun to reduce, share or push, and not ended
        self._pushes = PushQueue(
            schedule, slice_bytes=slice_elements * 4, window_bytes=window_bytes, mark=mark
        )
        self._requests = PendingRequests()
        self._absences = Absences()
        self._keep_values = keep_values
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

    def open_store(self, store: int, mode: Mode) -> None:
        """Note a store's mode."""
        self._modes[store] = mode

    def take_terms(self, store: int, terms: Terms) -> None:
        """From now on the store's servers take pushes like this, as its optimizer needs."""
        self._terms[store] = terms
        for key in self._keys.values():
            if key.spec.store == store:
                self._apply_terms(key)

    def _apply_terms(self, key: KeyState) -> None:
        terms = self._terms.get(key.spec.store)
        if terms is None:
            return
        is_float = key.spec.dtype.startswith("float")
        key.divisor = self._topology.client_size if terms.params and is_float else 1
        key.answered = set() if terms.params else None
        pushes = self._mpi_rank < self._num_pushers
        key.reference = terms.refer(key.buffer) if terms.refer and pushes and is_float else None

    def _is_whole(self, store: int) -> bool:
        return store in self._terms and self._terms[store].whole

    def add_key(self, spec: KeySpec, buffer: Any, raw: Any, itemsize: int) -> None:
        """Note a key; an INIT operation follows."""
        key = self._keys[spec.store, spec.key] = KeyState(spec, buffer, raw, itemsize)
        self._apply_terms(key)

    def submit(self, store: int, key: Key, operation: Operation, now: float) -> Instructions:
        """The user calls an operation; it starts when those before it on the key have ended."""
        if self.error is not None:
            return [Complete(operation.done, self.error)]
        state = self._keys[store, key]
        state.queue.append(operation)
        return self._start(state, now) if len(state.queue) == 1 else []

    def _start(self, key: KeyState, now: float) -> Instructions:
        operation = key.queue[0]
        operation.since = now
        self._active[key] = operation
        if key.answered is not None:
            key.answered.clear()
        if operation.kind is Kind.INIT:
            return self._start_init(key)
        if operation.kind is Kind.PULL:
            if self._is_together(key):
                key.pulls += 1
                operation.sequence = key.pulls
            return self._start_pull(key, operation, now)
        key.pushes += 1
        operation.sequence = key.pushes
        operation.remaining = len(key.slices)
        operation.missed = servers_of(key, self._absences.away) if self._on_servers(key) else set()
        if self._alone:
            if not self._on_servers(key):
                return self._end(key, now)
            return self._push(key, operation, range(len(key.slices)), now)
        return self._agree(key, operation, now)

    def _on_servers(self, key: KeyState) -> bool:
        """Tell whether servers have a key, and not the workers of this client alone."""
        return self._topology.num_servers > 0 and self._modes[key.spec.store] is not Mode.CLIENT

    def _end(self, key: KeyState, now: float) -> Instructions:
        """The key's operation has ended: tell the caller and start the next one."""
        operation = key.queue.popleft()
        skipped = None
        if operation.skipped:
            skipped = SkippedError(f"{key.spec} was not exchanged as a whole: a server is away")
        out: Instructions = [Complete(operation.done, skipped)]
        if self._tell_sizes and operation.sequence == ITERATIONS_TO_MEASURE:
            self._tell_sizes = False
            out.append(Log(logging.INFO, f"slice_elements auto: {self._pushes.sizes(key.itemsize)}"))
        del self._active[key]
        if (
            self._keep_values
            and operation.kind is not Kind.PUSH
            and self._may_seed(key)
            and self._on_servers(key)
        ):
            out.append(Keep(key))
        while key.queue and key.queue[0].kind is Kind.PULL and not self._on_servers(key):
            out.append(Complete(key.queue.popleft().done))  # without servers the value is there
        return [*out, *self._start(key, now)] if key.queue else out

    # --- init ---

    def _start_init(self, key: KeyState) -> Instructions:
        spec = key.spec
        mode = self._modes[spec.store].value
        whole = self._is_whole(spec.store)
        declare = m.Declare(spec.store, mode, spec.key, spec.shape, spec.dtype, whole)
        return [Send(self._coordinator, declare)]

    def _placed(self, _sender: NodeId, message: m.Placed, now: float) -> Instructions:
        key = self._keys[message.store, message.key]
        key.key_id = message.key_id
        self._by_id[key.key_id] = key
        shards = [Shard(*shard) for shard in message.shards]
        placed = cut(key.key_id, shards, self._slice_elements)
        key.slices = [(NodeId(Role.SERVER, server), piece) for server, piece in placed]
        key.starts = [piece.lo for _, piece in placed]
        key.pushers = deal_to_ranks(key.key_id, len(placed), self._num_pushers)
        operation = key.queue[0]
        operation.remaining = len(key.slices)
        if self._on_servers(key):
            for server, lo, hi in shards:
                num_bytes = (hi - lo) * key.itemsize // self._num_pushers
                self._pushes.expect(NodeId(Role.SERVER, server), num_bytes)
            if self._rank == 0:
                operation.spreads = self._is_together(key)
                operation.awaited.update(range(len(key.slices)))
                return [*self._absences.present([*self._create(key, shards), *self._share(key)])]
            return [*self._absences.present(self._share(key)), *self._start_pull(key, operation, now)]
        return self._end(key, now) if self._alone else self._agree(key, operation, now)

    def _create(self, key: KeyState, shards: list[Shard], value: Any = None) -> list[Send]:
        """Give the servers the own value, or another to seed, a bundle of slices in each message."""
        spec = key.spec
        mode = self._modes[spec.store].value
        step = max(1, BUNDLE_BYTES // max(1, self._slice_elements * key.itemsize)) * self._slice_elements
        out: list[Send] = []
        for server, lo, hi in shards:
            for start in range(lo, hi, step) if hi > lo else (lo,):
                end = min(start + step, hi)
                create = m.Create(
                    spec.store,
                    mode,
                    spec.key,
                    key.key_id,
                    spec.shape,
                    spec.dtype,
                    (lo, hi),
                    [(start, end)],
                    seed=value is not None,
                )
                part = key.part(start, end)
                if value is not None:
                    part = value[start * key.itemsize : end * key.itemsize]
                out.append(Send(NodeId(Role.SERVER, server), create, [part]))
        return out

    def _share(self, key: KeyState) -> list[Send]:
        """Who pushes tells the servers where its buffer is; those that cannot reach it do not answer."""
        place = self._place(key.buffer) if self._mpi_rank < self._num_pushers else None
        if place is None:
            return []
        return [Send(server, m.Share(key.key_id, place)) for server in key.by_server()]

    def _shared(self, sender: NodeId, message: m.Shared, _now: float) -> Instructions:
        self._by_id[message.key_id].shared.add(sender)
        return []

    # --- collectives inside the client ---

    def _agree(self, key: KeyState, operation: Operation, now: float) -> Instructions:
        """An operation of this rank is ready for its collective."""
        if not self._leads:
            return self._advance(now)
        what = self._collective(key, operation.kind)
        self._announcements.put(key, operation, what, range(len(key.slices)))
        return []

    def _collective(self, key: KeyState, kind: Kind) -> Collective:
        if kind is Kind.INIT:
            return Collective.BROADCAST
        if kind is Kind.PULL:
            return Collective.FETCH
        if not self._on_servers(key):
            return Collective.ALLREDUCE
        return Collective.REDUCE_SHARE if kind is Kind.PUSHPULL else Collective.REDUCE

    def _announcement(self, _sender: NodeId, message: m.Announce, now: float) -> Instructions:
        self._announced.extend(message.entries)
        return self._advance(now)

    def _advance(self, now: float) -> Instructions:
        """A member carries out what is announced, in order, as far as its own program has come."""
        out: Instructions = []
        while self._announced:
            code, key_id, sequence, first, last, together = self._announced[0]
            collective = Collective(code)
            key = self._by_id.get(key_id)
            operation = key.queue[0] if key is not None and key.queue else None
            if key is None or operation is None:
                break
            if (operation.kind is Kind.PULL) is not (collective is Collective.FETCH):
                break
            if operation.sequence < sequence:
                break  # an earlier operation on the key is still under way here
            if operation.kind not in WANTED[collective] or operation.sequence > sequence:
                return [*out, *self.fail(self._disagreement(key, operation, collective, sequence))]
            self._announced.popleft()
            self._collecting += last - first
            out.append(Collect(collective, key, first, last, together))
        return [*out, *self._unequal(now)]

    def _disagreement(
        self, key: KeyState, operation: Operation, collective: Collective, sequence: int
    ) -> KVStoreError:
        theirs = "/".join(kind.value for kind in WANTED[collective])
        return MismatchError(
            f"key {key.spec.key!r}: {self._me} called {operation.kind.value} number {operation.sequence} "
            f"where the leader of its client called {theirs} number {sequence}; all workers of a "
            "client must call the same operations on a key in the same order"
        )

    @property
    def _me(self) -> str:
        return f"{self._topology.describe_worker(self._rank)} (rank {self._rank})"

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
            self._collecting -= num_slices

    def _arrived(self, _sender: NodeId, message: m.Arrived, _now: float) -> Instructions:
        """Values that a member pushed have come to it."""
        for key_id, first, last in message.entries:
            key = self._by_id[key_id]
            self._announcements.put(key, key.queue[0], Collective.SHARE, range(first, last))
        return []

    # --- push, pull ---

    def _push(self, key: KeyState, operation: Operation, positions: range, now: float) -> Instructions:
        operation.awaited.update(positions)
        if not operation.missed:
            self._pushes.put(key, operation, positions)
            return []
        missed = [p for p in positions if key.slices[p][0] in operation.missed]
        for run in neighbours(p for p in positions if key.slices[p][0] not in operation.missed):
            self._pushes.put(key, operation, run)
        # An exchange of parameters is not repeated: what has been missed is skipped.
        back = operation.missed - self._absences.away if not self._exchanges(key) else set()
        pulls = [pull for server in back for pull in self._pull_again(key, operation, server, missed)]
        return [*pulls, *self._miss(key, operation, missed, now)]

    def set_hyper(self, store: int, hyper: dict[str, Any]) -> Instructions:
        """Tell the servers new numbers, before anything that this client pushes from now on."""
        if self.error is not None:
            return []
        confirm = self._num_pushers > 1
        servers = [NodeId(Role.SERVER, index) for index in range(self._topology.num_servers)]
        self._unconfirmed += len(servers) if confirm else 0
        message = m.SetHyper(store, hyper, confirm)
        self._absences.note_hyper(message)
        return [*self._absences.present(Send(server, message) for server in servers)]

    def _hyper_set(self, _sender: NodeId, _message: m.HyperSet, _now: float) -> Instructions:
        self._unconfirmed -= 1
        return []

    def _start_pull(self, key: KeyState, operation: Operation, now: float) -> Instructions:
        if not self._on_servers(key):
            return self._end(key, now)
        operation.remaining = len(key.slices)
        after = key.pushes
        if self._is_together(key):
            if not self._leads:
                return self._advance(now)
            operation.spreads = True
        operation.awaited.update(range(len(key.slices)))
        pulls = [
            Send(server, m.Pull(merge((*piece, after) for piece in pieces), operation.priority))
            for server, pieces in key.by_server().items()
        ]
        return [*self._absences.present(pulls)]

    def flush(self, now: float, in_flight: Callable[[NodeId], int]) -> Instructions:
        """End of a pass of the I/O loop: announce and send, by priority, what may leave now.

        Args:
            now: The time.
            in_flight: Payload bytes under way to a server.
        """
        if self.error is not None:
            return []
        announced = self._announcements.next() if not self._unconfirmed else []
        return [*announced, *self._pushes.messages(now, in_flight)]

    def received(self, sender: NodeId, message: m.Message, payloads: list[Any], now: float) -> Instructions:
        """React to a message; after a failure nothing matters any more."""
        if self.error is not None:
            return []
        if type(message) is m.Values:
            return self._values(sender, message, payloads, now)
        if type(message) is m.States:
            return [*self._requests.states(message, payloads, lambda key_id: self._by_id[key_id].spec)]
        return self._on[type(message)](sender, message, now)

    def _values(self, _sender: NodeId, message: m.Values, payloads: list[Any], now: float) -> Instructions:
        out: Instructions = []
        arrived: list[tuple[int, int, int]] = []
        for key, lo, hi, payload in self._parts(message.entries, payloads, answers_push=message.base):
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

    def _parts(
        self, entries: list[tuple[int, int, int, int]], payloads: list[Any], *, answers_push: bool
    ) -> Iterator[tuple[KeyState, int, int, Any]]:
        """Yield the runs of an answer with their payloads, if any.

        Where answers may be repeated, each slice by itself, and only those that are missing.
        """
        for position, (key_id, lo, hi, sequence) in enumerate(entries):
            key = self._by_id[key_id]
            payload = payloads[position] if payloads else None
            if key.answered is None:
                yield key, lo, hi, payload
                continue
            for index in key.indices(lo, hi):
                _, (_, first, last) = key.slices[index]
                if key.is_missing(first, sequence, answers_push=answers_push):
                    part = payload
                    if part is not None and (first, last) != (lo, hi):
                        part = part[(first - lo) * key.itemsize : (last - lo) * key.itemsize]
                    yield key, first, last, part

    def _applied(self, _sender: NodeId, message: m.Applied, now: float) -> Instructions:
        out: Instructions = []
        for key, lo, hi, _ in self._parts(message.entries, [], answers_push=False):
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
            key.answered is not None
            or (key.queue[0].kind is Kind.INIT and self._modes[key.spec.store] is Mode.ASYNC)
        )

    # --- blocking requests ---

    def note_optimizer(self, store: int, spec: dict[str, Any]) -> None:
        """The user gives a store this update rule; rank 0 tells the servers."""
        self._absences.note_optimizer(store, spec)

    def request(self, number: int, parts: Sequence[Send] = ()) -> Instructions:
        """Begin a blocking request."""
        self._requests.note(number, list(parts))
        return [*self._absences.present(parts)]

    def units(self, store: int) -> list[tuple[KeyState, NodeId, Slice]]:
        """Return what a store's servers update together, where: slices, or all that one has of a key.

        In order of keys and elements.
        """
        keys = [self._by_id[i] for i in sorted(self._by_id) if self._by_id[i].spec.store == store]
        if not self._is_whole(store) and self._in_slices:
            return [(key, server, piece) for key in keys for server, piece in key.slices]
        return [
            (key, server, Slice(key.key_id, pieces[0].lo, pieces[-1].hi))
            for key in keys
            for server, pieces in key.by_server().items()
        ]

    # --- servers that go and come back ---

    def _go_without(self, server: NodeId, message: m.PeerGone, now: float) -> Instructions:
        """An asynchronous store's server has died and will be back: what is under way to it is void."""
        text = "; what is pushed to it until it is back is lost, and training goes on"
        out: Instructions = [Log(logging.WARNING, message.reason + text), Disconnect(server)]
        self._absences.away.add(server)
        self._pushes.drop(server)
        for key in self._keys_of(server):
            key.shared.discard(server)
            if key.reference is not None:  # what it was sent last is not known to the server any more
                mine = (key.slices[position][1] for position in key.positions_on({server}))
                out += [Refer(key, piece.lo, piece.hi, None, 0) for piece in mine]
        for key, operation in list(self._active.items()):
            if operation.kind in (Kind.PUSH, Kind.PUSHPULL) and self._on_servers(key):
                operation.missed.update(servers_of(key, {server}))
                lost = [p for p in key.positions_on({server}) if p in operation.awaited]
                out += self._miss(key, operation, lost, now)
        return out

    def _miss(self, key: KeyState, operation: Operation, missed: list[int], now: float) -> Instructions:
        """Slices were pushed to a server that was away.

        Gradients are dropped, and a value that was wanted as well is pulled when the server is back. An
        exchange of parameters does not wait: what was pushed stands for the center that it would have got,
        and a step towards that is none.
        """
        if not missed or (operation.kind is Kind.PUSHPULL and not self._exchanges(key)):
            return []
        operation.awaited.difference_update(missed)
        if operation.kind is Kind.PUSHPULL:
            operation.skipped = True
            if not self._alone:
                for run in neighbours(missed):
                    self._announcements.put(key, operation, Collective.SKIP, run)
                return []
        return self._finished(key, len(missed), now)

    def _keys_of(self, server: NodeId) -> list[KeyState]:
        """Return the keys of which a server has a part."""
        return [key for key in self._keys.values() if self._on_servers(key) and key.positions_on({server})]

    def _exchanges(self, key: KeyState) -> bool:
        """Return whether clients push parameters to a key, and get the center back."""
        return key.spec.store in self._terms and self._terms[key.spec.store].params

    def server_back(self, server: NodeId) -> Instructions:
        """A server that was away is connected again: tell it what it may have lost, and ask again."""
        if server not in self._absences.away:
            return []
        self._absences.away.discard(server)
        keys = self._keys_of(server)
        out: Instructions = [Log(logging.INFO, f"{server} is back")]
        if self._mpi_rank < self._num_pushers:
            out += self._absences.greeting(server, keys)
        out += [send for key in keys for send in self._share(key) if send.peer == server]
        out += self._requests.again(server)
        for key in keys:
            operation = self._active.get(key)
            if operation is None:
                continue
            if operation.kind is Kind.INIT and self._rank == 0:
                out += self._create_again(key, operation, server)
            else:
                out += self._pull_again(key, operation, server, sorted(operation.awaited))
        return out

    def _create_again(self, key: KeyState, operation: Operation, server: NodeId) -> Instructions:
        """Rank 0 gives a server its whole shard again, which it has in part or not at all."""
        if not operation.awaited:
            return []  # it has the value already, and gives it to the rest of its client
        mine = key.positions_on({server})
        operation.remaining += len(set(mine) - operation.awaited)
        operation.awaited.update(mine)
        return [*self._create(key, _shard_on(key, server))]

    def _may_seed(self, key: KeyState) -> bool:
        """Return whether this rank gives a server that has lost everything its value of a key."""
        return self._mpi_rank < self._num_pushers and self._modes[key.spec.store] is Mode.ASYNC

    def _missing(self, sender: NodeId, message: m.Missing, _now: float) -> Instructions:
        """A server has lost keys: give it the values that this client has; the first client's count."""
        out: Instructions = []
        for key_id in message.keys:
            key = self._by_id[key_id]
            operation = self._active.get(key)
            begins = operation is not None and operation.kind is Kind.INIT
            if begins and operation is not None and operation.awaited:
                continue  # this client has none yet
            value = bytes(key.raw) if begins or self._exchanges(key) else key.kept
            if value is None:
                text = (
                    f"{sender} has been started again without its value of {key.spec}; there is no "
                    "snapshot of it yet, and no worker has a copy"
                )
                return [*out, *self.fail(PeerLostError(text))]
            out += self._create(key, _shard_on(key, sender), memoryview(bytes(value)))
        return out

    def _pull_again(
        self, key: KeyState, operation: Operation, server: NodeId, positions: Sequence[int]
    ) -> Instructions:
        entries = ask_again(key, operation, server, positions)
        return [Send(server, m.Pull(merge(entries), operation.priority))] if entries else []

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
        out: Instructions = [Failed(error)]
        for key in self._keys.values():
            out += [Complete(operation.done, error) for operation in key.queue]
            key.queue.clear()
        self._active.clear()
        self._announced.clear()
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
        if another and self._goes_on(message):
            return [Log(logging.WARNING, f"{message.reason}; training goes on without it")]
        if node.role is Role.SERVER and message.returns and self._goes_on(message):
            return self._go_without(node, message, now)
        return self.fail(PeerLostError(message.reason))

    def _goes_on(self, gone: m.PeerGone) -> bool:
        """Return whether training can go on without somebody; before the first store, until he returns."""
        if not self._modes:
            return gone.returns
        if NodeId.parse(gone.name).role is Role.SERVER:
            return Mode.SYNC not in self._modes.values()
        return not any(map(self._needs_all, self._modes))

    def _needs_all(self, store: int) -> bool:
        """Return whether a store's rounds wait for all clients."""
        has_quorum = store in self._terms and self._terms[store].quorum
        return self._modes[store] is Mode.SYNC and not has_quorum

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
        if self._farewell.closing and self._announced:
            code, key_id, sequence, *_ = self._announced[0]
            key = self._by_id.get(key_id)
            name = repr(key.spec.key) if key else f"number {key_id}"
            waiting = f"the leader waits in {Collective(code).name} number {sequence} of key {name}"
            return self.fail(MismatchError(f"{self._me} has finished, but {waiting}: {_UNEQUAL}"))
        if not self._farewell.leader_has_finished or self._announced or self._collecting:
            return []
        for key, operation in self._active.items():
            if operation.kind in (Kind.PUSH, Kind.PUSHPULL) or operation.sequence:
                waits = f"{operation.kind.value} number {operation.sequence} of key {key.spec.key!r}"
                text = f"the leader of its client has finished, but {self._me} waits in {waits}: {_UNEQUAL}"
                return self.fail(MismatchError(text))
        return []

    # --- time ---

    def tick(self, now: float) -> Instructions:
        """Fail an operation that has waited too long."""
        for key, operation in self._active.items():
            if now - operation.since > self._step_timeout:
                servers = sorted({str(server) for server, _ in key.slices}) or [str(self._coordinator)]
                text = (
                    f"{self._me}: {operation.kind.value} number {operation.sequence} of {key.spec} has not "
                    f"ended within {self._step_timeout:g} s; {operation.remaining} of {len(key.slices)} "
                    f"slices are missing; it involves {', '.join(servers)} and the workers of its client"
                )
                return self.fail(DeadlineError(text))
        return []


def _shard_on(key: KeyState, server: NodeId) -> list[Shard]:
    """Return what a server has of a key: one run of slices, or nothing."""
    mine = key.by_server().get(server)
    return [Shard(server.index, mine[0].lo, mine[-1].hi)] if mine else []


_UNEQUAL = (
    "the workers ran unequal numbers of batches; give every worker the same number, for example by "
    "dropping the remainder of the data"
)
