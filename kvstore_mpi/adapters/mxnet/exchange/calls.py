"""What every call of a store begins with."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from numbers import Integral
from typing import Any, TypeVar

import mxnet as mx

from kvstore_mpi.adapters.mxnet.bridge import native
from kvstore_mpi.adapters.mxnet.bridge.mxnet_errors import raises_mxnet_errors
from kvstore_mpi.errors import UsageError

_Method = TypeVar("_Method", bound=Callable[..., Any])

_PRIORITIES = range(-(2**31), 2**31)
"""That MXNet's engine takes."""


def checked(method: _Method) -> _Method:
    """Raise earlier operations' errors first, and keep the store's copies out of autograd's record.

    A priority comes to the method as an ``int`` that travels.
    """
    names = list(inspect.signature(method).parameters)
    place = names.index("priority") - 1 if "priority" in names else None

    @functools.wraps(method)
    @raises_mxnet_errors
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._exchange.check()
        if place is not None and len(args) > place:
            if not _is_priority(args[place]):
                args = (*args[:place], _whole(args[place]), *args[place + 1 :])
        elif place is not None and not _is_priority(kwargs.get("priority", 0)):
            kwargs["priority"] = _whole(kwargs["priority"])
        if not native.is_recording():
            return method(self, *args, **kwargs)
        with mx.autograd.pause():
            return method(self, *args, **kwargs)

    return call  # type: ignore[return-value]


def _is_priority(given: Any) -> bool:
    return type(given) is int and given in _PRIORITIES


def _whole(given: Any) -> int:
    if isinstance(given, Integral) and _is_priority(int(given)):
        return int(given)
    raise UsageError(
        f"priority={given!r}: it must be a whole number from {_PRIORITIES[0]} to {_PRIORITIES[-1]}"
    )
