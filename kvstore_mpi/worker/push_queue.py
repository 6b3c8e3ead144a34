"""The slices that a worker is going to push: queued by priority, and put together to messages.

Pure. This file must not know when a slice is ready, or what becomes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from kvstore_mpi.p3.send_queue import SendQueue
from kvstore_mpi.records import NodeId
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Send
from kvstore_mpi.wire.runs import merge
from kvstore_mpi.worker.records import KeyState, Kind, Operation

if TYPE_CHECKING:
    from kvstore_mpi.p3.schedule import Schedule

Mark = Callable[[Literal["queued"], NodeId, Sequence[Sequence[int]]], None]
"""Told that runs of slices are queued for a server: (key number, lo, hi, sequence)."""


class _Slice(NamedTuple):
    key: KeyState
    position: int
    sequence: int
    wants_value: bool
    priority: int
    shared: bool  # the server reads it in the key's buffer
    source: Any  # where else it is sent from, or ``None``


class PushQueue:
    """What waits to be pushed by one worker."""

    def __init__(
        self, schedule: Schedule, *, slice_bytes: int, window_bytes: int, mark: Mark | None = None
    ) -> None:
        """Make an empty queue.

        Args:
            schedule: The order in which slices leave.
            slice_bytes: Size of an ordinary slice.
            window_bytes: Bytes under way to one server; 0 to find out.
            mark: Told what is queued, if the job has a trace.
        """
        self._queue: SendQueue[NodeId, _Slice] = SendQueue(
            schedule, slice_bytes=slice_bytes, window_bytes=window_bytes
        )
        self._mark = mark
        self._compresses = False

    def expect(self, server: NodeId, num_bytes: int) -> None:
        """Note that a server has so many bytes more of the keys."""
        self._queue.expect(server, num_bytes)

    def drop(self, server: NodeId) -> None:
        """Forget what waits for a server."""
        self._queue.drop(server)

    def put(self, key: KeyState, operation: Operation, positions: range) -> None:
        """Queue slices of a key."""
        wants_value = operation.kind is Kind.PUSHPULL
        for position in positions:
            server, piece = key.slices[position]
            num_bytes = (piece.hi - piece.lo) * key.itemsize
            if key.reference is not None:
                self._compresses = True
                num_bytes = key.reference.wire_bytes(piece.lo, piece.hi)
            shared = server in key.shared
            priority = operation.priority
            item = _Slice(
                key, position, operation.sequence, wants_value, priority, shared, operation.source
            )
            self._queue.put(server, priority, num_bytes, item, travels=not shared)
        if self._mark is not None:
            for server, pieces in key.by_server(slice(positions.start, positions.stop)).items():
                self._mark("queued", server, merge((*piece, operation.sequence) for piece in pieces))

    def messages(self, now: float, in_flight: Callable[[NodeId], int]) -> list[Send]:
        """Take what may leave now.

        Args:
            now: The time.
            in_flight: Payload bytes under way to a server.
        """
        out: list[Send] = []
        if self._queue:
            for server, items in self._queue.bundles(now, in_flight):
                for shared in (True, False):
                    chosen = [item for item in items if item.shared is shared]
                    if self._compresses and not shared:
                        out += _compressed_messages(server, chosen)
                        chosen = [item for item in chosen if not _bits(item)]
                    if chosen:
                        out.append(_message(server, chosen, shared=shared))
        return out

    def sizes(self, itemsize: int) -> str:
        """Say which sizes of messages and windows have come about, for people."""
        windows = self._queue.windows()
        if not windows:
            return "nothing travels, so that there is nothing to choose"
        told = [
            f"{size // itemsize:,} elements and a window of {window / 1e3:,.0f} KB to {server}"
            for server, (size, window) in sorted(windows.items())
        ]
        return f"messages of {'; '.join(told)}"


def _bits(item: _Slice) -> int:
    """Return to how many bits a slice is to be compressed; 0 for as it is."""
    reference = item.key.reference
    return 0 if reference is None else reference.bits_of(item.key.slices[item.position][1].lo)


def _compressed_messages(server: NodeId, items: list[_Slice]) -> list[Send]:
    """Return the messages with those of the slices that are to be compressed."""
    groups: dict[int, list[_Slice]] = {}
    for item in items:
        groups.setdefault(_bits(item), []).append(item)
    groups.pop(0, None)
    out = []
    for bits, chosen in groups.items():
        pieces = [item.key.slices[item.position][1] for item in chosen]
        entries = [(*piece, item.sequence, item.wants_value) for piece, item in zip(pieces, chosen)]
        payloads = [item.key.reference.encode(lo, hi) for (_, lo, hi), item in zip(pieces, chosen)]
        priority = max(item.priority for item in chosen)
        out.append(Send(server, m.Push(entries, False, priority, bits), payloads))
    return out


def _message(server: NodeId, items: list[_Slice], *, shared: bool) -> Send:
    entries = merge((*item.key.slices[item.position][1], item.sequence, item.wants_value) for item in items)
    payloads = []
    if not shared:
        keys = {item.key.key_id: item for item in items}  # of a key one operation is under way
        payloads = [keys[key_id].key.part(lo, hi, keys[key_id].source) for key_id, lo, hi, _, _ in entries]
    return Send(server, m.Push(entries, shared, max(item.priority for item in items)), payloads)
