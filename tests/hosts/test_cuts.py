"""A host's link is cut, under ssh and under Slurm, or it dies, or the launcher is stopped."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.often import often

PUSHING = Path(__file__).with_name("pushing.py")
WITHOUT_MXNET = {"PYTHONPATH": str(Path(__file__).parents[1] / "launcher/scripts/without_mxnet")}
ROUNDS = 500
"""More than are said already when the link is mended, and not read: a second has 100 at most."""

COMMON = ("--hosts", "node0:1,node1:1", "--workers", 2, "--grace", 10)
JOBS = {
    "sync": (*COMMON, "--clients", 2, "--servers", 2),
    "async": (*COMMON, "--clients", 2, "--servers", 2, "--env", "MODE=async", "--max-restarts", 2),
    "MPI": (*COMMON, "--clients", 1, "--servers", 0),
}
each_kind = pytest.mark.parametrize("kind", often({"sync"}, JOBS))

pytestmark = [pytest.mark.root, pytest.mark.mpi, pytest.mark.slow, pytest.mark.thorough]


@pytest.fixture(name="managed", params=["ssh", "slurm"])
def _managed(request):
    """What starts jobs on hosts, and the hosts."""
    found = request.getfixturevalue("cluster" if request.param == "ssh" else "slurm")
    return found, found if request.param == "ssh" else found.hosts


@each_kind
@pytest.mark.parametrize("seconds", [2, 10])
def test_a_link_that_is_cut_for_a_while(managed, start, seconds, kind):
    """The job goes on: both push again."""
    manager, hosts = managed
    job = start(manager, *JOBS[kind], script=PUSHING, env=WITHOUT_MXNET)
    job.pids(2)
    hosts.cut("node1")
    time.sleep(seconds)
    hosts.mend("node1")
    for rank in range(2):
        later = int(job.until(f"STEPS {rank}")[0].split()[-1]) + ROUNDS
        job.until(f"STEPS {rank} {later}")
    job.signal("INT")
    assert job.end()[0] == 75, job.said
    assert job.said.count("SAVED") == 2, job.said
    hosts.check_nothing_left()


@each_kind
def test_a_link_that_is_cut_for_a_minute(managed, start, kind):
    """After 20 s each side takes the other for dead; the launcher's saves, the other leaves nothing."""
    manager, hosts = managed
    job = start(manager, *JOBS[kind], script=PUSHING, env=WITHOUT_MXNET)
    job.pids(2)
    began = time.monotonic()
    hosts.cut("node1")
    code, seconds = job.end()
    assert code == 69, job.said
    assert "host node1 is lost" in job.said
    assert "SAVED 0" in job.said
    assert seconds < 50
    time.sleep(max(0, began + 60 - time.monotonic()))
    hosts.mend("node1")
    # Steps whose tasks are gone stay for minutes, until Slurm tells a host again that it had not reached.
    hosts.check_nothing_left(but="slurmstepd: ")


def test_a_launcher_that_is_stopped_until_its_ranks_have_gone(cluster, start):
    """The hosts' ranks save, though it does not tell them to; no host is blamed for its silence."""
    job = start(cluster, *JOBS["sync"], script=PUSHING, env=WITHOUT_MXNET)
    pids = job.pids(2)
    job.signal("STOP")
    for rank, pid in pids.items():  # until it has ended
        ended = cluster.run(f"node{rank}", ["timeout", "60", "tail", f"--pid={pid}", "-f", "/dev/null"])
        assert ended.returncode == 0, job.said
    job.signal("CONT")
    assert job.end()[0] == 75, job.said
    assert all(f"client{rank}.0| SAVED {rank}" in job.said for rank in range(2)), job.said
    assert "mpilaunch itself was stopped for at least" in job.said
    assert "is lost" not in job.said
    cluster.check_nothing_left()


def test_no_restart_is_spent_on_a_host_that_dies(cluster, start):
    """The job ends with the one error that names it, and the others save."""
    job = start(cluster, *JOBS["async"], script=PUSHING, env=WITHOUT_MXNET)
    job.pids(2)
    cluster.kill("node1")
    code, seconds = job.end()
    assert code == 69, job.said
    assert "HostLostError: host node1 is lost" in job.said
    assert "what to do: start the job again when the host is back" in job.said
    assert "restart 1 of at most" not in job.said
    assert "SAVED 0" in job.said
    assert seconds < 50
    cluster.check_nothing_left()


def test_an_agent_that_is_stopped(cluster, start):
    """It is named, and not the rank on its host; when our patience has ended the host is."""
    job = start(cluster, *JOBS["sync"], "--lease", 6, script=PUSHING, env=WITHOUT_MXNET)
    job.pids(2)
    agent = "mpilaunch.hosts.agent"
    cluster.run("node1", ["pkill", "-STOP", "-f", agent])
    job.until(
        "nothing comes from mpilaunch's agent on node1, so that nothing is known of server1, client1.0"
    )
    code, _ = job.end()
    cluster.run("node1", ["pkill", "-CONT", "-f", agent])
    assert code == 69, job.said
    assert "HostLostError: host node1 is lost: nothing has come from its agent for 30 s" in job.said
    assert "holds up the job" not in job.said
    cluster.check_nothing_left()
