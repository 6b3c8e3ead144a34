"""Errors in the form in which MXNet's engine takes them: a C++ ``dmlc::Error``.

An operation that completes with one leaves its results untouched, and whoever reads them gets the error
raised; so a failed exchange never writes half a result into a weight.
This file must not know about the engine or about stores.
"""

from __future__ import annotations

import ctypes

import mxnet as mx

from kvstore_mpi import errors
from kvstore_mpi.adapters.mxnet.bridge.mxnet_errors import in_mxnet

_OWNERS = 1 << 30
"""A reference count that never falls to zero, so that C++ never frees memory that Python owns."""


class _Text(ctypes.Structure):
    """The head of the shared string in a ``std::runtime_error``; the characters follow it.

    libstdc++ and libc++ agree on this layout, on purpose: it is part of both ABIs.
    """

    _fields_ = (
        ("length", ctypes.c_size_t),
        ("capacity", ctypes.c_size_t),
        ("owners", ctypes.c_int),
    )


class _RuntimeError(ctypes.Structure):
    """A ``std::runtime_error``, which is all that a ``dmlc::Error`` is.

    The engine copies it by its static type and never calls through the virtual table.
    """

    _fields_ = (("virtual_table", ctypes.c_void_p), ("characters", ctypes.c_void_p))


class NativeError:
    """A ``dmlc::Error`` in memory that must outlive every array that carries it.

    Attributes:
        address: What the engine's completion callback is given.
    """

    def __init__(self, error: BaseException) -> None:
        """Lay out an error that MXNet will turn into this one again, or into an ``MXNetError``."""
        ours = isinstance(error, errors.KVStoreError)
        # A name of a file, say, may not be UTF-8, and an error that cannot be laid out would end nothing.
        text = f"{_PREFIX if ours else ''}{type(error).__name__}: {error}".encode(errors="backslashreplace")
        head = bytes(_Text(len(text), len(text), _OWNERS))
        self._memory = ctypes.create_string_buffer(head + text)
        self._error = _RuntimeError(None, ctypes.addressof(self._memory) + len(head))
        self.address = ctypes.addressof(self._error)

    def num_copies(self) -> int:
        """Return how many copies MXNet holds at the moment."""
        return int(_Text.from_buffer(self._memory).owners) - _OWNERS


_PREFIX = "kvstore_mpi."


def _read(message: str) -> errors.KVStoreError:
    """Make the error again that a message of ours in MXNet describes."""
    name, _, text = message[len(_PREFIX) :].partition(": ")
    return in_mxnet(errors.error_from_wire(name, text))


def _register() -> None:
    """Teach MXNet our errors by name."""
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.KVStoreError):
            mx.error.register(_PREFIX + name, _read)


_register()
