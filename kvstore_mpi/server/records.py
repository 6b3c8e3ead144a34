"""What a server's state remembers, and what it tells its shell to do.

Records only; the decisions are in ``state.py`` and ``rounds.py``. Pure: payloads are opaque and the
arrays elsewhere.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any, NamedTuple

from kvstore_mpi.records import ITEMSIZES, Key, Mode, NodeId, Shard, Slice, StoreTerms
from kvstore_mpi.wire.instructions import Log, Send

if TYPE_CHECKING:
    from kvstore_mpi.wire import messages as m

Entry = tuple[int, int, int, int]
"""Key number, lo, hi, sequence."""

ReplyTo = tuple[NodeId, int, bool, bool, int]
"""Who has pushed a slice, and how to answer: peer, lo, wants the value, shared, priority."""


class Compressed(NamedTuple):
    """The payload of a slice, compressed to so many bits an element."""

    payload: Any
    bits: int


class Contribution:
    """What one client has pushed to a unit in the round under way: a payload for each slice."""

    __slots__ = ("hyper", "payloads", "replies", "sequence")

    def __init__(self, sequence: int) -> None:
        """Start without payloads."""
        self.sequence = sequence
        self.payloads: dict[int, Any] = {}
        self.replies: list[ReplyTo] = []
        self.hyper: Any = None


class Unit:
    """The slices of a key that are updated together, and where their round stands."""

    __slots__ = ("applied", "contributions", "key", "parts", "pulls", "pushed", "seen", "since", "updates")

    def __init__(self, key: KeyRecord, parts: list[Slice], num_clients: int) -> None:
        """Start before the first round."""
        self.key = key
        self.parts = parts
        self.applied = [0] * num_clients  # sequence of each client's last push that is in the value
        self.pushed = [0] * num_clients  # sequence of each client's last push that has arrived
        self.contributions: dict[int, Contribution] = {}
        self.pulls: list[tuple[NodeId, Slice, int, int]] = []  # peer, slice, after, priority
        self.updates = 0  # optimizer updates: the count of Adam's t and of schedules
        self.seen = [0] * num_clients  # updates in the value that each client was last sent
        self.since = 0.0

    def is_whole(self, contribution: Contribution) -> bool:
        """Return whether a contribution has all slices."""
        return len(contribution.payloads) == len(self.parts)

    def piece(self, lo: int) -> Slice:
        """Return the slice that begins at ``lo``."""
        return self.parts[self.key.units[lo][1]]

    def skip_to(self, client: int, sequence: int) -> None:
        """What a client has pushed up to there is in the value, or lost: nobody waits for it."""
        self.pushed[client] = max(self.pushed[client], sequence)
        self.applied[client] = max(self.applied[client], sequence)

    def forget(self, client: int, members: set[NodeId]) -> None:
        """A client counts its pushes from the start; what it has asked or pushed in part is void."""
        self.pushed[client] = self.applied[client] = 0
        self.seen[client] = self.updates
        self.contributions.pop(client, None)
        self.pulls = [pull for pull in self.pulls if pull[0] not in members]

    def has(self, client: int, position: int) -> bool:
        """Return whether a client's push of a slice waits here for the rest of the round."""
        contribution = self.contributions.get(client)
        return contribution is not None and position in contribution.payloads


class KeyRecord:
    """One key on this server."""

    __slots__ = (
        "creator",
        "dtype",
        "filled",
        "itemsize",
        "key",
        "key_id",
        "shape",
        "shard",
        "slices",
        "store",
        "units",
    )

    def __init__(self, message: m.Create, store: StoreRecord) -> None:
        """Record the key; its slices arrive with this message and the following ones."""
        self.store = store
        self.key: Key = message.key
        self.key_id = message.key_id
        self.shard = Shard(0, *message.shard)
        self.slices: list[Slice] = []
        self.units: dict[int, tuple[Unit, int]] = {}  # lo -> unit and position of the slice in it
        self.shape = message.shape
        self.dtype = message.dtype
        self.creator: NodeId | None = None  # who is giving the initial value
        self.itemsize = ITEMSIZES[message.dtype]
        self.filled = 0  # slices that have their initial value

    @property
    def is_filled(self) -> bool:
        """All slices have their initial value."""
        return self.filled == len(self.slices)

    @property
    def distinct_units(self) -> list[Unit]:
        """The key's units, in order of elements."""
        return [*dict.fromkeys(unit for unit, _ in self.units.values())]

    def pieces(self, lo: int, hi: int) -> list[Slice]:
        """Return the slices of a run."""
        first = bisect_left(self.slices, (self.key_id, lo, lo))
        last = bisect_left(self.slices, (self.key_id, hi, hi)) if hi > lo else first + 1
        return self.slices[first:last]

    def part(self, piece: Slice, start: int, payload: Any, bits: int) -> Any:
        """Return the bytes of a slice out of the payload of a run that begins at ``start``."""
        if bits:
            return Compressed(payload, bits)
        return payload[(piece.lo - start) * self.itemsize : (piece.hi - start) * self.itemsize]


class StoreRecord:
    """One store on this server, from its first key or its optimizer on, whichever comes first."""

    __slots__ = ("hyper", "mode", "number", "spec", "stable", "terms")

    def __init__(self, number: int) -> None:
        """Start without an optimizer: pushes are summed."""
        self.number = number
        self.mode = Mode.SYNC  # until the first key says so
        self.spec: Any = None  # describes the optimizer, for workers that wait for it; opaque here
        self.hyper: Any = None  # the optimizer's newest numbers, for the pushes that arrive from now on
        self.terms = StoreTerms()
        self.stable = True  # see ``StoreTerms.is_stable``

    def set_mode(self, mode: Mode) -> None:
        """Take the mode, which all keys of the store have."""
        self.mode = mode
        self.stable = self.terms.is_stable(mode)

    def set_optimizer(self, spec: Any, hyper: Any, terms: StoreTerms) -> None:
        """Take an optimizer."""
        self.spec, self.hyper, self.terms = spec, hyper, terms
        self.stable = terms.is_stable(self.mode)

    @property
    def has_optimizer(self) -> bool:
        """Whether pushes are more than summed."""
        return self.spec is not None


class Allocate(NamedTuple):
    """Make the arrays of a key's shard."""

    message: m.Create


class Fill(NamedTuple):
    """Set the initial value of a slice."""

    piece: Slice
    payload: Any


class Update(NamedTuple):
    """Sum the contributions in the order of clients and update the unit, as its update ``number``.

    ``clients`` says whose they are. ``staleness`` counts, where the rule asks for it, the updates between
    the value that the client was last sent and this update.
    """

    unit: Unit
    contributions: list[Contribution]
    hyper: Any
    number: int
    clients: list[int]
    staleness: int = 0


class Reply(NamedTuple):
    """Send values of slices, or, if ``shared``, write them into the peer's buffers and say so.

    ``stable`` says that the values cannot change before the peer has them. With ``base`` the values are
    those that the server remembers for the peer's client.
    """

    peer: NodeId
    entries: list[Entry]
    stable: bool
    shared: bool = False
    priority: int = 0
    base: bool = False


class Remember(NamedTuple):
    """The values of some slices are what a client is sent now: they become its base."""

    client: int
    entries: list[Entry]


Instruction = Send | Log | Allocate | Fill | Update | Remember | Reply
Instructions = list[Instruction]
