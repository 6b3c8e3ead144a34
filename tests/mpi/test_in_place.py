"""Large gradients are sent from where they lie, over real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.mpi
@pytest.mark.mxnet
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("clients", "transport", "how"),
    [
        *((3, "tcp", "in place"), (3, "auto", "copied")),
        pytest.param(1, "tcp", "copied", marks=pytest.mark.thorough),
    ],
)
def test_a_gradient_counts_as_it_was_pushed(tmp_path, clients, transport, how):
    """Whatever is written to it afterwards: sent from where it lies only where that saves a copy."""
    command = [
        str(Path(sys.executable).with_name("mpilaunch")),
        *("--workers", "3", "--clients", str(clients), "--servers", "2"),
        *("--transport", transport, "--log-dir", str(tmp_path)),
        str(Path(__file__).with_name("in_place.py")),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert [done.stdout.count(f"TRAINED {rank} {how}") for rank in range(3)] == [1, 1, 1]
