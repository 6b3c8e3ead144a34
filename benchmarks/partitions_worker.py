"""One worker of a job that pushes rows to a table cut as the plan says; started by ``partitions.py``.

Writes ``worker<rank>.json``.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from pathlib import Path
from statistics import median

import mxnet as mx
import numpy as np
from harness.sparse_ids import draw

from kvstore_mpi.mxnet import KVStoreMPI

DIM, BATCHES = 64, 8


def main() -> None:
    """Do what the plan says and write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True, help="where plan.json is and results go")
    folder = parser.parse_args().results
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    plan = json.loads((folder / "plan.json").read_text())
    kv = KVStoreMPI("sync")
    kv.partitioner("table", plan["pieces"])
    kv.set_optimizer(mx.optimizer.create("adam", learning_rate=0.01))
    shape = plan["rows"], DIM
    weight = mx.nd.zeros(shape)
    gradients = []
    for number in range(BATCHES):
        ids = draw(plan["rows"], plan["touched"], 1.0, kv.rank, number)
        values = np.random.default_rng(number).standard_normal((len(ids), DIM), np.float32)
        gradients.append(mx.nd.sparse.row_sparse_array((values, ids), shape=shape))
    kv.init("table", weight)
    kv.barrier()
    times = []
    for step in range(plan["steps"]):
        begun = time.monotonic()
        kv.pushpull("table", gradients[step % BATCHES], out=weight)
        weight.wait_to_read()
        times.append(time.monotonic() - begun)
    (cut,) = kv.plan().keys
    measured = {"step_s": median(times[-plan["last"] :]), "pieces": cut.partitions}
    (folder / f"worker{kv.rank}.json").write_text(json.dumps(measured))
    kv.barrier()


if __name__ == "__main__":
    main()
