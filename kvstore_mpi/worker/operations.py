"""Operations that cannot end: which they are, and why, in words for the user. Pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore_mpi.errors import DeadlineError
from kvstore_mpi.records import Role, parameter_of
from kvstore_mpi.worker.collectives import Kind
from kvstore_mpi.worker.records import KeyState, Operation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kvstore_mpi.records import NodeId
    from kvstore_mpi.worker.shutdown import Shutdown

UNEQUAL = (
    "the workers ran unequal numbers of batches; give every worker the same number, for example by "
    "dropping the remainder of the data, as kvstore_mpi.shard does with remainder='drop'"
)

SERVERS_FIRST_S = 3.0
"""A server's deadline for a push comes this much before its worker's: a server knows, and says, whom it
waits for. Both are checked once a second."""


def deadline(step_timeout: float, *, has_servers: bool) -> float:
    """Return the seconds that an operation may take on a worker."""
    return step_timeout + (SERVERS_FIRST_S if has_servers else 0.0)


def without_partner(
    under_way: Mapping[KeyState, Operation],
    late: Callable[[KeyState], Iterable[NodeId]],
    shutdown: Shutdown,
    me: str,
    coordinator: NodeId,
    *,
    busy: bool,
) -> str:
    """Say what can never be carried out because a rank of the client has finished, if there is anything.

    Args:
        under_way: The operations of this rank that have begun and not ended.
        late: Whom this rank, as the leader, waits for before a key's operation can be announced.
        shutdown: Which ranks have finished.
        me: Names this worker.
        coordinator: Who agrees on keys.
        busy: Something that was announced is under way on this rank.
    """
    # Both directions are looked at, because either rank may have run more batches: the leader waits for a
    # member that has finished, or a member for what nobody will announce.
    # What a member has come to it says before it says that it has finished, and links keep the order: who
    # is late then comes no more.
    for key, operation in under_way.items():
        for member in late(key):
            if shutdown.has_finished(member):
                return (
                    f"rank {member.index} has finished, but {me}, which leads its client, waits for it "
                    f"in {_called(key, operation)}: {UNEQUAL}"
                )
    # Not while something announced is still to be carried out: the leader announces before it leaves, and
    # this rank may just not have come so far.
    if not shutdown.leader_has_finished or busy:
        return ""
    # With servers the scheduler says so. Here that is the leader, whose program is over: with the key it
    # would have waited for all ranks.
    unplaced = next((key for key in under_way if key.key_id < 0), None)
    if unplaced is not None and coordinator.role is Role.WORKER:
        return (
            f"key {parameter_of(unplaced.spec.key)!r} is initialised by {me} but not by the leader of its "
            "client, which has finished: the sets of keys differ between workers; all must build the same "
            "model, and create their stores in the same order"
        )
    waits = _waits_for_client(under_way)
    return f"the leader of its client has finished, but {me} waits in {waits}: {UNEQUAL}" if waits else ""


def _waits_for_client(under_way: Mapping[KeyState, Operation]) -> str:
    """Name an operation that needs the rest of the client, if there is one."""
    for key, operation in under_way.items():
        # A pull that each rank makes for itself has no number, and rows that it pushes for itself need no
        # collective: servers answer these without the client.
        if key.alone:
            continue
        if operation.kind in (Kind.PUSH, Kind.PUSHPULL) or operation.sequence:
            return _called(key, operation)
    return ""


def _called(key: KeyState, operation: Operation) -> str:
    return f"{operation.kind.value} number {operation.sequence} of key {parameter_of(key.spec.key)!r}"


def overdue(
    under_way: Mapping[KeyState, Operation],
    late: Callable[[KeyState], Iterable[NodeId]],
    now: float,
    timeout: float,
    *,
    me: str,
    coordinator: NodeId,
) -> DeadlineError | None:
    """Return the error of an operation that has waited for longer than ``timeout``, if there is one.

    Args:
        under_way: The operations that have begun and not ended.
        late: As of ``without_partner``.
        now: The time.
        timeout: In seconds.
        me: Names this worker.
        coordinator: Who is waited for where no server is.
    """
    # Since it began, not since it was called: behind others on its key an operation may rightly wait for
    # many times as long.
    for key, operation in under_way.items():
        if now - operation.since > timeout:  # one is enough: its error ends all that is under way
            # Said by the leader alone: to its members it announces nothing before all have called it, so
            # that they only know that something is missing.
            waits = ", ".join(f"rank {member.index}" for member in late(key))
            return DeadlineError(
                f"{me}: {operation.kind.value} number {operation.sequence} of {key.spec} has not "
                f"ended within {timeout:g} s; {operation.remaining} of {len(key.slices)} "
                f"slices are missing; it involves {_asked_by(key, coordinator)}the workers of its client"
                + (f", of which {waits} did not call it" if waits else "")
            )
    return None


def _asked_by(key: KeyState, coordinator: NodeId) -> str:
    """Return whom a worker asks for a key beside its client, in words to be followed by that."""
    # Before a key has its place no server can be the cause: the coordinator has not answered.
    if not key.slices:
        return f"{coordinator} and "
    # Without servers it is rank 0, and a key's one server stands for none.
    if coordinator.role is Role.WORKER:
        return ""
    return f"{', '.join(sorted({str(server) for server, _ in key.slices}))} and "
