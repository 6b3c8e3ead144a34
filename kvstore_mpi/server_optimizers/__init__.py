"""The servers' update rules: their description, their arithmetic, and MXNet's own for all others."""

from __future__ import annotations

from kvstore_mpi.server_optimizers.center import pseudo_gradient
from kvstore_mpi.server_optimizers.registry import RULES, WRAPPERS, build
from kvstore_mpi.server_optimizers.schedules import SchedulerSpec
from kvstore_mpi.server_optimizers.spec import FRESH, Hyper, Live, OptimizerSpec, Origin, hyper_for
from kvstore_mpi.server_optimizers.traits import Traits, traits_of

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
