"""What the state machines tell their shells to do.

``handle(event) -> [instruction]``: the states decide, the shells in ``io_thread.py``, ``server.py`` and
``scheduler.py`` carry out. Payloads, buffers and callbacks pass through the states untouched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.errors import KVStoreError
    from kvstore_mpi.records import NodeId
    from kvstore_mpi.wire.message import Message


class Send(NamedTuple):
    """Send a message to a process of the job."""

    # Payloads go beside the message and not in it: the state never touches arrays, so that it can be tested
    # without any, and the shell hands them to the transport where they lie.
    peer: NodeId
    message: Message
    payloads: Sequence[Any] = ()
    asks: bool = False  # see ``Endpoint.send``


class Log(NamedTuple):
    """Tell people something they should know; ``level`` is one of ``logging``'s."""

    # An instruction and no call of a logger, which would be I/O: a test reads what a state wants to be said
    # like everything else that it decides.
    level: int
    text: str


class Stop(NamedTuple):
    """End this process: in order, or because of an error."""

    error: KVStoreError | None = None
