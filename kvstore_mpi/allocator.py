"""Tells the C library's allocator of a process to keep memory that it will need again at once.

By default glibc returns what is free at the end of its heap to the system, and the pages are faulted in
anew for what comes next: the memory of each large message in a server, 15 % of its CPU time at 100 MB a
round, and of each step's outputs in a worker on CPUs, up to 9 % of its steps (docs/model-parallel.md).

It stands apart from who calls it, servers and ranks, because it changes the whole process in glibc's terms.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

KEEP_BYTES = 256 << 20
"""Free memory at the end of the heap up to which nothing is returned."""

LARGEST_HEAP_BYTES = 32 << 20
"""Larger pieces are mapped one by one, as always; glibc allows no more."""


def keep_freed_memory(environment: Mapping[str, str]) -> bool:
    """Ask for it, unless the user has told glibc something else; return whether it does so.

    Args:
        environment: Of this process.
    """
    told = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in environment)
    mallopt = None if told else getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    kept = mallopt(_M_TRIM_THRESHOLD, KEEP_BYTES)
    return bool(kept and mallopt(_M_MMAP_THRESHOLD, LARGEST_HEAP_BYTES))
