"""What an endpoint reports: events in the order in which they happened, and counts.

This file must not know how they come about.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvstore_mpi.errors import KVStoreError
    from kvstore_mpi.records import NodeId
    from kvstore_mpi.wire.messages import AnyMessage


class Connected(NamedTuple):
    """The session with a peer is up; ``replaced`` says that it had one before.

    ``incarnation`` counts how often the peer has been restarted.
    """

    # The event says it although the scheduler does, too: which of the two a server hears first is not
    # known, and the pushes of a new incarnation, which count from 1, must not be taken for those of the old
    # one.
    peer: NodeId
    replaced: bool
    incarnation: int = 0


class Received(NamedTuple):
    """The next message of a peer; its payloads are views of the transport's memory."""

    peer: NodeId
    message: AnyMessage
    payloads: list[memoryview]


class Silent(NamedTuple):
    """Nothing valid has come from a monitored peer for this long; reported once until it is heard again."""

    # An event of its own and no ``Failed``: the session stays, since the peer may only have been stopped
    # for a while, and whether it is lost is for the role to decide.
    peer: NodeId
    seconds: float


class Failed(NamedTuple):
    """The session with a peer could not be made, or cannot go on."""

    peer: NodeId
    error: KVStoreError


Event = Connected | Received | Silent | Failed


@dataclass(frozen=True)
class Statistics:
    """Counts since the start; frames here are wire messages, bytes include headers.

    Attributes:
        dropped: Wire messages that were not ours or not acceptable, by reason.
    """

    frames_sent: int
    frames_received: int
    bytes_sent: int
    bytes_received: int
    duplicates: int
    retransmitted: int
    dropped: Mapping[str, int]
