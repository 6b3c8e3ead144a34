"""Stores that are closed: their memory is gone, and whoever comes back does not bring them back."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from support.often import often

from kvstore_mpi.server.snapshot_file import read

pytestmark = [pytest.mark.mpi, pytest.mark.mxnet, pytest.mark.slow, pytest.mark.timeout(300)]

STORE_MB = 20


def peak_mb(pid):
    """Return how much a process has had in memory at most."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) / 1024


KINDS = {
    "servers": ((1, 2, 1), "sync-mpi"),
    "MPI": ((1, 2, 0), "sync-mpi"),
    "async": ((2, 1, 1), "async-mpi"),
}


@pytest.mark.parametrize("kind", often(["servers", "MPI"], KINDS))
def test_stores_that_are_closed_one_after_the_other_take_the_memory_of_a_few(start_here, tmp_path, kind):
    """Of a worker and of a server: seven more stores of 20 MB, and their optimizers, do not show."""
    layout, mode = KINDS[kind]
    pipes = [tmp_path / f"pipe{rank}" for rank in range(2)]
    for pipe in pipes:
        os.mkfifo(pipe)
    how = {"script": "many_stores.py", "environment": {"MODE": mode}}
    job = start_here(tmp_path / "pipe", layout, **how)
    peaks = []
    for stores in (5, 12):
        lines = job.wait_for(f"stores {stores}", 2)
        pids = [int(line.split("READY ")[1].split()[1]) for line in lines]
        pids += [pid for name, pid in job.services().items() if name == "server0"]
        peaks.append({pid: peak_mb(pid) for pid in pids})
        for pipe in pipes:
            pipe.write_bytes(b"")
    code, said = job.end()
    assert code == 0, said[-3000:]
    assert len(peaks[0]) == 2 + layout[2]
    grown = {pid: peaks[1][pid] - before for pid, before in peaks[0].items()}
    assert max(grown.values()) < 3 * STORE_MB, grown


def test_a_server_that_comes_back_has_nothing_of_a_closed_store(start_here, tmp_path):
    """Though its snapshot, or a client, may know it still; what goes on has all that it had."""
    snapshots = tmp_path / "snapshots"
    options = ("--max-restarts", "1", "--snapshot-dir", snapshots, "--snapshot-every", "1")
    how = {"script": "closing.py", "options": options, "environment": {"MODE": "async-mpi"}}
    job = start_here(tmp_path / "stop", (1, 2, 1), **how)
    job.workers(2)
    job.wait_for_news(snapshots / "server0-of-1.snapshot")
    os.kill(job.services()["server0"], signal.SIGKILL)
    job.wait_for("server0 is back", 2)
    (tmp_path / "stop").touch()
    code, said = job.end()
    assert code == 0, said[-3000:]
    assert len(re.findall("DONE . incarnation 0", said)) == 2
    header = read(snapshots / "server0-of-1.snapshot").header
    assert [(key.spec.store, key.key_id) for key in header.keys] == [(1, 1)]
    assert [*header.specs] == [1]
    assert header.retired == [0]


def test_the_only_client_begins_with_a_closed_store_again(start_here, tmp_path):
    """All of its ranks do, and nobody else is there: it is made anew, and closed anew."""
    os.mkfifo(tmp_path / "pipe")
    how = {"script": "closing.py", "environment": {"MODE": "sync-mpi"}}
    job = start_here(tmp_path / "pipe", (1, 2, 1), options=("--max-restarts", "1"), **how)
    os.kill(job.workers(2)[1], signal.SIGKILL)
    code, said = job.end()
    assert code == 0, said[-3000:]
    assert len(re.findall("DONE . incarnation 1", said)) == 2
