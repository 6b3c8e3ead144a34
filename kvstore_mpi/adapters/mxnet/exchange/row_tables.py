"""A table on this worker: what has come of it, and which arrays of the user hold it.

A dense weight with row-sparse gradients has a *mirror*, the store's own copy of the table: what has changed
is written there, and from there to the user's arrays. So has every table that the workers update
themselves. A row-sparse weight on servers has none. This file must not know about the engine or the worker.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np

from kvstore_mpi.adapters.mxnet.bridge import native
from kvstore_mpi.adapters.mxnet.bridge.arrays import ZERO_COPY_DTYPES, Staging, memory_at
from kvstore_mpi.adapters.mxnet.bridge.row_arrays import FetchedRows
from kvstore_mpi.adapters.mxnet.exchange.exchange import before_end
from kvstore_mpi.adapters.mxnet.exchange.row_weights import SparseStaging
from kvstore_mpi.errors import UnsupportedError
from kvstore_mpi.records import Rows
from kvstore_mpi.server_optimizers import is_elementwise

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mxnet.ndarray import NDArray

    from kvstore_mpi.interfaces import Done
    from kvstore_mpi.server_optimizers import OptimizerSpec

    Array = np.ndarray[Any, Any]


TURNS = 64
"""Each time so small a part of a mirror is given away beside what has changed: of a table of 102 MB it is
copied in 0.19 ms, and the whole in 7.4 (median of 60 copies, one core)."""


class RowTable(Staging):
    """One table; its ``array`` has its place in the engine's dependencies, and is the mirror if it has one.

    Attributes:
        is_sparse: As of a staging array; then it takes row-sparse gradients only.
        sparse: Its memory, if it is a row-sparse weight on this worker.
        mirror: The rows, (rows, width); ``None`` without a mirror.
        is_current: The answer to the last push is what the next pull wants, unless others pushed since.
        others_pushed: They may have, in a store whose pushes do not wait for each other.
        answers: Each writes to the mirror what has come, and returns it. They are called, and changed, in
            operations of the engine that write ``array``, or when there are none.
        sum: The last sum of a store without an optimizer; likewise.
        arrivals: Grows when one of the arrays to which the mirror was last given has it.
    """

    def __init__(
        self, shape: tuple[int, ...], staging: Staging, *, is_sparse: bool, is_mirror: bool
    ) -> None:
        """Make the table over an array that becomes the mirror, or only stands for the table."""
        self.shape = shape
        self.dtype = staging.dtype
        self.buffer = staging.buffer
        self.array = staging.array
        self.is_pinned = False
        self.is_sparse = is_sparse
        self.mirror = self.buffer.reshape(shape[0], -1) if is_mirror else None
        self.sparse = staging if isinstance(staging, SparseStaging) else None
        self.is_current = self.others_pushed = False
        self.answers: list[Callable[[], list[Rows]]] = []
        self.sum: list[Rows] | None = None
        self.arrivals: list[None] = []
        self._num_given = 0
        self._given: dict[int, NDArray] = {}  # arrays of the user that had the mirror, by address
        self._news: list[Rows] = []  # what has been written to the mirror since
        self._turn = slice(0, 0)  # rows that are given away next whether they have changed or not

    def keeping(self, answer: Callable[[], list[Rows]], done: Done) -> Done:
        """Keep an answer, before the operation that has brought it ends."""
        return before_end(lambda: self.answers.append(answer), done)  # the list is replaced meanwhile

    # --- on the thread that uses MXNet ---

    def is_in(self, out: NDArray) -> bool:
        """Tell whether an array of the user has all that the mirror had when it was last given away.

        One in a layout of oneDNN's, as after an evaluation, has not: MXNet itself must write it anew. An
        evaluation queues that change of the layout, so it is waited for; but not for what comes from other
        workers, and before that has come nobody can have evaluated with it.
        """
        if not self._given:
            return False
        if len(self.arrivals) == self._num_given:
            out.wait_to_read()
        return self._address(out) in self._given

    @property
    def taking(self) -> Callable[[], None]:
        """What an operation that is queued now has to do with what has come."""
        return self.keep if self._given else self.apply

    @property
    def has_readers(self) -> bool:
        """Whether arrays of the user have the mirror as it was given away last."""
        return bool(self._given)

    def is_given_to(self, outs: Sequence[NDArray]) -> None:
        """Note which arrays get the whole mirror, and will have it from now on."""
        addresses = [self._address(out) for out in outs]
        self._given = {address: out for address, out in zip(addresses, outs) if address is not None}
        self._num_given, self.arrivals = len(outs), []

    def is_given_to_nobody(self) -> None:
        """Forget which arrays have the mirror: what changes in it will not be told row by row."""
        self._given.clear()

    def _address(self, out: NDArray) -> int | None:
        """Return where a plain array of the table's type lies on the host."""
        if not native.is_dense(out) or native.gpu_of(out) is not None or native.dtype_of(out) != self.dtype:
            return None
        try:
            return native.address_of(out) or None
        except mx.MXNetError:
            return None  # a layout of oneDNN's

    # --- in operations of the engine ---

    def apply(self) -> None:
        """Write to the mirror what has come, when no array of the user has the mirror."""
        answers, self.answers, self._news = self.answers, [], []
        for answer in answers:
            answer()

    def keep(self) -> None:
        """Write to the mirror what has come, and keep it for the arrays that have the mirror."""
        answers, self.answers = self.answers, []
        for answer in answers:
            self._news += answer()
        if sum(len(rows.ids) for rows in self._news) > 2 * self.shape[0]:
            # Nobody has taken any for long: each row once.
            assert self.mirror is not None
            ids = np.unique(in_order(self._news))
            self._news = [Rows(ids, self.mirror[ids])]

    def news(self) -> list[Rows]:
        """Write to the mirror what has come; return all that was kept since this was called last."""
        self.keep()
        news, self._news = self._news, []
        # A script may have changed rows that nobody pushes, and MXNet has no word for that. Some of all
        # rows go along each time, so that after ``TURNS`` times each is the store's again.
        begin = 0 if self._turn.stop >= self.shape[0] else self._turn.stop
        self._turn = slice(begin, begin + -(-self.shape[0] // TURNS))
        return news

    def take_changes(self, parts: list[Rows]) -> list[Rows]:
        """Take rows that have changed."""
        assert self.mirror is not None
        for ids, values in parts:
            self.mirror[ids] = values
        return parts

    def note_update(self, parts: Sequence[Rows]) -> None:
        """Take notice that rows of the mirror have been updated, of which these were the gradients."""
        self.answers.append(partial(self._updated, in_order(parts)))

    def _updated(self, ids: Array) -> list[Rows]:
        assert self.mirror is not None
        return [Rows(ids, self.mirror[ids])]

    def take_sum(self, parts: list[Rows]) -> list[Rows]:
        """Take a sum, which becomes the value."""
        if self.mirror is not None:
            for ids in [slice(None)] if self.sum is None else [rows.ids for rows in self.sum]:
                self.mirror[ids] = 0
            self.take_changes(parts)
        self.sum = parts
        return []

    def write(self, out: NDArray, news: Sequence[Rows]) -> None:
        """Write rows to an array of the user.

        Raises:
            UnsupportedError: It has got another layout since the call.
        """
        address = self._address(out)
        if address is None:
            raise UnsupportedError(
                f"a weight of shape {self.shape} got a memory layout of oneDNN's while its new rows were "
                "under way; wait for the outputs of an evaluation, as by asnumpy(), before the next step"
            )
        assert self.mirror is not None
        values = memory_at(address, self.mirror.size, self.dtype, out).reshape(self.mirror.shape)
        for rows in news:
            values[rows.ids] = rows.values
        values[self._turn] = self.mirror[self._turn]


def in_order(parts: Sequence[Rows]) -> Array:
    """Return the ids of parts, ascending."""
    ids: Array = np.sort(np.concatenate([np.empty(0, np.int64), *(rows.ids for rows in parts)]))
    return ids


def together(parts: Sequence[Rows], table: RowTable) -> FetchedRows:
    """Return the row-sparse array of parts without common ids."""
    rows = FetchedRows(in_order(parts), table.shape, table.dtype)
    rows.take(parts)
    return rows


def may_be_table(
    spec: OptimizerSpec | None, shape: tuple[int, ...], dtype: str, *, is_sparse: bool
) -> bool:
    """Return whether a key can be a table under an update rule; ``is_sparse``: its weight is row-sparse."""
    return (
        len(shape) >= _LEAST_DIMENSIONS
        and 0 not in shape
        and dtype in ZERO_COPY_DTYPES
        and (spec is None or is_elementwise(spec, sparse_weight=is_sparse, dtype=dtype))
    )


_LEAST_DIMENSIONS = 2
"""Of a table; the rows of a vector are too small to be worth their ids."""
