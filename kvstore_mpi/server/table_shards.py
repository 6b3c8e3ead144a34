"""The pieces of a table that a server has: rows, optimizer states, and which rows have changed.

What clients push of a piece is merged in their order, and the rows in it are updated; all others stay as
they are, or, if the rule must not be lazy, are brought to where they should be when they are needed.
Workers say in each request which version of a piece they know, and are sent what has changed since, so that
nothing is remembered here about anybody. Knows nothing of messages' order, peers or sockets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.errors import MismatchError, UsageError
from kvstore_mpi.records import Rows, parameter_of
from kvstore_mpi.server.growing_piece import GrowingPiece
from kvstore_mpi.server.snapshot_records import PLACES, VALUE
from kvstore_mpi.server.table_piece import TablePiece
from kvstore_mpi.server_optimizers import (
    MissedSteps,
    build_for_rows,
    hyper_for,
    state_widths,
    update_rows,
    updates_exactly,
)
from kvstore_mpi.values.coding import RAW
from kvstore_mpi.values.row_payloads import CHANGED, NEWER
from kvstore_mpi.values.row_sparse import RowSparse
from kvstore_mpi.values.rows import RowMerger
from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.state_parts import MASTER, NO_ARRAY, StatePart, count_alone, split_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvstore_mpi.interfaces import ServerOptimizer
    from kvstore_mpi.server.changed_rows import Marks
    from kvstore_mpi.server.records import Unit, Update
    from kvstore_mpi.server.rule import Rule

Array = np.ndarray[Any, Any]

INCARNATION = 1 << 40
"""Versions of a server that was started again begin at a multiple of it: what it counted before is lost,
and a worker that knows a version of then has to be sent everything."""


class TableShard:
    """The pieces of one table that this server owns.

    Attributes:
        store: Number of the store.
        layout: Of the table.
    """

    def __init__(self, message: m.Create, incarnation: int) -> None:
        """Make the pieces; their content is undefined until filled."""
        self.store = message.spec.store
        self.key = message.spec.key
        self.shape = message.spec.shape
        self.layout = layout = RowSparse(message.spec)
        self._optimizer: ServerOptimizer | None = None
        self._merger = RowMerger()
        first = incarnation * INCARNATION
        self._pieces: dict[int, TablePiece] = {}
        self._growing: dict[int, GrowingPiece] = {}
        # Pieces have even numbers in messages: none is the neighbour of another, and joined with it into
        # one run.
        for lo in range(message.shard[0], message.shard[1], 2):
            if message.spec.growth is None:
                self._pieces[lo] = TablePiece(layout.rows_of(lo // 2), layout.width, layout.dtype, first)
            else:
                self._growing[lo] = GrowingPiece(layout, lo // 2, message.spec.growth, first)

    # --- values ---

    def fill(self, lo: int, payload: Any) -> None:
        """Set the initial value of a piece.

        Raises:
            MismatchError: It has another size.
        """
        self.layout.check_value(payload, lo)
        # A table that grows has nothing to write: its value is empty, and says that the piece is there.
        if not self.layout.grows:
            value = self._pieces[lo].value
            value[...] = np.frombuffer(payload, value.dtype).reshape(value.shape)
            self._pieces[lo].edited.note_all()

    def take_over(self, former: TableShard) -> None:
        """Take copies of all rows of a table that grows as it was cut before; each is of a piece here."""
        for growing in former._growing.values():
            growing.deal(self.layout, self._growing)

    def payload(self, lo: int, request: Any) -> memoryview:
        """Return what a worker asks for, or everything; a copy, made now."""
        if self.layout.grows:
            return self._growing[lo].payload(request)
        piece = self._pieces[lo]
        places: Array | None = None
        coding = RAW
        if request is not None:
            asked = self.layout.unpack(request)
            coding = asked.coding
            places = piece.since(asked.version) if asked.form == CHANGED else asked.places
            if asked.form == NEWER:
                places = piece.newer(asked.places, asked.version)
        # First: an exact rule moves rows without a gradient as well, and here they may still be where they
        # were at their last one.
        piece.catch_up(places)
        if places is None:
            return self.layout.pack(piece.version, None, piece.value, coding=coding)
        return self.layout.pack(piece.version, self.layout.places(places), piece.value, places, coding)

    # --- updates ---

    def forget_optimizer(self) -> None:
        """The store has another update rule: states begin anew."""
        self._optimizer = None
        # By the rule that is given up: the steps that rows have missed are its steps, and are forgotten
        # with it.
        for piece in self._pieces.values():
            piece.catch_up()
            if piece.missed is not None:  # its last steps were of all rows, of which the log has a part
                piece.changed(np.arange(len(piece.value)))
            # Noted below as a change of all rows: a link may not follow, as it would have other arrays than
            # the base.
            piece.states = piece.master = piece.missed = None
            piece.edited.note_all()
        for growing in self._growing.values():
            growing.forget_states()

    def update(self, update: Update, rule: Rule | None) -> None:
        """Merge the contributions in order; update their rows, or assign the sum without a rule.

        Raises:
            UsageError: The rule cannot update some rows alone, or there is none and the table grows.
        """
        lo = update.unit.slices[0].lo
        merged = update.summed or self.merge(update, rule)
        if self.layout.grows:
            self._grow(self._growing[lo], merged, update, rule)
            return
        piece = self._pieces[lo]
        if rule is None:
            # Also rows of the sum before this one, which are zero now: who fetches rows by their ids may
            # have them.
            piece.changed(piece.assign(merged))
        else:
            self._step(piece, merged, update, rule)
            piece.summed = None
            piece.changed(merged.ids)

    def merge(self, update: Update, rule: Rule | None, *, own: bool = False) -> Rows:
        """Return the sum of the contributions; unless ``own``, it is valid until the next call."""
        lo = update.unit.slices[0].lo
        parts = []
        for contribution in update.contributions:
            # Views into the transport's receive buffers: what clients push is read once, by the merger.
            packed = self.layout.unpack(contribution.payloads[0])
            # Places travel in four bytes where that is enough; the merger takes them in eight.
            parts.append(Rows(packed.places.astype(np.int64), self.layout.values_in(packed)))
        # As for dense shards: a master takes a sum that was never rounded to half the digits.
        has_master = self.layout.grows or (rule is not None and rule.spec.multi_precision)
        half = self.layout.dtype == np.float16 and has_master
        num_rows = self.layout.rows_of(lo // 2)
        # In the order of clients, since sums of floats depend on it: a repeated job is to have the same
        # bits.
        return self._merger.merge(parts, num_rows, dtype=np.dtype(np.float32) if half else None, own=own)

    def _step(self, piece: TablePiece, merged: Rows, update: Update, rule: Rule) -> None:
        weight = piece.value
        # As for dense shards: a step smaller than half a unit in the last place would be lost each time.
        if rule.spec.multi_precision and weight.dtype == np.float16:
            if piece.master is None:
                piece.master = weight.astype(np.float32)
            weight = piece.master
        optimizer = self._optimizer_of(rule)
        if piece.states is None:
            widths = state_widths(optimizer, self.layout.width, weight.dtype)
            # Zeros that the system gives: of the rows that are never updated no page is touched.
            piece.states = tuple(np.zeros((len(weight), width), weight.dtype) for width in widths)
            # No snapshot has states of the other rows.
            piece.edited.note_all()
        # Before the first update of the rule: of each one the rows that it leaves out have to make it up
        # later.
        if piece.missed is None and updates_exactly(rule.spec, self.layout.dtype.name):
            piece.missed = MissedSteps(optimizer, len(weight))
        # Steps in their order: those without a gradient come before this one, and momentum or decay would
        # otherwise begin from an old value.
        piece.catch_up(merged.ids)
        hyper = hyper_for(update.hyper, parameter_of(self.key), update.scheduled)
        update_rows(
            optimizer,
            weight,
            merged.ids,
            merged.values,
            piece.states,
            hyper=hyper,
            count=update.number,
        )
        if piece.missed is not None:
            # With the numbers of this update: rows that make it up later need its learning rate, and not
            # that of their own time.
            piece.missed.note(merged.ids, hyper)
        if weight is not piece.value:
            # These rows alone: of the others the master has not moved.
            piece.value[merged.ids] = weight[merged.ids]

    def _grow(self, piece: GrowingPiece, merged: Rows, update: Update, rule: Rule | None) -> None:
        if rule is None:
            raise UsageError(
                f"key {self.key!r} is a table whose rows come into being when they are pushed: its store "
                "needs an optimizer; call set_optimizer before the first push"
            )
        hyper = hyper_for(update.hyper, parameter_of(self.key), update.scheduled)
        optimizer = self._optimizer_of(rule)
        try:
            piece.update(merged, optimizer, hyper, update.number, exact=updates_exactly(rule.spec))
        except UsageError as error:
            raise UsageError(f"key {parameter_of(self.key)!r}: {error}") from error

    def _optimizer_of(self, rule: Rule) -> ServerOptimizer:
        # Built at the first update, since the rule may come later than the table; another rule makes it
        # void.
        if self._optimizer is None:
            self._optimizer = build_for_rows(rule.spec)
        return self._optimizer

    # --- optimizer states ---

    def read_states(self, unit: Unit) -> Iterator[tuple[StatePart, memoryview]]:
        """Yield the states of a piece, as ``shard_states.read`` does those of a dense shard.

        Of a table that grows they are in snapshots only: another job would have other rows.
        """
        lo, hi = unit.slices[0].lo, unit.slices[0].hi
        if self.layout.grows:
            yield count_alone((unit.key.key_id, lo, hi, unit.updates))
            return
        piece = self._pieces[lo]
        piece.catch_up()
        # The steps that rows have missed do not travel: states without them would be those of an earlier
        # step.
        arrays = dict(enumerate(piece.states or ()))
        count = len(arrays)
        if piece.master is not None:
            arrays[MASTER] = piece.master
        head = (unit.key.key_id, lo, hi, unit.updates)
        if not arrays:
            # Also of a rule without states: schedules go on by the count of updates.
            yield count_alone(head)
        for index, array in arrays.items():
            yield from split_state(head, index, count, array)

    def write_state(self, unit: Unit, part: StatePart, payload: Any) -> None:
        """Write a part of a piece's state."""
        # Adam corrects its bias by this count: with another one its steps would have another size.
        unit.count_from(part.count)
        if part.array == NO_ARRAY:
            return
        # Rows come into being here, one by one. A worker refuses such states by the call that loads them;
        # who sends them nevertheless is told, and this server goes on.
        if self.layout.grows:
            raise MismatchError(
                f"key {parameter_of(self.key)!r}: a table that grows takes no states of all rows"
            )
        piece, dtype = self._pieces[part.lo], np.dtype(part.dtype)
        piece.catch_up()  # by the states that are overwritten
        piece.edited.note_all()
        if part.array == MASTER:
            if piece.master is None:
                piece.master = piece.value.astype(np.float32)
            target = piece.master
        else:
            if piece.states is None or len(piece.states) != part.arrays:
                # Its width by its size: a state may be as wide as a row, or one number for each.
                shape = (len(piece.value), part.total // len(piece.value))
                piece.states = tuple(np.zeros(shape, dtype) for _ in range(part.arrays))
            target = piece.states[part.array]
        data = np.frombuffer(payload, dtype)
        target.reshape(-1)[part.offset : part.offset + data.size] = data

    # --- snapshots ---

    def mark(self) -> Marks:
        """Return what stands for the rows as they are now; see ``contents``."""
        marks = {lo: piece.edited.mark() for lo, piece in self._pieces.items()}
        return marks | {lo: growing.mark() for lo, growing in self._growing.items()}

    def num_bytes(self, since: Marks) -> int:
        """Return about how many bytes ``contents`` has."""
        # Estimated without a copy: it decides whether there will be a link at all.
        total = sum(growing.num_bytes(since.get(lo)) for lo, growing in self._growing.items())
        for lo, piece in self._pieces.items():
            places = piece.edits(since.get(lo))
            row_bytes = sum(array.shape[1] * array.itemsize for _, array in piece.arrays())
            total += (len(piece.value) if places is None else places.size) * row_bytes
        return total

    def contents(self, since: Marks | None = None) -> Iterator[tuple[tuple[int, int], Array]]:
        """Yield copies of all arrays, flat, and where they belong: (number of the array, ``lo``).

        Args:
            since: Only of rows that have changed since these marks, by piece, where that is known.
        """
        # A piece without a mark has not been saved yet, and is there as a whole.
        since = since or {}
        for lo, piece in self._pieces.items():
            piece.catch_up()
            # Caught up with first: snapshots do not have the steps that rows have missed.
            places = piece.edits(since.get(lo))
            if places is not None:
                yield (PLACES, lo), places
            for index, array in piece.arrays():
                # A copy in either case: updates go into these arrays while a thread writes.
                yield (index, lo), (array.copy() if places is None else array[places]).ravel()
        for lo, growing in self._growing.items():
            for index, array in growing.contents(since.get(lo)):
                yield (index, lo), array

    def restore(self, arrays: Iterable[tuple[tuple[int, int], Array]]) -> None:
        """Take the arrays that another server had."""
        if self.layout.grows:
            # By piece: rows need their places first, and these come after the values.
            of_pieces: dict[int, dict[int, Array]] = {lo: {} for lo in self._growing}
            for (index, lo), array in arrays:
                of_pieces[lo][index] = array
            for lo, growing in self._growing.items():
                growing.restore(of_pieces[lo])
            return
        for (index, lo), array in arrays:
            piece = self._pieces[lo]
            if index == VALUE:
                piece.value[...] = array.reshape(piece.value.shape)
            elif index == MASTER:
                piece.master = array.reshape(piece.value.shape).copy()
            else:
                # Appended: the check of the header has seen to it that they come in the order of their
                # numbers.
                piece.states = (*(piece.states or ()), array.reshape(len(piece.value), -1).copy())
