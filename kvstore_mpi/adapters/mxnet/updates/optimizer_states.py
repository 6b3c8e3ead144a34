"""Saved optimizer states in exactly the form of MXNet's ``Updater.states``, and back.

So files move freely between a local store and servers. This file must not know about workers, messages or
files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mxnet as mx

from kvstore_mpi.errors import UsageError
from kvstore_mpi.server_optimizers.through_mxnet import leaves, map_leaves, resume

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy as np

    from kvstore_mpi.records import Key

    Layout = tuple[tuple[int, ...], str]


@dataclass(frozen=True)
class KeyState:
    """The optimizer state of one key.

    Attributes:
        count: Updates so far.
        arrays: The state's arrays, flat and whole.
        shape: Shape of the key.
        dtype: NumPy name of the key's dtype.
        master: The float32 copy of a float16 weight under multi-precision, flat.
    """

    count: int
    arrays: list[np.ndarray[Any, Any]]
    shape: tuple[int, ...]
    dtype: str
    master: np.ndarray[Any, Any] | None = None


def states_to_mxnet(optimizer: Any, states: Mapping[Key, KeyState]) -> dict[Key, Any]:
    """Return states in the form of ``Updater.states``; copies everything, leaves out empty keys."""
    return {key: _to_mxnet(optimizer, key, state) for key, state in states.items() if 0 not in state.shape}


def _to_mxnet(optimizer: Any, key: Key, state: KeyState) -> Any:
    arrays = iter(state.arrays)
    pattern = _initial_state(optimizer, key, state.shape, state.dtype)
    inner = map_leaves(pattern, lambda leaf: _ndarray(next(arrays), leaf.shape))
    if not has_master(optimizer, state.dtype):
        return inner
    assert state.master is not None
    master = _ndarray(state.master, _mxnet_shape(state.shape))
    return (master, inner) if master_first(optimizer) else (inner, master)


def states_from_mxnet(
    optimizer: Any, states: Mapping[Any, Any], layout: Mapping[Key, Layout]
) -> dict[Key, KeyState]:
    """Read what MXNet's ``Updater`` saved, or ``states_to_mxnet`` made.

    Args:
        optimizer: The optimizer that the states belong to; its update counts are taken.
        states: Index or name -> state.
        layout: The store's keys: shape and dtype of each.

    Returns:
        The states of those keys that have one; the others have not been updated yet.

    Raises:
        UsageError: The states are of another model or another optimizer.
    """
    found = {key: _find(optimizer, states, key) for key in layout}
    if states and not any(name in states for name in found.values()):
        raise of_other_keys(states, layout)
    counts = counts_from_mxnet(optimizer)
    return {
        key: _from_mxnet(optimizer, key, states[name], layout[key], counts.get(name, counts.get(key, 0)))
        for key, name in found.items()
        if name in states
    }


def of_other_keys(states: Mapping[Any, Any], keys: Iterable[Key]) -> UsageError:
    """Return what is wrong with states of which no key has any."""
    return UsageError(
        f"the saved optimizer states are of other keys, such as {next(iter(states))!r}, than this store's, "
        f"such as {next(iter(keys), None)!r}; load those that were saved with the same model"
    )


def _find(optimizer: Any, states: Mapping[Any, Any], key: Key) -> Key:
    """Return the name of a key's state: Module's own updaters number the parameters that stores name."""
    if key not in states:
        for index, name in optimizer.idx2name.items():
            if name == key and index in states:
                return int(index)
    return key


def _from_mxnet(optimizer: Any, key: Key, state: Any, layout: Layout, count: int) -> KeyState:
    shape, dtype = layout
    inner, master = state, None
    if has_master(optimizer, dtype):
        if not isinstance(state, (tuple, list)) or len(state) != 2:  # noqa: PLR2004  a weight and its state
            raise _other_optimizer(optimizer, key, layout)
        master, inner = state if master_first(optimizer) else reversed(state)
    expected = [leaf.size for leaf in leaves(_initial_state(optimizer, key, shape, dtype))]
    saved = leaves(inner)
    are_arrays = all(isinstance(leaf, mx.nd.NDArray) for leaf in saved)
    # Of row-sparse ones MXNet says no size.
    if not are_arrays or [math.prod(leaf.shape) for leaf in saved] != expected:
        raise _other_optimizer(optimizer, key, layout)
    arrays = [leaf.asnumpy().reshape(-1) for leaf in saved]
    return KeyState(count, arrays, shape, dtype, None if master is None else master.asnumpy().reshape(-1))


def _other_optimizer(optimizer: Any, key: Key, layout: Layout) -> UsageError:
    return UsageError(
        f"the saved optimizer state of key {key!r} does not fit {type(optimizer).__name__} on {layout[0]} "
        f"{layout[1]} (multi_precision={optimizer.multi_precision}); load states that were saved with the "
        "same model, optimizer and hyper-parameters"
    )


def counts_to_mxnet(optimizer: Any, counts: Mapping[Key, int]) -> None:
    """Tell an optimizer how often each key has been updated, for ``dump_optimizer=True``."""
    for key, count in counts.items():
        resume(optimizer, key, count)


def counts_from_mxnet(optimizer: Any) -> dict[Key, int]:
    """Return how often an optimizer has updated each key."""
    counts: dict[Key, int] = {}
    for of_device in optimizer._all_index_update_counts.values():  # noqa: SLF001  MXNet offers no other way
        for key, count in of_device.items():
            counts[key] = max(counts.get(key, 0), count - optimizer.begin_num_update)
    return counts


def has_master(optimizer: Any, dtype: str) -> bool:
    """Tell whether an optimizer keeps a float32 copy of weights of this type (multi-precision)."""
    return bool(optimizer.multi_precision) and dtype == "float16"


def master_first(optimizer: Any) -> bool:
    """Tell whether that copy comes before the rest of a state.

    MXNet's base class puts the float32 weight first; classes with a method of their own put it last.
    """
    base = mx.optimizer.Optimizer.create_state_multi_precision
    return type(optimizer).create_state_multi_precision is base


def _initial_state(optimizer: Any, key: Key, shape: tuple[int, ...], dtype: str) -> Any:
    """Return a state of MXNet's making, for its form."""
    computed = "float32" if has_master(optimizer, dtype) else dtype
    return optimizer.create_state(key, mx.nd.zeros(_mxnet_shape(shape), dtype=computed))


def _mxnet_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape or (1,)  # MXNet takes () for a shape that is not known yet


def _ndarray(array: np.ndarray[Any, Any], shape: tuple[int, ...]) -> Any:
    return mx.nd.array(array.reshape(shape), dtype=array.dtype)


def master_of(updater: Any, index: int, dtype: str) -> mx.nd.NDArray | None:
    """Return the float32 copy that an ``Updater`` of MXNet's has of a weight, once it has one."""
    state = updater.states.get(index)
    if state is None or not has_master(updater.optimizer, dtype):
        return None
    return state[0] if master_first(updater.optimizer) else state[1]
