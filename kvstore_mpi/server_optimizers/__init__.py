"""The servers' update rules: their description, their arithmetic, and MXNet's own for all others."""

from __future__ import annotations

from .registry import RULES, build
from .schedules import SchedulerSpec
from .spec import Hyper, Live, OptimizerSpec, hyper_for

__all__ = ["RULES", "Hyper", "Live", "OptimizerSpec", "SchedulerSpec", "build", "hyper_for"]
