"""What both sides of a coding refer to: the value that a client was last sent, as it and a server know it.

The two halves mirror each other and must stay equal to the bit: every value that a server sends a client
becomes the base on both sides, the server's when it is sent and the client's when it is taken. A server
that sent without noting it, or a client that took without noting it, would decode all that follows wrongly,
and nothing would tell. So a client that is not sure (its server was restarted, or the value came by shared
memory, past it) forgets, and the next exchange travels as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.errors import MismatchError
from kvstore_mpi.values.coding import RAW, Coded, numbered

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]


class ClientBase:
    """A client's half for one key: each rank has it for the slices that it pushes.

    The first exchange of a slice, and the first after one through shared memory, travels as it is: only
    then do both sides know the same value. It costs two copies of what this rank pushes: what it was sent,
    and what the server has understood of the push under way.
    """

    def __init__(self, buffer: Array, coding: int, *, before: bool) -> None:
        """Start without knowing anything.

        Args:
            buffer: The key's exchange buffer.
            coding: Number of the coding.
            before: Servers answer with the center before the update, with which they compare the push.
        """
        self._number = coding
        self._coding = numbered(coding)
        self._buffer = buffer
        self._before = before
        self._sent: Array = np.empty_like(buffer)
        self._understood: Array = np.empty_like(buffer)
        self._known: set[int] = set()

    def coding_of(self, lo: int) -> int:
        """Return the number of the coding in which a slice is to be pushed."""
        return self._number if lo in self._known else RAW

    def num_bytes(self, lo: int, hi: int) -> int:
        """Return the size of a slice as it is to be pushed."""
        return self._coding.num_bytes(hi - lo) if lo in self._known else self._buffer[lo:hi].nbytes

    def encode(self, lo: int, hi: int) -> Any:
        """Return the payload of a slice of the buffer, which is left as it is."""
        return self._coding.encode(self._buffer[lo:hi], self._sent[lo:hi], self._understood[lo:hi])

    def take(self, lo: int, hi: int, payload: Any, coding: int) -> None:
        """Put an answer into the buffer.

        Where the answer is the center before the update, what the server has not understood of the push is
        added to it. The difference of parameters and buffer is then the difference that the server has
        used, so that center and parameters move by the same, and their sum is conserved.
        """
        out, base = self._buffer[lo:hi], self._sent[lo:hi]
        if coding == RAW:
            base[...] = np.frombuffer(payload, base.dtype)
            # The server noted the same value when it sent it, so the next push may refer to it.
            self._known.add(lo)
            out[...] = base
            return
        # The base moves first, on both sides: what is decoded is what the next exchange refers to.
        self._coding.decode(payload, base, base)
        # ``out`` still holds what was pushed. Its rounding error stays in the parameters and travels next
        # time.
        if self._before:
            out -= self._understood[lo:hi]
            out += base
        else:
            out[...] = base

    def forget(self, lo: int) -> None:
        """A slice was exchanged without being looked at here."""
        self._known.discard(lo)


class ClientResidual:
    """A client's half for one key whose gradients are coded: what its payloads have not said yet.

    It is added to the next gradient, so that it comes late and is not lost (error feedback). Values come
    back as they are, and nothing refers to them.
    """

    def __init__(self, buffer: Array, coding: int) -> None:
        """Start with everything said.

        Args:
            buffer: The key's exchange buffer.
            coding: Number of the coding.
        """
        self._number = coding
        self._coding = numbered(coding)
        self._buffer = buffer
        self._unsaid: Array = np.zeros_like(buffer)
        self._understood: Array = np.empty_like(buffer)

    def coding_of(self, _lo: int) -> int:
        """Return the number of the coding in which a slice is to be pushed."""
        return self._number

    def num_bytes(self, lo: int, hi: int) -> int:
        """Return the size of a slice as it is to be pushed."""
        return self._coding.num_bytes(hi - lo)

    def encode(self, lo: int, hi: int) -> Any:
        """Return the payload of a slice of the buffer, which is left as it is."""
        wanted, understood = self._unsaid[lo:hi], self._understood[lo:hi]
        wanted += self._buffer[lo:hi]
        understood[...] = 0
        payload = self._coding.encode(wanted, understood, understood)
        with np.errstate(invalid="ignore"):
            wanted -= understood
            limit = self._coding.largest_error
            # What was cut off, or is infinite or no number, is nothing that comes late: added to the next
            # gradients it would be pushed for many steps, or for ever. Two passes, over what is in a cache.
            if wanted.size and not -limit <= wanted.min() <= wanted.max() <= limit:
                wanted[~(np.abs(wanted) <= limit)] = 0
        return payload

    def take(self, *_answer: Any) -> None:
        """Raise: only rules for parameters answer with what a push may refer to.

        Raises:
            MismatchError: Always.
        """
        raise MismatchError("a server has answered coded gradients as if they were parameters")

    def forget(self, _lo: int) -> None:
        """Nothing refers to a value, however it has come."""


def gradient_of(pushed: Coded, size: int, dtype: np.dtype[Any]) -> Array:
    """Return what a client has pushed of a slice, in a coding of gradients."""
    out = np.zeros(size, dtype)
    numbered(pushed.coding).decode(pushed.payload, out, out)
    return out


class ServerBases:
    """A server's half for one shard: what each client was last sent of it, as the client can decode it.

    A client's answer is sent from here, now or once more when the request is repeated, since the value
    itself moves on meanwhile; delayed gradients are compensated with it; and codings refer to it. It costs
    a server one copy of its shards per client: with K clients and a model of V bytes, K·V over all servers.

    All clients begin with the initial value.
    """

    __slots__ = ("_arrays", "_payloads")

    def __init__(self, value: Array, num_clients: int) -> None:
        """Start with the value as it is now."""
        self._arrays: list[Array] = [value.copy() for _ in range(num_clients)]
        self._payloads: dict[tuple[int, int], Coded] = {}

    def of(self, client: int, part: slice) -> Array:
        """Return a view of what a client was sent last."""
        return self._arrays[client][part]

    def fill(self, part: slice, value: Array) -> None:
        """Set what all clients have in the beginning."""
        for array in self._arrays:
            array[part] = value

    def decode(self, client: int, part: slice, pushed: Coded) -> Array:
        """Return what a client has pushed, as both sides see it."""
        base = self._arrays[client][part]
        out = np.empty_like(base)
        numbered(pushed.coding).decode(pushed.payload, base, out)
        return out

    def send(self, client: int, part: slice, value: Array, coding: int) -> None:
        """Let a client be sent a value; its base is then what it can decode."""
        # ``encode`` fills the base with what the client will decode, not with the value: otherwise the two
        # sides would drift apart by what each exchange rounds.
        base = self._arrays[client][part]
        if coding == RAW:
            np.copyto(base, value, casting="same_kind")
            return
        # Made now: the base has moved, so that the same bytes cannot be made again later.
        self._payloads[client, part.start] = Coded(numbered(coding).encode(value, base, base), coding)

    def take_payload(self, client: int, lo: int) -> Coded | None:
        """Return the coded answer that waits to be sent; once, since a repeated one refers to nothing."""
        return self._payloads.pop((client, lo), None)
