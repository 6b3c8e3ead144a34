"""Jobs inside an allocation of Slurm: as over ssh, and Slurm's own ways to end a job end in saved state."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.virtual_hosts import LOGIN

ROOT = Path(__file__).resolve().parents[2]
PUSHING = Path(__file__).with_name("pushing.py")
WITHOUT_MXNET = {"PYTHONPATH": str(ROOT / "tests/launcher/scripts/without_mxnet")}
DIGITS = ROOT / "examples/digits_gluon.py"
TRAIN = ROOT / "tests/equivalence/train.py"
TWO = ("--hosts", "node0:2,node1:2")
JOB = (*TWO, "--grace", 60, "--clients", 2, "--workers", 4, "--servers", 2)

pytestmark = [pytest.mark.root, pytest.mark.mpi, pytest.mark.mxnet, pytest.mark.slow, pytest.mark.thorough]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("options", "placed"),
    [
        (
            ("--hosts", "node0:1,node1:1,node2:1,node3:1", "--clients", 2, "--workers", 4, "--servers", 2),
            ("node1: client0 rank 1, server1", "node3: client1 rank 1"),
        ),
        ((*TWO, "--clients", 2, "--workers", 4, "--servers", 2), ("node1: client1 ranks 0 to 1, server1",)),
        ((*TWO, "--clients", 1, "--workers", 4), ("node1: client0 ranks 2 to 3",)),
    ],
    ids=["clients across", "a client on each", "pure MPI across"],
)
def test_training(slurm, run, options, placed):
    """To the accuracy of one host; how the allocation was understood is said."""
    code, said = run(slurm, *options, DIGITS)
    assert code == 0, said[-3000:]
    assert float(said.partition("final test accuracy ")[2].split(",")[0]) >= 0.97
    for line in (*placed, "SLURM_TASKS_PER_NODE=2(x4)"):
        assert line in said


@pytest.fixture(name="reference", scope="module")
def _reference(slurm):
    """What one process comes to, as a file that all hosts see."""
    file = slurm.folder / "reference.npz"
    command = [sys.executable, str(TRAIN), "--reference", str(file), "--steps", "5", "10"]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=200)
    return file


@pytest.mark.parametrize("servers", [2, 0], ids=["a server on each", "pure MPI"])
def test_equals_one_process(slurm, run, reference, servers):
    """A client across two hosts trains as one process does, to rounding."""
    across = ("--hosts", "node0:1,node1:1", "--clients", 1, "--workers", 2, "--servers", servers)
    code, said = run(slurm, *across, TRAIN, "--reference", reference, "--steps", 10, "--models", "mlp")
    assert code == 0, said[-3000:]
    lines = [line.partition("RESULT ")[2] for line in said.splitlines() if "RESULT " in line]
    records = [json.loads(line) for line in lines]
    assert len(records) == 8  # two optimizers, updated by servers or workers, on two workers
    assert max(record["distance"] for record in records) <= 1e-5
    assert len({(record["case"], record["digest"]) for record in records}) == 4


@pytest.mark.parametrize("victim", ["rank", "server", "launcher"])
def test_a_process_that_is_killed(slurm, start, victim):
    """The others save, also of its client; its host is named. Of a lost launcher nothing is left."""
    job = start(slurm, *JOB)
    pids = job.pids(4)
    if victim == "launcher":
        job.signal("KILL")
        job.end()
        slurm.hosts.check_nothing_left()
        return
    kill = ["kill", "-KILL", str(pids[3])] if victim == "rank" else ["pkill", "-KILL", "-f", "kvstore_mpi$"]
    slurm.hosts.run("node1", kill)
    code, seconds = job.end()
    assert code == 137
    told = (
        f"client1.1 on node1 (pid {pids[3]}) failed first: SIGKILL"
        if victim == "rank"
        else "server1 on node1"
    )
    assert told in job.said
    assert [f"SAVED {rank}" in job.said for rank in range(4)] == [True, True, True, victim == "server"]
    assert seconds < 20
    slurm.hosts.check_nothing_left()


def test_a_job_that_is_cancelled(slurm, start):
    """All save at Slurm's SIGTERM, which comes to ranks, servers and agents, and not to salloc's child."""
    job = start(slurm, *JOB)
    job.pids(4)
    slurm.run(["scancel", *slurm.run(["squeue", "-h", "-o", "%i"]).stdout.split()])
    code, seconds = job.end()
    assert code == 75, job.said
    assert job.said.count("SAVED") == 4
    assert seconds < 20
    slurm.hosts.check_nothing_left()


def test_a_job_that_is_cancelled_while_it_saves(slurm, start):
    """Who has saved does not end at Slurm's SIGTERM: Slurm would kill the rest of its client."""
    held, pipes = slurm.folder / "held", []
    for rank in (2, 3):  # on node1
        os.mkfifo(f"{held}.{rank}")
        pipes.append(os.open(f"{held}.{rank}", os.O_RDWR))
    env = {**WITHOUT_MXNET, "HELD": str(held)}
    job = start(slurm, *TWO, "--clients", 1, "--workers", 4, "--servers", 0, script=PUSHING, env=env)
    pids = job.pids(4)
    slurm.hosts.run(LOGIN, ["pkill", "-INT", "-f", r"^\S*python\S* \S*bin/mpilaunch"])  # and not salloc
    job.until("SAVED", 4)  # two have, two say that they will
    slurm.run(["scancel", *slurm.run(["squeue", "-h", "-o", "%i"]).stdout.split()])
    job.until("HEARD", 2)
    alive = slurm.hosts.run("node0", ["kill", "-0", str(pids[0]), str(pids[1])])
    for pipe in pipes:
        os.write(pipe, b"\n")
    code, _ = job.end()
    assert alive.returncode == 0
    assert code == 75, job.said
    assert all(f"| SAVED {rank}" in job.said for rank in range(4))
    slurm.hosts.check_nothing_left()


def test_mistakes(slurm, run):
    """Each ends soon, with a line that names the cause: ranks alone, a host that Slurm did not give."""
    began = time.monotonic()
    code, said = run(slurm, *TWO, "--clients", 1, "--workers", 4, DIGITS, env={"SLURM_MPI_TYPE": "none"})
    assert code == 78
    assert "4 ranks, but this one sees 1 in its COMM_WORLD" in said
    code, said = run(slurm, "--workers", 4, "--hosts", "node0:2,node7:2", DIGITS)
    assert code == 64
    assert "host 'node7' is not one of Slurm job" in said
    assert time.monotonic() - began < 40  # of which the looks at what is left take some


def test_a_host_that_dies(slurm, start):
    """The others save, and the error names it. Last: the cluster lacks it from then on."""
    job = start(slurm, *JOB)
    job.pids(4)
    slurm.hosts.kill("node1")
    code, seconds = job.end()
    assert code == 69, job.said
    assert "host node1 is lost" in job.said
    assert [f"SAVED {rank}" in job.said for rank in range(4)] == [True, True, False, False]
    assert seconds < 40
    slurm.hosts.check_nothing_left()
