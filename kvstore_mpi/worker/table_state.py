"""What a worker knows of one table: how it is cut, and which version of each piece it has. Pure.

The rows themselves are the caller's: they pass through operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvstore_mpi.records import RowCount
from kvstore_mpi.values.coding import RAW
from kvstore_mpi.values.row_sparse import NEVER, PushedRows, RowSparse, WantedRows

if TYPE_CHECKING:
    from kvstore_mpi.records import KeySpec
    from kvstore_mpi.worker.records import Operation


class WorkerTable:
    """One table on one worker.

    Attributes:
        layout: How it is cut.
        value: Until ``init`` has ended, the initial value, if this worker was given an array for it.
        known: The version of each piece that this rank has.
        together: The version that all ranks of its client have; what the leader has pulled for itself, the
            others lack. Version 0 is the initial value.
        count: What has travelled.
        coding: Number of the coding in which rows travel.
    """

    def __init__(self, spec: KeySpec, value: Any) -> None:
        """Start with the initial value, or nothing."""
        self.layout = RowSparse(spec)
        self.value: Any = None if value is None else value.reshape(self.layout.num_rows, -1)  # as rows come
        # Whoever has an array for the initial value has version 0 when ``init`` has ended, its own or rank
        # 0's. Who has none must be sent everything when it first asks what has changed.
        self.known = [NEVER if value is None else 0] * spec.partitions
        # A copy where the client has several ranks: the leader's own pulls move ``known`` alone, and what
        # is pushed for all must ask for what the rank that knows least lacks.
        self.together = self.known.copy()
        self.count = RowCount(spec.layout, spec.partitions, self.layout.row_bytes(), spec.apart)
        self.coding = RAW
        self._begins = True

    def take_coding(self, number: int) -> None:
        """From now on let rows travel in a coding, if they are shorter so."""
        self.coding = self.layout.coding_for(number)
        self.count.row_bytes = self.layout.row_bytes(self.coding)

    def begin(self, operation: Operation) -> None:
        """Tell what an operation sends how rows travel and which versions are known."""
        # By reference: a push that waits for its turn says what is known when it leaves. What is asked for
        # at first asks for everything.
        if isinstance(operation.source, PushedRows):
            operation.source.versions = self.together
            self.count.pushes += 1
            self.count.rank += operation.source.rows.ids.size
            operation.source.coding = self.coding
        elif not self._begins:
            operation.source.versions = self.known
            operation.source.coding = RAW if operation.source.exact else self.coding

    def changes(self) -> WantedRows:
        """Return a request for what has changed since all ranks of the client had the same."""
        # By ``together``: for the whole client, also where the leader alone has seen more.
        request = WantedRows(self.layout, None)
        request.versions, request.coding = self.together, self.coding
        return request

    def take(self, operation: Operation, piece: int, payload: Any) -> None:
        """Take the rows of a piece out of an answer, for the operation under way."""
        # Taken apart here, in the I/O thread, and not copied: the values are views of the answer.
        version, rows = self.layout.rows_in(payload, piece)
        self.count.received += memoryview(payload).nbytes
        if not self._begins:
            operation.rows[piece] = rows
        elif self.value is not None:
            self.layout.part_of(piece, self.value)[...] = rows.values
        pushed = isinstance(operation.source, PushedRows)
        # Who asked for rows by their ids has no more of the others than before.
        if pushed or operation.source.is_delta:
            self.known[piece] = version
        elif operation.source.since is not None:
            operation.source.since.of_pieces[piece] = version
        # The answer to a push goes on to all ranks (SHARE); that to a pull stays with the rank that asked.
        if pushed:
            self.together[piece] = version
            self.count.job += rows.ids.size

    def hand_over(self, operation: Operation, *, on_servers: bool) -> None:
        """An operation has ended: give the caller the rows that have come."""
        if isinstance(operation.source, PushedRows):
            self.count.client += operation.source.rows.ids.size
        if self._begins:
            # The array is the caller's again, and may be as large as the memory.
            self._begins, self.value = False, None
        elif operation.out is not None:
            rows = operation.rows.values()
            # A worker that is alone without servers has summed nothing.
            operation.out += rows if on_servers or rows else [operation.source.rows]
