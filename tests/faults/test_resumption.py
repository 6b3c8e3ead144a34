"""A job that goes on with more servers than it had."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = [pytest.mark.mpi, pytest.mark.mxnet, pytest.mark.slow, pytest.mark.timeout(300)]


def expected(steps):
    """Return the table of one process, in numbers that float32 has exactly."""
    weight, momentum = np.arange(46.0).reshape(23, 2), np.zeros((23, 2))
    for step in range(steps):
        gradient = np.zeros((23, 2))
        for rank in range(2):
            gradient[[step % 5, 5 + (3 * step + rank) % 18]] += 1
        rows = gradient[:, 0] > 0
        momentum[rows] = 0.5 * momentum[rows] - 0.5 * gradient[rows]
        weight[rows] += momentum[rows]
    return weight


def test_a_table_goes_on_with_other_servers(start, tmp_path):
    """Values and momentum are those of a training without a break, to the bit."""
    snapshots, result = tmp_path / "snapshots", tmp_path / "result.npy"
    for servers, begin, more in ((2, 0, ()), (3, 8, ("--resume",))):
        options = ("--snapshot-dir", snapshots, *more)
        steps = {"STEPS": f"{begin} {begin + 8}"}
        job = start(
            result, (1, 2, servers), script="resuming_tables.py", options=options, environment=steps
        )
        code, said = job.end()
        assert code == 0, said[-3000:]
        np.testing.assert_array_equal(np.load(result), expected(begin + 8))
        bases = {f"server{index}-of-{servers}.snapshot" for index in range(servers)}
        assert {path.name for path in snapshots.glob("*.snapshot")} == bases
