"""Rows of a table and a large dense key share a slow link between two hosts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.virtual_hosts import LOGIN

WITHOUT_MXNET = Path(__file__).resolve().parents[1] / "launcher/scripts/without_mxnet"
MBIT = 50
"""4 MB there and back take 0.6 s each: long beside what a machine that is busy does to a message."""

PUSHES = """
import sys
import threading
import numpy as np
from kvstore_mpi.node import process_worker
from kvstore_mpi.records import Rows
from kvstore_mpi.testing.blocking_store import BlockingStore

worker = process_worker("a test", "sync")
store = BlockingStore(worker)
store.init("small", np.zeros(1, np.float32))
store.init("dense", np.zeros(1_000_000, np.float32))
made = threading.Event()
worker.init_rows(
    store.number, "table", (1000, 16), "float32", np.zeros((1000, 16), np.float32), lambda _: made.set()
)
assert made.wait(60)
for priority in map(int, sys.argv[1:]):
    store.pushpull("small", np.ones(1, np.float32))  # nobody is still in what was before
    ended, both, out = [], threading.Barrier(3), []

    def end(name, error=None):
        ended.append(name if error is None else f"{name}: {error}")
        threading.Thread(target=both.wait, args=(60,)).start()

    dense = store.begin_pushpull("dense", np.ones(1_000_000, np.float32), -5)
    dense.add_done_callback(lambda _: end("dense"))
    rows = Rows(np.arange(8), np.ones((8, 16), np.float32))
    worker.pushpull_rows(store.number, "table", rows, priority, lambda error: end("rows", error), out)
    both.wait(60)
    print(f"RANK {worker.rank} PRIORITY {priority} {' '.join(ended)}", flush=True)
worker.close()
"""

pytestmark = [pytest.mark.root, pytest.mark.mpi, pytest.mark.slow, pytest.mark.thorough]


def test_urgent_rows_overtake_a_dense_key_under_way(cluster, tmp_path):
    """Called after it, they come before it if their priority is higher, and after it if it is lower."""
    script = tmp_path / "pushes.py"
    script.write_text(PUSHES)
    cluster.network.limit(1e6 * MBIT)
    done = cluster.run(
        LOGIN,
        [
            *("env", f"PYTHONPATH={WITHOUT_MXNET}", sys.executable, "-m", "mpilaunch.cli"),
            *("--ssh", cluster.ssh, "--log-dir", str(tmp_path / "logs"), "--hosts", "node0:1,node1:1"),
            *("--clients", "2", "--servers", "1", str(script), "0", "-9", "0"),
        ],
        timeout=120,
    )
    lines = [line for line in done.stdout.splitlines() if "RANK" in line]
    order = ["0 rows dense", "-9 dense rows", "0 rows dense"]
    for rank in (0, 1):
        said = [line.split("PRIORITY ")[1] for line in lines if f"RANK {rank}" in line]
        assert said == order, done.stdout + done.stderr
    cluster.check_nothing_left()
