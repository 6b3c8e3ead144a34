"""How a server or the scheduler has ended, and whether that is a failure. Pure.

Services end with 0 when all workers have left. A server saves then, and also where the job is told to end;
one that has not has lost what the job has come to since it did last, and that is a failure however well
the ranks have ended.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TYPE_CHECKING

from kvstore_mpi.errors import HostLostError, InternalError, NotSavedError
from mpilaunch.outcome.root_cause import Failure, describe_code
from mpilaunch.stages import Stage

if TYPE_CHECKING:
    from mpilaunch.events import Exited

NOT_SAVED = NotSavedError.exit_code


def failure_of(
    event: Exited, now: float, here: str, stage: Stage, *, told: bool, saves: bool, ranks_save: bool
) -> Failure | None:
    """Return the failure that the end of a service is, if it is one.

    Args:
        event: The end.
        now: When it is.
        here: The launcher's host, of what has ended on no other.
        stage: Of the job.
        told: The service was told to end.
        saves: It is a server that saves because the job is over.
        ranks_save: Ranks save because the job was told to end, or has taken too long.
    """
    error = HostLostError.__name__ if event.text else ""
    failure = Failure(event.name, event.code, now, event.host or here, event.pid, error, event.text)
    if told:
        return _lost_snapshot(failure, stage) if saves or event.code == NOT_SAVED else None
    if event.code:
        # Ranks that save have left its job: to the scheduler they are lost.
        return None if ranks_save and failure.is_secondary else failure
    if stage is Stage.STARTING:
        return replace(
            failure, code=InternalError.exit_code, text="it ended before it said where it listens"
        )
    return None


def _lost_snapshot(failure: Failure, stage: Stage) -> Failure | None:
    """Return the failure of a server that has ended without its last snapshot, if it has."""
    if failure.code == 128 + signal.SIGTERM and stage is Stage.SNAPSHOTS:
        return None  # who has only begun has nothing to save, and ends by this signal itself
    if failure.code in {0, NOT_SAVED}:
        return failure if failure.code else None
    text = f"it has ended before its last snapshot was written: {describe_code(failure.code)}"
    return replace(failure, code=NOT_SAVED, text=failure.text or text)
