"""The worker that this process has for all its stores. This file must not know about stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore_mpi.errors import UsageError
from kvstore_mpi.planner.cuts import read_cut

if TYPE_CHECKING:
    from kvstore_mpi.comm.links import Links
    from kvstore_mpi.interfaces import KVWorker
    from kvstore_mpi.planner.cuts import Cut


def own_worker(asked: str, mode: str) -> KVWorker:
    """Return this process's worker, for a store of this mode; ``asked`` is what the user has asked for."""
    from kvstore_mpi.node import process_worker  # noqa: PLC0415  a worker that is given needs no sockets and no MPI

    return process_worker(asked, mode)


def own_links() -> Links | None:
    """Return what joins this rank to the others of its worker."""
    from kvstore_mpi.node import process_links  # noqa: PLC0415  as above

    return process_links()


def check_divided() -> None:
    """See that a net which is to be trained now is not trained by each rank of a worker as a whole.

    Raises:
        UsageError: Workers have several ranks, and nothing has divided a net among them.
    """
    links = own_links()
    if links is None or links.taken:
        return
    why, remedy = f"--model-parallel {links.size}", "leave that out; --workers is for more workers"
    if planned_cut() is not None:
        why, remedy = "the plan cuts each worker's net", "take a plan without a cut"
    raise UsageError(
        f"workers have {links.size} ranks each ({why}), and this script divides no net among them: each "
        "rank would train the whole net for itself. Train it with kvstore_mpi.mxnet.PipelineTrainer or "
        f"PartTrainer, or {remedy}"
    )


def tell_numbers() -> None:
    """Tell what this process's optimizers have had, if it has a worker; see ``KVWorker.tell_numbers``."""
    from kvstore_mpi.node import existing_worker  # noqa: PLC0415  as above

    worker = existing_worker()
    if worker is not None:
        worker.tell_numbers()


def planned_cut() -> Cut | None:
    """Return which rank of a worker has which parts of the net, if this job has a plan that says it."""
    from kvstore_mpi.node import process_config  # noqa: PLC0415  as above

    text = process_config().cut
    return read_cut(text) if text else None


def asked_parts() -> str:
    """Return the file in which ``mpilaunch plan`` wants to read what parts cost, if it does."""
    from kvstore_mpi.node import process_config  # noqa: PLC0415  as above

    return process_config().parts_file
