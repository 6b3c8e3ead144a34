"""What a server's state remembers, and what it tells its shell to do.

Records only; the decisions are in ``server_state.py``. Pure: payloads are opaque and the arrays elsewhere.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Dict, List, NamedTuple, Tuple, Union

from ..records import ITEMSIZES, Key, Mode, NodeId, Shard, Slice
from . import messages as m
from .instructions import Log, Send


class Contribution:
    """What one client has pushed to a unit in the round under way: a payload for each slice."""

    __slots__ = ("live", "payloads", "replies", "sequence")

    def __init__(self, sequence: int) -> None:
        """Start without payloads."""
        self.sequence = sequence
        self.payloads: dict[int, Any] = {}
        self.replies: list[tuple[NodeId, int, bool, bool, int]] = []
        """Peer, lo, wants the value, shared, priority."""
        self.live: Any = None


class Unit:
    """The slices of a key that are updated together, and where their round stands."""

    __slots__ = ("applied", "contributions", "key", "parts", "pulls", "pushed", "since", "updates")

    def __init__(self, key: KeyRecord, parts: list[Slice], num_clients: int) -> None:
        """Start before the first round."""
        self.key = key
        self.parts = parts
        self.applied = [0] * num_clients  # sequence of each client's last push that is in the value
        self.pushed = [0] * num_clients  # sequence of each client's last push that has arrived
        self.contributions: dict[int, Contribution] = {}
        self.pulls: list[tuple[NodeId, Slice, int, int]] = []  # peer, slice, after, priority
        self.updates = 0  # optimizer updates: the count of Adam's t and of schedules
        self.since = 0.0

    def has(self, client: int, position: int) -> bool:
        """Return whether a client's push of a slice waits here for the rest of the round."""
        contribution = self.contributions.get(client)
        return contribution is not None and position in contribution.payloads


class KeyRecord:
    """One key on this server."""

    __slots__ = ("filled", "itemsize", "key", "key_id", "shard", "slices", "store", "units")

    def __init__(self, message: m.Create) -> None:
        """Record the key; its slices arrive with this message and the following ones."""
        self.store = message.store
        self.key: Key = message.key
        self.key_id = message.key_id
        self.shard = Shard(0, *message.shard)
        self.slices: list[Slice] = []
        self.units: dict[int, tuple[Unit, int]] = {}  # lo -> unit and position of the slice in it
        self.itemsize = ITEMSIZES[message.dtype]
        self.filled = 0  # slices that have their initial value

    def pieces(self, lo: int, hi: int) -> list[Slice]:
        """Return the slices of a run."""
        first = bisect_left(self.slices, (self.key_id, lo, lo))
        last = bisect_left(self.slices, (self.key_id, hi, hi)) if hi > lo else first + 1
        return self.slices[first:last]

    def part(self, piece: Slice, start: int, payload: Any) -> Any:
        """Return the bytes of a slice out of the payload of a run that begins at ``start``."""
        return payload[(piece.lo - start) * self.itemsize : (piece.hi - start) * self.itemsize]


class StoreRecord:
    """One store on this server."""

    __slots__ = ("live", "mode", "optimizer", "whole")

    def __init__(self, mode: Mode) -> None:
        """Start without an optimizer: pushes are summed."""
        self.mode = mode
        self.optimizer = False
        self.whole = False
        self.live: Any = None


class Allocate(NamedTuple):
    """Make the arrays of a key's shard."""

    message: m.Create


class Fill(NamedTuple):
    """Set the initial value of a slice."""

    piece: Slice
    payload: Any


class Update(NamedTuple):
    """Sum the contributions in the order of clients and update the unit, as its update ``number``."""

    unit: Unit
    contributions: list[Contribution]
    live: Any
    number: int


class Reply(NamedTuple):
    """Send values of slices, or, if ``shared``, write them into the peer's buffers and say so.

    ``stable`` says that the values cannot change before the peer has them.
    """

    peer: NodeId
    entries: list[tuple[int, int, int, int]]
    stable: bool
    shared: bool = False
    priority: int = 0


Answers = Dict[Tuple[NodeId, bool, int], List[Tuple[int, int, int, int]]]
"""What each peer is to be answered with, by whether it shares its buffers, and priority."""

Instruction = Union[Send, Log, Allocate, Fill, Update, Reply]
Instructions = List[Instruction]
