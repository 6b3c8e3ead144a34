"""Arrays of more bytes than 32 bits with a sign can count travel like others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

NEEDED_BYTES = 16e9
"""Two workers with the array and its staging copy, a server with the value, and what MXNet needs."""


@pytest.mark.mpi
@pytest.mark.mxnet
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.sampled
@pytest.mark.timeout(900)  # where several jobs ask for new memory at once it comes slowly
@pytest.mark.parametrize(
    "options",
    [
        ("--clients", "2", "--servers", "1"),
        ("--clients", "1", "--servers", "2", "--transport", "tcp"),
    ],
    ids="".join,
)
def test_more_than_two_gigabytes(tmp_path, options):
    """The sum is right in every element."""
    if psutil.virtual_memory().available < NEEDED_BYTES:
        pytest.skip(f"needs {NEEDED_BYTES / 1e9:.0f} GB of free memory")
    command = [str(Path(sys.executable).with_name("mpilaunch")), *options, "--log-dir", str(tmp_path)]
    script = str(Path(__file__).with_name("large.py"))
    done = subprocess.run([*command, script], capture_output=True, text=True, timeout=880, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "SUM" in done.stdout
