"""Exchanges with a center until a file is there, and writes each down; run by ``test_elastic.py``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
from support.paced import pause

from kvstore_mpi.esgd import Elastic

ALPHA = 0.5
SIZE = 100

stop = Path(sys.argv[1])
kv = mx.kv.create("async-mpi")
kv.set_optimizer(Elastic(ALPHA))
kv.init("w", mx.nd.zeros((SIZE,), dtype="float64"))
kv.barrier()
draw = np.random.RandomState(kv.rank)
center = mx.nd.zeros((SIZE,), dtype="float64")
record = []  # what was given, and the center as it was before; the same if the exchange was left out
while not stop.exists():
    given = draw.uniform(-1.0, 1.0)
    kv.pushpull("w", mx.nd.array(np.full(SIZE, given), dtype="float64"), out=center)
    now = center.asnumpy()
    assert (now == now[0]).all()
    record.append((given, float(now[0])))
    pause()
    if len(record) == 20:
        sys.stdout.write(f"READY {kv.rank} {os.getpid()}\n")
        sys.stdout.flush()
kv.barrier()
kv.pull("w", out=center)
stop.with_name(f"record{kv.rank}.json").write_text(json.dumps(record), encoding="utf-8")
sys.stdout.write(f"DONE {kv.rank} value {float(center.asnumpy()[0])!r}\n")
