"""What a worker's state tells its shell to do, besides sending and logging. Records only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvstore_mpi.wire.instructions import Log, Send
from kvstore_mpi.wire.state_parts import StatePart

if TYPE_CHECKING:
    from kvstore_mpi.errors import KVStoreError
    from kvstore_mpi.records import KeySpec, NodeId
    from kvstore_mpi.values.base import ClientBase, ClientResidual
    from kvstore_mpi.worker.collectives import Collective
    from kvstore_mpi.worker.records import KeyState


class Collect(NamedTuple):
    """Carry out a collective on slices ``[first, last)`` of a key; report to ``collected``.

    ``sequence`` numbers the push on the key. Collectives that can be done at once are counted by
    ``together``, this one included.
    """

    operation: Collective
    key: KeyState
    sequence: int
    first: int
    last: int
    # All of them or none: a rank that took fewer would make another MPI call than the others, in which all
    # of them would wait.
    together: int = 1


class Write(NamedTuple):
    """Copy a payload into a part of the buffer."""

    # Both are opaque to the state: it says where, and the shell copies, so that decisions can be tested
    # without memory.
    view: Any
    payload: Any


class Refer(NamedTuple):
    """Give the answer to an exchange to the base of its key, which puts it into the buffer.

    ``payload=None``: it reaches the buffer on another way, and is nothing to refer to.
    """

    base: ClientBase | ClientResidual
    lo: int
    hi: int
    payload: Any
    coding: int


class Complete(NamedTuple):
    """Tell the caller that an operation has ended; the buffer is the caller's again."""

    # Called by the shell after everything before it in the list: whoever is told finds the value there.
    done: Any
    error: KVStoreError | None = None


class Resolve(NamedTuple):
    """Answer a blocking request: barrier, optimizer, states."""

    request: int
    result: Any = None
    error: KVStoreError | None = None


class ReceivedPart(NamedTuple):
    """A part of an optimizer state as a server sent it."""

    spec: KeySpec
    part: StatePart
    payload: Any


class Joined(NamedTuple):
    """All processes of the job are known: connect to these."""

    # Of all who have joined so far; with servers that come back, it comes again with the new ones.
    addresses: dict[str, list[str]]


class Keep(NamedTuple):
    """Copy the value in a key's buffer to ``kept``."""

    # A copy, since the buffer is the caller's as soon as the operation has ended: what a server is
    # given when it is back must be a value that it had, and not the next gradient.
    key: KeyState


class Disconnect(NamedTuple):
    """A process is gone: what is under way to it, and comes from it, is void."""

    # Ends the session: what was sent to the former run must not reach the next one, whose counts are
    # others.
    peer: NodeId


class Failed(NamedTuple):
    """This worker's communication has ended with an error; everything pending was completed with it."""

    # Once at most: what is called later ends with the same error (``WorkerState.submit``), so that a
    # user sees the first cause and not what follows from it.
    error: KVStoreError


Instruction = (
    Send | Log | Collect | Write | Refer | Complete | Resolve | Joined | Keep | Disconnect | Failed
)
Instructions = list[Instruction]
