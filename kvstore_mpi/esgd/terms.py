"""Whether a job can train with a server optimizer: bounds that concern mode and number of clients. Pure."""

from __future__ import annotations

from kvstore_mpi.errors import UsageError
from kvstore_mpi.records import Mode
from kvstore_mpi.server_optimizers import OptimizerSpec, terms_of
from kvstore_mpi.values.coding import GRADIENT_CODINGS, name_of, numbered


def check_terms(spec: OptimizerSpec, mode: Mode, num_clients: int) -> list[str]:
    """Check the terms of a server optimizer; return what a user should be warned of.

    The bounds on alpha are those of EASGD's synchronous form without gradients. Let e be the distance of
    the clients' mean from the center: a round with p clients makes it (1 - (p + 1) alpha) e. It grows above
    alpha = 2 / (p + 1), and the center leaves the hull of the clients above p alpha = 1.

    Raises:
        UsageError: The job cannot train so.
    """
    terms = terms_of(spec)
    of_gradients = bool(spec.compress) and numbered(spec.compress).gradients
    if terms.params and of_gradients:
        coding = name_of(spec.compress)
        raise UsageError(f"{coding} is for gradients, and {spec.name!r} takes parameters; use int8 or int4")
    if not terms.params and (spec.quorum or (spec.compress and not of_gradients)):
        others = " or ".join(GRADIENT_CODINGS)
        what, instead = ("rounds with a quorum", "") if spec.quorum else ("int8 and int4", f"{others}, or ")
        raise UsageError(
            f"{what} are for server optimizers that take parameters, and {spec.name!r} takes gradients; "
            f"use {instead}Elastic, LocalSGD, DiLoCo, SlowMo, BMUF or Outer"
        )
    if spec.compress and terms.pulls:
        raise UsageError(f"{spec.name!r} cannot be compressed: it asks for exactly what clients have")
    if spec.quorum and mode is Mode.ASYNC:
        raise UsageError("quorum is for sync-mpi: rounds of async-mpi wait for nobody")
    if spec.clip_norm and (terms.params or mode is not Mode.SYNC):
        raise UsageError(
            "clip_global_norm is for gradients on sync-mpi, where a step has all of them: with "
            f"{spec.name!r} on {mode.value}-mpi there is no such step; clip on the workers instead "
            "(gluon.utils.clip_global_norm), before the gradients are pushed"
        )
    if not (0 <= spec.quorum <= num_clients and spec.quorum_wait >= 0):  # NaN is neither
        raise UsageError(
            f"quorum must be a number of the job's {num_clients} clients and quorum_wait not negative, not "
            f"{spec.quorum} and {spec.quorum_wait}"
        )
    alpha = spec.params.get("alpha")
    if alpha is None or mode is Mode.ASYNC:
        return []
    usual = f"EASGD's authors use 0.9 / clients = {0.9 / num_clients:.3g}"
    if alpha * (num_clients + 1) > 2:  # noqa: PLR2004
        raise UsageError(
            f"alpha={alpha:g} diverges on sync-mpi with {num_clients} clients, which are added up: it must "
            f"not exceed 2 / (clients + 1) = {2 / (num_clients + 1):.3g}; {usual}. On async-mpi any alpha "
            "from 0 to 1 is stable"
        )
    if alpha * num_clients > 1:
        warning = (
            f"alpha={alpha:g} with {num_clients} clients on sync-mpi: the center moves past the mean of "
            f"the clients (alpha * clients = {alpha * num_clients:.3g} > 1); {usual}"
        )
        return [warning]
    return []
