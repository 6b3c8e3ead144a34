"""What a server's state remembers, and what it tells its shell to do.

Records only; the decisions are in ``state.py`` and ``rounds.py``. Pure: payloads are opaque and the
arrays elsewhere.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from kvstore_mpi.records import Key, Mode, NodeId, Shard, Slice, StoreTerms
from kvstore_mpi.values.coding import Coded
from kvstore_mpi.values.layout import layout_of
from kvstore_mpi.wire.instructions import Log, Send

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.records import Topology
    from kvstore_mpi.wire import messages as m

Entry = tuple[int, int, int, int]
"""Key number, lo, hi, sequence: as messages have it."""


class Asker(NamedTuple):
    """Who has pushed some slices, and how to answer; one for all slices of an entry of a message.

    ``request``: of a table, which rows are wanted.
    """

    peer: NodeId
    wants_value: bool
    shared: bool
    priority: int
    request: Any = None


class WaitingPull(NamedTuple):
    """A pull of a slice that waits until this client's first ``after`` pushes are in the value.

    ``request``: of a table, which rows are wanted.
    """

    peer: NodeId
    slice: Slice
    after: int
    priority: int
    request: Any = None


@dataclass(slots=True, eq=False)
class Contribution:
    """What one pusher has pushed to a unit in the round under way.

    Attributes:
        sequence: The pusher's count of its pushes.
        payloads: What it has pushed, by position of the slice in the unit.
        askers: Who is to be answered, likewise.
        hyper: The optimizer's numbers when it came; the update has those of the first pusher.
    """

    sequence: int
    # By position and in any order: each rank of the client pushes slices of its own.
    payloads: dict[int, Any] = field(default_factory=dict)
    askers: dict[int, Asker] = field(default_factory=dict)
    hyper: Any = None


class Unit:
    """The slices of a key that are updated together, and where their round stands.

    A pusher is a client, whose ranks push together, or a worker where each pushes for itself.

    Attributes:
        key: The key.
        slices: They.
        applied: Sequence of each pusher's last push that is in the value.
        pushed: Sequence of each pusher's last push that has arrived. Between the two a push is part of the
            round under way: what comes once more up to ``pushed`` is a repetition.
        contributions: The round under way, by pusher.
        pulls: What waits for pushes.
        summed: The sum of the round, while its update waits for the norm of the whole step.
        updates: Optimizer updates: the count of Adam's t and of schedules.
        seen: Updates in the value that each pusher was last sent.
        since: When the round began.
    """

    __slots__ = (
        "applied",
        "contributions",
        "key",
        "pulls",
        "pushed",
        "seen",
        "since",
        "slices",
        "summed",
        "updates",
    )

    def __init__(self, key: KeyRecord, slices: list[Slice]) -> None:
        """Start before the first round."""
        self.key = key
        self.slices = slices
        # Lists by pusher, not dictionaries: they are looked at for every slice.
        self.applied = [0] * key.num_pushers
        self.pushed = [0] * key.num_pushers
        # By pusher: what comes once more finds its own, also in a round that others have begun.
        self.contributions: dict[int, Contribution] = {}
        self.pulls: list[WaitingPull] = []
        self.summed: Any = None
        self.updates = 0
        # Numbers, not values: how late a push is needs no copy of what its client was sent.
        self.seen = [0] * key.num_pushers
        # Set by the first push of a round: nobody waits for one that has not begun.
        self.since = 0.0

    def has_quorum(self, here: Sequence[int]) -> bool:
        """Return whether enough clients have pushed for a round to which some, ``here``, have."""
        if not here:
            return False
        # The least sequence here, not the greatest: it is the client behind that must not wait for the
        # others to come once more.
        behind = min(self.contributions[client].sequence for client in here)
        # Who has pushed as often counts, too, although not in this round: the others may never push again,
        # and a client that is one round behind at the end would wait for ever.
        as_often = sum(pushed >= behind for pushed in self.pushed)
        return as_often >= self.key.store.terms.quorum * self.key.pushers_per_client

    def count_from(self, updates: int) -> None:
        """Count updates from another number on: that of a state that is loaded, or of a new rule."""
        # Who is late stays as late as before, and nobody becomes so.
        self.seen = [each + updates - self.updates for each in self.seen]
        self.updates = updates
        self.key.store.note_updates(updates)

    def skip_to(self, client: int, sequence: int) -> None:
        """What a client has pushed up to there is in the value, or lost: nobody waits for it."""
        # Never backwards: a count that falls would let a repetition through.
        for pusher in self.key.pushers_of(client):
            self.pushed[pusher] = max(self.pushed[pusher], sequence)
            self.applied[pusher] = max(self.applied[pusher], sequence)

    def forget(self, client: int, members: set[NodeId]) -> None:
        """A client counts its pushes from the start; what it has asked or pushed in part is void."""
        for pusher in self.key.pushers_of(client):
            # Backwards here alone: the new run counts from 1, and with the old counts its pushes would pass
            # for repetitions and never be answered.
            self.pushed[pusher] = self.applied[pusher] = 0
            # It begins with the value as it is now, so it is not late for what was before.
            self.seen[pusher] = self.updates
            # With it what the round has of the old run: half of one push and half of another would be
            # summed.
            self.contributions.pop(pusher, None)
        # Both runs count from 1: the new one would take the answer for that to a pull of its own.
        self.pulls = [pull for pull in self.pulls if pull.peer not in members]


class KeyRecord:
    """One key on this server."""

    __slots__ = (
        "creator",
        "filled",
        "is_table",
        "key",
        "key_id",
        "layout",
        "num_pushers",
        "pusher_size",
        "pushers_per_client",
        "shard",
        "slices",
        "spec",
        "store",
        "units",
    )

    def __init__(
        self, message: m.Create, store: StoreRecord, topology: Topology, slice_elements: int
    ) -> None:
        """Record the key; its values arrive with this message and the following ones."""
        # The record and not its number: a rule that is given later is that of all keys of the store at
        # once.
        self.store = store
        self.spec = message.spec
        self.key: Key = message.spec.key
        self.key_id = message.key_id
        self.shard = Shard(0, *message.shard)
        self.layout = layout_of(message.spec)
        # Kept, because it is asked for each run of every push.
        self.is_table = message.spec.partitions > 0
        # Who contributes to a round: the clients, or the workers of a table that each push for themselves.
        self.pusher_size = 1 if message.spec.apart else topology.client_size
        self.pushers_per_client = topology.client_size // self.pusher_size
        self.num_pushers = topology.num_clients * self.pushers_per_client
        # Cut by the function that workers use: slices that begin elsewhere are refused, since they would be
        # summed with other elements.
        self.slices = [
            slice_ for _, slice_ in self.layout.cut(message.key_id, [self.shard], slice_elements)
        ]
        # By the first element, as entries of messages have it: no search for each slice of a run.
        self.units: dict[int, tuple[Unit, int]] = {}  # lo -> unit and position of the slice in it
        self.creator: NodeId | None = None  # who is giving the initial value
        # A count will do: the session delivers a message once, and one creator gives each slice once.
        self.filled = 0  # slices that have their initial value

    def pusher(self, worker: int) -> int:
        """Return the number of the pusher to which a worker belongs."""
        return worker // self.pusher_size

    def pushers_of(self, client: int) -> range:
        """Return the numbers of a client's pushers."""
        first = client * self.pushers_per_client
        return range(first, first + self.pushers_per_client)

    @property
    def is_filled(self) -> bool:
        """All slices have their initial value."""
        return self.filled == len(self.slices)

    @property
    def distinct_units(self) -> list[Unit]:
        """The key's units, in order of elements."""
        # A dict, because a set has no order: snapshots and states name units in that of their elements.
        return [*dict.fromkeys(unit for unit, _ in self.units.values())]

    def run(self, lo: int, hi: int) -> list[Slice]:
        """Return the slices of a run."""
        # By search: a run of a pull may begin anywhere in a key of thousands of slices.
        first = bisect_left(self.slices, (self.key_id, lo, lo))
        # An empty key has one slice, [0, 0), which both ends would miss.
        last = bisect_left(self.slices, (self.key_id, hi, hi)) if hi > lo else first + 1
        return self.slices[first:last]


class StoreRecord:
    """One store on this server, from its first key or its optimizer on, whichever comes first."""

    __slots__ = ("given", "hyper", "mode", "most_updates", "number", "spec", "stable", "terms")

    def __init__(self, number: int) -> None:
        """Start without an optimizer: pushes are summed."""
        self.number = number
        self.mode = Mode.SYNC  # until the first key says so
        self.spec: Any = None  # describes the optimizer, for workers that wait for it; opaque here
        self.given = 0  # how often it was given one
        self.hyper: Any = None  # the optimizer's newest numbers, for the pushes that arrive from now on
        self.terms = StoreTerms()
        self.most_updates = 0  # of any part of a key, since the optimizer was given
        # Kept here: it is asked for with each answer.
        self.stable = True  # see ``StoreTerms.is_stable``

    def set_mode(self, mode: Mode) -> None:
        """Take the mode, which all keys of the store have."""
        # Here and with the optimizer, as either may come first: a value that counts as stable without being
        # so could leave as a mixture of two updates.
        self.mode = mode
        self.stable = self.terms.is_stable(mode)

    def set_optimizer(self, spec: Any, hyper: Any, terms: StoreTerms) -> None:
        """Take an optimizer."""
        # All of them: numbers or terms of the rule before would be used with the new one.
        self.spec, self.hyper, self.terms, self.most_updates = spec, hyper, terms, 0
        self.stable = terms.is_stable(self.mode)

    def note_updates(self, count: int) -> int:
        """A part of a key has had this number of updates; return the most that one has had."""
        # MXNet's schedules go by the key that has had most. In rounds rank 0, whose steps all follow, says
        # by how much a key is behind; clients without steps in common go by what this server has.
        self.most_updates = max(self.most_updates, count)
        return self.most_updates

    @property
    def has_optimizer(self) -> bool:
        """Whether pushes are more than summed."""
        return self.spec is not None


class Allocate(NamedTuple):
    """Make the arrays of a key's shard; with the rows of a former one, of which copies are taken here."""

    message: m.Create
    former: int | None = None


class Fill(NamedTuple):
    """Set the initial value of a run of slices."""

    run: Slice
    payload: Any


class Update(NamedTuple):
    """Sum the contributions in the order of pushers and update the unit, as its update ``number``.

    ``clients`` says whose they are. ``staleness`` counts, where the rule asks for it, the updates between
    the value that the client was last sent and this update. ``summed`` is the sum, if it was made before.
    ``takers`` share their buffers, into which the new value is written while it is in the cache.
    ``scheduled`` is the number for schedules.
    """

    unit: Unit
    # Taken out of the unit: pushes of the next round may be counted before this is carried out.
    contributions: list[Contribution]
    hyper: Any
    number: int
    clients: list[int]
    staleness: int = 0
    summed: Any = None
    takers: Sequence[NodeId] = ()
    scheduled: int = 0


class Hold(NamedTuple):
    """Sum the contributions to a unit, and wait for the norm of the whole step with its update."""

    unit: Unit


class Answer(NamedTuple):
    """Send a peer the value of a slice, or, if ``shared``, write it into its buffer and say so.

    Attributes:
        peer: Who gets it.
        entry: Of which slice, and in answer to which push.
        stable: It cannot change before the peer has it.
        shared: It is written into the peer's buffer.
        priority: As of the push or pull.
        base: It is what the server remembers for the peer's client, not what the value is by then.
        request: Of a table, which rows are wanted; ``None`` for all.
        written: If it is shared, it is there already, since the update.
        coded: Its payload, where it travels in a coding.
    """

    peer: NodeId
    entry: Entry
    stable: bool
    shared: bool = False
    priority: int = 0
    base: bool = False
    request: Any = None
    written: bool = False
    coded: Coded | None = None


class Remember(NamedTuple):
    """The values of some slices are what a client is sent now: they become its base."""

    client: int
    entries: list[Entry]


class Closed(NamedTuple):
    """A round is closed: carry out the update, then answer."""

    update: Update
    answers: list[Answer | Remember | Send]


Instruction = Send | Log | Allocate | Fill | Update | Hold | Remember | Answer
Instructions = list[Instruction]
