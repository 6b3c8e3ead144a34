"""An update rule as plain data: what travels to the servers instead of a pickled optimizer.

``OptimizerSpec`` is the whole description; its ``HyperParameters`` may change from step to step and can be
sent alone. ``hyper_for`` turns them into the numbers of one update. This file must not know about MXNet,
arrays or messages.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import msgspec

from kvstore_mpi.errors import UsageError
from kvstore_mpi.server_optimizers.schedules import SchedulerSpec

Multipliers = list[tuple[int | str, float]]
_Record = TypeVar("_Record", bound="_Plain")


class Hyper(NamedTuple):
    """The numbers of one update of one key, schedule and multipliers applied.

    Attributes:
        lr: Learning rate.
        wd: Weight decay.
        rescale_grad: Factor on the gradient, applied before clipping.
        clip_gradient: Bound on the absolute value of the gradient's elements; ``None`` for none.
    """

    lr: float
    wd: float
    rescale_grad: float
    clip_gradient: float | None


class Origin(NamedTuple):
    """Where the pushed arrays of one update come from; most rules need not know.

    Attributes:
        contributions: Number of clients whose arrays were summed.
        staleness: Updates of the weight since the client was last given it; 0 in a synchronous round.
        base: What the client was last given, an array like the weight that ``update`` only reads, for
            rules whose ``terms`` ask for ``pulls``; ``None`` when that is the weight as it is now.
    """

    contributions: int = 1
    staleness: int = 0
    base: Any | None = None


FRESH = Origin()
"""One client, which has computed with the weight as it is now."""


class _Plain(msgspec.Struct, frozen=True, kw_only=True):
    """A record that can be put into a message and taken out again."""

    def to_dict(self) -> dict[str, Any]:
        """Return the record as dicts, lists, numbers and strings."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @classmethod
    def from_dict(cls: type[_Record], data: dict[str, Any]) -> _Record:  # noqa: PYI019  Self: Python 3.11
        """Read what ``to_dict`` made.

        Raises:
            UsageError: The data do not describe such a record.
        """
        try:
            return msgspec.convert(data, cls)
        except msgspec.ValidationError as error:
            raise UsageError(
                f"this is not the description of an optimizer ({cls.__name__}): {error}; "
                "all processes of a job must run the same version of kvstore_mpi"
            ) from error


class HyperParameters(_Plain, frozen=True, kw_only=True, dict=True):
    """The numbers of an update rule that may change from step to step.

    Attributes:
        lr: Learning rate without a scheduler.
        wd: Weight decay.
        rescale_grad: Factor on the gradient.
        clip_gradient: Bound on the gradient's elements; ``None`` for none.
        lr_mult: Factors on the learning rate, by key; a key that is not listed has 1.
        wd_mult: Factors on the weight decay, by key; a key that is not listed has 1.
        scheduler: Gives the learning rate instead of ``lr``.
        begin_num_update: Updates that count as done before the first one.
        ahead: By how much the scheduler's count is ahead of a key's own, by key; a key that is not listed
            has all updates.
    """

    lr: float
    wd: float = 0.0
    rescale_grad: float = 1.0
    clip_gradient: float | None = None
    lr_mult: Multipliers = []
    wd_mult: Multipliers = []
    scheduler: SchedulerSpec | None = None
    begin_num_update: int = 0
    ahead: list[tuple[int | str, int]] = []

    @cached_property
    def multipliers(self) -> tuple[dict[int | str, float], dict[int | str, float]]:
        """The factors on learning rate and weight decay as mappings."""
        return dict(self.lr_mult), dict(self.wd_mult)

    @cached_property
    def ahead_of(self) -> dict[int | str, int]:
        """``ahead`` as a mapping."""
        return dict(self.ahead)

    @cached_property
    def newest(self) -> dict[int | str, tuple[int, Hyper]]:
        """The newest ``Hyper`` of each key, which all slices of the key share; filled by ``hyper_for``."""
        return {}


class OptimizerSpec(_Plain, frozen=True, kw_only=True):
    """An update rule and its numbers.

    Attributes:
        name: The optimizer's registered name in lower case.
        hyper: The numbers that may change.
        params: The hyper-parameters that do not change, by the names of the constructor's arguments.
        multi_precision: Keep float32 copies of float16 weights and update those.
        through_mxnet: The servers run MXNet's own implementation.
        quorum: See ``records.StoreTerms``, as of the following.
        quorum_wait: Seconds.
        compress: Number of a coding, or 0.
        clip_norm: See there.
        unpushed: See there.
    """

    name: str
    hyper: HyperParameters
    params: dict[str, Any] = {}
    multi_precision: bool = False
    through_mxnet: bool = False
    quorum: int = 0
    quorum_wait: float = 0.0
    compress: int = 0
    clip_norm: float = 0.0
    unpushed: list[int | str] = []


def check_number(name: str, value: object, low: float, high: float = math.inf) -> None:
    """Check a hyper-parameter.

    Raises:
        UsageError: It is not a number, or lies outside [low, high]; infinity never passes.
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value) and low <= value <= high):  # type: ignore[arg-type,operator]
        bounds = f"from {low:g} to {high:g}" if math.isfinite(high) else f"of at least {low:g}"
        raise UsageError(f"{name} must be a number {bounds}, not {value!r}")


def check_count(name: str, value: object) -> None:
    """Check a hyper-parameter that counts something.

    Raises:
        UsageError: It is not a whole number of at least 1.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"{name} must be a whole number of at least 1, not {value!r}")


def hyper_for(numbers: HyperParameters, key: int | str, count: int) -> Hyper:
    """Return the numbers for one update of a key; cheap enough to be called for every slice.

    Args:
        numbers: The hyper-parameters in force.
        key: The store's key.
        count: Number of the key's update, from 1.
    """
    num_update = 0
    if numbers.scheduler is not None:
        num_update = numbers.begin_num_update + count + numbers.ahead_of.get(key, 0)
    newest = numbers.newest.get(key)
    if newest is not None and newest[0] == num_update:
        return newest[1]
    hyper = _resolve(numbers, key, num_update)
    numbers.newest[key] = (num_update, hyper)
    return hyper


def _resolve(numbers: HyperParameters, key: int | str, num_update: int) -> Hyper:
    lr = numbers.lr if numbers.scheduler is None else numbers.scheduler.lr_at(num_update)
    lr_mult, wd_mult = numbers.multipliers
    return Hyper(
        lr * lr_mult.get(key, 1.0),
        numbers.wd * wd_mult.get(key, 1.0),
        numbers.rescale_grad,
        numbers.clip_gradient,
    )


# What its fields are msgspec looks up when it first reads one; two threads that do so at the same time end
# the process with a segmentation fault. So once here, where one thread imports.
msgspec.json.Decoder(OptimizerSpec)
