"""A launcher that was stopped for a while, as by Ctrl-Z, does not take its own silence for others'."""

import os
import signal
import threading
import time

import pytest
from support.often import often

from mpilaunch.seeing import control
from mpilaunch.seeing.job_view import due
from mpilaunch.seeing.observer import LATE_SECONDS

pytestmark = pytest.mark.mpi

LEASE = 8
DEADLINE = 60.0
TRAINS = """
import signal
import threading
from kvstore_mpi.node import process_worker
ended = threading.Event()
signal.signal(signal.SIGUSR2, lambda *_: ended.set())  # whichever thread the system gives it to
worker = process_worker("sync-mpi", "sync")
print("trains")
assert ended.wait(60)
"""


def rows(directory):
    """Ask the launcher about its processes."""
    return control.ask(directory, {"do": "top"})["rows"]


@pytest.mark.parametrize("late", often([LATE_SECONDS / 2], [LATE_SECONDS / 2, 2 * LATE_SECONDS]))
def test_nobody_is_blamed_for_a_stop(launch, tmp_path, late):
    """All have told about themselves meanwhile; it is read before anybody counts as silent."""
    script = tmp_path / "train.py"
    script.write_text(TRAINS)
    job = launch("--workers", 2, "--lease", LEASE, script)
    job.wait_for("trains", 2)
    [directory] = (job.folder / "tmp").glob(f"{control.PRIVATE_PREFIX}*")
    end = time.monotonic() + DEADLINE
    while not all(row["pid"] for row in rows(directory)):
        assert time.monotonic() < end, rows(directory)
        threading.Event().wait(0.1)
    job.signal(signal.SIGSTOP)
    threading.Event().wait(due(LEASE) + late)  # how long it is stopped is what this is about
    job.signal(signal.SIGCONT)
    after = rows(directory)
    assert len(after) == 2
    assert all(row["age"] < LEASE for row in after), after
    for row in after:
        os.kill(row["pid"], signal.SIGUSR2)
    assert job.wait() == 0, job.text
    assert not job.with_text("inspection")
