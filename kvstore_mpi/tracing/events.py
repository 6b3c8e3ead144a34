"""What a process records while it runs, as it stands in its part of the trace. Records only.

Times are nanoseconds of the host's monotonic clock. A *run* names neighbouring slices of one push:
(key number, lo, hi, sequence), where ``sequence`` counts the pushes of one client on the key from 1.
"""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003  msgspec evaluates annotations
from typing import Literal, NamedTuple

import msgspec

from kvstore_mpi.records import Key, NodeId

Step = Literal["queued", "sent", "reduced", "shared", "received", "updated", "answered", "written"]
"""Where a run has come to.

On a worker: ``queued`` for sending, ``sent`` (handed to the transport), ``reduced`` over its client,
``shared`` with its client, ``written`` (the new value is in the buffer). On a server: ``received``,
``updated``, ``answered``.
"""


class Run(NamedTuple):
    """Neighbouring slices of one push on a key: elements ``[lo, hi)``."""

    key_id: int
    lo: int
    hi: int
    sequence: int


class Event(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of all events. The collector need not look at them: they never refer to each other."""


class Ready(Event, frozen=True):
    """A gradient is ready, or a pull may start: the user's operation ``number`` has reached the worker.

    ``sequence`` counts the pushes on the key; a pull has 0.
    """

    at: int
    number: int
    kind: str
    store: int
    key: Key
    priority: int
    sequence: int


class Done(Event, frozen=True):
    """Operation ``number`` has ended: its value is in the buffer."""

    at: int
    number: int


class Mark(Event, frozen=True):
    """Runs have come to a step; the work on them began at ``since`` if that is not 0.

    ``entries`` begin with the fields of a run and may have more, as they stand in messages. ``peer`` is
    whom the step has to do with: the server of ``queued``, ``sent`` and ``written``, the worker of
    ``received`` and ``answered``.
    """

    at: int
    step: Step
    peer: NodeId | None
    entries: Sequence[Sequence[int | bool]]
    since: int = 0


class InFlight(Event, frozen=True):
    """From now on this number of bytes is on the way to a peer, sent and not acknowledged."""

    at: int
    peer: NodeId
    num_bytes: int


class Span(Event, frozen=True):
    """What the user has marked with ``annotate``, on one thread."""

    since: int
    until: int
    name: str
    thread: int


AnyEvent = Ready | Done | Mark | InFlight | Span


class Header(msgspec.Struct, frozen=True):
    """The first line of a part: who recorded it, and how its clock stands to the coordinator's.

    Attributes:
        node: The process.
        client: Of a worker, its client.
        host: Name of its host.
        pid: Its process number there.
        boot_id: Differs between hosts; processes of equal ones share a clock.
        offset_ns: Add this to a time to have the coordinator's.
        offset_error_ns: By how much that may be wrong; ``None`` if it was never measured.
        keys: (key number, store, key) of each key that it knows.
        full: Older events may have been overwritten by newer ones.
        elements: Of each dense key, by its number; workers know it.
        model_rank: Which rank of its worker it is, or whose server or scheduler, where workers have several
            ranks; those of one number are a job of their own (docs/adr/0011).
    """

    node: NodeId
    client: int
    host: str
    pid: int
    boot_id: str
    offset_ns: int
    offset_error_ns: int | None
    keys: list[tuple[int, int, Key]]
    full: bool
    elements: dict[int, int] = {}
    model_rank: int | None = None

    @property
    def name(self) -> str:
        """What people call the process: ``worker1``, or rank 0 of it ``worker1.0``."""
        return self.name_of(self.node)

    def name_of(self, peer: NodeId) -> str:
        """Return the name of another process of the same job."""
        return str(peer) if self.model_rank is None else f"{peer}.{self.model_rank}"


class Part(NamedTuple):
    """What one process has recorded."""

    header: Header
    events: list[AnyEvent]
