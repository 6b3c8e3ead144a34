"""Updates made of several batches over real processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

MPILAUNCH = str(Path(sys.executable).with_name("mpilaunch"))

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.mxnet,
    pytest.mark.slow,
    pytest.mark.thorough,
    pytest.mark.timeout(300),
]


@pytest.mark.paper("Pal et al. section 4")
def test_two_workers_with_a_delay_of_three_equal_one_process_with_the_whole_batch(tmp_path):
    """The delay is that of mpilaunch; the learning rate is scaled with it."""
    done = subprocess.run(
        [MPILAUNCH, "--workers", "2", "--delay", "3", "-m", "support.delayed_training"],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    found = [float(text) for text in re.findall(r"distance (\S+)", done.stdout)]
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert len(found) == 2
    assert max(found) <= 1e-5
