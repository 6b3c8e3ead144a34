"""One end of a connection over a stream socket: what there is to know of it, and nothing that it does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore_mpi.transport.framing import Parser
from kvstore_mpi.transport.outgoing import Outgoing

if TYPE_CHECKING:
    import socket
    from typing import Any

    from kvstore_mpi.transport.streams import StreamSockets


class Connection:
    """One end of a connection; its own link."""

    __slots__ = (
        "address",
        "connecting",
        "endpoint",
        "outgoing",
        "owner",
        "parser",
        "reached",
        "socket",
        "strange",
        "tried",
    )

    def __init__(self, owner: StreamSockets, address: Any = None, endpoint: str = "") -> None:
        """Make an end without a socket.

        Args:
            owner: Who sends over it.
            address: Where it is connected to at its first message; ``None`` for one that was accepted.
            endpoint: The same, as messages and people have it.
        """
        self.owner = owner
        self.address = address
        self.endpoint = endpoint
        self.socket: socket.socket | None = None
        self.parser = Parser(owner.proves, owner.place)
        self.strange = 0  # messages taken before it has shown that it is of the job
        self.outgoing = Outgoing()
        self.connecting = False  # until the other side has taken part, everything is queued
        self.reached = False  # ever
        self.tried = float("-inf")  # when it was last connected
