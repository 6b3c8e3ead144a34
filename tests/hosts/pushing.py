"""Pushes until somebody ends it, and says when it has saved; without MXNet, whose import takes seconds.

Run by tests with hosts of their own.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time

import numpy as np

from kvstore_mpi.node import process_worker
from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec
from kvstore_mpi.testing.blocking_store import BlockingStore


def say(text):
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


mode = os.environ.get("MODE", "sync")
worker = process_worker("a test", mode)
store = BlockingStore(worker, mode)
if mode == "async":
    worker.set_optimizer(store.number, OptimizerSpec(name="sgd", hyper=HyperParameters(lr=0.1)).to_dict())


def save():
    """Wait first for SIGTERM, and for a word of the test, where that is asked for."""
    held = f"{os.environ.get('HELD')}.{worker.rank}"
    if os.path.exists(held):  # noqa: PTH110  a named pipe
        heard = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: heard.set())
        say(f"TO BE SAVED {worker.rank}")
        assert heard.wait(60)
        say(f"HEARD {worker.rank}")
        with open(held) as pipe:  # noqa: PTH123  likewise
            pipe.readline()
    say(f"SAVED {worker.rank}")


atexit.register(save)
store.init("w", np.zeros(1000, np.float32))
say(f"BEGINS {store.pull('w')[0]}")
for step in range(1_000_000):
    store.pushpull("w", np.ones(1000, np.float32))
    if step == 0:
        say(f"TRAINS {worker.rank} {os.getpid()}")
    if step % 100 == 99:
        say(f"STEPS {worker.rank} {step + 1}")
    time.sleep(0.01)
