"""From a spec to the optimizer that a server runs. This file must not know how any rule computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, Type, Union

import msgspec

from ..errors import UsageError
from .rules import NAG, SGD, AdaGrad, Adam, RMSProp, Rule
from .through_mxnet import ThroughMXNet

if TYPE_CHECKING:
    from .spec import OptimizerSpec

RULES: Dict[str, Type[Rule]] = {
    "adagrad": AdaGrad,
    "adam": Adam,
    "nag": NAG,
    "rmsprop": RMSProp,
    "sgd": SGD,
}
"""The rules that servers run without importing MXNet, by MXNet's registered names."""


def build(spec: OptimizerSpec) -> Union[Rule, ThroughMXNet]:
    """Return the update rule that a spec describes; ``bind`` it to each key before use.

    Raises:
        UsageError: No optimizer has this name, or its hyper-parameters have other names or types.
    """
    if spec.through_mxnet:
        return ThroughMXNet(spec)
    rule = RULES.get(spec.name)
    if rule is None:
        raise UsageError(
            f"the servers have no optimizer {spec.name!r} of their own; they have {', '.join(RULES)}, and "
            "run any other registered one through MXNet (through_mxnet=True)"
        )
    params = {"begin_num_update": spec.live.begin_num_update, **spec.params}
    try:
        return msgspec.convert(params, rule)
    except msgspec.ValidationError as error:
        names = ", ".join(name for name in rule.__struct_fields__ if name != "begin_num_update")
        raise UsageError(
            f"the servers' optimizer {spec.name!r} cannot be built from {spec.params}: {error}; "
            f"its hyper-parameters are {names}"
        ) from error
