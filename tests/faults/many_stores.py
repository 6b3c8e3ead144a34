"""Makes stores and closes them one after the other; run by ``test_closed_stores.py``, which looks on.

Before the second half, and at the end, each rank waits until the test has looked.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import mxnet as mx

STORES, NUMBERS = 12, 5_000_000

value, out = mx.nd.ones((NUMBERS,)), mx.nd.zeros((NUMBERS,))
for number in range(STORES):
    kv = mx.kv.create(os.environ["MODE"])
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.5, momentum=0.5))
    kv.init("w", value)
    kv.push("w", value)
    kv.pull("w", out=out)
    assert (out.asnumpy() != 1.0).all()
    kv.close()
    if number in {STORES // 3, STORES - 1}:
        sys.stdout.write(f"READY {kv.rank} {os.getpid()} incarnation 0 stores {number + 1}\n")
        sys.stdout.flush()
        Path(f"{sys.argv[1]}{kv.rank}").read_bytes()
