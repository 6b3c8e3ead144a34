"""Averages in rounds with a quorum until a file is there; run under mpilaunch by ``test_returns.py``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import mxnet as mx
from mpi4py import MPI
from support.paced import pause

from kvstore_mpi.esgd import Elastic

SIZE = 1_000
ALPHA = 0.3

stop = Path(sys.argv[1])
ranks = MPI.COMM_WORLD.Dup()
kv = mx.kv.create("sync-mpi")
kv.set_optimizer(Elastic(ALPHA), quorum=1, quorum_wait=0.1)
incarnation = int(os.environ.get("KVMPI_INCARNATION", "0"))
params = mx.nd.full((SIZE,), 1000.0 * (1 + incarnation))
kv.init("w", params)
kv.barrier()
kv.pull("w", out=params)
first = float(params.asnumpy()[0])
center = mx.nd.zeros((SIZE,))
steps = 0
while not ranks.bcast(stop.exists()):  # all ranks of a client stop at the same step
    params *= 0.9
    kv.pushpull("w", params, out=center)
    params -= ALPHA * (params - center)
    now = params.asnumpy()
    assert (now == now[0]).all()
    pause()
    steps += 1
    if steps == 50:
        sys.stdout.write(f"READY {kv.rank} {os.getpid()} incarnation {incarnation} from {first}\n")
        sys.stdout.flush()
sys.stdout.write(f"DONE {kv.rank} incarnation {incarnation} steps {steps} value {float(now[0])}\n")
