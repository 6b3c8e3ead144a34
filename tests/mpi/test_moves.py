"""Tables that leave the servers while a job of two workers trains, and one that is never there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mxnet")

pytestmark = [pytest.mark.mpi, pytest.mark.mxnet, pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.mark.thorough
def test_tables_leave_the_servers_when_that_is_cheaper(tmp_path):
    """And training comes to what one process comes to; the servers hear that nobody uses them any more."""
    command = [
        str(Path(sys.executable).with_name("mpilaunch")),
        *(
            "--clients",
            "1",
            "--workers",
            "2",
            "--servers",
            "1",
            "--routes",
            "forced_*=servers,gathered_*=rows",
        ),
        *("--log-dir", str(tmp_path), "--env", "OMP_NUM_THREADS=1"),
        str(Path(__file__).with_name("moves.py")),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, cwd=tmp_path)
    logs = "".join(path.read_text() for path in tmp_path.glob("*.log"))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:] + logs[-3000:]
    said = done.stdout + done.stderr + logs
    # Two rules, the one that is exact, and the one whose bits are compared; two more go to and fro.
    assert said.count("the workers sum it from now on") == 4 + 2 * (1 + 2 + 2)
    assert said.count("the servers have it from now on") == 2 * (1 + 1 + 2) + 1
