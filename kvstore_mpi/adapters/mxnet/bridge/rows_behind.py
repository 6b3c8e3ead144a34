"""Row-sparse arrays whose number of rows is known only when an operation of the engine has run.

Python cannot make such an array, but the output of an operator of MXNet's may be one, and other operators
take it as their input before it is there. So this is an operator, which does nothing but to hand rows over.
It runs on a thread of MXNet's for operators in Python, which may push further operations. This file must
not know whose rows they are.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import mxnet as mx

from kvstore_mpi.adapters.mxnet.bridge import native
from kvstore_mpi.adapters.mxnet.bridge.arrays import dtype_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mxnet.ndarray import NDArray

_NAME = "kvstore_mpi_rows"

_numbers = itertools.count(1)
_coming: dict[int, Callable[[], NDArray]] = {}
"""What makes the rows of operators that have not run yet: MXNet hands them no more than a number."""


def rows_behind(array: NDArray, make: Callable[[], NDArray]) -> NDArray:
    """Return a row-sparse array that will be the one that ``make`` returns.

    Args:
        array: Of the same shape and type. ``make`` is called after what is queued to write it, unless that
            fails, and before what is queued next.
        make: Called once, on a thread of MXNet's.
    """
    number = next(_numbers)
    _coming[number] = make
    # MXNet gives the output the memory of what the operator wrote, and frees that with it only if the
    # output had memory of its own before: without a row here all that is written would stay for ever.
    out = native.make_rows(native.shape_of(array), dtype_name(array), 1)
    with mx.autograd.pause():
        return mx.nd.Custom(array, op_type=_NAME, number=number, out=out)


class _Rows(mx.operator.CustomOp):  # type: ignore[misc]
    """The operator."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def forward(self, is_train: Any, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:  # noqa: ARG002
        """Hand the rows over."""
        _coming.pop(self._number)().copyto(out_data[0])


@mx.operator.register(_NAME)
class _RowsProperties(mx.operator.CustomOpProp):  # type: ignore[misc]
    """What MXNet asks about the operator."""

    def __init__(self, number: str) -> None:
        super().__init__(need_top_grad=False)
        self._number = int(number)

    def infer_storage_type(self, in_stype: Sequence[str]) -> tuple[Sequence[str], list[str], list[str]]:
        """Return that the output is row-sparse."""
        return in_stype, ["row_sparse"], []

    def create_operator(self, ctx: Any, in_shapes: Any, in_dtypes: Any) -> _Rows:  # noqa: ARG002
        """Make the operator."""
        return _Rows(self._number)
