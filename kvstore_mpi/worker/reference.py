"""What a worker was last sent of a key, to which compressed exchanges refer; the twin of ``center.Bases``.

A rank has it for the slices that it pushes. This file must not know when anything is sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.esgd.compression import compress, compressed_bytes, decompress

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]


class Reference:
    """The reference of one key.

    The first exchange of a slice, and the first after one through shared memory, travels as it is: only
    then do both sides know the same value. It costs two copies of what this rank pushes: what it was sent,
    and what the server has understood of the push under way.
    """

    def __init__(self, buffer: Array, bits: int, *, before: bool) -> None:
        """Start without knowing anything.

        Args:
            buffer: The key's exchange buffer.
            bits: Bits of an element, 8 or 4.
            before: Servers answer with the center before the update, with which they compare the push.
        """
        self._bits = bits
        self._buffer = buffer
        self._before = before
        self._sent: Array = np.empty_like(buffer)
        self._understood: Array = np.empty_like(buffer)
        self._known: set[int] = set()

    def bits_of(self, lo: int) -> int:
        """Return to how many bits a slice is to be compressed; 0 for as it is."""
        return self._bits if lo in self._known else 0

    def wire_bytes(self, lo: int, hi: int) -> int:
        """Return the size of a slice as it is to be pushed."""
        return compressed_bytes(hi - lo, self._bits) if lo in self._known else self._buffer[lo:hi].nbytes

    def encode(self, lo: int, hi: int) -> bytearray:
        """Return the difference of the buffer to what was sent last; the buffer is left as it is."""
        return compress(self._buffer[lo:hi], self._sent[lo:hi], self._bits, self._understood[lo:hi])

    def take(self, lo: int, hi: int, payload: Any, bits: int) -> None:
        """Put an answer into the buffer.

        Where the answer is the center before the update, what the server has not understood of the push is
        added to it. The difference of parameters and buffer is then the difference that the server has
        used, so that center and parameters move by the same, and their sum is conserved.
        """
        out, base = self._buffer[lo:hi], self._sent[lo:hi]
        if not bits:
            base[...] = np.frombuffer(payload, base.dtype)
            self._known.add(lo)
            out[...] = base
            return
        decompress(payload, base, bits, base)
        if self._before:
            out -= self._understood[lo:hi]
            out += base
        else:
            out[...] = base

    def forget(self, lo: int) -> None:
        """A slice was exchanged without being looked at here."""
        self._known.discard(lo)
