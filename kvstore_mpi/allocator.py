"""Tells the C library's allocator of a server to keep memory that it will need again at once.

The memory of each large message is allocated when it comes and freed when it was used. By default glibc
returns what is free at the end of its heap to the system after each message, and the pages are faulted in
anew for the next: 15 % of a server's CPU time at 100 MB a round over ipc. Only servers do this; a worker's
process is the user's.

It stands apart from ``__main__``, its one caller, because it changes the whole process in glibc's terms,
and apart from ``server/``, whose modules also run in processes of others, such as tests.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

KEEP_BYTES = 256 << 20
"""Free memory at the end of the heap up to which nothing is returned."""

LARGEST_HEAP_BYTES = 32 << 20
"""Larger pieces are mapped one by one, as always; glibc allows no more."""


def keep_freed_memory() -> bool:
    """Ask for it; return whether this C library understands."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    kept = mallopt(_M_TRIM_THRESHOLD, KEEP_BYTES)
    return bool(kept and mallopt(_M_MMAP_THRESHOLD, LARGEST_HEAP_BYTES))
