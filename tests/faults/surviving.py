"""Comes to a phase of a job, waits there while another process dies, and saves.

Run by ``test_survivors.py``. When the saving begins, and when the exit handlers run, stands in files of the
folder ``SAVES``.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from pathlib import Path

import mxnet as mx
from mpi4py import MPI

from kvstore_mpi.comm import mpi
from kvstore_mpi.esgd import Elastic

PHASE, KIND = sys.argv[1].split(":")
SHAPE = (300, 300)


def ready():
    """Say which process this rank is, and that it is where the test wants it."""
    sys.stdout.write(f"READY {rank} {os.getpid()}\n")
    sys.stdout.flush()


def note(what):
    """Leave the time, whole or not at all; all processes of a host share this clock."""
    draft = Path(os.environ["SAVES"], f"{what}{rank}.draft")
    draft.write_text(str(time.monotonic()))
    draft.rename(draft.with_suffix(""))


def in_joining():
    """The last rank of a client does not make a store; the others of its client wait for it in MPI."""
    if MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1:
        hold_back()
    threading.Thread(target=ready_in_mpi, daemon=True).start()
    open_store()


def ready_in_mpi():
    """Say that this rank is ready when one of its threads is in MPI."""
    while not any(frame.f_code.co_filename == mpi.__file__ for frame in sys._current_frames().values()):
        os.sched_yield()
    ready()


def hold_back():
    """Be rank 0, for whom the others wait; the wait is one that any signal ends."""
    ready()
    signal.pause()


def set_optimizer():
    """Give the store its update rule."""
    if KIND == "elastic":
        kv.set_optimizer(Elastic(0.5))
    else:
        kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.1))


def in_set_optimizer():
    """Rank 0 does not give an optimizer, nor a value; the others wait for both."""
    if rank == 0:
        hold_back()
    ready()
    set_optimizer()
    kv.init("w", value)
    kv.pull("w", out=value)
    value.wait_to_read()


def in_init():
    """The servers have their optimizer; rank 0 does not create the key."""
    set_optimizer()
    if rank == 0:
        hold_back()
    kv.init("w", value)
    kv.pull("w", out=value)
    ready()
    value.wait_to_read()


def in_barrier():
    """Rank 0 neither pushes nor comes to the barrier; on a synchronous store others' pushes wait, too."""
    set_optimizer()
    kv.init("w", value)
    if rank == 0:
        hold_back()
    kv.push("w", value)
    ready()
    kv.barrier()
    # Rank 0, once told to end, is waited for no more. This rank is about to be told, and not within `note`.
    while not threading.Event().wait(0.1):  # a signal just before a wait does not end it
        pass


def in_training():
    """Push and pull for ever."""
    set_optimizer()
    kv.init("w", value)
    out = mx.nd.zeros(SHAPE)
    for step in range(10**9):
        kv.pushpull("w", value, out=out)
        out.wait_to_read()
        if step == 10:
            ready()


def open_store():
    """Open a store of the kind in question."""
    return mx.kv.create("sync-mpi" if KIND == "sync" else "async-mpi")


rank = int(os.environ["KVMPI_CLIENT"]) * MPI.COMM_WORLD.size + MPI.COMM_WORLD.rank
value = mx.nd.ones(SHAPE)
atexit.register(note, "atexit")
try:
    if PHASE != "joining":
        kv = open_store()
    globals()[f"in_{PHASE}"]()
finally:
    note("finally")
    value.asnumpy()  # what is to be saved can be read, though what was to change it did not end
