"""What a ``TableEmbedding`` can be made of, and stepped with: checked before anybody is told of it.

Wrong numbers would end the job elsewhere: in a server, or as a message that cannot be sent.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.errors import UsageError
from kvstore_mpi.records import Retention, RowInit

if TYPE_CHECKING:
    from kvstore_mpi.records import Key

ANY_ID = 2**63 - 1
"""Number of rows of a table that takes every id that is not negative."""

_DTYPES = ("float32", "float64", "float16")
_MOST_ROW_BYTES = 1 << 28
"""Of a single row: far more than anybody means, and few enough for a message."""


def whole(number: Any) -> Any:
    """Return a whole number of any type as Python's, which messages can carry; anything else as it is."""
    return operator.index(number) if hasattr(number, "__index__") else number


def check_table(key: Key, shape: tuple[Any, Any], dtype: Any, staleness: Any) -> None:
    """Raise where there can be no such table; ``shape``: its number of rows, and elements of a row.

    Raises:
        UsageError: A key, number or type is none.
    """
    if type(key) not in {str, int}:
        raise UsageError(f"TableEmbedding: a key is a text or a whole number, not {key!r}")
    num_rows, dim = shape
    name = _name_of(dtype)
    if name not in _DTYPES:
        raise UsageError(f"table {key!r}: rows are {', '.join(_DTYPES)}, not {dtype!r}")
    most = _MOST_ROW_BYTES // np.dtype(name).itemsize
    if type(dim) is not int or not 1 <= dim <= most:
        raise UsageError(
            f"table {key!r}: a row has one element at least, and {most} at most, and not dim={dim!r}"
        )
    if type(num_rows) is not int or not 0 < num_rows <= ANY_ID:
        raise UsageError(
            f"table {key!r}: num_rows must be a whole number from 1 to 2**63 - 1, not {num_rows!r}"
        )
    if type(staleness) is not int or staleness < 0:
        raise UsageError(
            f"table {key!r}: rows cannot be staleness={staleness!r} steps old; give a whole number, 0 for "
            "rows as they are"
        )


def _name_of(dtype: Any) -> str:
    """Return the name of a type that a script may give as NumPy's class or dtype; of others nothing."""
    try:
        return np.dtype(dtype).name if dtype is not None else ""  # NumPy takes that for float64
    except (TypeError, ValueError):
        return ""


def check_growth(key: Key, init: Any, retention: Any) -> None:
    """Raise where rows cannot begin or be kept like that.

    Raises:
        UsageError: One is of another kind, such as an initializer of MXNet's.
    """
    for name, given, kind in (("init", init, RowInit), ("retention", retention, Retention)):
        if not isinstance(given, kind):
            raise UsageError(
                f"table {key!r}: {name} must be a kvstore_mpi.mxnet.{kind.__name__}, such as {kind()}, not "
                f"{type(given).__name__} {given!r}"
            )


def check_batch_size(key: Key, batch_size: Any) -> None:
    """Raise where gradients cannot be divided by a number.

    Raises:
        UsageError: It is none, or not above 0.
    """
    if not (isinstance(batch_size, (int, float, np.number)) and 0 < batch_size < math.inf):
        raise UsageError(f"table {key!r}: step({batch_size!r}): a batch has one sample at least")
