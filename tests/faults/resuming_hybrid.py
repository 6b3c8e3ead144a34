"""Trains a table of which each step touches all rows, and a dense key; run by ``test_resumption.py``."""

from __future__ import annotations

import os
import sys

import mxnet as mx
import numpy as np

SHAPE = (50, 2)

target = sys.argv[1]
first, last = map(int, os.environ["STEPS"].split())
kv = mx.kv.create("sync-mpi")
kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.5, momentum=0.5))
rows = mx.nd.sparse.row_sparse_array((np.ones(SHAPE, np.float32), range(SHAPE[0])), shape=SHAPE)
# A job that is resumed does not overwrite what there is by what it gives.
kv.init("t", mx.nd.full(SHAPE, 100 * first))
for step in range(first, last):
    kv.push("t", rows)
    if step == first:  # behind the first push of rows, by which the store has a table
        kv.init("d", mx.nd.full((2,), 100 * first))
    kv.push("d", mx.nd.ones((2,)))
outs = mx.nd.empty(SHAPE), mx.nd.empty((2,))
for key, out in zip("td", outs):
    kv.pull(key, out=out)
if kv.rank == 0:
    np.save(target, np.concatenate([out.asnumpy().reshape(-1, 2) for out in outs]))
kv.barrier()
