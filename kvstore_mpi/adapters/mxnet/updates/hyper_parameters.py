"""The numbers of an MXNet optimizer that may change from step to step, and when they have.

Rank 0 watches its optimizer and tells the servers. MXNet's own schedulers are described to them; any other
one rank 0 asks before each push, as the optimizer itself would.
"""

from __future__ import annotations

import copy
import logging
import threading
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
import mxnet as mx
import numpy as np

from kvstore_mpi.errors import UnsupportedError, UsageError
from kvstore_mpi.server_optimizers import HyperParameters, SchedulerSpec
from kvstore_mpi.server_optimizers.schedules import (
    CosineSchedule,
    FactorSchedule,
    MultiFactorSchedule,
    PolySchedule,
    Schedule,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from kvstore_mpi.records import Key

_SCHEDULES: dict[type, type[Schedule]] = {
    mx.lr_scheduler.FactorScheduler: FactorSchedule,
    mx.lr_scheduler.MultiFactorScheduler: MultiFactorSchedule,
    mx.lr_scheduler.PolyScheduler: PolySchedule,
    mx.lr_scheduler.CosineScheduler: CosineSchedule,
}
"""The fields of our schedules have the names of the attributes of MXNet's schedulers."""


def hyper_from_optimizer(
    optimizer: Any, keys: Iterable[Key], *, evaluates: bool = False
) -> HyperParameters:
    """Read the numbers that may change between steps.

    Multipliers are also of keys that the optimizer knows by itself. A Trainer or Module gives it before the
    store has keys, and where others may push before rank 0 has, nobody would have told the servers.

    Args:
        optimizer: An MXNet optimizer.
        keys: The store's keys, as far as there are any.
        evaluates: A scheduler that the servers cannot follow is asked here, for the rate of the update
            that has been counted last.

    Raises:
        UnsupportedError: The servers cannot follow the scheduler, and it is not asked here.
    """
    scheduler = optimizer.lr_scheduler
    rate = _rate(optimizer)
    if evaluates and not follows(scheduler):
        rate, scheduler = scheduler(optimizer.num_update), None
    known = (*optimizer.param_dict, *optimizer.idx2name, *optimizer.lr_mult, *optimizer.wd_mult)
    multipliers = [(key, *_multipliers(optimizer, key)) for key in dict.fromkeys((*keys, *known))]
    clip = optimizer.clip_gradient
    return HyperParameters(
        lr=float(rate),
        wd=float(optimizer.wd),
        rescale_grad=float(optimizer.rescale_grad),
        clip_gradient=None if clip is None else float(clip),
        lr_mult=[(key, lr_mult) for key, lr_mult, _ in multipliers if lr_mult != 1.0],
        wd_mult=[(key, wd_mult) for key, _, wd_mult in multipliers if wd_mult != 1.0],
        scheduler=None if scheduler is None else _schedule(scheduler),
        begin_num_update=int(optimizer.begin_num_update),
    )


class MXNetHyper:
    """Reads the hyper-parameters of one of MXNet's optimizers, for ``HyperWatch``."""

    def __init__(
        self,
        optimizer: Any,
        static: Sequence[str] = (),
        *,
        evaluates: bool = False,
        counts: Mapping[Key, int] = MappingProxyType({}),
    ) -> None:
        """Read from this optimizer.

        Args:
            optimizer: An MXNet optimizer.
            static: Names of attributes that must stay as they are: the servers are told them once.
            evaluates: As of ``hyper_from_optimizer``; rank 0 then counts what the servers count.
            counts: Updates of each key that the optimizer has counted and the servers have not.
        """
        self._optimizer = optimizer
        self._evaluates = evaluates
        self._counts = counts
        self._names = static
        self._read_static: Callable[[Any], Any] = attrgetter(*static) if static else lambda _: ()
        self._static = self._read_static(optimizer)

    def common(self, step: int | None = None) -> tuple[Any, ...]:
        """See ``HyperReader``; with the learning rate of an update, ``step``, instead of its schedule."""
        optimizer, scheduler = self._optimizer, self._optimizer.lr_scheduler
        schedule: Any = None
        if step is not None and scheduler is not None and follows(scheduler):
            schedule = _rate_at(scheduler, step)
        elif scheduler is not None and follows(scheduler):
            schedule = (type(scheduler), *vars(scheduler).values())
        elif scheduler is not None:
            schedule = scheduler(optimizer.num_update) if self._evaluates else type(scheduler)
        numbers = optimizer.lr, optimizer.wd, optimizer.rescale_grad, optimizer.clip_gradient, schedule
        return (*numbers, self._read_static(optimizer))

    def multipliers(self, key: Key) -> tuple[float, float]:
        """See ``HyperReader``."""
        return _multipliers(self._optimizer, key)

    def ahead(self, key: Key) -> int:
        """See ``HyperReader``: MXNet's schedulers go by the key that has most updates."""
        optimizer, scheduler = self._optimizer, self._optimizer.lr_scheduler
        own = optimizer._index_update_count.get(key)  # noqa: SLF001  MXNet offers no other way
        if scheduler is None or not (self._evaluates and follows(scheduler)) or own is None:
            return 0
        ahead: int = optimizer.num_update - own + self._counts.get(key, 0)
        return ahead

    def read(self, keys: Collection[Key], ahead: Mapping[Key, int]) -> HyperParameters:
        """See ``HyperReader``."""
        static = self._read_static(self._optimizer)
        if static != self._static:
            raise UnsupportedError(
                f"{', '.join(self._names)} of {type(self._optimizer).__name__}: {self._static} when the "
                f"servers were given it, {static} now. Servers follow the learning rate, wd, their "
                "multipliers, rescale_grad and clip_gradient alone: call set_optimizer again, with which "
                "states begin anew, or let the workers update (update_on_kvstore=False)"
            )
        hyper = hyper_from_optimizer(self._optimizer, keys, evaluates=self._evaluates)
        listed = [(key, number) for key, number in ahead.items() if number]
        return msgspec.structs.replace(hyper, ahead=listed) if listed else hyper


def follows(scheduler: Any) -> bool:
    """Tell whether the servers can follow a scheduler by themselves, once it is described to them."""
    return scheduler is None or type(scheduler) in _SCHEDULES


def _rate_at(scheduler: Any, step: int) -> float:
    """Ask one of MXNet's schedulers for a rate, and leave no trace of that."""
    here = threading.get_ident()

    def of_others(record: logging.LogRecord) -> bool:
        return record.thread != here

    # A scheduler logs a rate that is new to it. The optimizer's own does so, too, when it comes to that
    # update, and users would read it twice. What other threads log meanwhile stays.
    root = logging.getLogger()  # MXNet's
    root.addFilter(of_others)
    try:
        rate: float = copy.copy(scheduler)(step)  # a copy, as it remembers the step that it was asked for
    finally:
        root.removeFilter(of_others)
    return rate


def _rate(optimizer: Any) -> float:
    """Return the learning rate before any schedule."""
    if optimizer.lr is not None:
        return float(optimizer.lr)
    return float(getattr(optimizer.lr_scheduler, "base_lr", 0.0))


def _multipliers(optimizer: Any, key: Key) -> tuple[float, float]:
    """Return ``lr_mult`` and ``wd_mult`` of a key, which MXNet looks for in three places."""
    parameter = optimizer.param_dict.get(key)
    if parameter is not None:
        return float(parameter.lr_mult), float(parameter.wd_mult)
    name = optimizer.idx2name.get(key, key)
    lr_mult, wd_mult = optimizer.lr_mult, optimizer.wd_mult
    by_name = lr_mult.get(name, 1.0), wd_mult.get(name, 1.0)
    return float(lr_mult.get(key, by_name[0])), float(wd_mult.get(key, by_name[1]))


def _schedule(scheduler: Any) -> SchedulerSpec:
    """Describe one of MXNet's schedulers as it stands now."""
    kind = _SCHEDULES.get(type(scheduler))
    if kind is None:
        known = ", ".join(each.__name__ for each in _SCHEDULES)
        raise UnsupportedError(
            f"the servers of an asynchronous store cannot follow an lr_scheduler of class "
            f"{type(scheduler).__qualname__}; they know {known}. Use one of those, call set_learning_rate "
            "before each step instead, or take a sync-mpi store, in which rank 0 asks it"
        )
    values = {
        name: plain(getattr(scheduler, name), name, "lr_scheduler") for name in kind.__struct_fields__
    }
    try:
        schedule: SchedulerSpec = msgspec.convert({"type": kind.__name__, **values}, SchedulerSpec)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"the servers cannot follow lr_scheduler {kind.__name__} {values}: {error}"
        ) from error
    return schedule


def plain(value: Any, argument: str, name: str) -> Any:
    """Return a value as JSON knows it."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (list, tuple)):
        return [plain(item, argument, name) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise UnsupportedError(
        f"{argument}={value!r} of {name!r} cannot be sent to the servers: only numbers, strings, None and "
        "lists of them can"
    )
