"""The benchmarks of threads and of told numbers share a worker's keys with pushpull's: each runs, once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.mxnet, pytest.mark.mpi, pytest.mark.slow, pytest.mark.thorough]

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
DEADLINE_S = 120
COMMANDS = {
    "where_time_goes.py": "--no-trace --variants 2x1-tcp",
    "metrics.py": "--turns 1 --block 2",
}


@pytest.mark.parametrize("script", COMMANDS)
def test_it_runs_and_writes_what_it_found(script: str, tmp_path: Path) -> None:
    """One small key, in one job."""
    written = tmp_path / "found.json"
    options = f"{COMMANDS[script]} --cases 4KB --repeats 1 --dirty --allow-load --json"
    command = [sys.executable, str(BENCHMARKS / script), *options.split(), str(written)]
    subprocess.run(command, check=True, timeout=DEADLINE_S)
    assert json.loads(written.read_text())["runs"]
