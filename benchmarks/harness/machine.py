"""Describes the machine and the software, and measures how fast this machine copies memory.

It must not know what is compared with that speed.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

COPY_BYTES = 128 * 2**20
COPY_ROUNDS = 8
PACKAGES = ("mxnet", "numpy", "pyzmq", "mpi4py", "mpich", "kvstore-mpi")


def memcpy_bytes_per_s() -> float:
    """Return how many bytes all cores together copy per second, the best of several rounds.

    Each core copies its own array, larger than the caches; a copied byte is read once and written once.
    """
    cores = os.cpu_count() or 1
    sources = [np.ones(COPY_BYTES, np.uint8) for _ in range(cores)]
    targets = [np.ones(COPY_BYTES, np.uint8) for _ in range(cores)]
    with ThreadPoolExecutor(cores) as pool:
        times = []
        for _ in range(COPY_ROUNDS):
            begin = time.monotonic()
            list(pool.map(np.copyto, targets, sources))
            times.append(time.monotonic() - begin)
    return cores * COPY_BYTES / min(times)


def describe() -> dict[str, Any]:
    """Return the machine, the versions of what is measured, and the commit."""
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "commit": _commit(),
    }


def _processor() -> str:
    """Return the name that Linux gives the processor."""
    match = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return match[1] if match else platform.machine()


def _version(package: str) -> str:
    """Return the installed version of a package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """Return the commit of this checkout, marked if files differ from it; empty outside of one."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return done.stdout.strip()
