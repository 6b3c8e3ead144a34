"""Does one thing wrong; run under mpilaunch by ``test_faults.py``."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

import mxnet as mx
import numpy as np
from support.paced import pause

FAULT = sys.argv[1]


def store(kind="sync-mpi"):
    """Open a store."""
    return mx.kv.create(kind)


def shapes_differ():
    """Another shape on rank 1."""
    kv = store()
    kv.init("w", mx.nd.zeros((3, 2 + kv.rank)))
    kv.barrier()


def dtypes_differ():
    """Another dtype on rank 1."""
    kv = store()
    kv.init("w", mx.nd.zeros((3,), dtype="float64" if kv.rank else "float32"))
    kv.barrier()


def keys_differ():
    """A key that rank 0 does not have."""
    kv = store()
    kv.init("w", mx.nd.zeros((3,)))
    if kv.rank:
        kv.init("extra", mx.nd.zeros((3,)))
    kv.barrier()


def keys_differ_and_rank_0_ends():
    """A key that rank 0 does not have, and will not have any more."""
    kv = store()
    kv.init("w", mx.nd.zeros((3,)))
    if kv.rank:
        kv.init("extra", mx.nd.zeros((3,)))


def push_before_init():
    """A push of an unknown key."""
    store().push("w", mx.nd.zeros((3,)))


def init_again():
    """The same key with another shape."""
    kv = store()
    kv.init("w", mx.nd.zeros((3,)))
    kv.init("w", mx.nd.zeros((4,)))


def async_without_optimizer():
    """An async push that nobody can apply."""
    kv = store("async-mpi")
    kv.init("w", mx.nd.zeros((3,)))
    kv.push("w", mx.nd.zeros((3,)))


def unknown_optimizer():
    """An optimizer of one's own where the servers would have to know it."""

    class Mine(mx.optimizer.SGD):
        """Not registered."""

    store("async-mpi").set_optimizer(Mine())


def never_joins():
    """Training alone without knowing: as with any store of MXNet's own."""
    net = mx.gluon.nn.Dense(2)
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", kvstore="device")
    with mx.autograd.record():
        loss = net(mx.nd.ones((2, 3))).sum()
    loss.backward()
    trainer.step(2)


def unequal_batches():
    """Rank 0 has one batch more than the others."""
    kv = store()
    kv.init("w", mx.nd.zeros((3,)))
    value = mx.nd.ones((3,))
    for _ in range(5 if kv.rank == 0 else 4):
        kv.pushpull("w", value, out=value)
        value.wait_to_read()


def unequal_batches_last():
    """The last rank has one batch more than the others."""
    kv = store()
    kv.init("w", mx.nd.zeros((3,)))
    value = mx.nd.ones((3,))
    for _ in range(5 if kv.rank == kv.num_workers - 1 else 4):
        kv.pushpull("w", value, out=value)
        value.wait_to_read()


def unequal_batches_then_a_barrier():
    """The last rank has one batch more than the others, which wait for it at a barrier."""
    kv = store()
    kv.init("w", mx.nd.zeros((3,)))
    value = mx.nd.ones((3,))
    for _ in range(5 if kv.rank == kv.num_workers - 1 else 4):
        kv.pushpull("w", value, out=value)
        value.wait_to_read()
    kv.barrier()


def train_for_ever():
    """Push and pull until something happens; says who it is."""
    kv = store()
    kv.init("w", mx.nd.zeros((300, 300)))
    value = mx.nd.ones((300, 300))
    step = 0
    while True:
        kv.pushpull("w", value, out=value)
        value.wait_to_read()
        value[:] = 1
        pause()
        step += 1
        if step == 20:
            sys.stdout.write(f"READY {kv.rank} {os.getpid()}\n")
            sys.stdout.flush()


def save_at_the_end():
    """Push and pull until told to end, then read the result and take a second to save it."""
    kv = store()
    kv.init("w", mx.nd.zeros((300, 300)))
    value, result = mx.nd.ones((300, 300)), mx.nd.zeros((300, 300))
    step = 0
    try:
        while True:
            kv.pushpull("w", value, out=result)
            result.wait_to_read()
            step += 1
            if step == 20:
                sys.stdout.write(f"READY {kv.rank} {os.getpid()}\n")
    finally:
        assert (result.asnumpy() == kv.num_workers).all()
        time.sleep(1)  # the saving takes a while
        sys.stdout.write(f"SAVED {kv.rank}\n")


def train_a_while():
    """Push and pull until told; the sums are checked at every step."""
    kv = store()
    kv.init("w", mx.nd.zeros((300, 300)))
    stop = []
    signal.signal(signal.SIGUSR2, lambda *_: stop.append(True))
    step = 0
    while True:
        value = mx.nd.ones((300, 300))
        flag = mx.nd.array([1.0 if stop else 0.0])
        if step == 0:
            kv.init("stop", flag)
        kv.pushpull("stop", flag)
        kv.pushpull("w", value)
        assert (value.asnumpy() == kv.num_workers).all()
        step += 1
        if step == 20:
            sys.stdout.write(f"READY {kv.rank} {os.getpid()}\n")
            sys.stdout.flush()
        if flag.asscalar() > 0:
            break
    sys.stdout.write(f"DONE {kv.rank}\n")


def crashes():
    """Native code of the last rank reads where nothing is."""
    kv = store()
    if kv.rank == kv.num_workers - 1:
        ctypes.string_at(0)
    kv.barrier()


def nan_passes():
    """NaN is the user's business."""
    kv = store()
    kv.init("w", mx.nd.zeros((3,)))
    value = mx.nd.array([1.0, np.nan, np.inf])
    kv.pushpull("w", value)
    result = value.asnumpy()
    assert result[0] == kv.num_workers
    assert np.isnan(result[1])
    assert np.isinf(result[2])


globals()[FAULT]()
