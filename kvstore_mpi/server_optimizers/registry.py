"""From a spec to the optimizer that a server runs. This file must not know how any rule computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from kvstore_mpi.errors import UsageError
from kvstore_mpi.server_optimizers.center import DelayedNesterov, Elastic
from kvstore_mpi.server_optimizers.rules import NAG, SGD, AdaGrad, Adam, RMSProp, Rule
from kvstore_mpi.server_optimizers.spec import OptimizerSpec
from kvstore_mpi.server_optimizers.through_mxnet import ThroughMXNet
from kvstore_mpi.server_optimizers.wrappers import DCASGD, Outer, StalenessAware, Wrapper

if TYPE_CHECKING:
    from collections.abc import Mapping

RULES: dict[str, type[Rule]] = {
    "adagrad": AdaGrad,
    "adam": Adam,
    "nag": NAG,
    "rmsprop": RMSProp,
    "sgd": SGD,
}
"""The rules that servers run without importing MXNet, by MXNet's registered names."""

WRAPPERS: dict[str, type[Wrapper]] = {
    "outer": Outer,
    "staleness-aware": StalenessAware,
    "dc-asgd": DCASGD,
}
"""The rules around another one, which ``params`` describes under ``inner``; these names are not MXNet's."""

PLAIN: dict[str, type[Rule]] = {**RULES, "elastic": Elastic, "delayed-nesterov": DelayedNesterov}
"""The rules around no other one."""


def build(spec: OptimizerSpec) -> Rule | ThroughMXNet:
    """Return the update rule that a spec describes; ``bind`` it to each key before use.

    Raises:
        UsageError: No optimizer has this name, or its hyper-parameters have other names or types.
    """
    if spec.through_mxnet:
        return ThroughMXNet(spec)
    if spec.name in WRAPPERS:
        return _wrapper(spec)
    rule = PLAIN.get(spec.name)
    if rule is None:
        raise UsageError(
            f"the servers have no optimizer {spec.name!r} of their own; they have "
            f"{', '.join([*PLAIN, *WRAPPERS])}, and run any other registered one through MXNet "
            "(through_mxnet=True)"
        )
    return _convert(spec, rule, {"begin_num_update": spec.live.begin_num_update, **spec.params})


def _wrapper(spec: OptimizerSpec) -> Rule:
    """Build a rule around the one that is described under ``inner``, with the same live numbers."""
    description = spec.params.get("inner")
    if not isinstance(description, dict):
        raise UsageError(
            f"the servers' optimizer {spec.name!r} wants another one under inner, not {description!r}"
        )
    inner = build(OptimizerSpec.from_dict({**description, "live": spec.live.to_dict()}))
    if inner.pushes != "gradients" or inner.needs_base or inner.needs_staleness:
        raise UsageError(
            f"the servers' optimizer {spec.name!r} cannot be put around {description['name']!r}"
        )
    return _convert(spec, WRAPPERS[spec.name], {**spec.params, "inner": inner})


def _convert(spec: OptimizerSpec, rule: type[Rule], params: Mapping[str, Any]) -> Rule:
    try:
        return msgspec.convert(params, rule)
    except msgspec.ValidationError as error:
        names = ", ".join(name for name in rule.__struct_fields__ if name != "begin_num_update")
        raise UsageError(
            f"the servers' optimizer {spec.name!r} cannot be built from {spec.params}: {error}; "
            f"its hyper-parameters are {names}"
        ) from error
