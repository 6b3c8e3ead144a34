"""A plan as JSON: written, read, checked against net and cluster, compared, and turned into a job. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kvstore_mpi.errors import MismatchError, UsageError
from kvstore_mpi.planner.planning import Plan
from kvstore_mpi.planner.workers import ModelParallel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvstore_mpi.planner.cluster import Cluster
    from kvstore_mpi.planner.net import Net

_HOW = "mpilaunch plan writes one"


def write_plan(plan: Plan) -> bytes:
    """Return a plan as JSON."""
    return msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n"


def read_plan(
    text: bytes, where: str = "this text", *, net: Net | None = None, cluster: Cluster | None = None
) -> Plan:
    """Read the JSON of a plan.

    Args:
        text: What ``write_plan`` has returned.
        where: Where the text is from, for errors.
        net: The plan must be for this one, if it is given.
        cluster: The same.

    Raises:
        UsageError: It is no plan.
        MismatchError: It is for another net or cluster.
    """
    try:
        plan = msgspec.json.decode(text, type=Plan)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{where} is no plan: {error}; {_HOW}") from error
    if not plan.options:
        raise UsageError(f"{where} is no plan: it has no options; {_HOW}")
    counts = [(each.configuration.data, each.configuration.ways) for each in plan.options]
    if min(map(min, counts)) < 1:
        raise UsageError(f"{where} is no plan: an option has no worker, or no device; {_HOW}")
    if net is not None and net.digest != plan.net_digest:
        raise MismatchError(
            f"{where} is a plan for net {plan.net!r} ({plan.net_digest}) and not for {net.name!r} "
            f"({net.digest}): layers, times, batch or samples differ; make a new one with mpilaunch plan"
        )
    if cluster is not None and cluster.digest != plan.cluster_digest:
        raise MismatchError(
            f"{where} is a plan for another cluster ({plan.cluster_digest}) and not for this one "
            f"({cluster.digest}): make a new one with mpilaunch plan"
        )
    return plan


class _Placed(msgspec.Struct):
    """What is read of a placement: the devices by what each computes, and its two times."""

    order: dict[str, list[object]]
    predicted_seconds: float
    single_seconds: float


def read_placement(text: bytes, where: str) -> ModelParallel:
    """Read the JSON of a placement as what is known of workers of that number of devices.

    Devices that compute nothing are no part of a worker.

    Raises:
        UsageError: It is none, or on a single device; ``where`` says where the text is from.
    """
    try:
        placed = msgspec.json.decode(text, type=_Placed)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{where} is no placement: {error}") from error
    ways = sum(bool(each) for each in placed.order.values())
    if ways < 2 or placed.predicted_seconds <= 0:  # noqa: PLR2004  1 is no parallelism
        raise UsageError(
            f"{where} is a placement on {ways} device(s), in {placed.predicted_seconds:g} s: a worker of "
            "several devices needs 2 or more, and time; data parallelism alone needs no placement"
        )
    return ModelParallel(ways, placed.single_seconds / placed.predicted_seconds, "placement")


def compare(old: Plan, new: Plan) -> str:
    """Say what differs between two plans for one net: what they were made of, and each configuration.

    Raises:
        MismatchError: They are for nets whose layers differ.
    """
    if old.net_digest != new.net_digest and old.net_structure != new.net_structure:
        older = "" if old.net_structure else ", or an older version has written the first"
        raise MismatchError(
            f"a plan for net {old.net!r} cannot be compared with one for {new.net!r}: "
            f"their layers have other sizes{older}"
        )
    before, after = (
        {str(each.configuration): each.total_s for each in plan.options} for plan in (old, new)
    )
    lines = [*_made_of(old, new)]
    if old.best.configuration != new.best.configuration:
        lines.append(f"best: {old.best.configuration} -> {new.best.configuration}")
    for name in sorted({*before, *after}, key=lambda each: after.get(each, before.get(each, 0.0))):
        if name not in after:
            lines.append(f"gone: {name}, {before[name]:.4g} s")
        elif name not in before:
            lines.append(f"new: {name}, {after[name]:.4g} s")
        elif before[name] != after[name]:
            lines.append(
                f"{name}: {before[name]:.4g} -> {after[name]:.4g} s ({after[name] / before[name] - 1:+.1%})"
            )
    return "\n".join(lines) or "the same"


def _made_of(old: Plan, new: Plan) -> Iterator[str]:
    batches = [plan.best.batch // plan.best.configuration.data for plan in (old, new)]
    if batches[0] != batches[1]:
        yield f"batch of a worker: {batches[0]} -> {batches[1]}"
    elif old.net_digest != new.net_digest:
        yield "the net: other times, samples of an epoch, or shares of rows"
    if old.cluster_digest != new.cluster_digest:
        yield "another cluster"


def job_of(plan: Plan) -> dict[str, int]:
    """Return what the best option sets of a job, by the names of its settings."""
    best = plan.best.configuration
    job = {"num_clients": best.clients, "num_workers": best.data, "num_servers": best.servers}
    if best.slice_elements and best.servers:
        job["slice_elements"] = best.slice_elements
    if best.partitions:
        job["partitions"] = best.partitions
    if best.ways > 1:
        job["model_parallel"] = best.ways
    return job
