"""The communicator contract over threads and over MPI; and those of tensors and of rows over MPI."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from support.often import often, often_of

from kvstore_mpi.comm.memory import memory_communicators
from kvstore_mpi.tensor_collectives.profile import decode
from kvstore_mpi.testing import row_contract, tensor_contract
from kvstore_mpi.testing.communicator_contract import CHECKS
from mpilaunch.mpi import find_library

DEADLINE_S = 150.0


def on_all_ranks(size, call):
    """Call something on each rank in a thread of its own; raise the first error."""
    errors = []

    def run(communicator):
        try:
            call(communicator)
        except BaseException as error:  # noqa: BLE001  raised below
            errors.append(error)
            communicator._shared.barrier.abort()

    threads = [
        threading.Thread(target=run, args=(each,), daemon=True) for each in memory_communicators(size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert not any(thread.is_alive() for thread in threads), "a rank has not returned"
    if errors:
        raise errors[0]


@pytest.mark.parametrize("size", often([1, 3], [1, 2, 3, 4]))
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_threads(check, size):
    """Ranks that are threads of one process."""
    on_all_ranks(size, check)


def test_threads_notice_a_wrong_sum():
    """The checks can fail: a rank that adds something else is seen by all."""

    def wrong(communicator):
        array = np.full(3, 1.0 + communicator.rank)
        communicator.allreduce(array)
        np.testing.assert_array_equal(array, np.full(3, 2.0))

    with pytest.raises(AssertionError):
        on_all_ranks(2, wrong)


def _mpiexec():
    beside = Path(sys.executable).parent
    return shutil.which("mpiexec", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")


@pytest.mark.mpi
@pytest.mark.parametrize(("size", "sleeps"), often_of([(2, "1"), (3, "1")], [1, 2, 3, 4], ["0", "1"]))
def test_mpi(size, sleeps, monkeypatch):
    """Ranks that are processes of a real MPI job; mpi4py ends all when one fails.

    Those that sleep have sums under way, as ranks of different hosts do, by messages to each other; others
    have none.
    """
    mpiexec = _mpiexec()
    if mpiexec is None:
        pytest.skip("there is no mpiexec")
    monkeypatch.setenv("MPIR_CVAR_ENABLE_HEAVY_YIELD", sleeps)
    output = _run(mpiexec, size, "kvstore_mpi.testing.communicator_contract")
    assert f"{len(CHECKS)} checks passed on {size} ranks" in output


@pytest.mark.mpi
@pytest.mark.parametrize("others", often([1], [1, 2]))
def test_one_rank_alone_sleeps(others):
    """As where the other hosts have cards that write into memory: all take the same way."""
    mpiexec = _mpiexec()
    if mpiexec is None:
        pytest.skip("there is no mpiexec")
    rank = [sys.executable, "-m", "mpi4py", "-m", "kvstore_mpi.testing.communicator_contract"]
    one, rest = (
        ["-n", str(number), "-env", "MPIR_CVAR_ENABLE_HEAVY_YIELD", sleeps, *rank]
        for number, sleeps in ((1, "1"), (others, "0"))
    )
    output = _outcome([mpiexec, *one, ":", *rest])
    assert f"{len(CHECKS)} checks passed on {1 + others} ranks" in output


@pytest.mark.mpi
@pytest.mark.thorough
@pytest.mark.sampled
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_tensors_over_mpi(size):
    """The contract that ``test_tensor_group.py`` runs with threads."""
    mpiexec = _mpiexec()
    if mpiexec is None:
        pytest.skip("there is no mpiexec")
    output = _run(mpiexec, size, "kvstore_mpi.testing.tensor_contract")
    assert f"{len(tensor_contract.CHECKS)} checks passed on {size} ranks" in output


@pytest.mark.mpi
@pytest.mark.thorough
@pytest.mark.parametrize("size", [3, 4])
def test_rows_over_mpi(size):
    """The contract that ``test_rows.py`` runs with threads."""
    mpiexec = _mpiexec()
    if mpiexec is None:
        pytest.skip("there is no mpiexec")
    output = _run(mpiexec, size, "kvstore_mpi.testing.row_contract")
    assert f"{len(row_contract.CHECKS)} checks passed on {size} ranks" in output


@pytest.mark.mpi
def test_the_library_says_its_name_first():
    """As mpi4py calls those that have a profile of their own."""
    vendor = find_library().vendor
    if vendor not in ("MPICH", "Open MPI"):
        pytest.skip(f"{vendor} may call itself something else")
    say = "from kvstore_mpi.comm.mpi import MpiCommunicator as Mpi; print(Mpi().library())"
    done = subprocess.run(
        [sys.executable, "-c", say], capture_output=True, text=True, timeout=280, check=True
    )
    assert done.stdout.startswith(f"{vendor} ")


@pytest.mark.mpi
def test_a_profile_is_measured_by_one_command(tmp_path):
    """In about a second also when others use the machine; a job then reads what was written."""
    mpiexec = _mpiexec()
    if mpiexec is None:
        pytest.skip("there is no mpiexec")
    path = tmp_path / "profile.json"
    output = _run(mpiexec, 2, "kvstore_mpi.calibrate", "--output", str(path))
    assert f"{path}: 2 ranks, measured in" in output
    profile = decode(path.read_bytes(), str(path))
    assert profile.ranks == 2
    assert profile.library[0][1] > 0
    assert profile.memory.gamma > 0


@pytest.mark.mpi
def test_a_profile_that_cannot_be_written_is_one_line(tmp_path):
    """Not a traceback of each rank."""
    mpiexec = _mpiexec()
    if mpiexec is None:
        pytest.skip("there is no mpiexec")
    output = _run(mpiexec, 2, "kvstore_mpi.calibrate", "--output", str(tmp_path), code=78)
    assert f"calibrate: --output {tmp_path} cannot be written: Is a directory" in output
    assert "Traceback" not in output


def _run(mpiexec, size, module, *arguments, code=0):
    """Run a module as ranks of an MPI job; return what it wrote."""
    command = [mpiexec, "-n", str(size), sys.executable, "-m", "mpi4py", "-m", module, *arguments]
    return _outcome(command, code)


def _outcome(command, code=0):
    job = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = job.communicate(timeout=DEADLINE_S)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
    assert job.returncode == code, output
    return output
