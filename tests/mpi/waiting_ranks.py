"""Each rank waits for its values now and then, within steps and between them, and not when others do."""

from __future__ import annotations

import random
import sys

import mxnet as mx

import kvstore_mpi.mxnet  # noqa: F401

KEYS, STEPS = 8, 60
size = int(sys.argv[1])

kv = mx.kv.create("sync-mpi")
decide = random.Random(kv.rank)
outs = [mx.nd.zeros(size) for _ in range(KEYS)]
kv.init([*range(KEYS)], outs)
gradients = [mx.nd.ones(size) for _ in range(KEYS)]  # of no weight: they are there before any has come
for _ in range(STEPS):
    for key in range(KEYS):
        kv.pushpull(key, gradients[key], out=outs[key], priority=decide.choice([-key, key]))
        if decide.random() < 0.2:
            outs[decide.randrange(key + 1)].wait_to_read()
    if decide.random() < 0.5:
        mx.nd.waitall()
assert all((out.asnumpy() == kv.num_workers).all() for out in outs)
print("right", flush=True)  # noqa: T201
