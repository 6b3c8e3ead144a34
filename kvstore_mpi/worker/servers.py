"""The servers as one worker sees them: what it gives them, pushes to them and asks of them.

Pure. This file must not know when an operation starts or ends, or what other ranks of the client do. What
is said to servers that were down is in ``outages.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from kvstore_mpi.p3.schedule import Schedule
from kvstore_mpi.p3.send_queue import SendQueue
from kvstore_mpi.records import NodeId, Role, Shard, Slice
from kvstore_mpi.values.coding import RAW
from kvstore_mpi.values.dense import merge, neighbours
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Send
from kvstore_mpi.worker.collectives import Kind
from kvstore_mpi.worker.key_creation import create
from kvstore_mpi.worker.records import KeyState, Operation, wants_value

if TYPE_CHECKING:
    from kvstore_mpi.config import NodeConfig
    from kvstore_mpi.records import Topology
    from kvstore_mpi.values.row_sparse import WantedRows
    from kvstore_mpi.wire.message import Message

Place = Callable[[Any], "tuple[str, str, bytes, int, int, int] | None"]
"""Tells where a buffer lies, if servers of this host can map it."""

Mark = Callable[[Literal["queued"], NodeId, Sequence[Sequence[int]]], None]
"""Told that runs of slices are queued for a server: (key number, lo, hi, sequence)."""


_Requests = tuple[list[tuple[int, int, int, int]], list[Any]]
"""Entries of a pull, and the rows that are wanted of each."""


class Push(NamedTuple):
    """A slice that waits to be pushed.

    Attributes:
        key: Its key.
        slice: Its elements.
        sequence: Number of the push on the key.
        wants_value: The new value is to come back.
        priority: Larger goes first.
        shared: The server reads it in the key's buffer.
        source: Where else it is sent from, or ``None``.
    """

    key: KeyState
    slice: Slice
    sequence: int
    wants_value: bool
    priority: int
    shared: bool
    source: Any


class Servers:
    """All servers of a job, for one worker.

    Attributes:
        down: Servers that have died and are being started again.
        unconfirmed: How many servers may not know the newest hyper-parameters of an optimizer. While any
            may not, a rank other than the one that told them must not push: its push could be updated with
            the old ones.
        nodes: All of them.
        pushes_here: This rank pushes slices.
        confirms_hypers: Other ranks of the client push as well.
    """

    def __init__(
        self,
        config: NodeConfig,
        topology: Topology,
        place: Place,
        *,
        num_pushers: int,
        mpi_rank: int,
        mark: Mark | None = None,
    ) -> None:
        """Start with all servers up.

        Args:
            config: Says how slices are scheduled, how large they are, and how many bytes may be under way.
            topology: The shape of the job.
            place: Where a buffer lies, if servers of this host can map it.
            num_pushers: How many ranks of a client push slices.
            mpi_rank: Rank of this worker in its client.
            mark: Told what is queued, if the job has a trace.
        """
        # Shared with ``Outages``, which adds and removes; here it is only asked.
        self.down: set[NodeId] = set()
        self.unconfirmed = 0
        self.pushes_here = mpi_rank < num_pushers
        self.confirms_hypers = num_pushers > 1
        self.nodes = [NodeId(Role.SERVER, index) for index in range(topology.num_servers)]
        self._slice_elements = config.largest_slice
        self._resumes = config.resume
        self._queue: SendQueue[NodeId, Push] = SendQueue(
            Schedule(config.schedule),
            window_bytes=config.window_bytes,
        )
        # Of a model with many tables one pass looks up rows of all: a message to a server for each table
        # would cost it, and this worker, more than the rows.
        self._asks: dict[tuple[NodeId, int], _Requests] = {}
        self._place = place
        self._num_pushers = num_pushers
        self._mark = mark

    def present(self, sends: Iterable[Send]) -> list[Send]:
        """Leave out what is for servers that are down; they are told when they are back."""
        # Not kept for later: a server that is back has lost more than these, and is told everything anew.
        return [send for send in sends if send.peer not in self.down]

    @property
    def waiting_bytes(self) -> int:
        """Bytes of pushes that wait to leave; any thread may ask."""
        return self._queue.num_bytes

    # --- keys ---

    def expect(self, key: KeyState, shards: Iterable[Shard], *, times: int = 1) -> None:
        """Note that servers have these shards of a key, or, -1 times, that they have them no more.

        Windows grow with what an iteration sends.
        """
        if key.table is not None:  # what will be pushed of it, nobody knows
            return
        # Of what this rank pushes: the ranks of a client deal a key's slices among them, and the window of
        # each is a share of its own traffic.
        for server, lo, hi in shards:
            num_bytes = times * (key.layout.num_bytes(lo, hi) // self._num_pushers)
            self._queue.expect(NodeId(Role.SERVER, server), num_bytes, key.slice_bytes)

    def create(self, key: KeyState, shards: Iterable[Shard], value: Any = None) -> list[Send]:
        """Give servers their shards of a key: its buffer's content, or a ``value`` that was lost."""
        return create(key, shards, self._slice_elements, value)

    def tell_others(self, key: KeyState, shards: Iterable[Shard]) -> list[Send]:
        """Tell servers that have no part of a key that it is there; they do not answer.

        One that goes on from snapshots keeps what it has of keys until it knows where they are.
        """
        # In other jobs nobody waits to be told, and small keys are many. Of tables, which are few, always.
        if key.table is None and not self._resumes:
            return []
        owners = {NodeId(Role.SERVER, shard.server) for shard in shards}
        # Nothing of it, and as a seed: nobody waits for an answer to what gives nothing.
        message = m.Create(key.spec, key.mode.value, key.key_id, (0, 0), [], seed=True)
        return [Send(node, message, []) for node in self.nodes if node not in owners]

    def share(self, key: KeyState) -> list[Send]:
        """Tell the servers where a key's buffer is; those that cannot map it do not answer."""
        # Only where this rank pushes: a server writes new values into the buffers from which it takes
        # gradients, and the other ranks get theirs from the rank that pushed.
        place = self._place(key.buffer) if self.pushes_here and key.table is None else None
        if place is None:
            return []
        return [Send(server, m.Share(key.key_id, place)) for server in sorted(key.servers)]

    # --- push, pull ---

    def push(self, key: KeyState, operation: Operation, positions: range) -> tuple[list[Send], list[int]]:
        """Queue slices of a key.

        Returns:
            Pulls instead of pushes, for servers that are back since; and the positions of the slices that
            are not pushed, because their servers were down when the operation began. They are left out
            as long as it lasts: a slice that one rank pushes and another does not would leave the round
            waiting.
        """
        # Also those that are missed below: a server that is back meanwhile is asked for what is awaited.
        operation.awaited.update(positions)
        if not operation.missed:  # nearly always, so nothing is looked up for it
            self._put(key, operation, positions)
            return [], []
        # By what was down when the operation began, and not by what is down now: see above.
        missed = [p for p in positions if key.slices[p][0] in operation.missed]
        for run in neighbours(p for p in positions if key.slices[p][0] not in operation.missed):
            self._put(key, operation, run)
        back = operation.missed - self.down
        return [pull for server in back for pull in self.pull_again(key, operation, server, missed)], missed

    def _put(self, key: KeyState, operation: Operation, positions: range) -> None:
        wanted = wants_value(operation)
        priority, sequence, source = operation.priority, operation.sequence, operation.source
        for position in positions:
            server, slice_ = key.slices[position]
            # Asked for each push: a server says that it has mapped the buffer some time after the key was
            # made, and one that is started again has to map it again.
            shared = server in key.shared
            num_bytes = key.sizes[position]
            if key.base is not None:
                num_bytes = key.base.num_bytes(slice_.lo, slice_.hi)
            elif key.table is not None:
                # What this push sends, and not what a piece could hold: windows count bytes under way.
                num_bytes = source.num_bytes(position)
                key.table.count.sent += num_bytes
            key.sent += num_bytes
            push = Push(key, slice_, sequence, wanted, priority, shared, source)
            # What does not travel does not count against the window: only the reference crosses the link.
            self._queue.put(server, priority, num_bytes, push, travels=not shared)
        # For the trace by runs, as they will leave: a record for each slice would cost more than the slice.
        if self._mark is not None:
            for server, slices in key.by_server(slice(positions.start, positions.stop)).items():
                self._mark("queued", server, merge((*slice_, sequence) for slice_ in slices))

    def pull(self, key: KeyState, operation: Operation) -> list[Send]:
        """Ask for all slices of a key, after what was pushed before; for rows when messages leave."""
        if key.table is not None:
            key.table.begin(operation)
            operation.awaited.update(operation.source.pieces)
            for server, (entries, payloads) in _requests(key, operation.source).items():
                if server not in self.down:
                    asked = self._asks.setdefault((server, operation.priority), ([], []))
                    asked[0].extend(entries)
                    asked[1].extend(payloads)
                    key.table.count.sent += sum(memoryview(each).nbytes for each in payloads)
            return []
        # Noted before those for servers that are down are left out: ``pull_again`` asks for what is
        # awaited. Not through the send queue: a request has no payload, and what it asks for is ordered by
        # the server.
        operation.awaited.update(range(len(key.slices)))
        pulls = [
            Send(server, m.Pull(merge((*slice_, key.pushes) for slice_ in slices), operation.priority))
            for server, slices in key.by_server().items()
        ]
        return self.present(pulls)

    def pull_again(
        self, key: KeyState, operation: Operation, server: NodeId, positions: Iterable[int]
    ) -> list[Send]:
        """Ask a server that is back for what the key's operation still wants of some slices.

        A push that a server has missed is not repeated: it may be in the value that the server has taken
        up, and would count twice. What an update rule for gradients makes of the pushes of others is still
        wanted; of an exchange of parameters, what was missed is skipped.
        """
        is_push = operation.kind in (Kind.PUSH, Kind.PUSHPULL)
        if is_push and (key.is_exchanged or not wants_value(operation)):
            return []
        wanted = [p for p in positions if p in operation.awaited and key.slices[p][0] == server]
        if key.table is not None:
            # Of a push that was missed, what others have changed.
            request = operation.source if operation.kind is not Kind.PUSHPULL else key.table.changes()
            return [
                Send(server, m.Pull(entries, operation.priority), payloads)
                for server, (entries, payloads) in _requests(key, request, wanted).items()
            ]
        entries = [(*key.slices[position][1], key.pushes) for position in wanted]
        return [Send(server, m.Pull(merge(entries), operation.priority))] if entries else []

    def messages(self, now: float, in_flight: Callable[[NodeId], int]) -> list[Send]:
        """Take the requests for rows, and the pushes that may leave now.

        Args:
            now: The time.
            in_flight: Payload bytes under way to a server.
        """
        asks = [
            Send(server, m.Pull(entries, priority), payloads)
            for (server, priority), (entries, payloads) in self._asks.items()
        ]
        self._asks.clear()
        if not self._queue:
            return asks
        # Only as many as the window admits: what has left cannot be overtaken, and a more urgent slice
        # would wait behind it.
        sends = asks
        for server, pushes in self._queue.bundles(now, in_flight):
            sends += _messages_for(server, pushes, asks=self._queue.wants_room(server))
        return sends

    def drop(self, server: NodeId) -> None:
        """Forget what waits for a server."""
        # Sent to its next run they would be pushes for which that has been told not to wait
        # (``Outages.lose``).
        self._queue.drop(server)
        self._asks = {asked: each for asked, each in self._asks.items() if asked[0] != server}

    # --- optimizers ---

    def set_hyper(self, message: m.SetHyper) -> list[Send]:
        """Tell new hyper-parameters; where other ranks push as well, the servers confirm them."""
        # Of all servers, also those that are down: they are sent the newest when they are back, and confirm
        # then.
        self.unconfirmed += len(self.nodes) if message.confirm else 0
        return self.present(Send(server, message) for server in self.nodes)


def answered(
    keys: Mapping[int, KeyState],
    entries: Iterable[tuple[int, int, int, int]],
    payloads: Sequence[Any],
    *,
    answers_push: bool,
) -> Iterator[tuple[KeyState, int, int, Any]]:
    """Yield the runs of an answer with their payloads, if any; each slice that may be repeated, once.

    Exchanges of parameters are answered again when their push is repeated: a second answer would finish
    slices of the next operation.
    """
    for position, (key_id, lo, hi, sequence) in enumerate(entries):
        key = keys[key_id]
        # The end of an operation before may have begun one that failed, and all others with it.
        if not key.queue:
            continue
        # Without payloads the values are in the shared buffer already, or nobody has wanted any.
        payload = payloads[position] if payloads else None
        if key.answered is None:
            yield key, lo, hi, payload
        else:
            yield from key.missing(lo, hi, sequence, payload, answers_push=answers_push)


def place_of(keys: Mapping[int, KeyState], message: Message, number: int) -> memoryview | None:
    """Return where a payload of an answer belongs that has begun to come, if it may be written there.

    That saves the copy from the memory in which it would come. Only where a server that is lost ends the
    job: elsewhere what was pushed may have to be sent again, from the very buffer.
    """
    if type(message) is not m.Values or message.shared or message.base or message.coding != RAW:
        return None
    key_id, lo, hi, _ = message.entries[number]
    key = keys.get(key_id)
    if key is None or key.table is not None or key.base is not None or key.is_exchanged:
        return None
    # An answer to what is under way: what has been answered may be in use for something else.
    if not (key.on_servers and key.waits_for_all and key.queue):
        return None
    if not key.queue[0].awaited.issuperset(key.indices(lo, hi)):
        return None
    place: memoryview = key.layout.part(key.raw, 0, lo, hi)
    return place


def _requests(
    key: KeyState, request: WantedRows, positions: Iterable[int] | None = None
) -> dict[NodeId, _Requests]:
    """Return what each server is asked for, of the pieces at some positions or of all that are meant."""
    # Together for each server, however many pieces: each would be a message, an answer and a turn of the
    # server's loop.
    asked: dict[NodeId, _Requests] = {}
    for position in request.pieces if positions is None else positions:
        server, slice_ = key.slices[position]
        entries, payloads = asked.setdefault(server, ([], []))
        entries.append((*slice_, key.pushes))
        payloads.append(request.pack(position))
    return asked


def _messages_for(server: NodeId, pushes: list[Push], *, asks: bool) -> Iterator[Send]:
    """Yield the messages with some slices for one server, one for each way in which it reads them.

    In which coding a slice travels is asked only now: it depends on the answer to the push before, which
    may have come since this one was queued.
    """
    forms: dict[tuple[bool, int], list[Push]] = {}
    last: tuple[bool, int] | None = None
    alike: list[Push] = []
    for push in pushes:
        base = push.key.base
        coding = RAW if base is None or push.shared else base.coding_of(push.slice.lo)
        form = (push.shared, coding)
        if form != last:  # nearly always all are of one form
            last, alike = form, forms.setdefault(form, [])
        alike.append(push)
    # What is shared first: it costs no time on the way, so that nothing waits for it.
    for (shared, coding), alike in sorted(forms.items(), key=itemgetter(0), reverse=True):
        entries = [(*push.slice, push.sequence, push.wants_value) for push in alike]
        payloads: list[Any] = []
        if coding != RAW:  # what stands for a slice is not contiguous in memory with its neighbours
            payloads = [
                push.key.base.encode(push.slice.lo, push.slice.hi) for push in alike if push.key.base
            ]
        else:
            entries = merge(entries)
            if not shared:  # otherwise the server reads the key's buffer where it lies
                payloads = _parts(entries, alike)
        # The most urgent slice decides: behind less urgent ones it would wait at the server, which sorts
        # messages and does not look into them.
        priority = max([push.priority for push in alike])
        yield Send(server, m.Push(entries, shared, priority, coding), payloads, asks)


def _parts(entries: list[tuple[int, int, int, int, bool]], pushes: list[Push]) -> list[Any]:
    keys = {push.key.key_id: push for push in pushes}  # of a key one operation is under way
    payloads: list[Any] = []
    for key_id, lo, hi, _, _ in entries:
        push = keys[key_id]
        # From the caller's own array if it stays as it is until the push has ended: a copy less.
        source = push.key.raw if push.source is None else push.source
        payloads.append(push.key.layout.part(source, 0, lo, hi))
    return payloads
