"""What must happen before the process forks and before it ends.

MXNet stops its engine at both, holding the interpreter's lock; an operation of ours that then still needs
the lock would stop the process for ever. Importing this file registers the hooks, after MXNet's own and
therefore to run before them. This file must not know about stores.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
from typing import TYPE_CHECKING

import mxnet as mx

from kvstore_mpi.adapters.mxnet.bridge import engine
from kvstore_mpi.errors import DeadlineError, KVStoreError, PeerLostError, ToldToEndError

if TYPE_CHECKING:
    from kvstore_mpi.comm.links import Links
    from kvstore_mpi.interfaces import KVWorker

MORE_SECONDS = 300.0
"""For which operations are waited for beyond their own deadline."""

INTERRUPT_SECONDS = 2.0
"""The I/O thread answers within milliseconds; it may be gone."""

_log = logging.getLogger("kvstore_mpi.mxnet")
_process = os.getpid()
# Of the module: exits of the interpreter and forks concern all stores of the process, and know none.
_workers: list[KVWorker] = []
_links: list[Links] = []


def close_at_exit(worker: KVWorker) -> None:
    """Let a worker leave the job in order when the interpreter ends."""
    if worker not in _workers:
        _workers.append(worker)


def part_at_exit(links: Links) -> None:
    """Let the other ranks of the worker know when this one's program is over."""
    if links not in _links:
        _links.append(links)


def drain_seconds() -> float:
    """Return more than any operation may take, so that only a bug of ours makes anybody wait as long."""
    return max([worker.step_timeout for worker in _workers], default=0.0) + MORE_SECONDS


def _before_fork() -> None:
    if os.getpid() == _process:
        _drain()


def _drain() -> None:
    limit = drain_seconds()
    if not engine.wait_until_idle(limit):
        engine.abandon(DeadlineError(f"operations have not ended within {limit:g} s"))
    # MXNet's own operations behind ours free our memory, which takes the lock, too. An array keeps the
    # error that it has caught, and whoever reads it is told.
    with contextlib.suppress(Exception):
        mx.nd.waitall()


def interrupt(reason: str) -> None:
    """This process has been told to end: give up what is pending and make all arrays readable.

    Where an operation was given up, a weight keeps the value that it had. Call it from the thread that uses
    MXNet; the errors that its arrays have caught are thrown away, because the program goes on to save them.
    """
    _links.clear()  # the others must not take this for the end of a program
    for worker in _workers:
        worker.interrupt(reason)
    if not engine.wait_until_idle(INTERRUPT_SECONDS):
        engine.abandon(PeerLostError(f"this process {reason}"))
    with contextlib.suppress(mx.MXNetError, KVStoreError):
        mx.nd.waitall()


def _at_exit() -> None:
    if os.getpid() != _process:
        return
    _drain()
    # After an error that is what others are to hear; and before a worker waits for others to finish, too.
    if all(worker.failure() is None for worker in _workers):
        for links in _links:
            links.part()
    for worker in _workers:
        worker.close()
        error = worker.failure()
        if error is not None and not isinstance(error, ToldToEndError):
            _log.error("worker %d ends after a failure: %s", worker.rank, error)


os.register_at_fork(before=_before_fork)
atexit.register(_at_exit)
