"""Exchange buffers in shared memory, so that a server on the same host works on them where they lie.

The worker allocates its buffers from an ``Arena`` of anonymous memory files, and tells each server of its
host where a key's buffer is; the server maps it through a ``Directory``. Only references then travel: the
server reads the gradient from, and writes the new value to, the worker's own buffer. From push until the
answer the buffer belongs to the store, so nobody else touches it meanwhile.

There is no file to be left behind: a memory file lives as long as somebody maps it. Whether the other side
may open it is for the kernel to say (same user); a token at the start of each file shows that it is the one
that was meant, and the sizes are checked before anything is mapped.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import secrets
import stat
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from kvstore_mpi.host_name import host_name

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]

SEGMENT_BYTES = 64 << 20
"""Buffers share files of this size, because each file costs the process a descriptor; larger ones get a
file of their own. Memory that is not touched is not used."""

ALIGNMENT = 64
"""Bytes of a cache line."""

LARGE_BYTES = 256 << 10
"""Buffers from this size on begin with a page, so that no two of them have one in common: a page can be
registered with a GPU but once."""

TOKEN_BYTES = 32


class Place(NamedTuple):
    """Where a buffer lies: enough for another process of the host to find it.

    Attributes:
        host: Identity of the running host.
        path: The memory file, by way of the owner's descriptor.
        token: First bytes of the file.
        segment_bytes: Size of the file.
        offset: Where the buffer begins.
        num_bytes: Size of the buffer.
    """

    host: str
    path: str
    token: bytes
    segment_bytes: int
    offset: int
    num_bytes: int


class _Segment(NamedTuple):
    descriptor: int
    path: str
    token: bytes
    memory: mmap.mmap


class Arena:
    """Memory for exchange buffers that servers of the same host can map."""

    def __init__(self) -> None:
        """Make an arena without memory."""
        self._segments: list[_Segment] = []
        self._free = 0  # where the room of the last segment begins
        self._places: dict[int, Place] = {}
        self._in_use: Counter[bytes] = Counter()  # buffers that are not empty, by segment

    @staticmethod
    def available() -> bool:
        """Return whether this system has anonymous memory files."""
        return hasattr(os, "memfd_create")

    def allocate(self, size: int, dtype: np.dtype[Any]) -> Array:
        """Return a 1-D buffer aligned as ``alignment_of`` says; others can map it until ``close``.

        Raises:
            OSError: The system refuses a memory file.
        """
        num_bytes = size * dtype.itemsize
        alignment = alignment_of(num_bytes)
        start = -(-self._free // alignment) * alignment
        if not self._segments or start + num_bytes > len(self._segments[-1].memory):
            self._add_segment(alignment + num_bytes)
            start = alignment
        segment = self._segments[-1]
        self._free = start + num_bytes
        buffer = np.frombuffer(segment.memory, dtype, size, start)
        self._places[buffer.ctypes.data] = Place(
            host_identity(), segment.path, segment.token, len(segment.memory), start, num_bytes
        )
        self._in_use[segment.token] += num_bytes > 0
        return buffer

    def free(self, buffer: Array) -> None:
        """Give up a buffer: with all of a file that memory ends, once nobody has a view of it any more."""
        place = self.place(buffer)
        # An empty buffer may begin where the next one does.
        if place is None or not place.num_bytes:
            return
        del self._places[buffer.ctypes.data]
        self._in_use[place.token] -= 1
        if self._in_use[place.token]:
            return
        del self._in_use[place.token]
        [segment] = [each for each in self._segments if each.token == place.token]
        was_last = segment is self._segments[-1]
        self._segments.remove(segment)
        os.close(segment.descriptor)
        if was_last and self._segments:
            self._free = len(self._segments[-1].memory)  # what that has left is not known any more

    def _add_segment(self, num_bytes: int) -> None:
        descriptor = os.memfd_create("kvstore_mpi", os.MFD_CLOEXEC)
        size = max(SEGMENT_BYTES, num_bytes)
        try:
            os.ftruncate(descriptor, size)
            memory = mmap.mmap(descriptor, size)
        except OSError:
            os.close(descriptor)
            raise
        token = secrets.token_bytes(TOKEN_BYTES)
        memory[:TOKEN_BYTES] = token
        path = f"/proc/{os.getpid()}/fd/{descriptor}"
        self._segments.append(_Segment(descriptor, path, token, memory))

    def place(self, buffer: Array) -> Place | None:
        """Return where a buffer lies, or ``None`` if it is not from here."""
        place = self._places.get(buffer.ctypes.data)
        return place if place is not None and place.num_bytes == buffer.nbytes else None

    def close(self) -> None:
        """Let nobody else map the memory; it ends when all who have, and all its buffers, are gone."""
        for segment in self._segments:
            os.close(segment.descriptor)
        self._segments.clear()
        self._places.clear()


class Directory:
    """The memory files of other processes that this process has mapped."""

    def __init__(self) -> None:
        """Start without any."""
        # A file stays mapped as long as there is a view of it: whoever forgets a process's buffers frees
        # its memory, which would otherwise stay with every one that was started again.
        self._mapped: WeakValueDictionary[bytes, mmap.mmap] = WeakValueDictionary()

    def open(self, place: Place) -> memoryview | None:
        """Map a buffer; ``None`` if it cannot be reached from here, so that its bytes have to travel."""
        if place.host != host_identity() or place.offset + place.num_bytes > place.segment_bytes:
            return None
        memory = self._mapped.get(place.token) or _map(place)
        if memory is None:
            return None
        self._mapped[place.token] = memory
        return memoryview(memory)[place.offset : place.offset + place.num_bytes]


def alignment_of(num_bytes: int) -> int:
    """Return of what a buffer's address is a multiple: bytes of a cache line or, if large, of a page."""
    return mmap.PAGESIZE if num_bytes >= LARGE_BYTES else ALIGNMENT


def _map(place: Place) -> mmap.mmap | None:
    try:
        status = Path(place.path).stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size != place.segment_bytes:
            return None
        descriptor = os.open(place.path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        memory = mmap.mmap(descriptor, place.segment_bytes)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return memory if memory[:TOKEN_BYTES] == place.token else None


def host_identity() -> str:
    """Return what tells this running host, or container, from all others."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    text = boot.read_text(encoding="ascii") if boot.exists() else ""
    return hashlib.sha256(f"{text}{host_name()}".encode()).hexdigest()[:16]
