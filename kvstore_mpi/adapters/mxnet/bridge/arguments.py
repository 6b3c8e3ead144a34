"""The forms in which MXNet's callers name keys and arrays, brought to one.

This file must not know about stores.
"""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any

from mxnet.ndarray import NDArray

from kvstore_mpi.adapters.mxnet.bridge.arrays import classic
from kvstore_mpi.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.records import Key


def group(keys: Any, values: Any) -> dict[Key, list[NDArray]]:
    """Collect the arrays of each key.

    Args:
        keys: A key, or a list of keys in which a key may come several times.
        values: For each key an array or a list of arrays, one per device.

    Returns:
        The keys in the order of their first mention, each with all its arrays.

    Raises:
        UsageError: Something is no key or no array, or there are not as many of one as of the other.
    """
    groups: dict[Key, list[NDArray]] = {}
    for key, value in _pairs(keys, values):
        groups.setdefault(_plain(key), []).extend(_arrays(key, value))
    return groups


def group_rows(keys: Any, outs: Any, row_ids: Any) -> list[tuple[Key, list[NDArray], NDArray]]:
    """Tell which rows of which key go where.

    Args:
        keys: A key or a list of keys.
        outs: For each key an array or a list of arrays.
        row_ids: In the same form, or one array for all.

    Returns:
        Key, outputs that take the same rows, and the numbers of those rows.

    Raises:
        UsageError: As ``group``, or there are not as many ``row_ids`` as arrays in ``outs``.
    """
    targets = group(keys, outs)
    only = row_ids[0] if isinstance(row_ids, (list, tuple)) and len(row_ids) == 1 else row_ids
    if isinstance(only, NDArray):
        return [(key, arrays, classic(only)) for key, arrays in targets.items()]
    rows = group(keys, row_ids)
    for key, arrays in targets.items():
        if len(arrays) != len(rows[key]):
            raise UsageError(
                f"key {key!r} has {len(arrays)} arrays in out but {len(rows[key])} in row_ids; "
                "give one array of row numbers for each, or one for all"
            )
    return [(key, [out], ids) for key, arrays in targets.items() for out, ids in zip(arrays, rows[key])]


def group_ids(keys: Any, row_ids: Any) -> list[tuple[Key, NDArray]]:
    """Tell which rows of which key are meant; ``row_ids`` has an array for each key.

    Raises:
        UsageError: As ``group``.
    """
    return [(key, ids) for key, arrays in group(keys, row_ids).items() for ids in arrays]


def _pairs(keys: Any, values: Any) -> Sequence[tuple[Any, Any]]:
    if not isinstance(keys, (list, tuple)):
        return [(keys, values)]
    if not isinstance(values, (list, tuple)) or len(keys) != len(values):
        raise UsageError(f"{len(keys)} keys {keys!r} need a list of {len(keys)} values")
    return list(zip(keys, values))


def _plain(key: Any) -> Key:
    if type(key) is int or isinstance(key, str):  # not the abstract class, which is slow to ask
        return key
    if isinstance(key, Integral):
        return int(key)
    raise UsageError(f"keys are strings or integers, not {type(key).__name__}: {key!r}")


def _arrays(key: Any, value: Any) -> list[NDArray]:
    arrays = [classic(array) for array in (value if isinstance(value, (list, tuple)) else [value])]
    if not arrays:
        raise UsageError(f"key {key!r} is given an empty list of arrays")
    return arrays
