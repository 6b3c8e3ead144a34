"""Files of optimizer states. This file must not know what the states are of."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mxnet as mx

from kvstore_mpi.adapters.mxnet.exchange.row_weights import states_as_saved
from kvstore_mpi.adapters.mxnet.updates.optimizer_states import states_from_mxnet
from kvstore_mpi.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvstore_mpi.adapters.mxnet.bridge.arrays import Staging
    from kvstore_mpi.records import Key


def read_states(fname: str, updater: Any, stagings: Mapping[Key, Staging]) -> bytes:
    """Return what is in a file of optimizer states, of MXNet's format.

    Args:
        fname: Name of the file.
        updater: Whom it is for; one of MXNet's keeps whatever it is given.
        stagings: The store's keys.

    Raises:
        UsageError: It is a file of something else, or damaged, or for MXNet's updater of other keys.
    """
    data = Path(fname).read_bytes()
    # Before an updater has it: MXNet's keeps whatever it is given, and fails later.
    try:
        loaded = pickle.loads(data)  # noqa: S301  MXNet's file format, from the user's own file
    except Exception as error:  # unpickling what is no pickle raises whatever it comes upon
        raise _no_states(fname, f"reading it raises {type(error).__name__}: {error}") from error
    states, optimizer = loaded, getattr(updater, "optimizer", None)
    if isinstance(loaded, tuple) and len(loaded) == 2 and isinstance(loaded[1], mx.optimizer.Optimizer):  # noqa: PLR2004
        states, optimizer = loaded
    if not isinstance(states, dict):
        raise _no_states(fname, f"it holds a Python object of type {type(states).__name__}")
    # What states an optimizer of the user's own has is not known here.
    if isinstance(updater, mx.optimizer.Updater) and type(optimizer).__module__.startswith("mxnet."):
        layout = {key: (each.shape, each.dtype) for key, each in stagings.items()}
        states_from_mxnet(optimizer, states, layout)
    return data


def with_rows(data: bytes, optimizer: Any, sparse: Mapping[Key, Staging]) -> bytes:
    """Return what a file is to have where some weights are row-sparse for their user.

    Args:
        data: The same with dense states.
        optimizer: MXNet's, which they are of.
        sparse: The staging arrays of these weights.
    """
    loaded = pickle.loads(data)  # noqa: S301  what was just made here
    states = loaded[0] if isinstance(loaded, tuple) else loaded
    for key, staging in sparse.items():
        if key in states:
            states[key] = states_as_saved(optimizer, key, states[key], staging.shape, staging.dtype)
    return pickle.dumps(loaded)


def _no_states(fname: str, why: str) -> UsageError:
    return UsageError(
        f"{fname} is no file of optimizer states, or damaged: {why}; load one that save_optimizer_states, "
        "or save_states of a Trainer, has written"
    )
