"""The first steps of a job: a store is opened, and what all push is summed."""

import mxnet as mx

kv = mx.kv.create("sync-mpi")
kv.init("w", mx.nd.zeros(3))
total = mx.nd.zeros(3)
kv.pushpull("w", mx.nd.ones(3), out=total)
assert total.asnumpy().tolist() == [float(kv.num_workers)] * 3
