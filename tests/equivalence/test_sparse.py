"""Training with row-sparse gradients and weights equals one process, on every layout of a job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.often import ONE_OF_MANY

pytest.importorskip("mxnet")

from kvstore_mpi.testing.mxnet_sparse_training import SPARSE_CHECKS

pytestmark = [pytest.mark.mpi, pytest.mark.mxnet, pytest.mark.slow, pytest.mark.timeout(420)]

LAYOUTS = [
    # clients, workers in each, servers
    *((1, 1, servers) for servers in (0, 1, 2)),
    *((1, 2, servers) for servers in (0, 1, 2)),
    *((1, 4, servers) for servers in (0, 1, 2)),
    *((2, 1, servers) for servers in (1, 2)),
    *((2, 2, servers) for servers in (1, 2)),
]
OFTEN = [(2, 2, 2)]
"""Layouts that every change trains on: ranks of clients that meet at servers."""


STEPS, FEW_STEPS = 50, 8


@pytest.mark.parametrize(
    ("layout", "steps"),
    [
        *((layout, FEW_STEPS) for layout in OFTEN),
        *(pytest.param(layout, STEPS, marks=ONE_OF_MANY) for layout in LAYOUTS),
    ],
    ids=lambda value: "x".join(map(str, value)) if isinstance(value, tuple) else str(value),
)
def test_equals_one_process(tmp_path, place, layout, steps):
    """After all steps the weights are those of one process, whose gradients may be dense."""
    clients, per_client, servers = layout
    command = [
        str(Path(sys.executable).with_name("mpilaunch")),
        *("--clients", str(clients), "--workers", str(clients * per_client), "--servers", str(servers)),
        *("--log-dir", str(tmp_path), "--env", "OMP_NUM_THREADS=1"),
        *place.options(layout),
        *("-m", "kvstore_mpi.testing.mxnet_sparse_training", "--steps", str(steps)),
    ]
    done = subprocess.run(
        place.command(command),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        cwd=tmp_path,
        env=dict(os.environ),
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    for name in SPARSE_CHECKS:
        assert done.stdout.count(f"passed: {name}\n") == clients * per_client
