"""Trains asynchronously until a file is there; run under mpilaunch by ``test_returns.py``.

With ``TABLE`` in the environment beside a dense key a table, of which each step pushes two rows: one that
all steps push, and one that is that of a rank and incarnation alone; each looks up both.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import mxnet as mx
from mpi4py import MPI
from support.paced import pause

SIZE = 1_000
MORE = 20  # steps that all make after the file is there, however fast the test was

stop = Path(sys.argv[1])
ranks = MPI.COMM_WORLD.Dup()
kv = mx.kv.create("async-mpi")
incarnation = int(os.environ.get("KVMPI_INCARNATION", "0"))
kv.init("w", mx.nd.full((SIZE,), 1000.0 * (1 + incarnation)))
kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
has_table = "TABLE" in os.environ
shape = (1_000, 2)
own = 1 + 2 * kv.rank + incarnation  # incarnations are 0 and 1
if has_table:
    kv.init("t", mx.nd.zeros(shape).tostype("row_sparse"))
kv.barrier()
value = mx.nd.zeros((SIZE,))
kv.pull("w", out=value)
first = float(value.asnumpy()[0])
steps = 0
last = None
while last is None or steps < last:
    if last is None and ranks.bcast(stop.exists()):  # all ranks of a client stop at the same step
        last = steps + MORE
    kv.pushpull("w", mx.nd.full((SIZE,), 1.0), out=value)
    if has_table:
        kv.push("t", mx.nd.sparse.row_sparse_array((mx.nd.ones((2, 2)), [0, own]), shape=shape))
        both = mx.nd.sparse.zeros("row_sparse", shape)
        kv.row_sparse_pull("t", out=both, row_ids=mx.nd.array([own, 0]))
        every, mine = -both.data.asnumpy()[:, 0]
        assert mine <= steps + 1
        assert mine <= every
    now = value.asnumpy()
    assert (now == now[0]).all()  # an update is whole
    pause()
    steps += 1
    if steps == 20:
        sys.stdout.write(f"READY {kv.rank} {os.getpid()} incarnation {incarnation} from {first}\n")
        sys.stdout.flush()
kv.barrier()
kv.pull("w", out=value)
if has_table:
    rows = mx.nd.sparse.zeros("row_sparse", shape)
    kv.row_sparse_pull("t", out=rows, row_ids=mx.nd.arange(20))
    counts = " ".join(str(-int(count)) for count in rows.data.asnumpy()[:, 0])
    sys.stdout.write(f"ROWS {kv.rank} {counts}\n")
sys.stdout.write(
    f"DONE {kv.rank} incarnation {incarnation} steps {steps} value {float(value.asnumpy()[0])}\n"
)
