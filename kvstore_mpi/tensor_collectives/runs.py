"""Runs of slices of exchange buffers, and what is found out about them once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Container

Array = np.ndarray[Any, Any]
Found = TypeVar("Found")

Name = Literal["allreduce", "reduce", "broadcast"]

MOST_KEPT = 4096
"""Runs about which something is kept; then all are forgotten: slices travel in runs that vary."""


class BufferRun(NamedTuple):
    """Neighbouring slices of an exchange buffer, on which one collective is carried out.

    Attributes:
        buffer: The exchange buffer.
        lo: First element.
        hi: End of the elements.
        root: The rank that gets the sum, or has the value; ``None`` for an allreduce.
        job: The caller's.
    """

    buffer: Array
    lo: int
    hi: int
    root: int | None = None
    job: Any = None

    @property
    def elements(self) -> Array:
        """The elements, as a view."""
        return self.buffer[self.lo : self.hi]

    @property
    def num_bytes(self) -> int:
        """Size of the elements."""
        return (self.hi - self.lo) * self.buffer.itemsize

    @property
    def arguments(self) -> tuple[int, ...]:
        """What the collective is told besides the elements."""
        return () if self.root is None else (self.root,)


class KeptByRun(Generic[Found]):
    """What is found out about each run of a collective, the first time it is asked for.

    Attributes:
        known: By collective, id of the buffer, first element, end and root. Buffers are held meanwhile.
    """

    def __init__(self, find_out: Callable[[Name, BufferRun], Found]) -> None:
        """Keep what a function returns."""
        self._find_out = find_out
        self._buffers: dict[int, Array] = {}  # so that no other buffer gets the id of one that is known
        self.known: dict[tuple[Any, ...], Found] = {}

    def add(self, name: Name, run: BufferRun) -> Found:
        """Find out about a run, keep it and return it."""
        if len(self.known) >= MOST_KEPT:
            self.known.clear()
            self._buffers.clear()
        found = self._find_out(name, run)
        self._buffers[id(run.buffer)] = run.buffer
        self.known[name, id(run.buffer), run.lo, run.hi, run.root] = found
        return found

    def forget(self, buffers: Container[int]) -> None:
        """Forget what is known of some buffers, by their ids."""
        self.known = {run: found for run, found in self.known.items() if run[1] not in buffers}
        self._buffers = {each: buffer for each, buffer in self._buffers.items() if each not in buffers}
