"""Memory that a process keeps for what it will need again at once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

FAULTS = """
import os, resource
import numpy as np
from kvstore_mpi.allocator import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [np.ones(24 << 20, np.uint8) for _ in range(3)]
    del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keeps = keep_freed_memory(os.environ)
print(keeps, [faults() for _ in range(4)][-1])
"""
PAGES = 3 * (24 << 20) // 4096


@pytest.mark.parametrize(
    ("told", "keeps"),
    [({}, True), ({"MALLOC_TRIM_THRESHOLD_": "1000000"}, False), ({"GLIBC_TUNABLES": ""}, False)],
)
def test_what_is_freed_is_used_again(told, keeps):
    """Its pages are not faulted in anew, unless the user has said what glibc is to do."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", FAULTS]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**environment, **told}, timeout=60
    )
    said, faults = done.stdout.split()
    assert said == str(keeps)
    assert (int(faults) < PAGES / 20) == keeps
