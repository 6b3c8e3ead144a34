"""MXNet's optimizer objects described as data, by reflection, for servers that never unpickle anything.

This file must not know about workers, messages or saved states.
"""

from __future__ import annotations

import inspect
from operator import attrgetter
from typing import (
    TYPE_CHECKING,
    Any,
)

import mxnet as mx

from kvstore_mpi.adapters.mxnet.updates.hyper_parameters import hyper_from_optimizer, plain
from kvstore_mpi.errors import UnsupportedError
from kvstore_mpi.server_optimizers import RULES, OptimizerSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kvstore_mpi.records import Key

_READERS: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("adagrad", "eps"): attrgetter("float_stable_eps"),
    ("groupadagrad", "eps"): attrgetter("float_stable_eps"),
    ("lbsgd", "begin_epoch"): lambda optimizer: optimizer.init_updates // optimizer.updates_per_epoch,
}
"""Constructor arguments that MXNet keeps under another name."""


def spec_from_optimizer(
    optimizer: Any, keys: Iterable[Key] = (), *, evaluates: bool = False
) -> OptimizerSpec:
    """Describe an MXNet optimizer for the servers.

    Args:
        optimizer: An object of one of the classes that MXNet itself registers.
        keys: The store's keys, as far as they are known.
        evaluates: As of ``hyper_from_optimizer``.

    Raises:
        UnsupportedError: Class, scheduler or hyper-parameters cannot be described.
    """
    name = _registered_name(optimizer)
    return OptimizerSpec(
        name=name,
        hyper=hyper_from_optimizer(optimizer, keys, evaluates=evaluates),
        params=_params(optimizer, name),
        multi_precision=bool(optimizer.multi_precision),
        through_mxnet=name not in RULES,
    )


def static_attributes(optimizer: Any) -> list[str]:
    """Return the attributes of an optimizer that servers are told once, if arguments have their names."""
    name = _registered_name(optimizer)
    arguments = _constructor_arguments(type(optimizer))
    return [argument for argument in arguments if (name, argument) not in _READERS]


def _registered_name(optimizer: Any) -> str:
    """Return the name under which the servers know the optimizer's class."""
    kind = type(optimizer)
    name: str = kind.__name__.lower()
    registered = mx.optimizer.Optimizer.opt_registry.get(name) is kind
    if not registered or not kind.__module__.startswith("mxnet."):
        raise UnsupportedError(
            f"optimizer {kind.__module__}.{kind.__qualname__} cannot run on the servers, which know only "
            "the classes that MXNet itself registers"
        )
    return name


def _params(optimizer: Any, name: str) -> dict[str, Any]:
    """Read the static hyper-parameters back from the object."""
    return {
        argument: plain(_read(optimizer, name, argument), argument, name)
        for argument in _constructor_arguments(type(optimizer))
    }


def _read(optimizer: Any, name: str, argument: str) -> Any:
    """Return what the constructor was given as an argument."""
    try:
        return _READERS.get((name, argument), attrgetter(argument))(optimizer)
    except AttributeError:
        raise UnsupportedError(
            f"the servers cannot be told what {argument} of {type(optimizer).__qualname__} is: it has no "
            "such attribute"
        ) from None


def _constructor_arguments(kind: type) -> Iterator[str]:
    """Yield the arguments that a class and its ancestors add to those of every optimizer."""
    base = mx.optimizer.Optimizer
    common = set(inspect.signature(base.__init__).parameters)
    for ancestor in kind.__mro__[: kind.__mro__.index(base)]:
        for parameter in inspect.signature(ancestor.__init__).parameters.values():  # type: ignore[misc]
            variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            if parameter.name not in common and not variadic:
                yield parameter.name
