"""The exchange with a center: what becomes of the parameters that clients push, and what they are sent.

The arithmetic of one round on one unit. Both sides of an exchange must use the same center, and, where it
travels compressed, what both can decode of it; see ``docs/elastic.md``. This file must not know how rounds
come about or how anything travels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.errors import MismatchError
from kvstore_mpi.esgd.compression import compress, decompress
from kvstore_mpi.server.records import Compressed
from kvstore_mpi.server_optimizers import pseudo_gradient

if TYPE_CHECKING:
    from kvstore_mpi.records import Slice
    from kvstore_mpi.server.records import Update

Array = np.ndarray[Any, Any]
Read = Callable[[Any, int], Array]


class Bases:
    """What each client was last sent of one shard.

    It is what a client's answer is sent from, now or once more when the request is repeated; what delayed
    gradients are compensated with; and what compressed differences refer to. It costs a server one copy of
    its shards per client: with K clients and a model of V bytes, K·V over all servers.

    All clients begin with the initial value.
    """

    __slots__ = ("_answers", "_arrays")

    def __init__(self, value: Array, num_clients: int) -> None:
        """Start with the value as it is now."""
        self._arrays: list[Array] = [value.copy() for _ in range(num_clients)]
        self._answers: dict[tuple[int, int], Compressed] = {}

    def of(self, client: int, part: slice) -> Array:
        """Return a view of what a client was sent last."""
        return self._arrays[client][part]

    def fill(self, part: slice, value: Array) -> None:
        """Set what all clients have in the beginning."""
        for array in self._arrays:
            array[part] = value

    def decode(self, client: int, part: slice, payload: Compressed) -> Array:
        """Return what a client has pushed, as both sides see it."""
        base = self._arrays[client][part]
        pushed = np.empty_like(base)
        decompress(payload.payload, base, payload.bits, pushed)
        return pushed

    def send(self, client: int, part: slice, value: Array, bits: int) -> None:
        """Let a client be sent a value, compressed if ``bits``; its base is then what it can decode."""
        base = self._arrays[client][part]
        if not bits:
            np.copyto(base, value, casting="same_kind")
            return
        self._answers[client, part.start] = Compressed(compress(value, base, bits, base), bits)

    def take_answer(self, client: int, lo: int) -> Compressed | None:
        """Return the compressed answer that waits to be sent, which is not kept."""
        return self._answers.pop((client, lo), None)


class Parts:
    """The slices of one update, as each client has pushed them."""

    def __init__(self, update: Update, first: int, bases: Bases | None, read: Read) -> None:
        """Look at an update.

        Args:
            update: What is to be done.
            first: First element of the shard, from which parts are counted.
            bases: What the clients were sent, if the rule wants it remembered.
            read: Turns a payload that is not compressed into an array, given the number of elements.
        """
        self._update = update
        self._first = first
        self._bases = bases
        self._read = read

    def pseudo_gradient(self, out: Array, center: Array, *, before: bool) -> None:
        """Fill ``out`` with the sum over clients of center - params.

        With ``before`` each client that asks for a value is sent the center as it is now, and its params
        are compared with what it can decode of that.

        Args:
            out: Of the unit's length; float32 for float16 keys.
            center: Likewise; only read.
            before: The rule replies with the center before its update.
        """
        lo = self._update.unit.parts[0].lo
        for client, piece, part, payload, wanted in self._all():
            here = slice(piece.lo - lo, piece.hi - lo)
            bits = payload.bits if isinstance(payload, Compressed) else 0
            params = self._params(client, part, payload)
            compared = center[here]
            if before and wanted and self._bases is not None:
                self._bases.send(client, part, compared, bits)
                compared = self._bases.of(client, part)
            if client == self._update.clients[0]:
                pseudo_gradient(out[here], compared, [params])
            else:
                out[here] += np.subtract(compared, params, dtype=out.dtype)

    def send(self, value: Array) -> None:
        """Send the clients that ask for one the value after the update (of the unit's length)."""
        lo = self._update.unit.parts[0].lo
        for client, piece, part, payload, wanted in self._all():
            if wanted and self._bases is not None:
                bits = payload.bits if isinstance(payload, Compressed) else 0
                self._bases.send(client, part, value[piece.lo - lo : piece.hi - lo], bits)

    def _all(self) -> Iterator[tuple[int, Slice, slice, Any, bool]]:
        """Yield client, slice, its place in the shard, payload, and whether the client wants a value."""
        for client, contribution in zip(self._update.clients, self._update.contributions):
            wanted = {lo for _, lo, wants_value, _, _ in contribution.replies if wants_value}
            for position, piece in enumerate(self._update.unit.parts):
                part = slice(piece.lo - self._first, piece.hi - self._first)
                yield client, piece, part, contribution.payloads[position], piece.lo in wanted

    def _params(self, client: int, part: slice, payload: Any) -> Array:
        if not isinstance(payload, Compressed):
            return self._read(payload, part.stop - part.start)
        if self._bases is None:
            raise MismatchError(f"client {client} compresses what it pushes, but the store does not")
        return self._bases.decode(client, part, payload)
