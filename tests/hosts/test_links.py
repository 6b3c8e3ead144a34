"""Links between hosts that ssh reaches are measured by the ranks of a job on them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.virtual_hosts import LOGIN

from kvstore_mpi.planner import read_cluster

MPILAUNCH = str(Path(sys.executable).with_name("mpilaunch"))

pytestmark = [
    pytest.mark.root,
    pytest.mark.mpi,
    pytest.mark.slow,
    pytest.mark.thorough,
    pytest.mark.timeout(960),
]


def test_links_between_two_hosts_and_within_each(cluster, tmp_path):
    """Over MPI and over TCP, and what slices and rows cost; the cluster has what is slowest."""
    path = tmp_path / "cluster.toml"
    options = ["--ssh", cluster.ssh, "--log-dir", str(tmp_path), "--output", str(path)]
    command = [MPILAUNCH, "measure-links", *options, "--hosts", "node0:2,node1:2", "--workers", "4"]
    # It runs fourteen jobs, each of which begins and ends on both hosts: two minutes on a slow machine that
    # does nothing else, seven beside other tests.
    done = subprocess.run(
        cluster.command(LOGIN, command), capture_output=True, text=True, timeout=900, check=False
    )
    cluster.check_nothing_left()
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    text = path.read_text()
    found = read_cluster(text)
    assert (found.hosts, found.devices) == (2, 2)
    for what in (
        "mpi, hosts 0 and 1: ",
        "tcp, hosts 0 and 1: ",
        "mpi, within host 0: ",
        "mpi, within host 1: ",
    ):
        assert f"# {what}" in text
    assert "# a slice: " in text
    assert 0 < found.slice_s < 1e-3
    for rows, way in ((found.rows_servers, "servers"), (found.rows_allreduce, "allreduce")):
        assert f"# rows of tables by {way}: steps of few " in text
        assert 0 <= rows.table_s < 0.1
        assert 0 < rows.byte_s < 1e-6
    # What a table costs is fitted, and on a busy machine one of the two may be lost in what a step takes.
    assert max(found.rows_servers.table_s, found.rows_allreduce.table_s) > 0
