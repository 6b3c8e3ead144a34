"""Ranks of a client whose programs wait at other places than their leader's, in real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MPILAUNCH = str(Path(sys.executable).with_name("mpilaunch"))
SCRIPT = str(Path(__file__).with_name("waiting_ranks.py"))
THOROUGH = pytest.mark.thorough


@pytest.mark.mpi
@pytest.mark.mxnet
@pytest.mark.timeout(120)
@pytest.mark.parametrize("size", [pytest.param(20, marks=THOROUGH), 100_000])
@pytest.mark.parametrize(
    "layout",
    [
        "--workers 3",
        "--workers 2 --servers 2 --dense servers",
        pytest.param("--workers 2 --servers 1 --dense servers --leaders all", marks=THOROUGH),
        pytest.param("--clients 2 --workers 4 --servers 2", marks=THOROUGH),
        # Large gradients that servers cannot map are sent from where they lie.
        pytest.param("--workers 2 --servers 2 --dense servers --transport tcp", marks=THOROUGH),
    ],
)
def test_a_rank_that_waits_more_often_than_others_holds_up_nobody(tmp_path, layout, size):
    """Nor does one that waits less often: all get the values of a step, wherever the others are."""
    done = subprocess.run(
        [MPILAUNCH, *layout.split(), "--set", "step_timeout=30", SCRIPT, str(size)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("right") == int(layout.split("--workers ")[1][0])
