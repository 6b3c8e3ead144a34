"""From a spec to the optimizer that a server runs, and to the terms that it sets.

Servers and workers both read the terms, but a worker cannot always build the rules of its servers: those
that run through MXNet need MXNet. This file must not know how any rule computes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from kvstore_mpi.errors import UsageError
from kvstore_mpi.server_optimizers.averages import Averaged
from kvstore_mpi.server_optimizers.center import DelayedNesterov, Elastic
from kvstore_mpi.server_optimizers.rows import GroupAdaGrad
from kvstore_mpi.server_optimizers.rules import RULES, Rule
from kvstore_mpi.server_optimizers.spec import OptimizerSpec
from kvstore_mpi.server_optimizers.through_mxnet import ThroughMXNet
from kvstore_mpi.server_optimizers.wrappers import DCASGD, Outer, StalenessAware, Wrapper

if TYPE_CHECKING:
    from kvstore_mpi.interfaces import ServerOptimizer
    from kvstore_mpi.records import StoreTerms

CENTERS: dict[str, type[Rule]] = {"elastic": Elastic, "delayed-nesterov": DelayedNesterov}
"""The rules on pushed parameters; these names are not MXNet's."""

ROW_RULES: dict[str, type[Rule]] = {"groupadagrad": GroupAdaGrad}
"""Rules for rows only, by MXNet's names; a dense key with such an optimizer is updated through MXNet."""

_OWN = {**RULES, **CENTERS}

WRAPPERS: dict[str, type[Wrapper]] = {kind.name: kind for kind in (Outer, StalenessAware, DCASGD, Averaged)}
"""The rules around another one, which ``params`` describes under ``inner``; these names are not MXNet's."""


def terms_of(spec: OptimizerSpec) -> StoreTerms:
    """Return how a store with this optimizer treats pushes; a rule that nobody knows has those of most."""
    kind: type[Any] = ThroughMXNet
    if not spec.through_mxnet:
        kind = WRAPPERS.get(spec.name) or _OWN.get(spec.name) or Rule
    terms: StoreTerms = kind.terms
    inner = spec.params.get("inner")
    return terms._replace(
        whole=terms.whole or bool(isinstance(inner, dict) and inner.get("through_mxnet")),
        bases=terms.bases or (terms.params and spec.compress > 0),
        quorum=spec.quorum,
        quorum_wait=spec.quorum_wait,
        compress=spec.compress,
        clip_norm=spec.clip_norm,
        unpushed=tuple(spec.unpushed),
    )


def build(spec: OptimizerSpec) -> ServerOptimizer:
    """Return the update rule that a spec describes; ``bind`` it to each key before use.

    Raises:
        UsageError: No optimizer has this name, or its hyper-parameters have other names or types.
    """
    if spec.through_mxnet:
        return ThroughMXNet(spec)
    if spec.name in WRAPPERS:
        return _wrapper(spec)
    rule = _OWN.get(spec.name)
    if rule is None:
        raise UsageError(
            f"the servers have no optimizer {spec.name!r} of their own; they have "
            f"{', '.join([*_OWN, *WRAPPERS])}, and run any other registered one through MXNet "
            "(through_mxnet=True)"
        )
    return _built(spec, rule)


def _built(spec: OptimizerSpec, rule: type[Rule]) -> Rule:
    """Make a rule of its numbers."""
    try:
        return msgspec.convert({"begin_num_update": spec.hyper.begin_num_update, **spec.params}, rule)
    except msgspec.ValidationError as error:
        names = ", ".join(name for name in rule.__struct_fields__ if name != "begin_num_update")
        raise _cannot_be_built(spec, error, names) from error


def decay_of(spec: OptimizerSpec | None) -> float:
    """Return what is left of the servers' averages after an update; 0 if they keep none."""
    return float(spec.params["decay"]) if spec is not None and spec.name == Averaged.name else 0.0


def _inner(spec: OptimizerSpec) -> OptimizerSpec:
    """Return what a rule is around.

    Raises:
        UsageError: Nothing is described there.
    """
    description = spec.params.get("inner")
    if not isinstance(description, dict):
        raise UsageError(
            f"the servers' optimizer {spec.name!r} wants another one under inner, not {description!r}"
        )
    return OptimizerSpec.from_dict({**description, "hyper": spec.hyper.to_dict()})


def updates_exactly(spec: OptimizerSpec, dtype: str = "float32") -> bool:
    """Return whether rows without a gradient are to be decayed and moved on as in dense training.

    As in MXNet: its SGD and Adam do that if told ``lazy_update=False``, and of NAG, RMSProp, and SGD on
    float16 weights with float32 copies, it has no lazy kernels.
    """
    inner = spec.params.get("inner")
    name, params = (
        (inner["name"], inner.get("params", {})) if isinstance(inner, dict) else (spec.name, spec.params)
    )
    has_copy = spec.multi_precision and dtype == "float16"
    return name in {"nag", "rmsprop"} or params.get("lazy_update") is False or (name == "sgd" and has_copy)


def is_elementwise(spec: OptimizerSpec, *, sparse_weight: bool = True, dtype: str = "float32") -> bool:
    """Return whether some rows of a table can be updated alone, with the outcome that MXNet has.

    That of FTRL depends on the weight: MXNet updates dense ones densely, which sets rows without a gradient
    to zero, and row-sparse ones lazily.

    Not so with rules that take parameters, that need what a client was sent or when, or that look at whole
    tensors, as those that run through MXNet may; nor where rows without a gradient have to move on in a way
    that cannot be made up for later (``missed_steps``).
    """
    if decay_of(spec):
        # A row that decays without a gradient has no average that could be made up for later.
        inner = is_elementwise(_inner(spec), sparse_weight=sparse_weight, dtype=dtype)
        return inner and not updates_exactly(spec, dtype)
    terms = terms_of(spec)
    refers = terms.whole or terms.params or terms.bases or terms.staleness
    alone = spec.name in ROW_RULES or not refers
    if spec.name == "ftrl" and not sparse_weight:
        return False
    return alone and (not updates_exactly(spec, dtype) or spec.name in {"sgd", "nag"})


def build_for_rows(spec: OptimizerSpec) -> ServerOptimizer:
    """Return the update rule for some rows of a table, for ``rows.update_rows``.

    Raises:
        UsageError: It cannot update rows alone, or its hyper-parameters have other names or types.
    """
    if not is_elementwise(spec):
        raise UsageError(
            f"the servers' optimizer {spec.name!r} cannot update some rows of a table alone; use one of "
            "sgd, nag, adagrad, groupadagrad and ftrl, or adam with lazy_update=True, or, "
            "of what is no TableEmbedding, dense gradients"
        )
    if decay_of(spec):
        return _wrapper(spec, build_for_rows(_inner(spec)))
    return _built(spec, ROW_RULES[spec.name]) if spec.name in ROW_RULES else build(spec)


def _wrapper(spec: OptimizerSpec, rule: ServerOptimizer | None = None) -> Wrapper:
    """Build a rule around the one that is described under ``inner``, with the same hyper-parameters."""
    inner = _inner(spec)
    own = {name: value for name, value in spec.params.items() if name != "inner"}
    terms = terms_of(inner)
    if terms.params or terms.bases or terms.staleness:
        raise UsageError(f"the servers' optimizer {spec.name!r} cannot be put around {inner.name!r}")
    wrapper = WRAPPERS[spec.name](inner.name, learning_rate=0.0, **own)
    unknown = own.keys() - wrapper.own.keys()
    if unknown:
        raise _cannot_be_built(spec, f"it has no {', '.join(unknown)}", ", ".join(wrapper.own) or "none")
    return wrapper.run(build(inner) if rule is None else rule)


def _cannot_be_built(spec: OptimizerSpec, error: object, names: str) -> UsageError:
    return UsageError(
        f"the servers' optimizer {spec.name!r} cannot be built from {spec.params}: {error}; "
        f"its hyper-parameters are {names}"
    )
