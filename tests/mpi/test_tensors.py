"""Tensors in real processes: the way that ``auto`` takes follows their size, and where the ranks are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpilaunch.mpi import find_mpi

SCRIPT = Path(__file__).with_name("tensors.py")
TWO_HOSTS = {"MPIR_CVAR_NUM_CLIQUES": "2"}
"""Even and odd ranks share no memory for MPICH, and are two hosts."""


def ways(ranks, environment):
    """Return the lines of all ranks, by rank and size."""
    mpi = find_mpi()
    if environment and mpi.flavour.name != "Hydra":
        pytest.skip("only MPICH can be told to see several hosts in one")
    start = [mpi.mpiexec, *mpi.flavour.options, "-n", str(ranks)]
    done = subprocess.run(
        [*start, sys.executable, "-m", "mpi4py", str(SCRIPT)],
        env={**os.environ, **dict(mpi.flavour.env), **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return dict(line.split(": ") for line in done.stdout.splitlines() if line.startswith("rank "))


def expected(ranks, otherwise, large):
    """Return such lines, given what each rank is to say of two large vectors, and of all else."""
    return {
        f"rank {rank}, {size} x {count}": (large if size * count > 20_000 else otherwise)[rank]
        for rank in range(ranks)
        for size in (1_000, 25_003)
        for count in (1, 2)
    }


@pytest.mark.mpi
@pytest.mark.timeout(300)
def test_two_ranks_of_a_host():
    """MPI's own, and for large tensors shared memory: nothing is sent."""
    assert ways(2, {}) == expected(2, ["library"] * 2, ["memory"] * 2)


@pytest.mark.mpi
@pytest.mark.timeout(300)
def test_two_hosts():
    """On two levels: two of three ranks share a host, of which one sends."""
    apart = ["memory, rank 1", "memory, rank 0", "memory"]
    assert ways(3, TWO_HOSTS) == expected(3, apart, apart)
