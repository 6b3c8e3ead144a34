"""Learning-rate schedules as values: MXNet's four schedulers in closed form.

MXNet's schedulers are objects that change as they are called; a server needs the rate of any key at any
time, so each schedule here is a frozen description with a pure ``lr_at``. It says what MXNet's object says
when it is called with numbers of updates that rise by one. This file must not know about MXNet itself.
"""

from __future__ import annotations

import math
from bisect import bisect_left

import msgspec


class Schedule(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What all schedules share: a warm-up, then a rule.

    Attributes:
        base_lr: The rate from which the rule starts.
        warmup_steps: Number of the first update after the warm-up; 0 for none.
        warmup_begin_lr: Rate at update 0 of the warm-up.
        warmup_final_lr: Rate that a linear warm-up approaches.
        warmup_mode: ``linear``, or ``constant`` to stay at ``warmup_begin_lr``.
    """

    base_lr: float
    warmup_steps: int = 0
    warmup_begin_lr: float = 0.0
    warmup_final_lr: float = 0.01
    warmup_mode: str = "linear"

    def lr_at(self, num_update: int) -> float:
        """Return the learning rate of the update with this number, counted from 1."""
        if num_update >= self.warmup_steps:
            return self.after_warmup(num_update)
        if self.warmup_mode == "constant":
            return self.warmup_begin_lr
        rise = self.warmup_final_lr - self.warmup_begin_lr
        return self.warmup_begin_lr + rise * num_update / self.warmup_steps

    def after_warmup(self, num_update: int) -> float:
        """Return the rate by the rule, ``num_update`` being at least ``warmup_steps``."""
        raise NotImplementedError


class FactorSchedule(Schedule, frozen=True, kw_only=True):
    """Multiply by ``factor`` after every ``step`` updates, but not below ``stop_factor_lr``.

    ``base_lr`` is the rate after ``count`` updates, a multiple of ``step``.
    """

    step: float
    factor: float = 1.0
    stop_factor_lr: float = 1e-8
    count: float = 0.0

    def after_warmup(self, num_update: int) -> float:
        """Return the rate by the rule."""
        reductions = math.ceil((num_update - self.count) / self.step) - 1
        if reductions <= 0:
            return self.base_lr
        return max(self.base_lr * self.factor**reductions, self.stop_factor_lr)


class MultiFactorSchedule(Schedule, frozen=True, kw_only=True):
    """Multiply by ``factor`` after each of the numbers of updates in ``step``, which rise.

    ``base_lr`` is the rate after the first ``cur_step_ind`` of them.
    """

    step: list[float]
    factor: float = 1.0
    cur_step_ind: int = 0

    def after_warmup(self, num_update: int) -> float:
        """Return the rate by the rule."""
        reductions = max(bisect_left(self.step, num_update) - self.cur_step_ind, 0)
        return self.base_lr * self.factor**reductions


class _Decay(Schedule, frozen=True, kw_only=True):
    """Go from ``base_lr_orig`` to ``final_lr`` between the warm-up and update ``max_update``.

    MXNet lets an optimizer's ``learning_rate`` overwrite ``base_lr`` but not ``base_lr_orig``.
    """

    base_lr_orig: float
    max_update: int
    final_lr: float = 0.0

    def after_warmup(self, num_update: int) -> float:
        """Return the rate by the rule."""
        num_steps = self.max_update - self.warmup_steps
        if num_steps <= 0:
            return self.base_lr
        done = (min(num_update, self.max_update) - self.warmup_steps) / num_steps
        return self.final_lr + (self.base_lr_orig - self.final_lr) * self.remaining(done)

    def remaining(self, done: float) -> float:
        """Return the part of the way that is left, for the part of the updates that is done."""
        raise NotImplementedError


class PolySchedule(_Decay, frozen=True, kw_only=True):
    """A polynomial decay of degree ``power``."""

    power: float = 2.0

    def remaining(self, done: float) -> float:
        """Return the part of the way that is left."""
        return float((1.0 - done) ** self.power)


class CosineSchedule(_Decay, frozen=True, kw_only=True):
    """Half a period of a cosine."""

    def remaining(self, done: float) -> float:
        """Return the part of the way that is left."""
        return (1.0 + math.cos(math.pi * done)) / 2.0


SchedulerSpec = FactorSchedule | MultiFactorSchedule | PolySchedule | CosineSchedule
