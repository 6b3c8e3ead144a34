"""Measures one client over limited links: seconds and bytes of a step.

It must not know what is compared.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from .jobs import Job, Program
from .mpi_hosts import environment, in_hosts
from .netns import LINK, SECOND, Network
from .p3_clusters import SERVICE, start_scheduler, write_job_file
from .sampler import Sampler
from .utilisation import bins_between

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .leaders_bound import Shape
    from .models import Granularity, Model

WORKER = Path(__file__).resolve().parent.parent / "p3_worker.py"


@dataclass(frozen=True)
class Length:
    """How long a job runs: steps that are dropped, steps that count, seconds until it is killed."""

    warmup: int
    steps: int
    deadline_s: float


@dataclass(frozen=True)
class Traffic:
    """Bytes that crossed a host's link in a step.

    Attributes:
        host: ``leader`` (rank 0), ``member`` (rank 1) or ``server`` (the first one).
        device: The link to the servers, or MPI's own.
        sent: Bytes out of the host.
        received: Bytes into the host.
    """

    host: str
    device: str
    sent: float
    received: float


@dataclass(frozen=True)
class Run:
    """What one job did in its measured steps.

    Attributes:
        shape: Client and servers.
        step_s: Seconds of a step, the mean over steps and workers.
        steps_s: Each of them, the mean over the workers.
        traffic: What crossed some of the links.
        busy: Share of all cores' time that was not idle; MPI's waits count, for it spins.
    """

    shape: Shape
    step_s: float
    steps_s: tuple[float, ...]
    traffic: tuple[Traffic, ...]
    busy: float


def measure(network: Network, shape: Shape, model: Model, granularity: Granularity, length: Length) -> Run:
    """Run one job in the network as it is: ranks in the first hosts, servers in those after them.

    Raises:
        JobError: A process failed, a sum was wrong, or the deadline passed.
    """
    watched = {"leader": 0, "member": 1, "server": shape.ranks}
    devices = [LINK] if shape.shared_link else [LINK, SECOND]
    with (
        tempfile.TemporaryDirectory(prefix="leaders-") as name,
        Job(Path(name)) as job,
        ExitStack() as stack,
    ):
        samplers = {
            (who, device): stack.enter_context(Sampler(network, host, device))
            for who, host in watched.items()
            for device in devices
            if device == LINK or who != "server"
        }
        _start(job, network, shape, granularity, _plan(Path(name), model, length))
        job.wait(length.deadline_s)
        stack.close()
        workers = [json.loads(path.read_text()) for path in sorted(Path(name).glob("worker*.json"))]
    return _merge(shape, workers, samplers, length.steps)


def _plan(folder: Path, model: Model, length: Length) -> Path:
    """Write what the workers read: the model, and no compute at all."""
    elements = model.elements()
    none = [0.0] * len(elements)
    path = folder / "plan.json"
    path.write_text(
        json.dumps(
            {
                "elements": elements,
                "forward_s": none,
                "backward_s": none,
                "warmup": length.warmup,
                "iterations": length.steps,
            }
        )
    )
    return path


def _start(job: Job, network: Network, shape: Shape, granularity: Granularity, plan: Path) -> None:
    common = {
        "KVMPI_NUM_CLIENTS": "1",
        "KVMPI_NUM_WORKERS": str(shape.ranks),
        "KVMPI_NUM_SERVERS": str(shape.servers),
        "KVMPI_JOB_FILE": write_job_file(job.log_dir / "job.json"),
        "KVMPI_SLICE_ELEMENTS": str(granularity.slice_elements),
        "KVMPI_TRANSPORT": "tcp",
        "KVMPI_LEADERS": shape.leaders,
        "OMP_NUM_THREADS": "1",
    }
    common["KVMPI_SCHEDULER"] = start_scheduler(job, network, common)
    for index in range(shape.servers):
        host = shape.ranks + index
        address = network.address(host)
        own = {"KVMPI_ROLE": "server", "KVMPI_INDEX": str(index), "KVMPI_INTERFACE": address}
        job.start(Program(f"server{index}", network.in_host(host, SERVICE), {**common, **own}))
    worker = (sys.executable, str(WORKER), "--plan", str(plan), "--results", str(job.log_dir))
    mpi = environment(LINK if shape.shared_link else SECOND)
    command = in_hosts(network, shape.ranks, job.log_dir, worker)
    job.start(Program("client", command, {**common, **mpi, "KVMPI_ROLE": "worker", "KVMPI_CLIENT": "0"}))


def _merge(
    shape: Shape,
    workers: Sequence[Any],
    samplers: Mapping[tuple[str, str], Sampler],
    num_steps: int,
) -> Run:
    """Join what the workers wrote, and what crossed the links meanwhile."""
    rows = list(zip(*(worker["marks"] for worker in workers)))
    steps = [fmean(end - begin for begin, end in zip(*pair)) for pair in itertools.pairwise(rows)]
    begin, end = workers[0]["marks"][0], workers[0]["marks"][-1]
    traffic = []
    for (who, device), sampler in samplers.items():
        bins = bins_between(sampler.samples, begin, end, end - begin)
        traffic.append(Traffic(who, device, sum(bins.sent) / num_steps, sum(bins.received) / num_steps))
    [load] = [worker["load"] for worker in workers if worker["load"]]
    idle, wall = (load[1][name] - load[0][name] for name in ("idle_s", "at_s"))
    return Run(shape, fmean(steps), tuple(steps), tuple(traffic), 1 - idle / wall / (os.cpu_count() or 1))
