"""A rank that does not come to a collective, in real processes: the others say so instead of waiting."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.often import often

from mpilaunch.mpi import find_mpi

SCRIPT = Path(__file__).with_name("late_rank.py")
SLEEPING = Path(__file__).with_name("sleeping_ranks.py")


def run(tmp_path, how, design="ring"):
    """Run three ranks to their end."""
    for rank in (0, 2):
        for step in ("told", "end"):
            os.mkfifo(tmp_path / f"{step}-{rank}")
    return start(3, SCRIPT, how, str(tmp_path), design)


def start(number, script, *arguments):
    """Run a script on ranks to their end."""
    mpi = find_mpi()
    # By mpi4py, so that an error of one rank ends all.
    command = [sys.executable, "-m", "mpi4py", str(script), *arguments]
    return subprocess.run(
        [mpi.mpiexec, *mpi.flavour.options, "-n", str(number), *command],
        env={**os.environ, **dict(mpi.flavour.env)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.mpi
@pytest.mark.timeout(90)
@pytest.mark.parametrize("design", ["ring", pytest.param("auto", marks=pytest.mark.thorough)])
def test_the_others_name_it(tmp_path, design):
    """Each within its deadline, with the collective and whom it waits for: a neighbour, or at a barrier."""
    run(tmp_path, "stays away", design)
    for rank in (0, 2):
        error = (tmp_path / f"error-{rank}").read_text()
        assert "allreduce of 1 x 100000" in error
        assert f"float32 on rank {rank} has not ended" in error
        assert "1" in error.split("waits for rank ")[1].split(", ")


@pytest.mark.mpi
@pytest.mark.timeout(90)
def test_a_rank_that_dies_ends_the_job(tmp_path):
    """As MPI has it: nobody is left waiting."""
    assert run(tmp_path, "dies").returncode != 0


@pytest.mark.mpi
@pytest.mark.timeout(90)
@pytest.mark.parametrize("number", often([3], [2, 3, 5]))
def test_who_waits_for_a_late_rank_of_its_host_sleeps(number):
    """So that it has its core for what it computes beside, and for servers."""
    done = start(number, SLEEPING)
    assert f"{number - 1} ranks slept\n" in done.stdout, done.stderr
