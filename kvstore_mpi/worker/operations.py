"""Operations that cannot end: which they are, and why, in words for the user. Pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore_mpi.records import parameter_of
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


def without_partner(
    under_way: Mapping[KeyState, Operation],
    late: Callable[[KeyState], Iterable[NodeId]],
    shutdown: Shutdown,
    me: str,
    *,
    busy: bool,
) -> str:
    """Say what can never be carried out because a rank of the client has finished, if there is anything.

    Args:
        under_way: The operations of this rank that have begun and not ended.
        late: Whom this rank, as the leader, waits for before a key's operation can be announced.
        shutdown: Which ranks have finished.
        me: Names this worker.
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
                    f"in {called(key, operation)}: {UNEQUAL}"
                )
    # Not while something announced is still to be carried out: the leader announces before it leaves, and
    # this rank may just not have come so far.
    if not shutdown.leader_has_finished or busy:
        return ""
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
            return called(key, operation)
    return ""


def called(key: KeyState, operation: Operation) -> str:
    """Name an operation."""
    return f"{operation.kind.value} number {operation.sequence} of key {parameter_of(key.spec.key)!r}"
