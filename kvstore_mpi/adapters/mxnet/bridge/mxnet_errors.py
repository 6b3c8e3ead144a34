"""The package's errors as MXNet's users expect them: each is an ``mx.MXNetError`` as well.

Scripts written for MXNet's own stores say ``except mx.MXNetError``. The core knows nothing of MXNet, so its
errors get that second base here, where they leave the adapter. This file must not know about stores.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import mxnet as mx

from kvstore_mpi import errors
from kvstore_mpi.errors import KVStoreError

_Function = TypeVar("_Function", bound=Callable[..., Any])


def raises_mxnet_errors(function: _Function) -> _Function:
    """Let the package's errors leave a function as ``in_mxnet`` makes them."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except KVStoreError as error:
            if type(error) not in _TWINS:
                raise
            raise in_mxnet(error) from error.__cause__

    return call  # type: ignore[return-value]


def in_mxnet(error: KVStoreError) -> KVStoreError:
    """Return an error of the same class and text that is an ``mx.MXNetError`` as well."""
    if type(error) not in _TWINS:
        return error
    twin = _make(type(error), error.args)
    twin.__traceback__ = error.__traceback__
    return twin


def _make(kind: type[KVStoreError], args: tuple[Any, ...]) -> KVStoreError:
    return _TWINS[kind](*args)


def _twin(kind: type[KVStoreError]) -> type[KVStoreError]:
    """Make the class; it has the name of the original, which users read in tracebacks."""
    parts = {
        "__doc__": kind.__doc__,
        "__module__": kind.__module__,
        # Pickle looks for a class by its name and would find the original.
        "__reduce__": lambda self: (_make, (kind, self.args)),
    }
    return type(kind.__name__, (kind, mx.MXNetError), parts)


_TWINS = {
    kind: _twin(kind)
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, KVStoreError)
}
"""By class of the core; one of our own, or of a test, is raised as it is."""
