"""Measures one way to send at one point: a model, a number of hosts, a rate.

It must not know which ways and points are compared.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import astuple
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from . import goodput
from .clusters import start_ours, start_stock
from .jobs import Job, JobError
from .sparse_clusters import start_one_client, start_wide_clients
from .sparse_step_summary import (
    ALLREDUCE,
    HALVES,
    HYBRID,
    PAIRS,
    PAIRS_AUTO,
    PAIRS_ONE,
    SERVERS,
    STOCK,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .launched import Launched
    from .netns import Network
    from .sparse_models import Model

LEADERS = {PAIRS: "all", PAIRS_ONE: "one"}
WORKER = Path(__file__).resolve().parent.parent / "sparse_step_worker.py"
UNLIMITED_BITS_PER_S = 20e9
"""While tables are created."""


def start(job: Job, network: Network, variant: str) -> None:
    """Start the processes of a variant."""
    store = "dist_sync" if variant == STOCK else "dist_sync_mpi"
    worker = (sys.executable, str(WORKER), "--kv-store", store, "--results", str(job.log_dir))
    if variant == HALVES:
        worker = (*worker, "--compress", "bfloat16")
    settings = {"KVMPI_TRANSPORT": "tcp"}
    if variant == STOCK:
        start_stock(job, network, worker, {})
    elif variant == SERVERS:
        start_ours(job, network, worker, settings)
    elif variant == ALLREDUCE:
        start_one_client(job, network, worker, settings)
    elif variant in LEADERS:
        settings["KVMPI_LEADERS"] = LEADERS[variant]
        start_wide_clients(job, network, worker, settings, hosts=2, servers=range(network.hosts))
    else:
        settings.update(KVMPI_DENSE="workers", KVMPI_LEADERS="all")
        start_one_client(job, network, worker, settings, servers=range(network.hosts))


def start_launched(job: Job, launched: Launched, variant: str) -> None:
    """Have ``mpilaunch`` start a variant of ours."""
    hosts = launched.network.hosts
    pairs = (f"--clients={hosts // 2}", f"--servers={hosts}")
    options = {
        SERVERS: (f"--clients={hosts}", f"--servers={hosts}"),
        ALLREDUCE: (),
        HYBRID: (f"--servers={hosts}", "--dense=workers", "--leaders=all"),
        PAIRS_AUTO: pairs,
        **{name: (*pairs, f"--leaders={leaders}") for name, leaders in LEADERS.items()},
    }
    launched.start(job, options[variant], (str(WORKER), "--results", str(job.log_dir)))


def measure(
    network: Network,
    model: Model,
    variant: str,
    mbit: float,
    *,
    steps: tuple[int, int],
    deadline_s: float,
    launched: Launched | None = None,
    keeps_marks: bool = False,
) -> dict[str, Any]:
    """Run one job, on hosts that ssh reaches if they are given.

    With ``keeps_marks`` what is returned says when rank 0's steps began, and the last one ended.

    Raises:
        JobError: A process failed, a weight was wrong, nothing crossed a link, or the deadline passed.
    """
    tables = [astuple(table) for table in model.tables]
    plan = {"tables": tables, "dense": model.dense, "warmup": steps[0], "steps": steps[1]}
    network.limit(UNLIMITED_BITS_PER_S)
    # Hosts that ssh reaches have a /tmp of their own.
    folder = None if launched is None else launched.folder
    with tempfile.TemporaryDirectory(prefix="sparse-step-", dir=folder) as name, Job(Path(name)) as job:
        (job.log_dir / "plan.json").write_text(json.dumps(plan))
        for pipe in ("created", "go"):
            os.mkfifo(job.log_dir / pipe)
        if launched is None:
            start(job, network, variant)
        else:
            start_launched(job, launched, variant)
        _limit_when_ready(job, network, mbit, deadline_s)
        job.wait(deadline_s)
        workers = [json.loads(path.read_text()) for path in sorted(job.log_dir.glob("worker*.json"))]
    if min(worker["link_bytes"] for worker in workers) <= 0:
        raise JobError(f"{variant}: nothing crossed a link")
    where = {"model": model.name, "hosts": network.hosts, "mbit": mbit, "variant": variant}
    if variant == PAIRS and not model.tables:
        link = goodput.measure(network).bytes_per_s
        where["bound_s"] = bytes_of_pairs(4 * sum(model.dense), network.hosts) / link
    marks = {"marks": workers[0]["marks"]} if keeps_marks else {}
    return {**where, **_merged(workers), **marks}


def bytes_of_pairs(num_bytes: int, hosts: int) -> float:
    """Return what a host must send, and receive, of dense keys where pairs of hosts are clients.

    Half of the keys go from a rank to the other one of its client, and half of the values come back; of the
    other half each rank pushes what is not on its own host's server, and servers send as much.
    """
    return num_bytes * (1 + (1 - 1 / hosts))


def _limit_when_ready(job: Job, network: Network, mbit: float, deadline_s: float) -> None:
    """Limit the links once all workers have created their keys, and let them go on."""
    job.wait_for_word(job.log_dir / "created", deadline_s)
    network.limit(1e6 * mbit)
    (job.log_dir / "go").write_text("go")


def _merged(workers: Sequence[Any]) -> dict[str, Any]:
    """Join what the workers of one job wrote; only the first looked at the machine."""
    steps = [[end - begin for begin, end in pairwise(worker["marks"])] for worker in workers]
    [load] = [worker["load"] for worker in workers if worker["load"]]
    spent = {name: load[1][name] - load[0][name] for name in load[0]}
    core_s = spent["at_s"] * (os.cpu_count() or 1)
    return {
        "step_s": fmean(map(fmean, steps)),
        "median_s": median(fmean(each) for each in zip(*steps)),
        "num_bytes": fmean(worker["link_bytes"] for worker in workers),
        "cpu_s": spent["job_s"] / (len(steps[0]) + 1),  # with the one before the first mark
        "busy": 1 - spent["idle_s"] / core_s,
        "own": spent["job_s"] / core_s,
    }
