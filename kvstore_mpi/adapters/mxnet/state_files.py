"""Files of optimizer states. This file must not know what the states are of."""

from __future__ import annotations

import pickle
from pathlib import Path

import mxnet as mx

from kvstore_mpi.errors import UsageError


def read_states(fname: str) -> bytes:
    """Return what is in a file of optimizer states, of MXNet's format.

    Raises:
        UsageError: It is a file of something else, or damaged.
    """
    data = Path(fname).read_bytes()
    # Before an updater has it: MXNet's keeps whatever it is given, and fails later.
    try:
        loaded = pickle.loads(data)  # noqa: S301  MXNet's file format, from the user's own file
    except Exception as error:  # unpickling what is no pickle raises whatever it comes upon
        raise _no_states(fname, f"reading it raises {type(error).__name__}: {error}") from error
    states = loaded
    if isinstance(loaded, tuple) and len(loaded) == 2 and isinstance(loaded[1], mx.optimizer.Optimizer):  # noqa: PLR2004
        states = loaded[0]
    if not isinstance(states, dict):
        raise _no_states(fname, f"it holds a Python object of type {type(states).__name__}")
    return data


def _no_states(fname: str, why: str) -> UsageError:
    return UsageError(
        f"{fname} is no file of optimizer states, or damaged: {why}; load one that save_optimizer_states, "
        "or save_states of a Trainer, has written"
    )
