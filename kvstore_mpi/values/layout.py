"""Layouts: how a key is cut into slices, and what both sides do with them. A new one is chosen here.

Both sides of a job ask a key's layout; what they do with the answers, they do with any. This file must not
know when a slice travels, or what an optimizer does with a sum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from kvstore_mpi.values.dense import Dense

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np

    from kvstore_mpi.records import KeySpec, Shard, Slice

    Array = np.ndarray[Any, Any]


class Layout(Protocol):
    """Of one key.

    Slices that follow each other are a *run*, which is one entry of a message and has one payload, so that
    the payload of a run is always made up of those of its slices, and ``part`` can take it apart.
    """

    def cut(self, key_id: int, shards: Iterable[Shard], slice_elements: int) -> list[tuple[int, Slice]]:
        """Cut shards into slices: (server, slice) in ascending order; the same on all processes."""
        ...

    def num_bytes(self, lo: int, hi: int) -> int:
        """Return the size of a run, or a bound on it, by which windows and messages are measured."""
        ...

    def part(self, payload: Any, start: int, lo: int, hi: int) -> Any:
        """Return the run ``[lo, hi)`` out of a payload or buffer that begins with ``start``; no copy."""
        ...

    def check(self, payload: Any, lo: int, hi: int) -> None:
        """Raise ``MismatchError`` where a payload that has come is not that of a run."""
        ...

    def read(self, payload: Any, size: int) -> Array:
        """Return what clients push of a slice, for ``sum_into``."""
        ...

    def sum_into(self, out: Array, arrays: Sequence[Array]) -> None:
        """Sum what was read of a slice, in the order of clients, into what an optimizer takes."""
        ...

    def payload(self, value: Array, *, stable: bool) -> memoryview | bytes:
        """Return a run of the server's value for sending; ``stable`` if it does not change meanwhile."""
        ...

    def write_back(self, value: Array, buffer: memoryview, lo: int) -> None:
        """Write a run of the server's value from ``lo`` on into the buffer of a worker of this host."""
        ...


def layout_of(spec: KeySpec) -> Layout:
    """Return the layout of a key."""
    return Dense(spec.key, spec.dtype)
