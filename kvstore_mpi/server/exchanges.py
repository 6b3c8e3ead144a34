"""The exchange with a center: what becomes of the parameters that clients push, and what they are sent.

The arithmetic of one round on one unit. Both sides of an exchange must use the same center, and, where it
travels coded, what both can decode of it; see ``docs/elastic.md``. This file must not know how rounds come
about or how anything travels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.server_optimizers import pseudo_gradient
from kvstore_mpi.values.coding import RAW, Coded

if TYPE_CHECKING:
    from kvstore_mpi.records import Slice
    from kvstore_mpi.server.records import Update
    from kvstore_mpi.values.base import ServerBases

Array = np.ndarray[Any, Any]
Read = Callable[[int, slice, Any], Array]


class Exchange:
    """The slices of one update, as each client has pushed them."""

    def __init__(self, update: Update, first: int, bases: ServerBases | None, read: Read) -> None:
        """Look at an update.

        Args:
            update: What is to be done.
            first: First element of the shard, from which the bases count.
            bases: What the clients were sent, if the rule wants it remembered.
            read: Turns a payload into an array, given the client and the place in the shard.
        """
        self._update = update
        self._first = first
        self._bases = bases
        self._read = read

    def pseudo_gradient(self, out: Array, center: Array, part: slice, *, before: bool) -> None:
        """Fill ``out`` with the sum over clients of center - params.

        With ``before`` each client that asks for a value is sent the center as it is now, and its params
        are compared with what it can decode of that.

        Args:
            out: Of the part's length; float32 for float16 keys.
            center: Likewise; only read.
            part: Of the unit; the whole of it, or elements of its only slice, which has not come coded.
            before: The rule answers with the center before its update.
        """
        for client, slice_, payload, wanted in self._pushed():
            here, place = self._places(slice_, part)
            whole = slice(slice_.lo - self._first, slice_.hi - self._first)
            params = self._read(client, whole, payload)  # before the base moves, to which it refers
            params = params[place.start - whole.start : place.stop - whole.start]
            # The same center for all clients of the round: it moves when their sum is applied.
            compared = center[here]
            if before and wanted and self._bases is not None:
                self._bases.send(client, place, compared, _coding_of(payload))
                # What the client can decode, not the center itself: what the center gains and what the
                # client loses would differ by what the coding has rounded, and their sum would drift.
                compared = self._bases.of(client, place)
            # The first one writes and the others add: no pass over the memory to set it to zero.
            if client == self._update.clients[0]:
                pseudo_gradient(out[here], compared, [params])
            else:
                # In the type of the sum: the difference of two float16 would be rounded before it is added.
                out[here] += np.subtract(compared, params, dtype=out.dtype)

    def send(self, value: Array, part: slice) -> None:
        """Send the clients that ask for one the value of a part after the update (of the part's length)."""
        for client, slice_, payload, wanted in self._pushed():
            here, place = self._places(slice_, part)
            # Who wants no value is sent none, so its base stays: the next push is decoded with the one it
            # has.
            if wanted and self._bases is not None:
                self._bases.send(client, place, value[here], _coding_of(payload))

    def _places(self, slice_: Slice, part: slice) -> tuple[slice, slice]:
        """Return where the elements that a slice and a part share are, in the part and in the shard."""
        begin = self._update.unit.slices[0].lo + part.start
        lo, hi = max(slice_.lo, begin), min(slice_.hi, begin + part.stop - part.start)
        return slice(lo - begin, hi - begin), slice(lo - self._first, hi - self._first)

    def _pushed(self) -> Iterator[tuple[int, Slice, Any, bool]]:
        """Yield client, slice, payload, and whether the client wants a value."""
        for client, contribution in zip(self._update.clients, self._update.contributions):
            for position, slice_ in enumerate(self._update.unit.slices):
                # By slice, although the update is of the unit: each was coded by itself, with a scale of
                # its own.
                wanted = contribution.askers[position].wants_value
                yield client, slice_, contribution.payloads[position], wanted


def _coding_of(payload: Any) -> int:
    """Return the coding in which a push came; its answer travels in the same."""
    return payload.coding if isinstance(payload, Coded) else RAW
