"""What a worker's state remembers. Records only; the decisions are in ``state.py``.

Pure: buffers, payloads and callbacks are opaque.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

from kvstore_mpi.errors import MismatchError, SkippedError
from kvstore_mpi.records import KeySpec, Mode, NodeId, Role, Shard, Slice
from kvstore_mpi.values.coding import RAW, check_coded
from kvstore_mpi.values.layout import layout_of
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Send
from kvstore_mpi.worker.collectives import BEGINS_ON_SERVERS, BEGINS_WITHOUT_SERVERS, Kind
from kvstore_mpi.worker.instructions import Complete, Instructions, Keep, Refer, Write
from kvstore_mpi.worker.lookups import Askers
from kvstore_mpi.worker.table_state import WorkerTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kvstore_mpi.records import Rows
    from kvstore_mpi.values.base import ClientBase, ClientResidual
    from kvstore_mpi.worker.lookups import Lookup


# By identity: two pushes of a key may be equal in every field, and are two operations.
@dataclass(slots=True, eq=False)
class Operation:
    """One call of the user on one key.

    Attributes:
        kind: What it does.
        priority: Larger goes first.
        done: Told that it has ended; opaque here.
        source: What is pushed instead of the buffer, or ``None``; opaque here.
        arrived: Of a push, told before ``done`` that the new value has come, too; or ``None``.
        given: Of a push, the new value comes back, as the first rank of the client has wished.
        remaining: Slices that are not finished yet.
        sequence: Number of the push on the key; 0 for operations that no other rank has to match.
        since: When it began.
        spreads: When the leader has the value, it gives it to the rest of the client.
        awaited: Positions of slices that servers have, or will be given, and have not answered.
        missed: Servers that were down during a push, so that it passes them by.
        skipped: Some slices were not exchanged.
        rows: Of a table, the rows that have come, by position of the piece.
        out: Gets them when the operation ends, or ``None``.
        lookup: What the ranks of the client look up together, or ``None``.
    """

    kind: Kind
    priority: int
    done: Any
    source: Any = None
    arrived: Any = None
    given: bool = False
    remaining: int = 0
    sequence: int = 0
    since: float = 0.0
    spreads: bool = False
    # Which, and not how many: a server that is back is asked again for these, and for no others.
    awaited: set[int] = field(default_factory=set)
    missed: set[NodeId] = field(default_factory=set)
    skipped: bool = False
    # By position, because servers answer in any order.
    rows: dict[int, Rows] = field(default_factory=dict)
    out: list[Rows] | None = None
    lookup: Lookup | None = None


def wants_value(operation: Operation) -> bool:
    """Return whether servers answer what an operation pushes with the new value."""
    return operation.given or operation.kind is Kind.PUSHPULL


class KeyState:
    """One key on this worker."""

    __slots__ = (
        "alone",
        "answered",
        "askers",
        "base",
        "buffer",
        "collectives",
        "divisor",
        "keeps",
        "kept",
        "key_id",
        "layout",
        "mode",
        "on_servers",
        "pulled",
        "pulls",
        "pushers",
        "pushes",
        "queue",
        "raw",
        "returned",
        "sent",
        "servers",
        "shared",
        "sizes",
        "slice_bytes",
        "slices",
        "spec",
        "starts",
        "table",
        "waits_for_all",
    )

    def __init__(
        self,
        spec: KeySpec,
        buffer: Any,
        raw: Any,
        *,
        mode: Mode = Mode.SYNC,
        on_servers: bool = True,
    ) -> None:
        """Record a key whose place is not known yet; ``buffer`` and its bytes ``raw`` are opaque here.

        Of a table ``buffer`` is its initial value, if there is one.
        """
        self.spec = spec
        self.mode = mode  # of its store
        self.on_servers = on_servers  # not with the workers of this client alone
        self.alone = True  # this rank pushes for itself: no other is needed for its sum
        # Chosen once: the same call begins with another collective where there is no server to sum for the
        # clients, and all ranks must begin with the same.
        self.collectives = BEGINS_ON_SERVERS if on_servers else BEGINS_WITHOUT_SERVERS
        self.buffer = buffer
        self.raw = raw
        self.layout = layout_of(spec)
        self.table = WorkerTable(spec, buffer) if spec.partitions else None
        self.key_id = -1
        self.waits_for_all = False  # its rounds need a push of every worker of the job
        self.keeps = False  # its last value is kept, for a server that loses everything
        self.kept: bytearray | None = None
        # The number of the last push as well: by it a server tells a new push from one that comes again.
        self.pushes = 0
        self.pulls = 0  # those that all ranks of the client make together
        # One operation after the other, because they share the buffer. That of another key overlaps.
        self.queue: deque[Operation] = deque()
        self.slices: list[tuple[NodeId, Slice]] = []
        self.servers: frozenset[NodeId] = frozenset()  # that have some of them
        self.starts: list[int] = []  # first element of each slice
        self.sizes: list[int] = []  # bytes of each slice
        self.slice_bytes = 0  # of a full one
        self.pushers: list[int] = []  # which rank of the client pushes each slice
        self.shared: set[NodeId] = set()  # servers that work on the buffer where it lies
        self.askers = Askers()  # for the pieces that the ranks of a host look up together
        self.divisor = 1  # of the sum over the client's ranks
        # First elements of the slices of the operation that are answered, where answers may be repeated. A
        # count would not do: a repeated answer to one slice would stand for another.
        self.answered: set[int] | None = None
        self.base: ClientBase | ClientResidual | None = None  # what coded exchanges refer to
        # Bytes of values since the first push: pushed by this rank, that answered it, and that were pulled.
        self.sent = self.returned = self.pulled = 0

    def place(self, key_id: int, shards: Iterable[Shard], slice_elements: int) -> None:
        """Take the key's number and its place, and cut it into slices."""
        self.key_id = key_id
        # The coordinator tells shards alone. Servers cut theirs by the same function: slices that begin
        # elsewhere would be refused.
        placed = self.layout.cut(key_id, shards, slice_elements)
        self.slices = [(NodeId(Role.SERVER, server), slice_) for server, slice_ in placed]
        # Asked for with each push while a server is down; a set of all slices would be made anew each time.
        self.servers = frozenset(server for server, _ in self.slices)
        # For a search: an answer names elements, and a large key has thousands of slices.
        self.starts = [slice_.lo for _, slice_ in placed]
        if (
            self.table is not None
        ):  # what is pushed of a piece, each push knows; its collectives are of all pieces
            self.sizes, self.slice_bytes = [1] * len(placed), 1
            return
        # Once, and not with each push: they are asked for every slice that waits for its turn.
        self.sizes = [self.layout.num_bytes(slice_.lo, slice_.hi) for _, slice_ in placed]
        self.slice_bytes = self.layout.num_bytes(0, slice_elements)

    def let_go(self) -> Any:
        """Give up the memory, whoever still knows the key, and return the buffer."""
        # Somebody may: the MPI thread has the last bucket until the next one comes.
        buffer, self.buffer, self.raw, self.kept, self.base = self.buffer, None, None, None, None
        return buffer

    def count_answer(self, kind: Kind, lo: int, hi: int, payload: Any) -> None:
        """Count the values of elements ``[lo, hi)``, which servers have sent, from the first push on."""
        if not self.pushes or self.table is not None:  # a table counts its rows
            return
        # What is shared has no payload, and what is not coded is as long as its elements.
        coded = self.base is not None and payload is not None
        num_bytes = memoryview(payload).nbytes if coded else self.layout.num_bytes(lo, hi)
        if kind is Kind.PULL:
            self.pulled += num_bytes
        else:
            self.returned += num_bytes

    def take(self, operation: Operation, message: m.Values, lo: int, hi: int, payload: Any) -> Instructions:
        """Return how the answer for elements ``[lo, hi)`` comes to where the operation wants it."""
        out: Instructions = []
        self.count_answer(operation.kind, lo, hi, payload)
        base = self.base if wants_value(operation) else None
        # Also of what is nothing to refer to: with a base that the server lacks later values are wrong.
        if base is not None:
            known = payload if message.base else None
            out.append(Refer(base, lo, hi, known, message.coding))
        if self.table is not None:
            self.table.take(operation, lo // 2, payload)
        elif not (message.shared or (base is not None and message.base)):
            out.append(Write(self.layout.part(self.raw, 0, lo, hi), payload))
        return out

    def travelled(self, ranks: int) -> float | None:
        """Return the bytes of a step between a client and the servers, from what its first rank counted."""
        own = sum(size for size, pusher in zip(self.sizes, self.pushers) if not pusher)
        if not self.on_servers or not self.pushes or not own:
            return None
        pulling = 1 if self.is_exchanged else ranks  # otherwise each pulls everything for itself
        return ((self.sent + self.returned) * sum(self.sizes) / own + self.pulled * pulling) / self.pushes

    def number(self, operation: Operation, *, together: bool) -> bool:
        """Number an operation; return whether others make it, too, as all of a client do ``together``."""
        if operation.kind in (Kind.PUSH, Kind.PUSHPULL):
            self.pushes += 1
            operation.sequence = self.pushes
            # Rows that ranks push for themselves are in rounds of all as well, if there are rounds.
            return self.waits_for_all or not self.alone
        # Pulls are counted apart, and only those that all ranks make: one that a rank makes for itself
        # would shift the numbers by which the ranks know that they mean the same operation.
        if together:
            self.pulls += 1
            operation.sequence = self.pulls
        return together

    def tell_of_first_push(self, coordinator: NodeId) -> list[Send]:
        """Return what tells the coordinator of the first push of a key that might be a table."""
        # Once: who pushes rows of the key has a table in its place, under another name, and in an async
        # store neither would miss the other.
        if self.pushes > 1 or self.table is not None or len(self.spec.shape) == 1:
            return []
        return [Send(coordinator, m.PushesDensely(self.spec.store, self.spec.key))]

    @property
    def sends_source(self) -> bool:
        """What is pushed can be sent from anywhere, at least to some servers: nothing works on it here."""
        # Without servers the sum is made in the buffer, and an exchange and what is coded are taken from
        # it. Rows have arrays of their own anyway.
        if not self.on_servers or self.is_exchanged or self.base is not None or self.table is not None:
            return False
        # A server that works on the buffer where it lies needs the gradient there; if all do, nothing is
        # sent.
        return not self.servers <= self.shared

    @property
    def is_exchanged(self) -> bool:
        """Clients push parameters, and get the center back."""
        # Set with the terms of the store alone: whoever keeps what was answered expects parameters.
        return self.answered is not None

    def ended(self, operation: Operation) -> Instructions:
        """Return what is due when an operation has ended: the caller is told last."""
        skipped = None
        if operation.skipped:
            skipped = SkippedError(f"{self.spec} was not exchanged as a whole: a server is down")
        if self.table is not None:
            # Before the caller is told, who reads the rows as soon as it is.
            self.table.hand_over(operation, on_servers=self.on_servers)
        out: Instructions = []
        if self.keeps and (operation.given or operation.kind is not Kind.PUSH):
            out.append(Keep(self))  # now: after `Complete` the buffer is the caller's again
        if operation.given and operation.arrived is not None:
            out.append(Complete(operation.arrived))
        return [*out, Complete(operation.done, skipped)]

    def fill(self, operation: Operation) -> Instructions:
        """Copy what is pushed from elsewhere into the buffer, as far as it is read or worked on there."""
        if self.table is not None:
            self.table.begin(operation)
            # Of what this rank pushes, by which buckets are filled: tables of few rows share one.
            each = operation.source.rows.values.nbytes // len(self.slices)
            self.sizes = [max(1, each)] * len(self.slices)
            return []
        source = operation.source
        # Ranks of a client sum in their buffers, and an exchange is taken from the buffer; with servers
        # that map the buffer only their slices have to be in it. The rest is sent from the source, without
        # a copy.
        if not (self.alone and self.sends_source):
            operation.source = None
            return [Write(self.raw, source)]
        # What they read is copied, and nothing else: for all other servers a copy would cost as much as the
        # way there.
        mapped = [slice_ for server, slice_ in self.slices if server in self.shared]
        part = self.layout.part
        return [Write(part(self.raw, 0, lo, hi), part(source, 0, lo, hi)) for _, lo, hi in mapped]

    def by_server(self, positions: slice = slice(None)) -> dict[NodeId, list[Slice]]:
        """Return the slices of each server, all or those at some positions."""
        slices: dict[NodeId, list[Slice]] = {}
        # In the order of elements, so that neighbours stay together: they leave as one run, with one entry
        # in the message.
        for server, slice_ in self.slices[positions]:
            slices.setdefault(server, []).append(slice_)
        return slices

    def positions_on(self, servers: set[NodeId]) -> list[int]:
        """Return the positions of the slices that some servers have."""
        return [position for position, (server, _) in enumerate(self.slices) if server in servers]

    def by_pusher(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """Cut slices ``[first, last)`` where another rank pushes: (rank in the client, first, end)."""
        # Neighbours of one rank are one run: one call of MPI for all of them, where each slice would be
        # one.
        for rank, positions in groupby(range(first, last), self.pushers.__getitem__):
            run = list(positions)
            yield rank, run[0], run[-1] + 1

    def num_bytes(self, first: int, last: int) -> int:
        """Return the size of slices ``[first, last)``."""
        # Added up, because the last slice of a key may be shorter than the others.
        return sum(self.sizes[first:last])

    def missing(
        self, lo: int, hi: int, sequence: int, payload: Any, *, answers_push: bool
    ) -> Iterator[tuple[KeyState, int, int, Any]]:
        """Yield the slices of an answer that are still awaited, with their payloads; each only once.

        Args:
            lo: First element of the answer.
            hi: End of its elements.
            sequence: Of the push, if it answers one.
            payload: Of the whole answer, or ``None``.
            answers_push: It surely answers one.
        """
        # A repeated answer may come when its operation has ended, and the next one, or none, has begun.
        operation = self.queue[0] if self.queue else None
        if operation is None or self.answered is None:
            return
        is_push = operation.kind in (Kind.PUSH, Kind.PUSHPULL)
        if (is_push and sequence != operation.sequence) or (answers_push and not is_push):
            return
        for index in self.indices(lo, hi):
            _, (_, first, last) = self.slices[index]
            if first in self.answered:
                continue
            # Noted before it is handed on: an answer may name the same slice in two of its runs.
            self.answered.add(first)
            # Slices of one answer may have been answered before and others not: it has to be taken apart.
            part = payload
            if part is not None and (first, last) != (lo, hi):
                part = self.layout.part(payload, lo, first, last)
            yield self, first, last, part

    def indices(self, lo: int, hi: int) -> range:
        """Return the positions of the slices that make up the elements ``[lo, hi)``."""
        # By search, for a message may have any run of slices; a key without elements has one slice, 0 to 0.
        first = bisect_left(self.starts, lo)
        return range(first, bisect_left(self.starts, hi) if hi > lo else first + 1)

    def has_slices(self, lo: int, hi: int) -> bool:
        """Tell whether the elements ``[lo, hi)`` are whole slices."""
        # A snapshot of a smaller key ends within a slice, one of a larger behind the last.
        run = self.indices(lo, hi)
        if not run or run.stop > len(self.slices):
            return False
        return (self.starts[run.start], self.slices[run.stop - 1][1].hi) == (lo, hi)


def misfit(
    keys: Mapping[int, KeyState], message: m.Values, payloads: Sequence[Any]
) -> MismatchError | None:
    """Return the error of an answer that is not of slices, or whose payloads have another size, if any."""
    try:
        for position, (key_id, lo, hi, _) in enumerate(message.entries):
            key = keys[key_id]
            if key.table is not None:
                continue  # rows are checked where they are taken apart
            if not key.has_slices(lo, hi):
                return MismatchError(
                    f"key {key.spec.key!r} of shape {key.spec.shape}: a server has sent elements {lo} to "
                    f"{hi}, which are no slices of it; its snapshot, or another worker's key of this name, "
                    "has another shape"
                )
            if payloads and message.coding == RAW:
                key.layout.check(payloads[position], lo, hi)
            elif payloads:
                check_coded(message.coding, [payloads[position]], [hi - lo])
    except MismatchError as error:
        return error
    return None
