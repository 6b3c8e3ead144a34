"""Trains, and hangs in one way after the other, until the test sends SIGUSR2; see ``test_hangs.py``."""

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time

import numpy as np
from mpi4py import MPI

from kvstore_mpi.node import process_worker
from kvstore_mpi.testing.blocking_store import BlockingStore


class ReleasedError(Exception):
    """The test has seen enough."""


def release(_number, _frame):
    if may_go_on is None:
        raise ReleasedError
    may_go_on.set()


def say(text):
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def from_outside():
    """Train until rank 0 is told that it is over; what is done meanwhile, the test does."""
    global may_go_on  # noqa: PLW0603  of the signal's handler
    may_go_on = threading.Event()
    over = False
    while not over:
        over = store.pushpull("flag", FLAG * may_go_on.is_set())[0] > 0
    may_go_on = None


def in_native_code():
    """PyDLL, unlike CDLL, does not give the interpreter's lock back; a signal does not end this call."""
    if culprit:
        os.mkfifo("release")
        pipe = os.open("release", os.O_RDWR)
        ctypes.PyDLL(None).read(pipe, ctypes.create_string_buffer(1), 1)


def in_sleep():
    if culprit:
        with contextlib.suppress(ReleasedError):
            time.sleep(600)


def in_another_order():
    """Wait for a later push before this one, which the other client waits for."""
    if worker.client == 1:
        later = store.begin_pushpull("w", VALUE)
        with contextlib.suppress(ReleasedError):
            later.result(600)
        store.pushpull("b", VALUE)
        later.result(60)
    else:
        store.pushpull("b", VALUE)
        store.pushpull("w", VALUE)


def in_another_barrier():
    if culprit:
        with contextlib.suppress(ReleasedError):
            threading.Barrier(2).wait(600)


def in_mpi():
    """Another rank of the same client than the one that pushes for it."""
    if worker.rank == 3:
        with contextlib.suppress(ReleasedError):
            MPI.COMM_WORLD.recv(source=0, tag=99)


may_go_on = None
signal.signal(signal.SIGUSR2, release)
worker = process_worker("sync-mpi", "sync")
store = BlockingStore(worker)
VALUE, FLAG = np.ones(1000, np.float32), np.ones(1, np.float32)
for key in ("w", "b"):
    store.init(key, VALUE)
store.init("flag", FLAG)
culprit = worker.rank == 2
for hang in (from_outside, in_native_code, in_sleep, in_another_order, in_another_barrier, in_mpi):
    worker.barrier()
    if worker.rank == 0:
        say(f"hangs: {hang.__name__}")
    hang()
    if hang is in_another_barrier:
        worker.barrier()
    store.pushpull("w", VALUE)
