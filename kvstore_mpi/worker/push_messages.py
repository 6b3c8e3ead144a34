"""Slices that wait to be pushed, and the messages that they make up. Pure functions."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from kvstore_mpi.values.coding import RAW
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
    """Yield the messages with some slices for one server, one for each way in which it reads them.

    In which coding a slice travels is asked only now: it depends on the answer to the push before, which
    may have come since this one was queued.
    """
    forms: dict[tuple[bool, int], list[Push]] = {}
    last: tuple[bool, int] | None = None
    alike: list[Push] = []
    for push in pushes:
        base = push.key.base
        coding = RAW if base is None or push.shared else base.coding_of(push.slice.lo)
        form = (push.shared, coding)
        if form != last:  # nearly always all are of one form
            last, alike = form, forms.setdefault(form, [])
        alike.append(push)
    # What is shared first: it costs no time on the way, so that nothing waits for it.
    for (shared, coding), alike in sorted(forms.items(), key=itemgetter(0), reverse=True):
        entries = [(*push.slice, push.sequence, push.wants_value) for push in alike]
        payloads: list[Any] = []
        if coding != RAW:  # what stands for a slice is not contiguous in memory with its neighbours
            payloads = [
                push.key.base.encode(push.slice.lo, push.slice.hi) for push in alike if push.key.base
            ]
        else:
            entries = merge(entries)
            if not shared:
                payloads = _parts(entries, alike)
        priority = max([push.priority for push in alike])
        yield Send(server, m.Push(entries, shared, priority, coding), payloads)


def _parts(entries: list[tuple[int, int, int, int, bool]], pushes: list[Push]) -> list[Any]:
    keys = {push.key.key_id: push for push in pushes}  # of a key one operation is under way
    return [keys[key_id].key.part(lo, hi, keys[key_id].source) for key_id, lo, hi, _, _ in entries]
