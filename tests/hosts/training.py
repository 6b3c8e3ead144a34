"""Trains until somebody ends it, and says when it has saved; run by tests with hosts of their own."""

from __future__ import annotations

import atexit
import os
import sys
import time

import mxnet as mx


def say(text):
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


kv = mx.kv.create(os.environ.get("STORE", "dist_sync_mpi"))
if "STORE" in os.environ:
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.1))
atexit.register(lambda: say(f"SAVED {kv.rank}"))
kv.init("w", mx.nd.zeros((1000,)))
value = mx.nd.zeros((1000,))
kv.pull("w", out=value)
say(f"BEGINS {float(value[0].asscalar())}")
for step in range(1_000_000):
    kv.pushpull("w", mx.nd.ones((1000,)))
    mx.nd.waitall()
    if step == 0:
        say(f"TRAINS {kv.rank} {os.getpid()}")
    time.sleep(0.01)
