"""Jobs on hosts that ssh reaches: the same as on one, and nothing is left of them anywhere."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from support.virtual_hosts import LOGIN

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "examples/digits_gluon.py"
FIRST_STEPS = ROOT / "tests/launcher/scripts/first_steps.py"
TWO = ("--hosts", "node0:2,node1:2")
SAVES = ("--grace", 60)

pytestmark = [pytest.mark.root, pytest.mark.mpi, pytest.mark.mxnet, pytest.mark.slow, pytest.mark.thorough]


def accuracy(said):
    """Return what the example says in the end."""
    return float(said.partition("final test accuracy ")[2].split(",")[0])


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("options", "placed"),
    [
        (
            (*TWO, "--clients", 2, "--workers", 4, "--servers", 2),
            ("node0: client0 ranks 0 to 1, server0, scheduler", "node1: client1 ranks 0 to 1, server1"),
        ),
        (
            ("--hosts", "node0:1,node1:1,node2:1,node3:1", "--clients", 2, "--workers", 4, "--servers", 2),
            ("node1: client0 rank 1, server1", "node3: client1 rank 1"),
        ),
        ((*TWO, "--clients", 1, "--workers", 4), ("node1: client0 ranks 2 to 3",)),
        (("--hosts", "node2:2", "--workers", 2, "--servers", 1), ("node2: client0 ranks 0 to 1, server0",)),
    ],
    ids=["a client on each", "clients across", "pure MPI across", "another host alone"],
)
def test_training(four, run, options, placed):
    """To the accuracy of one host."""
    code, said = run(four, *options, DIGITS)
    assert code == 0, said[-3000:]
    assert accuracy(said) >= 0.97
    assert all(line in said for line in placed), said


def test_a_rank_that_is_killed(cluster, start):
    """The others save, also of its client, and the error names its host."""
    job = start(cluster, *TWO, *SAVES, "--clients", 2, "--workers", 4, "--servers", 1)
    victim = job.pids(4)[3]
    cluster.run("node1", ["kill", "-KILL", str(victim)])
    code, seconds = job.end()
    assert code == 137
    assert f"client1.1 on node1 (pid {victim}) failed first: SIGKILL" in job.said
    assert [f"SAVED {rank}" in job.said for rank in range(4)] == [True, True, True, False]
    assert seconds < 20
    cluster.check_nothing_left()


def test_a_server_that_is_killed(cluster, start):
    """All save."""
    options = ("--server-hosts", "node1", "--clients", 2, "--workers", 4, "--servers", 1)
    job = start(cluster, *TWO, *SAVES, *options)
    job.pids(4)
    cluster.run("node1", ["pkill", "-KILL", "-f", "kvstore_mpi$"])
    code, seconds = job.end()
    assert code == 137
    assert "server0 on node1" in job.said
    assert job.said.count("SAVED") == 4
    assert seconds < 20
    cluster.check_nothing_left()


def test_a_server_that_is_started_again(cluster, start):
    """On its host, and an asynchronous job goes on; see the tests of returns for what it has."""
    options = ("--hosts", "node0:1,node1:1", "--max-restarts", 1, "--clients", 2, "--servers", 1)
    job = start(cluster, *options, "--server-hosts", "node1", "--env", "STORE=dist_async_mpi")
    job.pids(2)
    cluster.run("node1", ["pkill", "-KILL", "-f", "kvstore_mpi$"])
    job.until("restart 1 of at most 1: server0")
    time.sleep(3)
    assert job.runs
    job.signal("INT")
    assert job.end()[0] == 75
    cluster.check_nothing_left()


@pytest.mark.parametrize("name", ["INT", "TERM"])
def test_a_job_that_is_told_to_end(cluster, start, name):
    """All save."""
    job = start(cluster, *TWO, *SAVES, "--clients", 1, "--workers", 4)
    job.pids(4)
    job.signal(name)
    code, seconds = job.end()
    assert code == 75
    assert job.said.count("SAVED") == 4
    assert seconds < 20
    cluster.check_nothing_left()


def test_a_job_that_takes_too_long(cluster, start):
    """All save, and nothing is left."""
    job = start(cluster, *TWO, *SAVES, "--timeout", 15, "--clients", 2, "--workers", 4, "--servers", 1)
    job.pids(4)
    code, seconds = job.end()
    assert (code, "longer than --timeout 15 s" in job.said) == (69, True), job.said
    assert job.said.count("SAVED") == 4
    assert seconds < 30
    cluster.check_nothing_left()


def test_a_launcher_that_is_killed(cluster, start):
    """Nothing is left on any host."""
    job = start(cluster, *TWO, "--clients", 2, "--workers", 4, "--servers", 2)
    job.pids(4)
    job.signal("KILL")
    assert job.end()[0] == -signal.SIGKILL
    cluster.check_nothing_left()


def test_a_host_that_dies(cluster, start):
    """The others save, and the error names it."""
    job = start(cluster, *TWO, *SAVES, "--clients", 2, "--workers", 4, "--servers", 2)
    job.pids(4)
    cluster.kill("node1")
    code, seconds = job.end()
    assert code == 69
    assert "host node1 is lost" in job.said
    assert [f"SAVED {rank}" in job.said for rank in range(4)] == [True, True, False, False]
    assert seconds < 30
    cluster.check_nothing_left()


def test_a_rank_of_a_worker_that_ends_before_the_other(cluster, run):
    """The other, on another host, is told in seconds, and of whom."""
    options = ("--hosts", "node0:1,node1:1", "--model-parallel", 2, "--set", "step_timeout=100")
    code, said = run(cluster, *options, ROOT / "tests/mpi/part_failures.py", "sync", "last_ends")
    assert code == 76, said
    assert "from rank 1 to 0: rank 1 has finished; let all ranks" in said


def test_what_another_host_does_can_be_seen(cluster, start):
    """What its processes tell, and their stacks, come to the launcher's."""
    job = start(cluster, *TWO, "--clients", 2, "--workers", 4, "--servers", 2)
    job.pids(4)
    time.sleep(2)  # they tell once a second
    mpilaunch = str(Path(sys.executable).with_name("mpilaunch"))
    done = cluster.run(LOGIN, [mpilaunch, "inspect"])
    assert done.returncode == 0, done
    told = done.stdout
    sections = {text.split()[0]: text for text in told.split("\n--- ")[1:]}
    for name in ("client1.1", "server1", "client0.0"):
        assert re.match(rf"{re.escape(name)} on \S+ \(pid \d+\): (runs|waits), told \d", sections[name]), (
            told
        )
        assert "MainThread:\n    " in sections[name], told
    assert "training.py:" in sections["client1.1"]
    assert "client1.1  node1" in cluster.run(LOGIN, [mpilaunch, "top"]).stdout
    job.signal("INT")
    assert job.end()[0] == 75
    cluster.check_nothing_left()


def test_a_trace_has_the_parts_of_all_hosts(cluster, run):
    """Though they share no folder for it; the report, too, and its verdict."""
    options = (*TWO, "--clients", 2, "--workers", 4, "--servers", 2, "--trace", "/tmp/trace", "--report")
    code, said = run(cluster, *options, FIRST_STEPS)
    assert code == 0, said
    assert "not in the trace" not in said
    assert "verdict: " in said
    trace = cluster.run(LOGIN, ["cat", "/tmp/trace/trace.json"]).stdout
    events = json.loads(trace)["traceEvents"]
    named = {each["args"]["name"] for each in events if each["name"] == "process_name"}
    wanted = {*(f"worker{rank}" for rank in range(4)), "server0", "server1", "scheduler"}
    assert wanted <= {name.split()[0] for name in named}, named
    parts = cluster.run(LOGIN, ["ls", "/tmp/trace/parts"]).stdout.split()
    assert {Path(name).stem for name in parts} == wanted


def test_the_secret_stays_private(cluster, start):
    """It is in no argument or environment on any host, and its file is for its owner alone."""
    job = start(cluster, *TWO, "--clients", 2, "--workers", 4, "--servers", 2)
    job.pids(4)
    secret = "cut -d'\"' -f8 /tmp/kvstore_mpi-*/job.json"
    # Written down first: grep has the secret among its own arguments.
    seen = "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ >/tmp/seen"
    look = f"s=$({secret}); {seen}; test ${{#s}} = 64 && grep -ac $s /tmp/seen"
    for name in ("node0", "node1"):
        assert cluster.run(name, ["sh", "-c", look]).stdout.strip() == "0"
        modes = cluster.run(name, ["sh", "-c", "stat -c %a /tmp/kvstore_mpi-* /tmp/kvstore_mpi-*/job.json"])
        assert modes.stdout.split() == ["700", "600"]
    job.signal("INT")
    assert job.end()[0] == 75
    cluster.check_nothing_left()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--hosts", "node0,nobody"), ("host nobody cannot be used", "Could not resolve hostname")),
        (
            (*TWO, "--ssh", "ssh -o StrictHostKeyChecking=yes -o UserKnownHostsFile=/dev/null"),
            ("host node0 cannot be used", "Host key verification failed"),
        ),
        ((*TWO, "--interface", "eth7"), ("--interface eth7: host node0 has eth0 (10.77.0.1/24)",)),
        ((*TWO, "--interface", "10.1.0.0/16"), ("host node0 has eth0", "and not that")),
        (("--hosts", "node0:1,node1:1", "--workers", "4"), ("4 workers do not fit on node0:1, node1:1",)),
        (
            ("--hosts", "node0:1,node1:1", "--servers", 1, "--transport", "ipc"),
            ("--transport ipc is for processes of one host, and this job has node0 and node1",),
        ),
    ],
    ids=["no such host", "unknown key", "no such interface", "no such network", "no room", "no way"],
)
def test_mistakes(cluster, run, options, words):
    """Each ends soon, with a line that names the host and the cause."""
    began = time.monotonic()
    code, said = run(cluster, "--workers", 2, *options, DIGITS)
    assert code in (64, 78)
    assert all(word in said for word in words), said
    assert time.monotonic() - began < 20  # of which the look at what is left takes some


def test_a_hostfile(cluster, run, tmp_path):
    """As Open MPI and MPICH write them; the wrong line is named."""
    file = tmp_path / "listed"
    file.write_text("# two\nnode0 slots=1\nnode1:1\n")
    code, said = run(cluster, "--hostfile", file, "--clients", 1, "--workers", 2, DIGITS)
    assert code == 0, said[-3000:]
    assert "node1: client0 rank 1" in said
    file.write_text("node0 slots=1\nnode1 cores=1\n")
    code, said = run(cluster, "--hostfile", file, "--workers", 2, DIGITS)
    assert (code, "line 2: 'node1 cores=1'" in said) == (64, True)
