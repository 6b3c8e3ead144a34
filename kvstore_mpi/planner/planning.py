"""Ranks configurations of a training by C = T x S x E, Pal et al. (2019), equations (1) to (6). Pure.

A configuration is a number of data-parallel workers, the devices of each, and how values are summed: by an
allreduce, by servers, or rows by these and the rest by that. Each worker keeps its batch, so that the
global batch, and with it E, follows from the number of workers alone.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from kvstore_mpi.errors import UsageError
from kvstore_mpi.planner.communication import Other, sites_of, step_times
from kvstore_mpi.planner.explanation import explain
from kvstore_mpi.planner.net import check_net
from kvstore_mpi.planner.sending import Way
from kvstore_mpi.planner.speedup import training_seconds
from kvstore_mpi.planner.workers import EFFORT_S, ModelParallel, check_known, divided

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvstore_mpi.planner.cluster import Cluster
    from kvstore_mpi.planner.cuts import Cut
    from kvstore_mpi.planner.epochs import Epochs, EpochsCurve
    from kvstore_mpi.planner.net import Net
    from kvstore_mpi.planner.sending import Sites

ONE_DEVICE = ModelParallel(1, 1.0, "")


class Configuration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a job is laid out.

    Attributes:
        data: N, data-parallel workers.
        ways: M, devices of each.
        kind: How a worker uses its devices; nothing where it has one.
        way: How values are summed; nothing with one worker.
        clients: MPI jobs.
        servers: Parameter servers.
        slice_elements: Most elements of a slice; 0 where nothing is sent.
        partitions: Pieces into which the largest table is cut, and others that are large enough; 0 where
            there are no tables or no servers.
    """

    data: int
    ways: int
    kind: str
    way: str
    clients: int
    servers: int
    slice_elements: int
    partitions: int

    @property
    def devices(self) -> int:
        """Devices that it uses."""
        return self.data * self.ways

    def __str__(self) -> str:
        """Say it in a few words."""
        by = f" ({self.kind})" if self.kind else ""
        how = f", {self.way}" if self.way else ""
        ends = f", {self.clients} clients, {self.servers} servers" if self.servers else ""
        return f"{self.data}-way data x {self.ways}-way model{by}{how}{ends}"


class Option(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A configuration and what it costs.

    Attributes:
        configuration: How the job is laid out.
        batch: Samples of an update, over all workers.
        step_s: T.
        steps: S, of an epoch.
        epochs: E.
        total_s: C.
        compute_s: Seconds of a step without communication between workers.
        waits_for: Layer before whose forward pass a step waits longest; nothing where it never waits.
        link: Busiest link; nothing where nothing is sent.
        crossing_s: Seconds of a step that it needs.
        efficiency: SE_N, the share of a step that is not such waiting.
        idle: Share of the devices' time in which they wait for each other, or for other workers; that of
            one that is twice as fast counts twice.
        extrapolated: E is that of a larger batch.
        other_slices: The next best size of slices, where several were compared.
        other_partitions: The next best number of pieces.
    """

    configuration: Configuration
    batch: int
    step_s: float
    steps: float
    epochs: float
    total_s: float
    compute_s: float
    waits_for: str
    link: str
    crossing_s: float
    efficiency: float
    idle: float
    extrapolated: bool = False
    other_slices: Other | None = None
    other_partitions: Other | None = None


class LeftOut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A configuration that is not ranked, and why."""

    configuration: str
    why: str


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Configurations of a training, the best one first.

    Attributes:
        net: Its name.
        net_digest: What tells it from others.
        net_structure: The same without what was measured; nothing in plans that older versions wrote.
        cluster_digest: The same of the cluster.
        options: At least one, by total seconds; equal ones by the devices that they need.
        left_out: Those for which a number is not known.
        workers: Those of several devices that were compared, with their cuts as far as they are known.
        devices: Of each host of the cluster; 0 in plans that older versions wrote.
    """

    net: str
    net_digest: str
    cluster_digest: str
    options: tuple[Option, ...]
    left_out: tuple[LeftOut, ...] = ()
    workers: tuple[ModelParallel, ...] = ()
    devices: int = 0
    net_structure: str = ""

    @property
    def best(self) -> Option:
        """The option to take."""
        return self.options[0]

    @property
    def ranks_of_host(self) -> int:
        """Ranks of the best option's workers on one host, at most; 0 if the plan does not say."""
        ways = self.best.configuration.ways
        return self.devices // ways * ways if ways < self.devices else self.devices

    @property
    def best_data_parallel(self) -> Option | None:
        """The best option whose workers have one device each."""
        return next((each for each in self.options if each.configuration.ways == 1), None)

    @property
    def best_workers(self) -> ModelParallel | None:
        """What is known of the best option's workers, if they have several devices each."""
        best = self.best.configuration
        found = (each for each in self.workers if (each.ways, each.kind) == (best.ways, best.kind))
        return next(found, None)

    @property
    def cut(self) -> Cut | None:
        """Which rank of the best option's workers has what, as far as that is known."""
        workers = self.best_workers
        return None if workers is None else workers.cut

    def explain(self) -> str:
        """Return why the best is the best, for people."""
        return explain(self)


def plan(
    net: Net,
    cluster: Cluster,
    curve: EpochsCurve,
    model_parallel: Sequence[ModelParallel] = (),
    most_devices: int = 0,
    *,
    ways: int = 0,
    seconds: float = EFFORT_S,
) -> Plan:
    """Rank all configurations that a cluster can hold.

    Args:
        net: What a step computes and sends.
        cluster: Hosts, devices, links.
        curve: E(B), in samples of an update over all workers.
        model_parallel: What is known of workers of several devices; at most one for each number of devices
            and kind. Of others the net is divided here, if its parts are known.
        most_devices: Use no more than these; 0 for all.
        ways: Only workers of this number of devices; 0 for any.
        seconds: Effort for each placement of the net's parts, about as many seconds of a processor.

    Raises:
        UsageError: An argument does not fit, the net has numbers that cannot be, there are no such workers,
            or E is not known for any configuration.
    """
    check_net(net, f"net {net.name!r}")
    check_question(net.batch, curve, model_parallel)
    most = min(most_devices or cluster.num_devices, cluster.num_devices)
    options: list[Option] = []
    several, left_out = _divided(net, cluster, model_parallel, most, seconds)
    chosen = [each for each in (ONE_DEVICE, *several) if ways in (0, each.ways)]
    if not chosen:
        why = _reasons(left_out) or f"the net's parts are not known, or devices are fewer; there are {most}"
        raise UsageError(f"there are no workers of {ways} devices: {why}")
    for workers in chosen:
        for data in _numbers(most // workers.ways):
            found = _compared(net, cluster, curve, workers, data)
            if isinstance(found, LeftOut):
                left_out.append(found)
            else:
                options += found
    if not options:
        raise UsageError(f"no workers of {ways} devices can be ranked: {_reasons(left_out)}")
    options.sort(key=lambda each: (each.total_s, each.configuration.devices, str(each)))
    return Plan(
        net.name,
        net.digest,
        cluster.digest,
        tuple(options),
        tuple(left_out),
        tuple(several),
        devices=cluster.num_each_host,
        net_structure=net.structure,
    )


def check_question(batch: int, curve: EpochsCurve, model_parallel: Sequence[ModelParallel] = ()) -> None:
    """Check what can be known of a plan before its net is measured.

    Args:
        batch: Samples of one worker in a step, the smallest batch of all configurations.
        curve: E(B).
        model_parallel: What is known of workers of several devices.

    Raises:
        UsageError: What is known of workers cannot be, or E is not known for this batch or any larger one.
    """
    check_known(model_parallel)
    least = curve.at(batch)
    if least is None or least.epochs == math.inf:
        why = _unknown(batch, curve) if least is None else _failed(batch)
        raise UsageError(f"nothing can be ranked: {why}; measure more with mpilaunch measure-epochs")


def _reasons(left_out: Sequence[LeftOut]) -> str:
    return "; ".join(f"{each.configuration}: {each.why}" for each in left_out)


def _compared(
    net: Net, cluster: Cluster, curve: EpochsCurve, workers: ModelParallel, data: int
) -> list[Option] | LeftOut:
    """Return what all ways to sum cost with a number of workers, or why that is not known."""
    sites = sites_of(data, workers.ways, cluster)
    label = f"{data}-way data x {workers.ways}-way model"
    epochs = curve.at(data * net.batch)
    if sites is None:
        return LeftOut(label, "its workers do not fit on the hosts")
    if epochs is None:
        return LeftOut(label, _unknown(data * net.batch, curve))
    if epochs.epochs == math.inf:
        return LeftOut(label, _failed(data * net.batch))
    return [
        _cost(net, cluster, _Case(workers, data, sites, ends), epochs) for ends in _ends(net, data, sites)
    ]


def _divided(
    net: Net, cluster: Cluster, given: Sequence[ModelParallel], most: int, seconds: float
) -> tuple[list[ModelParallel], list[LeftOut]]:
    """Return the workers of several devices to compare: those given, and what the net's parts allow."""
    several = [each for each in given if each.ways <= most]
    left_out = [
        LeftOut(
            f"{each.ways}-way model ({each.kind})", f"it needs {each.ways} devices, and {most} may be used"
        )
        for each in given
        if each.ways > most
    ]
    if net.parts is None:
        return several, left_out
    known = {(each.ways, each.kind) for each in given}
    # As it was measured as a whole: one device would take no step of parts.
    alone_s = net.step_s - net.other_s
    for ways in _numbers(min(most, len(net.parts.graph.operations)))[1:]:
        if (ways, net.parts.kind) not in known:
            try:
                found = divided(net.parts, cluster, ways, seconds, alone_s=alone_s, other_s=net.other_s)
                several.append(found)
            except UsageError as error:
                left_out.append(LeftOut(f"{ways}-way model ({net.parts.kind})", str(error)))
    return several, left_out


def _unknown(batch: int, curve: EpochsCurve) -> str:
    if batch > curve.largest:
        return f"E is measured up to batch {curve.largest} only, not {batch}"
    return f"E of batch {batch} lies between one that reached the target and one that did not"


def _failed(batch: int) -> str:
    return f"batch {batch} did not reach the target"


def _numbers(most: int) -> list[int]:
    """Return the numbers of workers to compare: powers of two, and all that there can be."""
    powers = [1 << exponent for exponent in range(most.bit_length())]
    return sorted({*(each for each in powers if each <= most), *([most] if most else [])})


class _Ends(NamedTuple):
    way: Way
    clients: int = 1
    servers: int = 0


class _Case(NamedTuple):
    workers: ModelParallel
    data: int
    sites: Sites
    ends: _Ends


def _ends(net: Net, data: int, sites: Sites) -> Iterator[_Ends]:
    """Yield the ways in which these workers can sum: on one host, only among themselves.

    With servers each host is a client, so that each must have as many workers.
    """
    yield _Ends(Way.ALLREDUCE)
    if sites.hosts == 1:
        return
    tables = any(layer.is_table for layer in net.layers)
    for servers in sorted({sites.hosts, max(1, sites.hosts // 2), 1}):
        if data % sites.hosts == 0:
            yield _Ends(Way.SERVERS, sites.hosts, servers)
        if tables and not all(layer.is_table for layer in net.layers):
            yield _Ends(Way.HYBRID, 1, servers)


def _cost(net: Net, cluster: Cluster, case: _Case, epochs: Epochs) -> Option:
    workers, data, sites, ends = case
    times = step_times(net, sites, cluster, ends.way, servers=ends.servers, speedup=workers.speedup)
    batch = data * net.batch
    steps = net.samples / batch
    configuration = Configuration(
        data,
        workers.ways,
        workers.kind,
        ends.way.value if data > 1 else "",
        ends.clients,
        ends.servers,
        times.slice_elements,
        times.pieces,
    )
    return Option(
        configuration,
        batch,
        times.step_s,
        steps,
        epochs.epochs,
        training_seconds(times.step_s, steps, epochs.epochs),
        times.compute_s,
        times.waits_for,
        times.link,
        times.crossing_s,
        times.compute_s / times.step_s,
        1 - workers.speedup / sites.devices * times.compute_s / times.step_s,
        epochs.extrapolated,
        times.other_slices,
        times.other_pieces,
    )
