"""MXNet's automatic mixed precision trains over a store as over its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.mpi
@pytest.mark.mxnet
@pytest.mark.slow
def test_mixed_precision_trains(tmp_path):
    """Losses fall, weights are equal everywhere, and a step in which one worker overflows is left out."""
    command = [
        str(Path(sys.executable).with_name("mpilaunch")),
        *("--clients", "2", "--servers", "1", "--log-dir", str(tmp_path)),
        str(Path(__file__).with_name("amp_job.py")),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    for where in ("on the servers", "by the workers"):
        first, second = re.findall(f"TRAINED {where} (.*)", done.stdout)
        assert first == second
