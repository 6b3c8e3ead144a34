"""Whole jobs whose terminal is closed, or whose output cannot be written."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.mpi

IN_TERMINAL = str(Path(__file__).parent / "scripts" / "in_terminal.py")

TALK = """
print("waiting")
try:
    for number in range(1_000_000):
        print(number)
        time.sleep(0.05)
finally:
    print("saved")
"""


def logs_of(job):
    return {path.name: path.read_text() for path in job.folder.glob("mpilaunch-logs/*/*.log")}


def test_a_terminal_that_is_closed_lets_the_ranks_save(launch, script):
    """As SIGHUP does; the lines that nobody sees any more are in the logs."""
    job = launch("--workers", 2, "--grace", 60, script(TALK), program=(IN_TERMINAL,))
    assert job.wait() == 0, job.text
    assert job.lines == ["code 75"]
    logs = logs_of(job)
    assert all(logs[f"client0.{rank}.log"].endswith("saved\n") for rank in range(2))
    assert "ended by SIGHUP" in logs["mpilaunch.log"]


@pytest.mark.parametrize("stream", [1, 2])
def test_output_to_a_full_disk_does_not_end_the_job(launch, script, stream):
    """One warning, and all lines are in the logs."""
    head = f"import os; os.dup2(os.open('/dev/full', os.O_WRONLY), {stream})"
    body = "print('hello', flush=True)\nprint('oh', file=sys.stderr)\n" * 3
    main = "; import sys; from mpilaunch.cli import main; sys.exit(main())"
    job = launch("--workers", 2, script(body), program=("-c", head + main))
    assert job.wait() == 0, job.text
    logs = logs_of(job)
    assert logs["mpilaunch.log"].count("cannot be written: No space left on device") == 1
    assert len(logs["client0.0.log"].split()) == 6
