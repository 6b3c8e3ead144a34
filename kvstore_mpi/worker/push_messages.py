"""Slices that wait to be pushed, and the messages that they make up. Pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.instructions import Send
from kvstore_mpi.wire.runs import merge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvstore_mpi.records import NodeId, Slice
    from kvstore_mpi.worker.records import KeyState


class Push(NamedTuple):
    """A slice that waits to be pushed.

    Attributes:
        key: Its key.
        slice: Its elements.
        sequence: Number of the push on the key.
        wants_value: The new value is to come back.
        priority: Larger goes first.
        shared: The server reads it in the key's buffer.
        source: Where else it is sent from, or ``None``.
    """

    key: KeyState
    slice: Slice
    sequence: int
    wants_value: bool
    priority: int
    shared: bool
    source: Any


def messages_for(server: NodeId, pushes: list[Push]) -> Iterator[Send]:
    """Yield the messages with some slices for one server: those it reads where they lie, and the others.

    What is compressed has messages of its own, one for each number of bits: it is not contiguous in memory
    with its neighbours.
    """
    shared = [push for push in pushes if push.shared]
    if shared:
        yield _message(server, shared, shared=True)
    by_bits: dict[int, list[Push]] = {}
    for push in pushes:
        if not push.shared:
            reference = push.key.reference
            by_bits.setdefault(0 if reference is None else reference.bits_of(push.slice.lo), []).append(
                push
            )
    for bits, chosen in by_bits.items():
        yield _compressed(server, chosen, bits) if bits else _message(server, chosen, shared=False)


def _message(server: NodeId, pushes: list[Push], *, shared: bool) -> Send:
    entries = merge([(*push.slice, push.sequence, push.wants_value) for push in pushes])
    payloads = []
    if not shared:
        keys = {push.key.key_id: push for push in pushes}  # of a key one operation is under way
        payloads = [keys[key_id].key.part(lo, hi, keys[key_id].source) for key_id, lo, hi, _, _ in entries]
    return Send(server, m.Push(entries, shared, max([push.priority for push in pushes])), payloads)


def _compressed(server: NodeId, pushes: list[Push], bits: int) -> Send:
    entries = [(*push.slice, push.sequence, push.wants_value) for push in pushes]
    payloads = [push.key.reference.encode(push.slice.lo, push.slice.hi) for push in pushes]
    return Send(server, m.Push(entries, False, max([push.priority for push in pushes]), bits), payloads)
