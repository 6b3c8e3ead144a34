"""What a rank tells the launcher of itself: lines on a named pipe in the job's private directory.

And how any process begins a line of its log that the launcher looks for.

Standard library only, for every rank pays for it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

EVENTS = "events"
"""Name of the pipe."""

CANNOT_CONNECT = "cannot connect to "
"""What a process's log says before whom it does not reach, and why: it has nobody else to tell that."""


def tell(directory: str | Path, rank: tuple[int, int, int], event: str, **more: object) -> None:
    """Write one line; lines shorter than PIPE_BUF never mix with those of other ranks.

    Args:
        directory: The job's private directory.
        rank: The client of this rank, its number there, and how often the client has been restarted.
        event: What has happened.
        more: What else there is to say of it.

    Raises:
        OSError: The launcher is gone.
    """
    line = {**dict(zip(("client", "rank", "incarnation"), rank)), "event": event, **more}
    pipe = open_pipe(Path(directory) / EVENTS)
    try:
        os.write(pipe, (json.dumps(line) + "\n").encode())
    finally:
        os.close(pipe)


def open_pipe(path: Path) -> int:
    """Open a named pipe for writing, or fail at once when the launcher is gone."""
    descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    return descriptor
