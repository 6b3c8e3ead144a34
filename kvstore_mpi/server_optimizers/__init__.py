"""The servers' update rules: their description, their arithmetic, and MXNet's own for all others."""

from __future__ import annotations

from .center import pseudo_gradient
from .registry import RULES, WRAPPERS, build
from .schedules import SchedulerSpec
from .spec import FRESH, Hyper, Live, OptimizerSpec, Origin, hyper_for
from .traits import Traits, traits_of

__all__ = [
    "FRESH",
    "RULES",
    "WRAPPERS",
    "Hyper",
    "Live",
    "OptimizerSpec",
    "Origin",
    "SchedulerSpec",
    "Traits",
    "build",
    "hyper_for",
    "pseudo_gradient",
    "traits_of",
]
