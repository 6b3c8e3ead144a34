"""Trains a table for some steps; run under mpilaunch by ``test_resumption.py``."""

from __future__ import annotations

import os
import sys

import mxnet as mx
import numpy as np

SHAPE = (23, 2)

target = sys.argv[1]
first, last = map(int, os.environ["STEPS"].split())
kv = mx.kv.create("sync-mpi")
kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.5, momentum=0.5))
# A job that is resumed does not overwrite what there is by what it gives.
kv.init("t", mx.nd.array(np.arange(46).reshape(SHAPE) + 100 * first).tostype("row_sparse"))
for step in range(first, last):
    ids = [step % 5, 5 + (3 * step + kv.rank) % 18]
    kv.push("t", mx.nd.sparse.row_sparse_array((np.ones((2, 2), np.float32), ids), shape=SHAPE))
out = mx.nd.sparse.zeros("row_sparse", SHAPE)
kv.row_sparse_pull("t", out=out, row_ids=mx.nd.arange(SHAPE[0]))
if kv.rank == 0:
    np.save(target, out.asnumpy())
kv.barrier()
