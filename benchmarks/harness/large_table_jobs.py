"""Runs one job with a table that is on the servers only, for its memory or for its lookups.

It must not know how figures are compared.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .clusters import start_ours
from .jobs import Job, Program, run

if TYPE_CHECKING:
    from .netns import Network

WORKER = Path(__file__).resolve().parent.parent / "large_table_worker.py"
MBIT, COMPUTE_S, DISTINCT = 1000.0, 0.3, 10_000


class Way(NamedTuple):
    """How rows are looked up.

    Attributes:
        ahead: They are prefetched.
        staleness: Steps for which rows of a ``TableEmbedding`` may be used again.
        is_weight: They are those of a row-sparse weight, by calls to the store.
        is_one: Only one is looked up: what is waited for then is the push before it.
    """

    ahead: bool
    staleness: int = 0
    is_weight: bool = False
    is_one: bool = False


WAYS = {
    "not ahead": Way(ahead=False),
    "s = 0": Way(ahead=True),
    "s = 1": Way(ahead=True, staleness=1),
    "s = 8": Way(ahead=True, staleness=8),
    "one row": Way(ahead=False, is_weight=True, is_one=True),
    "row_sparse_pull": Way(ahead=False, is_weight=True),
    "kv.prefetch": Way(ahead=True, is_weight=True),
}

DEADLINE_S = 100.0


def memory(rows: int) -> dict[str, Any]:
    """Run a job of one worker and one server in which some rows are trained.

    Raises:
        JobError: It failed.
    """
    with tempfile.TemporaryDirectory(prefix="large-table-") as name:
        folder = Path(name)
        (folder / "plan.json").write_text(json.dumps({"rows": rows}))
        launch = (str(Path(sys.executable).with_name("mpilaunch")), "--clients", "1", "--workers", "1")
        run(
            [Program("mpilaunch", (*launch, "--servers", "1", str(WORKER), "--results", name))],
            folder,
            DEADLINE_S,
        )
        return {"part": "memory", **json.loads((folder / "worker0.json").read_text())}


def lookups(network: Network, way: str, steps: tuple[int, int]) -> dict[str, Any]:
    """Run a job over limited links.

    Raises:
        JobError: A process failed, or the deadline passed.
    """
    plan = {**WAYS[way]._asdict(), "compute_s": COMPUTE_S, "distinct": DISTINCT}
    network.limit(20e9)  # while rows come into being
    with tempfile.TemporaryDirectory(prefix="large-table-") as name, Job(Path(name)) as job:
        (job.log_dir / "plan.json").write_text(json.dumps({**plan, "warmup": steps[0], "steps": steps[1]}))
        for pipe in ("created", "go"):
            os.mkfifo(job.log_dir / pipe)
        worker = (sys.executable, str(WORKER), "--results", str(job.log_dir))
        start_ours(job, network, worker, {"KVMPI_TRANSPORT": "tcp"})
        job.wait_for_word(job.log_dir / "created", DEADLINE_S)
        network.limit(1e6 * MBIT)
        (job.log_dir / "go").write_text("go")
        job.wait(DEADLINE_S)
        workers = [json.loads(path.read_text()) for path in sorted(job.log_dir.glob("worker*.json"))]
    worst = max(workers, key=lambda worker: worker["lookup_s"])
    return {"part": "lookups", "way": way, "hosts": network.hosts, **worst}
