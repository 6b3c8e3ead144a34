"""Computes with early layers while the last layer's round waits; ``test_overlap.py`` runs it in a job.

Two workers. Rank 1 does not push the last layer's key before rank 0 has said, through a store of its own,
that the forward pass of its first layer in the next iteration is over. If anything in rank 0 waited for
more than it needs, both would wait for ever.
"""

from __future__ import annotations

import sys

import mxnet as mx

kv, signals = mx.kv.create("sync-mpi"), mx.kv.create("sync-mpi")
FIRST, LAST = 0, 1
weights = [mx.nd.ones((400, 400)) for _ in (FIRST, LAST)]
kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.5))
for key, weight in enumerate(weights):
    kv.broadcast(key, weight, out=weight)
signals.init("go", mx.nd.zeros((1,)))

gradients = [mx.nd.ones((400, 400)) for _ in weights]
go = mx.nd.ones((1,))
if kv.rank == 0:
    kv.pushpull(LAST, gradients[LAST], out=weights[LAST], priority=-LAST)
    kv.pushpull(FIRST, gradients[FIRST], out=weights[FIRST], priority=-FIRST)
    hidden = mx.nd.dot(mx.nd.ones((1, 400)), weights[FIRST])
    assert hidden.asnumpy().max() == 0.0  # 1 - 0.5 * (1 + 1), so this is the new weight
    signals.pushpull("go", go)
else:
    kv.pushpull(FIRST, gradients[FIRST], out=weights[FIRST], priority=-FIRST)
    signals.pushpull("go", go)
    assert go.asscalar() == kv.num_workers
    kv.pushpull(LAST, gradients[LAST], out=weights[LAST], priority=-LAST)
assert weights[LAST].asnumpy().max() == 0.0
sys.stdout.write(f"OVERLAPPED {kv.rank}\n")
