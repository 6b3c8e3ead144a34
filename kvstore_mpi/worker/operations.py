"""Operations that cannot end: which they are, and why, in words for the user. Pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore_mpi.errors import DeadlineError
from kvstore_mpi.worker.records import KeyState, Kind, Operation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvstore_mpi.records import NodeId

UNEQUAL = (
    "the workers ran unequal numbers of batches; give every worker the same number, for example by "
    "dropping the remainder of the data"
)


def waits_for_client(under_way: Mapping[KeyState, Operation]) -> str:
    """Name an operation that needs the rest of the client, if there is one."""
    for key, operation in under_way.items():
        if operation.kind in (Kind.PUSH, Kind.PUSHPULL) or operation.sequence:
            return f"{operation.kind.value} number {operation.sequence} of key {key.spec.key!r}"
    return ""


def overdue(
    under_way: Mapping[KeyState, Operation], now: float, timeout: float, *, me: str, coordinator: NodeId
) -> DeadlineError | None:
    """Return the error of an operation that has waited for longer than ``timeout``, if there is one.

    Args:
        under_way: The operations that have begun and not ended.
        now: The time.
        timeout: In seconds.
        me: Names this worker.
        coordinator: Who is waited for where no server is.
    """
    for key, operation in under_way.items():
        if now - operation.since > timeout:
            servers = sorted({str(server) for server, _ in key.slices}) or [str(coordinator)]
            return DeadlineError(
                f"{me}: {operation.kind.value} number {operation.sequence} of {key.spec} has not "
                f"ended within {timeout:g} s; {operation.remaining} of {len(key.slices)} "
                f"slices are missing; it involves {', '.join(servers)} and the workers of its client"
            )
    return None
