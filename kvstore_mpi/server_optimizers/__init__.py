"""The servers' update rules: their description, their arithmetic, and MXNet's own for all others."""

from __future__ import annotations

from kvstore_mpi.server_optimizers.center import pseudo_gradient
from kvstore_mpi.server_optimizers.missed_steps import MissedSteps, is_exact
from kvstore_mpi.server_optimizers.registry import (
    WRAPPERS,
    build,
    build_for_rows,
    decay_of,
    is_elementwise,
    terms_of,
    updates_exactly,
)
from kvstore_mpi.server_optimizers.rows import state_widths, update_rows
from kvstore_mpi.server_optimizers.rules import RULES
from kvstore_mpi.server_optimizers.schedules import SchedulerSpec
from kvstore_mpi.server_optimizers.spec import (
    FRESH,
    Hyper,
    HyperParameters,
    OptimizerSpec,
    Origin,
    hyper_for,
)

__all__ = [
    "FRESH",
    "RULES",
    "WRAPPERS",
    "Hyper",
    "HyperParameters",
    "MissedSteps",
    "OptimizerSpec",
    "Origin",
    "SchedulerSpec",
    "build",
    "build_for_rows",
    "decay_of",
    "hyper_for",
    "is_elementwise",
    "is_exact",
    "pseudo_gradient",
    "state_widths",
    "terms_of",
    "update_rows",
    "updates_exactly",
]
