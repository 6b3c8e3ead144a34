"""Clients whose ranks lie on several hosts, which MPICH is told to see where there is one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.often import often

from mpilaunch.mpi import find_mpi

SCRIPT = Path(__file__).with_name("several_hosts.py")
TWO_HOSTS = {"MPIR_CVAR_NUM_CLIQUES": "2"}
"""Even and odd ranks share no memory for MPICH, and are two hosts."""


@pytest.mark.mpi
@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", often([3], [3, 4]))
def test_sums_stay_within_hosts_as_far_as_they_can(ranks):
    """With as many ranks on both hosts, and with one more on the first."""
    mpi = find_mpi()
    if mpi.flavour.name != "Hydra":
        pytest.skip("only MPICH can be told to see several hosts in one")
    start = [mpi.mpiexec, *mpi.flavour.options, "-n", str(ranks)]
    done = subprocess.run(
        [*start, sys.executable, "-m", "mpi4py", str(SCRIPT)],
        env={**os.environ, **TWO_HOSTS},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("SUMMED") == ranks
