"""What the state machines tell their shells to do.

``handle(event) -> [instruction]``: the states decide, the shells in ``worker.py``, ``server.py`` and
``scheduler.py`` carry out. Payloads, buffers and callbacks pass through the states untouched.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Sequence

from ..errors import KVStoreError
from ..records import NodeId
from .messages import Message


class Send(NamedTuple):
    """Send a message to a process of the job."""

    peer: NodeId
    message: Message
    payloads: Sequence[Any] = ()


class Log(NamedTuple):
    """Tell people something they should know; ``level`` is one of ``logging``'s."""

    level: int
    text: str


class Stop(NamedTuple):
    """End this process: in order, or because of an error."""

    error: KVStoreError | None = None
