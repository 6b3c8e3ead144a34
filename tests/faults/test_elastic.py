"""Elastic averaging goes on, and gets as far, when a rank, a client or a server is killed or late."""

from __future__ import annotations

import json
import os
import re
import signal

import pytest

LAYOUT = (2, 2, 2)
ACCURACY = 0.96
PATIENT = {"KVMPI_CONNECT_TIMEOUT": "40", "KVMPI_STEP_TIMEOUT": "40", "KVMPI_FINISH_TIMEOUT": "40"}
"""To import what the script needs takes long on a busy machine."""

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.mxnet,
    pytest.mark.slow,
    pytest.mark.thorough,
    pytest.mark.timeout(200),
]


def begin(start, tmp_path, *options, **terms):
    """Start a job; return it, the file that ends it, and the workers' process numbers once they train."""
    stop = tmp_path / "stop"
    options = ("--max-restarts", "1", *options)
    environment = {**PATIENT, "TERMS": json.dumps(terms)}
    job = start(stop, LAYOUT, script="elastic.py", options=options, environment=environment)
    return job, stop, job.workers(4)


def finish(job, stop):
    """Let the job end well; return what it said."""
    stop.touch()
    family = job.family()
    code, said = job.end()
    assert code == 0, said[-3000:]
    assert [pid for pid in family if job.is_alive(pid)] == []
    reached = {
        int(rank): float(value) for rank, value in re.findall(r"CENTER (\d) .* accuracy (\S+)", said)
    }
    assert sorted(reached) == [0, 1, 2, 3]
    assert min(reached.values()) >= ACCURACY, reached
    return said


def test_the_client_of_a_killed_rank_comes_back(start, tmp_path):
    """It begins with what the others have reached, though rank 0, whose weights began it all, is of it."""
    job, stop, workers = begin(start, tmp_path)
    os.kill(workers[1], signal.SIGKILL)
    back = job.wait_for("life 1 from", 2)
    assert all(float(line.split()[-1]) > 0.5 for line in back), back
    finish(job, stop)


def test_a_client_that_is_killed_whole_comes_back(start, tmp_path):
    """All its processes at once; the other client trains on and is not started again."""
    job, stop, workers = begin(start, tmp_path)
    for rank in (2, 3):
        os.kill(workers[rank], signal.SIGKILL)
    back = job.wait_for("life 1 from", 2)
    assert all(float(line.split()[-1]) > 0.5 for line in back), back
    said = finish(job, stop)
    assert {int(rank): int(life) for rank, life in re.findall(r"CENTER (\d) life (\d)", said)} == {
        0: 0,
        1: 0,
        2: 1,
        3: 1,
    }


def test_a_late_client_joins(start, tmp_path):
    """The other one trains without it; then it begins with what that has reached."""
    stop, comes = tmp_path / "stop", tmp_path / "comes"
    os.mkfifo(comes)
    environment = {**PATIENT, "CLIENT_1_COMES": str(comes)}
    job = start(stop, LAYOUT, script="elastic.py", options=("--start-with", "1"), environment=environment)
    early = job.wait_for("life 0 from", 2)
    comes.write_bytes(b"now")
    late = [line for line in job.wait_for("life 0 from", 4) if line not in early]
    assert all(float(line.split()[-1]) > 0.5 for line in late), late
    said = finish(job, stop)
    assert "has not joined yet" in said


@pytest.mark.parametrize("snapshot", [True, False], ids=["with_a_snapshot", "without"])
def test_a_server_comes_back(start, tmp_path, snapshot):
    """While it is away its exchanges are left out, with one warning, and nobody waits."""
    folder = tmp_path / "snapshots"
    options = ("--snapshot-dir", folder, "--snapshot-every", "1") if snapshot else ()
    options += () if snapshot else ("--transport", "tcp")  # within a host nothing is compressed otherwise
    terms = {} if snapshot else {"overlap": 2, "compress": "int8"}
    job, stop, _ = begin(start, tmp_path, *options, **terms)
    if snapshot:
        job.wait_for_file(folder / "server1.snapshot")
    os.kill(job.services()["server1"], signal.SIGKILL)
    job.wait_for("server1 is back", 2)
    said = finish(job, stop)
    assert said.count("what is pushed to it until it is back is lost") == 4  # once on each worker
