"""Closes its first store and trains in the next until a file is there; run by ``test_closed_stores.py``.

In a synchronous store for some steps.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import mxnet as mx
from support.paced import pause

STEPS = 5  # of the first store, and of a synchronous one

stop, mode = Path(sys.argv[1]), os.environ["MODE"]
incarnation = int(os.environ.get("KVMPI_INCARNATION", "0"))


def say(what: object) -> None:
    """Write a line at once."""
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def train(*, is_last: bool) -> None:
    """Open a store, train in it, and close the first one."""
    kv = mx.kv.create(mode)
    kv.init("w", mx.nd.zeros((1000,)))
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
    if is_last:
        say(f"READY {kv.rank} {os.getpid()} incarnation {incarnation}")
    value, steps = mx.nd.zeros((1000,)), 0
    while steps < STEPS or (is_last and mode == "async-mpi" and not stop.exists()):
        kv.pushpull("w", mx.nd.ones((1000,)), out=value)
        value.wait_to_read()
        pause()
        steps += 1
    if is_last and mode == "sync-mpi" and not incarnation:
        stop.read_bytes()  # waits until the test ends this process
    if not is_last:
        kv.close()
        return
    kv.barrier()
    say(f"DONE {kv.rank} incarnation {incarnation}")


train(is_last=False)
train(is_last=True)
