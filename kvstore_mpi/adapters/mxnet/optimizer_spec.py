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

import msgspec
import mxnet as mx
import numpy as np

from kvstore_mpi.errors import UsageError
from kvstore_mpi.server_optimizers import RULES, Live, OptimizerSpec, SchedulerSpec
from kvstore_mpi.server_optimizers.schedules import (
    CosineSchedule,
    FactorSchedule,
    MultiFactorSchedule,
    PolySchedule,
    Schedule,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from kvstore_mpi.records import Key

_LOCALLY = "or pass update_on_kvstore=False, so that each worker updates its own copy of the weights"

_SCHEDULES: dict[type, type[Schedule]] = {
    mx.lr_scheduler.FactorScheduler: FactorSchedule,
    mx.lr_scheduler.MultiFactorScheduler: MultiFactorSchedule,
    mx.lr_scheduler.PolyScheduler: PolySchedule,
    mx.lr_scheduler.CosineScheduler: CosineSchedule,
}
"""The fields of our schedules have the names of the attributes of MXNet's schedulers."""

_READERS: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("adagrad", "eps"): attrgetter("float_stable_eps"),
    ("groupadagrad", "eps"): attrgetter("float_stable_eps"),
    ("lbsgd", "begin_epoch"): lambda optimizer: optimizer.init_updates // optimizer.updates_per_epoch,
}
"""Constructor arguments that MXNet keeps under another name."""


def spec_from_optimizer(optimizer: Any, keys: Iterable[Key] = ()) -> OptimizerSpec:
    """Describe an MXNet optimizer for the servers.

    Args:
        optimizer: An object of one of the classes that MXNet itself registers.
        keys: The store's keys, as far as they are known.

    Raises:
        UsageError: Class, scheduler or hyper-parameters cannot be described.
    """
    name = _registered_name(optimizer)
    return OptimizerSpec(
        name=name,
        live=live_from_optimizer(optimizer, keys),
        params=_params(optimizer, name),
        multi_precision=bool(optimizer.multi_precision),
        through_mxnet=name not in RULES,
    )


def _registered_name(optimizer: Any) -> str:
    """Return the name under which the servers know the optimizer's class."""
    kind = type(optimizer)
    name: str = kind.__name__.lower()
    registered = mx.optimizer.Optimizer.opt_registry.get(name) is kind
    if not registered or not kind.__module__.startswith("mxnet."):
        raise UsageError(
            f"optimizer {kind.__module__}.{kind.__qualname__} cannot run on the servers, which know only "
            f"the classes that MXNet itself registers; use one of those, {_LOCALLY}"
        )
    return name


def _params(optimizer: Any, name: str) -> dict[str, Any]:
    """Read the static hyper-parameters back from the object."""
    return {
        argument: _plain(_READERS.get((name, argument), attrgetter(argument))(optimizer), argument, name)
        for argument in _constructor_arguments(type(optimizer))
    }


def _constructor_arguments(kind: type) -> Iterator[str]:
    """Yield the arguments that a class and its ancestors add to those of every optimizer."""
    base = mx.optimizer.Optimizer
    common = set(inspect.signature(base.__init__).parameters)
    for ancestor in kind.__mro__[: kind.__mro__.index(base)]:
        for parameter in inspect.signature(ancestor.__init__).parameters.values():  # type: ignore[misc]
            variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            if parameter.name not in common and not variadic:
                yield parameter.name


def _plain(value: Any, argument: str, name: str) -> Any:
    """Return a value as JSON knows it."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (list, tuple)):
        return [_plain(item, argument, name) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise UsageError(
        f"{argument}={value!r} of {name!r} cannot be sent to the servers: only numbers, strings, None and "
        f"lists of them can; use one of those, {_LOCALLY}"
    )


# --- live numbers ----------------------------------------------------------------------------------


def live_from_optimizer(optimizer: Any, keys: Iterable[Key]) -> Live:
    """Read the numbers that may change between steps.

    Args:
        optimizer: An MXNet optimizer.
        keys: The store's keys, whose multipliers are wanted.

    Raises:
        UsageError: The scheduler cannot be described.
    """
    scheduler = optimizer.lr_scheduler
    multipliers = [(key, *_multipliers(optimizer, key)) for key in keys]
    clip = optimizer.clip_gradient
    return Live(
        lr=float(scheduler.base_lr if optimizer.lr is None else optimizer.lr),
        wd=float(optimizer.wd),
        rescale_grad=float(optimizer.rescale_grad),
        clip_gradient=None if clip is None else float(clip),
        lr_mult=[(key, lr_mult) for key, lr_mult, _ in multipliers if lr_mult != 1.0],
        wd_mult=[(key, wd_mult) for key, _, wd_mult in multipliers if wd_mult != 1.0],
        scheduler=None if scheduler is None else _schedule(scheduler),
        begin_num_update=int(optimizer.begin_num_update),
    )


class LiveWatch:
    """Notices, in a few microseconds per push, that an optimizer's live numbers have changed."""

    def __init__(self, optimizer: Any, keys: Collection[Key]) -> None:
        """Watch an optimizer.

        Args:
            optimizer: An MXNet optimizer.
            keys: The store's keys; may grow, and is read whenever the numbers have changed.
        """
        self._optimizer = optimizer
        self._keys = keys
        self._common: tuple[Any, ...] = ()
        self._multipliers: dict[Key, tuple[float, float]] = {}

    def changed(self, key: Key) -> Live | None:
        """Return the live numbers if those that matter for a push of ``key`` were not returned before.

        The first call always returns them. A multiplier of another key is noticed when that key is pushed.

        Raises:
            UsageError: The new scheduler cannot be described.
        """
        common = _common_numbers(self._optimizer)
        same_key = _multipliers(self._optimizer, key) == self._multipliers.get(key, (1.0, 1.0))
        if same_key and common == self._common:
            return None
        live = live_from_optimizer(self._optimizer, self._keys)
        self._common = common
        self._multipliers = {each: _multipliers(self._optimizer, each) for each in self._keys}
        return live


def _common_numbers(optimizer: Any) -> tuple[Any, ...]:
    """Return the numbers that all keys share, for comparison only."""
    scheduler = optimizer.lr_scheduler
    schedule = None if scheduler is None else (type(scheduler), *vars(scheduler).values())
    return optimizer.lr, optimizer.wd, optimizer.rescale_grad, optimizer.clip_gradient, schedule


def _multipliers(optimizer: Any, key: Key) -> tuple[float, float]:
    """Return ``lr_mult`` and ``wd_mult`` of a key, which MXNet looks for in three places."""
    parameter = optimizer.param_dict.get(key)
    if parameter is not None:
        return float(parameter.lr_mult), float(parameter.wd_mult)
    name = optimizer.idx2name.get(key, key)
    lr_mult, wd_mult = (
        table[key] if key in table else table.get(name, 1.0)
        for table in (optimizer.lr_mult, optimizer.wd_mult)
    )
    return float(lr_mult), float(wd_mult)


def _schedule(scheduler: Any) -> SchedulerSpec:
    """Describe one of MXNet's schedulers as it stands now."""
    kind = _SCHEDULES.get(type(scheduler))
    if kind is None:
        known = ", ".join(each.__name__ for each in _SCHEDULES)
        raise UsageError(
            f"the servers cannot follow an lr_scheduler of class {type(scheduler).__qualname__}; they know "
            f"{known}. Use one of those, call set_learning_rate before each step instead, {_LOCALLY}"
        )
    values = {
        name: _plain(getattr(scheduler, name), name, "lr_scheduler") for name in kind.__struct_fields__
    }
    try:
        schedule: SchedulerSpec = msgspec.convert({"type": kind.__name__, **values}, SchedulerSpec)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"the servers cannot follow lr_scheduler {kind.__name__} {values}: {error}"
        ) from error
    return schedule
