"""What every call of a store begins with."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import mxnet as mx

from kvstore_mpi.adapters.mxnet import native
from kvstore_mpi.adapters.mxnet.mxnet_errors import raises_mxnet_errors

_Method = TypeVar("_Method", bound=Callable[..., Any])


def checked(method: _Method) -> _Method:
    """Raise earlier operations' errors first, and keep the store's copies out of autograd's record."""

    @functools.wraps(method)
    @raises_mxnet_errors
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._exchange.check()
        if not native.is_recording():
            return method(self, *args, **kwargs)
        with mx.autograd.pause():
            return method(self, *args, **kwargs)

    return call  # type: ignore[return-value]
