"""Ranks of a client that look up rows together: the same bits as each for itself, and fewer bytes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mxnet")

pytestmark = [pytest.mark.mpi, pytest.mark.mxnet, pytest.mark.slow, pytest.mark.timeout(240)]

SAID = re.compile(r"rank (\d) has (\w+) of (\d+) bytes")


def run(folder: Path, lookups: str, *shape: str) -> tuple[dict[str, str], int]:
    """Run a job; return what each rank's lookups came to, and what all were sent of rows."""
    folder.mkdir()
    command = [
        *(str(Path(sys.executable).with_name("mpilaunch")), "--workers", "4", "--servers", "2", *shape),
        *("--lookups", lookups, "--env", "OMP_NUM_THREADS=1"),
        str(Path(__file__).with_name("lookups.py")),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, cwd=folder)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    said = SAID.findall(done.stdout)
    assert len(said) == 4, done.stdout
    return {rank: digest for rank, digest, _ in said}, sum(int(received) for *_, received in said)


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(("--clients", "2"), id="two clients"),
        pytest.param(("--clients", "1", "--leaders", "all"), id="one client", marks=pytest.mark.thorough),
    ],
)
def test_lookups_together(tmp_path, shape):
    """With Gluon's sparse embedding, through a real job."""
    each, alone = run(tmp_path / "each", "each", *shape)
    together, united = run(tmp_path / "together", "together", *shape)
    assert together == each
    assert united < 0.8 * alone
