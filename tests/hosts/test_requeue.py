"""Slurm ends a job before its time, and it goes on later where its servers' snapshots are."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

PUSHING = Path(__file__).with_name("pushing.py")
WITHOUT_MXNET = Path(__file__).parents[1] / "launcher/scripts/without_mxnet"
SHAPE = ("--nodes", 2, "--clients", 2, "--workers", 2, "--servers", 1)

pytestmark = [pytest.mark.root, pytest.mark.mpi, pytest.mark.slow, pytest.mark.thorough]


def wait_for(condition, told, seconds=90):
    """Look until something holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, told()
        time.sleep(0.2)


def signalled(slurm, number):
    """Somebody sends the script the signal."""
    slurm.run(["scancel", "--batch", "--signal=USR1", number])


def preempted(slurm, _number):
    """A job that matters more wants all hosts, for no time at all."""
    asked = [
        "sbatch",
        "--partition=urgent",
        "--nodes=4",
        "--exclusive",
        "--output=/dev/null",
        "--wrap=true",
    ]
    assert slurm.run(asked).returncode == 0


def at_its_limit(_slurm, _number):
    """Nobody does anything; Slurm is 30 to 60 s early."""


@pytest.mark.timeout(400)
@pytest.mark.parametrize("end", [signalled, preempted, at_its_limit])
def test_a_script_that_is_queued_again(slurm, request, end):
    """Of render: at Slurm's SIGUSR1 all save, servers too, and the next run goes on from there."""
    folder = slurm.folder / end.__name__  # which all hosts see
    folder.mkdir()
    job = (*SHAPE, "--log-dir", folder, "--env", "MODE=async", "--env", f"PYTHONPATH={WITHOUT_MXNET}")
    asked = ("--backend", "slurm", "--time", "2", "--snapshot-dir", folder / "saved", *job, PUSHING)
    render = [sys.executable, "-m", "mpilaunch", "render", *map(str, asked)]
    script, out = folder / "job.sh", folder / "out"
    script.write_text(subprocess.run(render, capture_output=True, text=True, check=True).stdout)
    out.touch()
    submit = ["sbatch", "--parsable", "--partition=spare", f"--output={out}", str(script)]
    number = slurm.run(submit).stdout.strip()
    request.addfinalizer(lambda: slurm.run(["scancel", number]))
    wait_for(lambda: out.read_text().count("TRAINS") == 2, out.read_text)
    wait_for(lambda: any((folder / "saved").glob("*.snapshot")), out.read_text)
    end(slurm, number)
    wait_for(lambda: out.read_text().count("TRAINS") == 4, out.read_text)
    said = out.read_text()
    assert said.count("| SAVED ") == 2, said
    assert "the job was ended by SIGUSR1 to mpilaunch; all ranks have ended in time" in said
    begun = [float(line.split()[-1]) for line in said.splitlines() if "BEGINS" in line]
    assert max(begun[2:]) < min(begun[:2]), begun  # each gradient takes 0.1 off
    slurm.run(["scancel", number])
    # What a busy host does not answer in time, Slurm says again after minutes.
    wait_for(lambda: not slurm.run(["squeue", "-h"]).stdout, out.read_text, seconds=200)
    assert out.read_text().count("| SAVED ") == 4
    slurm.hosts.check_nothing_left()
