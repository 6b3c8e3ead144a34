"""Trains a table for some steps, and may train one that grows or another; run by ``test_resumption.py``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import mxnet as mx
import numpy as np

from kvstore_mpi.adapters.mxnet.tables import live_cuts
from kvstore_mpi.hybrid import partitions
from kvstore_mpi.mxnet import RowInit, TableEmbedding

SHAPE = (23, 2)
FAR = 2**55 + 1
"""Of the ids of a table that grows to each other."""


def wait_in_a_cut(*_):
    """When new pieces are there, but not their states, wait for ever."""
    sys.stdout.write(f"READY {kv.rank} {os.getpid()} after {step} steps\n")
    sys.stdout.flush()
    Path(os.environ["WAITS"]).read_bytes()


target = sys.argv[1]
first, last = map(int, os.environ["STEPS"].split())
if "CUTS" in os.environ:
    partitions.WARM_UP_STEPS = 0  # so that the first cut comes soon
    partitions.SAMPLE_STEPS = live_cuts.SAMPLE_STEPS = 1
kv = mx.kv.create("sync-mpi")
if "CUTS" in os.environ:
    kv.partitioner("[tu]", "auto")
if "WAITS" in os.environ:
    kv._worker.load_row_states = wait_in_a_cut
kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.5, momentum=0.5))
if "BESIDE" in os.environ:
    kv.init("beside", mx.nd.zeros(SHAPE).tostype("row_sparse"))
    kv.push("beside", mx.nd.sparse.row_sparse_array((np.ones((1, 2), np.float32), [3]), shape=SHAPE))
    kv.barrier()
    if os.environ["BESIDE"] == "alone":
        sys.exit()
# A job that is resumed does not overwrite what there is by what it gives.
kv.init("t", mx.nd.array(np.arange(46).reshape(SHAPE) + 100 * first).tostype("row_sparse"))
grown = TableEmbedding(kv, "u", 2, init=RowInit("zeros")) if "GROWS" in os.environ else None
for step in range(first, last):
    ids = [step % 5, 5 + (3 * step + kv.rank) % 18]
    kv.push("t", mx.nd.sparse.row_sparse_array((np.ones((2, 2), np.float32), ids), shape=SHAPE))
    if grown is not None:
        with mx.autograd.record():
            rows = grown(np.array(ids) * FAR)
        rows.backward()
        grown.step(1)
out = mx.nd.sparse.zeros("row_sparse", SHAPE)
kv.row_sparse_pull("t", out=out, row_ids=mx.nd.arange(SHAPE[0]))
if kv.rank == 0 and grown is not None:
    np.save(os.environ["GROWS"], grown(np.arange(SHAPE[0]) * FAR).asnumpy())
if kv.rank == 0:
    np.save(target, out.asnumpy())
kv.barrier()
