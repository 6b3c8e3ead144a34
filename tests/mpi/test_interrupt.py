"""Ctrl-C ends a job of real stores with one line: the ranks have been told to end and do not complain."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.often import often

SCRIPT = """
import mxnet as mx

kv = mx.kv.create("dist_sync_mpi")
weight = mx.nd.ones((4,))
kv.init(0, weight)
for step in range(10**9):
    kv.pushpull(0, weight, out=weight)
    weight.wait_to_read()
    if step == 1:
        print("ready")
"""


@pytest.mark.mpi
@pytest.mark.mxnet
@pytest.mark.timeout(300)
@pytest.mark.parametrize("layout", often([(1, 2, 0)], [(2, 4, 1), (1, 2, 0)]))
def test_an_interrupt_is_one_line(tmp_path, layout):
    """In a job with servers and in pure MPI, whoever hears of it first."""
    clients, workers, servers = map(str, layout)
    (tmp_path / "train.py").write_text(SCRIPT)
    job = subprocess.Popen(
        [
            *(str(Path(sys.executable).with_name("mpilaunch")), "--log-dir", str(tmp_path / "logs")),
            *("--clients", clients, "--workers", workers, "--servers", servers, str(tmp_path / "train.py")),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    for _ in range(int(workers)):
        line = job.stdout.readline()
        assert line.endswith("| ready\n"), line
    job.send_signal(signal.SIGINT)
    rest = job.stdout.read()
    assert rest.count("\n") == 1, rest
    assert rest.startswith(
        "mpilaunch| the job was ended by SIGINT to mpilaunch; all ranks have ended in time; "
    )
    assert job.wait() == 75
