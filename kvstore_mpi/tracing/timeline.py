"""What one process did in a job, in the clock that all of them share. Records, and that clock. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from kvstore_mpi.records import Key, NodeId, Role
from kvstore_mpi.tracing.clock import Offset

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvstore_mpi.tracing.events import Header, InFlight, Run, Span, Step


class Operation(NamedTuple):
    """A call of the user on one key, from its gradient being ready to its end."""

    since: int
    until: int
    kind: str
    store: int
    key: Key
    priority: int
    sequence: int


class Wait(NamedTuple):
    """Slices that a worker queued together for a server, until the last of them was sent."""

    since: int
    until: int
    run: Run
    peer: NodeId


class Wire(NamedTuple):
    """A run on its way to a server; ``queued`` is when it began to wait for it, if that is known."""

    since: int
    until: int
    run: Run
    peer: NodeId
    queued: int | None


class Round(NamedTuple):
    """A worker's run on a server, from its arrival to the update that takes it in."""

    since: int
    until: int
    run: Run
    peer: NodeId


class Answer(NamedTuple):
    """New values on their way back, from the server's answer until they are in the worker's buffer."""

    since: int
    until: int
    run: Run
    peer: NodeId


class Work(NamedTuple):
    """A process at work on a run: a worker in a collective, a server in an update."""

    since: int
    until: int
    run: Run
    step: Step


@dataclass
class Timeline:
    """What one process did. Times are nanoseconds of the coordinator's clock."""

    header: Header
    operations: list[Operation] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    counts: list[InFlight] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    wires: list[Wire] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)

    @property
    def node(self) -> NodeId:
        """The process."""
        return self.header.node


class _Headed(Protocol):
    """What has a header."""

    @property
    def header(self) -> Header: ...


Recorded = TypeVar("Recorded", bound=_Headed)


def by_model_rank(recorded: Iterable[Recorded]) -> dict[int | None, list[Recorded]]:
    """Return what was recorded, by the part of the model: the processes of one are a job of their own."""
    jobs: dict[int | None, list[Recorded]] = {}
    for each in sorted(recorded, key=lambda each: each.header.model_rank or 0):
        jobs.setdefault(each.header.model_rank, []).append(each)
    return jobs


def clocks(headers: Iterable[Header]) -> dict[str, Offset | None]:
    """Return, by boot id, what to add to times for the coordinator's clock; ``None`` where nobody knows.

    All processes of a host are shifted by the same amount, the best that one of them knows, so that their
    order among each other stays exact. Jobs of several parts of a model have a coordinator each; that of
    the first counts, and a host that two of them know joins the others.
    """
    jobs: dict[int, list[Header]] = {}
    for header in headers:
        jobs.setdefault(header.model_rank or 0, []).append(header)
    known: dict[str, Offset | None] = {}
    for _, job in sorted(jobs.items()):
        known = _joined(known, _clocks_of_job(job)) if known else _clocks_of_job(job)
    return known


def _joined(known: dict[str, Offset | None], more: dict[str, Offset | None]) -> dict[str, Offset | None]:
    """Return both, the second moved to the clock of the first by a host of both; else without its times."""
    shifts = [
        Offset(here.offset_ns - there.offset_ns, here.error_ns + there.error_ns)
        for boot, there in more.items()
        if there is not None and (here := known.get(boot)) is not None
    ]
    shift = min(shifts, key=lambda each: each.error_ns, default=None)
    joined = dict(known)
    for boot, offset in more.items():
        if joined.get(boot) is None:
            if shift is None or offset is None:
                joined[boot] = None
            else:
                joined[boot] = Offset(offset.offset_ns + shift.offset_ns, offset.error_ns + shift.error_ns)
    return joined


def _clocks_of_job(headers: Sequence[Header]) -> dict[str, Offset | None]:
    """Return ``clocks`` of processes with one coordinator."""
    known: dict[str, Offset | None] = {}
    for header in headers:
        error, best = header.offset_error_ns, known.setdefault(header.boot_id, None)
        if error is not None and (best is None or error < best.error_ns):
            known[header.boot_id] = Offset(header.offset_ns, error)
    for header in sorted(headers, key=_coordinator_first)[:1]:
        known[header.boot_id] = Offset(0, 0)
    return known


def _coordinator_first(header: Header) -> tuple[bool, bool, int]:
    """Order by who coordinates: the scheduler, or worker 0 in pure MPI."""
    role, index = header.node
    return role is not Role.SCHEDULER, role is not Role.WORKER, index
