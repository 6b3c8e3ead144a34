"""Layouts: how a key is cut into slices, and what stands for them on the wire. A new one is chosen here.

Both sides of a job ask a key's layout; what they do with the answers, they do with any. How a server keeps
the values, sums what is pushed and sends them back is in a class of its own for each layout
(``server/shards.py``, ``server/table_shards.py``). This file must not know when a slice travels, or what an
optimizer does with a sum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from kvstore_mpi.errors import MismatchError
from kvstore_mpi.values.dense import Dense
from kvstore_mpi.values.row_sparse import RowSparse

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvstore_mpi.records import KeySpec, Shard, Slice


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


def layout_of(spec: KeySpec) -> Dense | RowSparse:
    """Return the layout of a key."""
    return RowSparse(spec) if spec.partitions else Dense(spec.key, spec.dtype)


def check_values(spec: KeySpec, runs: Sequence[tuple[int, int]], payloads: Sequence[Any]) -> None:
    """Check the initial values of runs of a key, before they count as there and others are given them.

    Raises:
        MismatchError: There are more or fewer payloads than runs, or one has another size.
    """
    if len(payloads) != len(runs):
        raise MismatchError(f"{spec}: {len(runs)} runs of its value came with {len(payloads)} payloads")
    layout = layout_of(spec)
    for (lo, hi), payload in zip(runs, payloads):
        if isinstance(layout, RowSparse):
            layout.check_value(payload, lo)
        else:
            layout.check(payload, lo, hi)
