"""Training with row-sparse gradients and weights equals one process, on every layout of a job."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.often import ONE_OF_MANY
from support.places import Here

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
    found = train(tmp_path, place, layout, steps, SPARSE_CHECKS)
    assert [*found] == [*SPARSE_CHECKS]


@pytest.mark.thorough
@pytest.mark.parametrize("layout", [(2, 2, 2), pytest.param((1, 4, 0), marks=pytest.mark.sampled)], ids=str)
def test_repeated_jobs_are_bit_identical(tmp_path, layout):
    """A second job, with other processes and other timing, gives the same bits."""
    names = ["gradients_and_adam", "weights_and_adagrad"]
    first, second = (train(tmp_path / str(number), Here(), layout, FEW_STEPS, names) for number in range(2))
    assert first == second


def train(folder, place, layout, steps, names):
    """Train in one job; return the digest of the weights of each check, which all workers must have."""
    clients, per_client, servers = layout
    folder.mkdir(exist_ok=True)
    command = [
        str(Path(sys.executable).with_name("mpilaunch")),
        *("--clients", str(clients), "--workers", str(clients * per_client), "--servers", str(servers)),
        *("--log-dir", str(folder), "--env", "OMP_NUM_THREADS=1"),
        *place.options(layout),
        *("-m", "kvstore_mpi.testing.mxnet_sparse_training", "--steps", str(steps), "--only", *names),
    ]
    done = subprocess.run(
        place.command(command),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        cwd=folder,
        env=dict(os.environ),
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    digests = {}
    for name in names:
        assert done.stdout.count(f"passed: {name}\n") == clients * per_client
        found = re.findall(rf"digest: {name} (\w+)\n", done.stdout)
        assert found == found[:1] * clients * per_client, name
        digests[name] = found[0]
    return digests
