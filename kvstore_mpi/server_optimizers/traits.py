"""What servers and workers have to know of a rule before, or without, building it.

A worker cannot always build the rules of its servers: those that run through MXNet need MXNet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvstore_mpi.server_optimizers.registry import PLAIN, WRAPPERS
from kvstore_mpi.server_optimizers.through_mxnet import ThroughMXNet

if TYPE_CHECKING:
    from kvstore_mpi.server_optimizers.spec import OptimizerSpec


class Traits(NamedTuple):
    """How a store's servers treat what is pushed.

    Attributes:
        whole: Keys stay on one server each.
        params: Parameters are pushed, not gradients.
        before: The answer is the value before the update, not after it.
        bases: What each client was last sent is remembered: an answer with the value before the update can
            be sent, and repeated, from nowhere else; compressed differences refer to it; some rules ask
            for it.
        pulls: What is pulled counts as sent: the rule asks for what a client has last seen.
        staleness: The rule wants to know how many updates a client has not seen.
    """

    whole: bool
    params: bool
    before: bool
    bases: bool
    pulls: bool
    staleness: bool


def traits_of(spec: OptimizerSpec) -> Traits:
    """Return the traits of the rule that a spec describes; one that nobody knows has those of most."""
    kind: type[Any] = ThroughMXNet
    if not spec.through_mxnet:
        kind = WRAPPERS.get(spec.name) or PLAIN.get(spec.name) or ThroughMXNet
    inner = spec.params.get("inner")
    before = kind.replies == "before"
    return Traits(
        whole=spec.through_mxnet or bool(isinstance(inner, dict) and inner.get("through_mxnet")),
        params=kind.pushes == "params",
        before=before,
        bases=kind.needs_base or before or spec.compress > 0,
        pulls=kind.needs_base,
        staleness=kind.needs_base or kind.needs_staleness,
    )
