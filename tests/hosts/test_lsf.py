"""Jobs inside an allocation of LSF, of which there is only a stand-in for ``blaunch``: it goes by ssh."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.root, pytest.mark.mpi, pytest.mark.mxnet, pytest.mark.slow, pytest.mark.thorough]

BLAUNCH = """#!/bin/sh
# Words are put together and read by a shell there, as rsh does it; the job's variables go along.
test -n "$LSB_JOBID" || { echo "blaunch: LSB_JOBID is not set" >&2; exit 255; }
test "$1" = -n && shift && exec </dev/null # as mpiexec says
host=$1
shift
exec %s "$host" "export LSB_JOBID=$LSB_JOBID; $*"
"""


def test_a_job(cluster, start):
    """Two clients and a server on each host, by the variables of LSF, those of CSM not among them."""
    folder = cluster.folder / "bin"
    folder.mkdir()
    (folder / "blaunch").write_text(BLAUNCH % cluster.ssh)
    (folder / "blaunch").chmod(0o755)
    env = {
        "PATH": f"{folder}:{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin",
        "LSB_JOBID": "7",
        "LSB_MCPU_HOSTS": "node0 2 node1 2",
    }
    job = start(cluster, "--clients", 2, "--workers", 4, "--servers", 2, "--ssh", "false", env=env)
    pids = job.pids(4)
    assert "LSF job 7 has node0:2, node1:2 (LSB_MCPU_HOSTS)" in job.said
    assert "node1: client1 ranks 0 to 1, server1" in job.said
    for name, rank in (("node0", 0), ("node1", 3)):
        assert cluster.run(name, ["readlink", f"/proc/{pids[rank]}/exe"]).stdout
    cluster.run("node1", ["kill", "-KILL", str(pids[3])])
    assert job.end()[0] == 137
    assert f"client1.1 on node1 (pid {pids[3]}) failed first: SIGKILL" in job.said
    assert [f"SAVED {rank}" in job.said for rank in range(4)] == [True, True, True, False]
    cluster.check_nothing_left()
