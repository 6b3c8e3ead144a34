"""Measures one store at one point: a model, a number of hosts, a rate.

It must not know which stores and points are compared.
"""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from . import goodput
from .bound import bytes_per_s_for, fifo_bound, lower_bound
from .clusters import start_ours, start_stock
from .jobs import Job
from .models import ITEM_BYTES, Granularity, Model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvstore_mpi.p3.bound import Layer

    from .netns import Network
    from .p3_variants import Variant

WORKER = Path(__file__).resolve().parent.parent / "p3_worker.py"
TCP_SHARE = 1448 / 1514
"""Of a full Ethernet frame, what TCP with timestamps carries: it turns a wanted goodput into a rate."""


@dataclass(frozen=True)
class Point:
    """Where stores are compared.

    Attributes:
        model: Name of the model.
        hosts: Hosts with one worker and one server each.
        ratio: Time of the network over time of the compute that the rate was chosen for.
        bits_per_s: Rate of every link in each direction.
        bytes_per_s: Payload that TCP was measured to carry at that rate.
        latency_s: Measured seconds of one way on an idle link.
        compute_s: Seconds of an iteration without communication.
        bound_s: Least seconds of an iteration; see ``bound.lower_bound``.
        fifo_s: Least seconds when gradients are sent first come first served.
    """

    model: str
    hosts: int
    ratio: float
    bits_per_s: float
    bytes_per_s: float
    latency_s: float
    compute_s: float
    bound_s: float
    fifo_s: float


@dataclass(frozen=True)
class Length:
    """How long one job replays.

    Attributes:
        compute_s: Seconds of compute in an iteration.
        warmup: Iterations that are dropped.
        iterations: Iterations that count.
        deadline_s: Seconds until the job is killed.
    """

    compute_s: float
    warmup: int
    iterations: int
    deadline_s: float


@dataclass(frozen=True)
class Run:
    """What one job did in its measured iterations.

    Attributes:
        variant: Name of the store.
        iteration_s: Mean seconds of an iteration, over iterations and workers.
        iterations_s: Each of them, the mean over the workers.
        stalled_s: Of an iteration, how long forward waited for weights; the mean.
        busy: Share of all cores' time that was not idle.
        own: Share of all cores' time that the job's threads took; the rest of ``busy`` is others and the
            kernel's.
        queued_s: Of an iteration, how long a host's threads could have run but had no core, added up.
        begin_s: When the first measured iteration began, on the machine's monotonic clock.
        end_s: When the last one ended.
        cpu_s: Processor time of all the job's threads in one iteration; 0 where it was not noted.
    """

    variant: str
    iteration_s: float
    iterations_s: tuple[float, ...]
    stalled_s: float
    busy: float
    own: float
    queued_s: float
    begin_s: float
    end_s: float
    cpu_s: float = 0.0


def set_point(network: Network, model: Model, ratio: float, compute_s: float) -> Point:
    """Limit the links so that the network needs ``ratio`` times the compute; measure what they carry."""
    layers = model.layers(compute_s)
    bits_per_s = 8 * bytes_per_s_for(ratio, layers, network.hosts) / TCP_SHARE
    network.limit(bits_per_s)
    link = goodput.measure(network)
    slice_s = ITEM_BYTES * Granularity.of(model).slice_elements / link.bytes_per_s
    bound_s = lower_bound(
        layers, network.hosts, link.bytes_per_s, first_delay_s=2 * link.latency_s + slice_s
    )
    fifo_s = fifo_bound(layers, network.hosts, link.bytes_per_s)
    return Point(
        model.name,
        network.hosts,
        ratio,
        bits_per_s,
        link.bytes_per_s,
        link.latency_s,
        compute_s,
        bound_s,
        fifo_s,
    )


def measure(
    network: Network, model: Model, variant: Variant, granularity: Granularity, length: Length
) -> Run:
    """Run one job in the network as it is.

    Raises:
        JobError: A process failed, a sum was wrong, or the deadline passed.
    """
    start = start_stock if variant.is_stock else start_ours
    settings = dict(variant.environment(granularity))
    with tempfile.TemporaryDirectory(prefix="p3-") as name, Job(Path(name)) as job:
        settings.update({"KVMPI_TRACE": name} if variant.traced else {})
        plan = Path(name) / "plan.json"
        plan.write_text(json.dumps(_plan(model.layers(length.compute_s), length)))
        command = (variant.python, str(WORKER), "--kv-store", variant.kv_store)
        start(job, network, (*command, "--plan", str(plan), "--results", name), settings)
        job.wait(length.deadline_s)
        workers = [json.loads(path.read_text()) for path in sorted(Path(name).glob("worker*.json"))]
        return _merge(variant.name, workers)


def _plan(layers: Sequence[Layer], length: Length) -> dict[str, Any]:
    """Return what the worker reads."""
    return {
        "elements": [layer.num_bytes // ITEM_BYTES for layer in layers],
        "forward_s": [layer.forward_s for layer in layers],
        "backward_s": [layer.backward_s for layer in layers],
        "warmup": length.warmup,
        "iterations": length.iterations,
    }


def _merge(variant: str, workers: Sequence[Any]) -> Run:
    """Join what the workers of one job wrote; only the first looked at the machine."""
    rows = list(zip(*(worker["marks"] for worker in workers)))
    iterations = [fmean(end - begin for begin, end in zip(*pair)) for pair in itertools.pairwise(rows)]
    [load] = [worker["load"] for worker in workers if worker["load"]]
    spent = {name: load[1][name] - load[0][name] for name in load[0]}
    count = len(iterations)
    core_s = spent["at_s"] * (os.cpu_count() or 1)
    return Run(
        variant,
        fmean(iterations),
        tuple(iterations),
        fmean(worker["stalled_s"] for worker in workers) / count,
        1 - spent["idle_s"] / core_s,
        spent["job_s"] / core_s,
        spent["queued_s"] / (count * len(workers)),
        workers[0]["marks"][0],
        workers[0]["marks"][-1],
        spent["job_s"] / count,
    )
