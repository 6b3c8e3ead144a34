"""Describes the machine, the software and the checkout; measures how fast it copies, and runs Python.

It must not know what is compared with these speeds.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

COPY_BYTES = 128 * 2**20
COPY_ROUNDS = 8
TURNS = 50_000
ROUNDS = 5
ROOT = Path(__file__).resolve().parents[2]
MAY_DIFFER = (":!benchmarks/results", ":!docs/images")
"""What benchmarks write themselves, so that one does not keep the next from measuring."""

PACKAGES = ("mxnet", "numpy", "mpi4py", "mpich", "kvstore-mpi")


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


def python_turn_ns() -> float:
    """Return the nanoseconds of a turn of a loop of usual Python, the best of several rounds.

    They tell processors apart, and builds of one version of Python, of which some take 1.4 times as long.
    """
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter_ns()
        _take_turns()
        times.append(time.perf_counter_ns() - begin)
    return min(times) / TURNS


class _Record:
    __slots__ = ("number", "seen")

    def __init__(self, number: int) -> None:
        self.number = number
        self.seen: dict[int, int] = {}

    def plus(self, number: int) -> int:
        return self.number + number


def _take_turns() -> None:
    total = 0
    for number in range(TURNS):
        record = _Record(number)
        total += record.plus(2)
        record.seen[number] = total
        pair = [record, total]
        total = len(pair) + max(1, 2)


def describe() -> dict[str, Any]:
    """Return the machine and the versions of what is measured."""
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
        "python_turn_ns": python_turn_ns(),
        "versions": {name: _version(name) for name in PACKAGES},
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


@dataclass(frozen=True)
class Tree:
    """The checkout that is measured.

    Attributes:
        commit: Its commit; empty outside of one.
        changed: In what it differs from that commit: files, and a package that comes from elsewhere.
    """

    commit: str
    changed: tuple[str, ...]


def tree(root: Path = ROOT) -> Tree:
    """Return the commit of a checkout, and what differs from it, results and pictures left out."""
    commit = _git(root, "rev-parse", "--short=12", "HEAD").strip()
    if not commit:
        return Tree("", ("no git checkout",))
    lines = _git(
        root, "status", "--porcelain", "--untracked-files=all", "--", ".", *MAY_DIFFER
    ).splitlines()
    return Tree(commit, tuple(line[3:] for line in lines) + _foreign_package(root))


def _foreign_package(root: Path) -> tuple[str, ...]:
    """Return where the package is imported from, if that is not this checkout."""
    found = importlib.util.find_spec("kvstore_mpi")
    origin = Path(found.origin).resolve() if found and found.origin else None
    if root != ROOT or origin is None or origin.is_relative_to(root):
        return ()
    return (f"kvstore_mpi of {origin.parent}",)


def _git(root: Path, *words: str) -> str:
    """Return what git prints; nothing where there is no git, or no checkout."""
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout if done.returncode == 0 else ""
