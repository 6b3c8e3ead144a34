"""The forward pass of early layers does not wait for late ones, over real processes and without clocks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.often import often


@pytest.mark.mpi
@pytest.mark.mxnet
@pytest.mark.timeout(300)
@pytest.mark.parametrize("transport", often(["tcp"], ["auto", "tcp"]))
def test_early_layers_run_while_the_last_round_waits(tmp_path, transport):
    """With the last layer's answer withheld, the next iteration's first layer computes."""
    command = [
        str(Path(sys.executable).with_name("mpilaunch")),
        *("--clients", "2", "--servers", "1", "--transport", transport),
        *("--log-dir", str(tmp_path)),
        str(Path(__file__).with_name("overlap.py")),
    ]
    environment = {**os.environ, "KVMPI_STEP_TIMEOUT": "120"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=280, check=False, env=environment
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("OVERLAPPED") == 2
