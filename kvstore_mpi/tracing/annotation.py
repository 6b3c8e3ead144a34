"""Marks of the user's on the trace: ``with kvstore_mpi.annotate("forward"):``.

Knows the recorder of this process, if there is one. Must not know what is done with the marks.
"""

from __future__ import annotations

import atexit
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvstore_mpi.tracing.recorder import Recorder

# Of the module: ``annotate`` decorates functions before there is a store, and whoever calls it knows none.
_recorder: Recorder | None = None


def install(recorder: Recorder) -> None:
    """Let a recorder take the marks of this process; it is written at exit at the latest."""
    global _recorder  # noqa: PLW0603  a process is one worker, however many stores it has
    _recorder = recorder
    atexit.register(recorder.write)


def installed() -> Recorder | None:
    """Return the recorder of this process, if there is one."""
    return _recorder


@contextmanager
def annotate(name: str) -> Iterator[None]:
    """Mark what this thread does inside the ``with`` block, or in a function so decorated, on the trace.

    Does nothing where no trace is recorded: without ``mpilaunch --trace`` or ``--report``, before the
    first store is made, and with stores of MXNet's own.

    Args:
        name: Its first word counts, as in ``"forward layer 3"``. ``"forward"`` and ``"backward"`` tell the
            report what is computing and where an iteration begins; ``"wait"`` inside them is not counted as
            computing. ``"iteration"`` says where one begins if that is not the first forward behind a
            backward, and is not computing by itself. Any other word is computing, too.
    """
    recorder = _recorder
    if recorder is None:
        yield
        return
    since, pending = recorder.now(), recorder.begins(name)
    try:
        yield
    finally:
        recorder.ends(name, pending)
        recorder.span(name, since)
