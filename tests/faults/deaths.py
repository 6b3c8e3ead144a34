"""Lets a worker die at a chosen phase of an exchange; used by ``elastic.py``.

Each phase is one call of the worker, which is replaced by one that looks whether it is time.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from kvstore_mpi.wire import messages as m
from kvstore_mpi.wire.events import Received
from kvstore_mpi.worker.collectives import Collective

EXCHANGES = (40, 5)
"""In each incarnation the exchange, from 1 on, in which the worker dies; in the first when all train."""


def prepare(worker, phase, incarnation, pipe):
    """Let the leader of a client die in a phase; ``pipe`` is where a member meets it for that."""

    def is_time(sequence):
        return sequence >= EXCHANGES[incarnation]

    def die():
        os.write(1, f"DIES {phase} in incarnation {incarnation}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)

    _PHASES[phase](worker, is_time, die, pipe)


def _before_the_push(worker, is_time, die, _pipe):
    """The ranks have averaged their parameters; the leader dies where it would send them."""
    loop = worker._loop
    send = loop.send

    def send_or_die(peer, message, *rest):
        if isinstance(message, m.Push) and is_time(message.entries[0][3]):
            die()
        send(peer, message, *rest)

    if worker.mpi_rank == 0:
        loop.send = send_or_die


def _before_the_answer(worker, is_time, die, _pipe):
    """The server has exchanged, since it has answered; the leader dies before it has looked at that."""
    node = worker.io
    on_event = node.on_event

    def see_or_die(event, now):
        answer = isinstance(event, Received) and isinstance(event.message, m.Values)
        if answer and is_time(event.message.entries[0][3]):
            die()
        on_event(event, now)

    if worker.mpi_rank == 0:
        node.on_event = see_or_die


def _in_the_broadcast(worker, is_time, die, pipe):
    """The leader has the center; it dies when another rank has come to where it would be given it."""
    mpi_thread = worker._mpi_thread
    carry_out = mpi_thread.carry_out

    def share_or_die(bucket):
        shared = [job for job in bucket if job.operation is Collective.SHARE]
        if any(is_time(job.key.pushes) for job in shared):
            if worker.mpi_rank == 0:
                Path(pipe).read_bytes()
                die()
            Path(pipe).write_bytes(b"there")
        carry_out(bucket)

    mpi_thread.carry_out = share_or_die


_PHASES = {
    "before_the_push": _before_the_push,
    "before_the_answer": _before_the_answer,
    "in_the_broadcast": _in_the_broadcast,
}
