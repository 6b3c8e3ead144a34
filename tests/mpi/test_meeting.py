"""Ranks that make a store wait for those of their client that have none: asleep, and not for ever."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpilaunch.mpi import find_mpi

TIMEOUT_S = 4
STAYS_AWAY = """
import signal, time
from mpi4py import MPI
from kvstore_mpi.errors import DeadlineError
from kvstore_mpi.node import process_worker
if MPI.COMM_WORLD.rank == 1:
    signal.pause()
began = time.process_time()
try:
    process_worker("sync-mpi", "sync")
except DeadlineError:
    print(f"has computed for {time.process_time() - began:.2f} s")
    raise
"""
COMES_LATE = """
import signal
from mpi4py import MPI
from kvstore_mpi.node import process_worker
if MPI.COMM_WORLD.rank == 1:
    signal.sigtimedwait([], 1.0)
print("of", process_worker("sync-mpi", "sync").num_workers)
"""


def run(folder, body, *options):
    """Run a job to its end; return its exit code and what it has said."""
    (folder / "train.py").write_text(body)
    done = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("mpilaunch")), "--log-dir", str(folder / "logs")),
            *(*options, str(folder / "train.py")),
        ],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, **dict(find_mpi().flavour.env), "OMP_NUM_THREADS": "1"},
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.mpi
@pytest.mark.timeout(280)
@pytest.mark.parametrize(
    "layout", [("--workers", "2"), ("--workers", "1", "--model-parallel", "2")], ids=["workers", "parts"]
)
def test_a_rank_without_a_store_is_an_error(tmp_path, layout):
    """The others have computed next to nothing in the wait, which MPI spends at full load."""
    code, said = run(tmp_path, STAYS_AWAY, *layout, "--set", f"connect_timeout={TIMEOUT_S}")
    assert code == 69, said
    error = f"not all 2 MPI ranks of this client have made a store within connect_timeout ({TIMEOUT_S} s): "
    assert f"DeadlineError: {error}" in said
    [line] = [line for line in said.splitlines() if "| has computed for " in line]
    assert float(line.split()[-2]) < TIMEOUT_S / 2


@pytest.mark.mpi
@pytest.mark.timeout(280)
def test_a_late_rank_is_waited_for(tmp_path):
    """For as long as is allowed."""
    code, said = run(tmp_path, COMES_LATE, "--workers", "2")
    assert code == 0, said
    assert said.count("| of 2\n") == 2


@pytest.mark.mpi
@pytest.mark.timeout(280)
def test_who_waits_for_a_late_rank_is_not_named_as_late(tmp_path):
    """With --join-warning, and in the error after connect_timeout."""
    body = STAYS_AWAY.replace("signal.pause()", "signal.sigtimedwait([], 120)")  # stacks are asked for
    options = ("--workers", "2", "--servers", "1", "--join-warning", "20", "--set", "connect_timeout=24")
    code, said = run(tmp_path, body, *options)
    assert code == 69, said
    [warning] = [line for line in said.splitlines() if "(--join-warning)" in line]
    assert "(--join-warning) client0.1 has not joined the job" in warning
    assert [line.split()[1] for line in said.splitlines() if "holds up the job: " in line] == ["client0.1"]
    client = "client0 (at least one of its 2 ranks, for which the others wait)"
    assert f"waited 24 s for all processes to join; missing: {client}. Did they start" in said
